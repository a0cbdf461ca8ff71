"""Prompts: trained tokens or pixels in the input of a frozen network."""

from ctta_bench.names import late

__getattr__ = late(__name__, "learner")  # the names of the former module
