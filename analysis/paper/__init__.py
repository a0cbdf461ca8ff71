"""The paper's printed numbers, quoted beside ours."""

from ctta_bench.names import late

__getattr__ = late(__name__, "printed")  # as in 0.1.0
