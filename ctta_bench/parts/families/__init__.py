"""Base classes of similar methods; each method defines `adapt` in its own file."""
