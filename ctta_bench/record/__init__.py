"""Run folders: files and keys (schema), the process that runs a cell (owner), reading, writing."""

from ctta_bench.names import late

# Names of the modules `record` and `analysis.folders` of 0.1.0.
__getattr__ = late(__name__, "folder", "read", "find")
