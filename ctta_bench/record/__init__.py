"""A run's record: its files and keys (schema), who holds a cell (owner), reading and writing it."""

from ctta_bench.names import late

__getattr__ = late(__name__, "folder")  # the names of 0.1.0
