"""Corrupted sets, made from clean images."""

from ctta_bench.names import late

__getattr__ = late(__name__, "corrupted_sets")  # as in 0.1.0
