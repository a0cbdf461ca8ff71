"""Training of source models: `ctta-bench train-source`."""
