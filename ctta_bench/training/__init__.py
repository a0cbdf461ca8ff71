"""Training a source model where a user has none: `ctta-bench train-source`."""
