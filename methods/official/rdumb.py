"""RDumb: the reset counter of mariodoebler/test-time-adaptation with its TENT."""

from typing import Any

from ctta_bench.methods.official import Case, Translation, mario_optimizer


def mario(case: Case) -> dict[str, Any]:
    """Settings of the second implementation."""
    cfg = case["hyper_parameters"]["cfg"]
    interval = {"reset_every": cfg["MODEL.RESET_AFTER_NUM_UPDATES"], "loss": "tent"}
    return mario_optimizer(cfg) | interval


TRANSLATIONS = (
    Translation("mariodoebler/test-time-adaptation", "methods/base.py + tent.py", "rdumb", mario),
)
