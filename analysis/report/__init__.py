"""A folder of runs as one page with tables and figures."""

from ctta_bench.names import late

__getattr__ = late(__name__, "write")  # as in 0.1.0
