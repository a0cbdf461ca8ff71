"""Families: what methods of one kind share but for `adapt`, which each has in its own file."""
