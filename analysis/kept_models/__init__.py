"""Models that runs kept: their weights, geometry and attention maps."""
