"""One file per benchmark family; embedded/ holds what ships in the package."""
