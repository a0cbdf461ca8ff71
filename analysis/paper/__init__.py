"""The printed numbers of the paper of PAID, quoted next to measured ones."""

from ctta_bench.names import late

__getattr__ = late(__name__, "printed")  # as in 0.1.0
