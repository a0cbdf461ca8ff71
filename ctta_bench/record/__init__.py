"""A run's record: its files and keys (schema), who holds a cell (owner), reading and writing it."""

from ctta_bench.names import late

# What 0.1.0 offered as `record` and `analysis.folders`.
__getattr__ = late(__name__, "folder", "read", "find")
