"""Metrics: how a stream is scored, summed, drawn and written."""

from ctta_bench.names import late

__getattr__ = late(__name__, "base")  # as in 0.1.0
