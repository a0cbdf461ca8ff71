"""The measurements of `scripts/bench.py`, one module per command."""
