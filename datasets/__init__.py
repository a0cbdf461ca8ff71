"""One file per benchmark family; embedded/ holds the data that ship with the package."""
