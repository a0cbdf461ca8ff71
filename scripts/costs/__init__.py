"""What `scripts/bench.py` measures, a module a command."""
