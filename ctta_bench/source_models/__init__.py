"""Source models: names, networks, weights."""
