"""Measuring the cost of adaptation in one process: `ctta-bench cost`, `make bench`."""
