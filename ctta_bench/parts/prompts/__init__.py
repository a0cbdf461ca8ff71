"""Prompts: tokens or pixels that learn in front of a frozen network."""

from ctta_bench.names import late

__getattr__ = late(__name__, "learner")  # all that the module of this name had
