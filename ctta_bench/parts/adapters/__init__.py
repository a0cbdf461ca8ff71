"""Linear layers whose frozen weight is adapted by a few parameters."""

from ctta_bench.names import late

__getattr__ = late(__name__, "weights")  # the names of the former module
