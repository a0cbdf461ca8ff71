"""Small sets in the layout of published benchmarks, made from the embedded images."""

from ctta_bench.names import late

__getattr__ = late(__name__, "benchmarks")  # as in 0.1.0
