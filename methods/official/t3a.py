"""T3A: matsuolab/T3A."""

from typing import Any

from ctta_bench.methods.official import Case, Translation


def official(case: Case) -> dict[str, Any]:
    """Settings of the official code, in which -1 keeps all supports."""
    return {"supports": max(case["hyper_parameters"]["filter_K"], 0)}


TRANSLATIONS = (Translation("matsuolab/T3A", "adapt_algorithms.py: T3A", "t3a", official),)
