"""LAME: mariodoebler's, which returns probabilities."""

from typing import Any

from ctta_bench.methods.official import Case, Translation


def mario(case: Case) -> dict[str, Any]:
    """Settings of the second implementation."""
    cfg = case["hyper_parameters"]["cfg"]
    return {
        "affinity": cfg.get("LAME.AFFINITY", "rbf").lower(),
        "neighbours": cfg.get("LAME.KNN", 5),
        "symmetric": cfg.get("LAME.FORCE_SYMMETRY", False),
        "faithful": True,
    }


TRANSLATIONS = (
    Translation(
        "mariodoebler/test-time-adaptation",
        "methods/lame.py: LAME",
        "lame",
        mario,
        facts=frozenset({"LAME.SIGMA"}),  # which their code does not use
    ),
)
