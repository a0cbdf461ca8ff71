"""What adapting costs, measured side by side in one process: `ctta-bench cost`, `make bench`."""
