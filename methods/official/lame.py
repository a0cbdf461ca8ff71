"""LAME: mariodoebler's, which returns probabilities."""

from typing import Any

from ctta_bench.methods.official import Case, Translation


def mario(case: Case) -> dict[str, Any]:
    """Settings of the second implementation."""
    cfg = case["hyper_parameters"]["cfg"]
    return {
        "affinity": cfg["LAME.AFFINITY"].lower(),
        "neighbours": cfg["LAME.KNN"],
        "symmetric": cfg["LAME.FORCE_SYMMETRY"],
        "faithful": True,
    }


TRANSLATIONS = (
    Translation("mariodoebler/test-time-adaptation", "methods/lame.py: LAME", "lame", mario),
)
