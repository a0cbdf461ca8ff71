"""Running one cell: open it, prepare it, run its stream, save its results."""
