"""The tables of a report, one file each."""

from ctta_bench.names import late

__getattr__ = late(__name__, "main")  # as in 0.1.0
