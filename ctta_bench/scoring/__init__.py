"""Metrics: scoring of a stream, summaries, and what tables and figures show of them."""

from ctta_bench.names import late

__getattr__ = late(__name__, "base")  # as in 0.1.0
