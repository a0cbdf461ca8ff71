"""ROID and CMF: mariodoebler/test-time-adaptation, with recorded views."""

from typing import Any

from ctta_bench.methods.official import (
    Case,
    Recorded,
    RecordedAugmentation,
    Translation,
    mario_optimizer,
)

REPOSITORY = "mariodoebler/test-time-adaptation"


def roid(case: Case) -> dict[str, Any]:
    """Settings of the official code and, where unset, its defaults."""
    cfg = case["hyper_parameters"]["cfg"]
    return mario_optimizer(cfg) | {
        "source_momentum": cfg.get("ROID.MOMENTUM_SRC", 0.99),
        "temperature": cfg.get("ROID.TEMPERATURE", 1 / 3),
    }


def cmf(case: Case) -> dict[str, Any]:
    """Settings of the published code and, where unset, its defaults."""
    cfg = case["hyper_parameters"]["cfg"]
    return mario_optimizer(cfg) | {
        "source_momentum": cfg.get("CMF.ALPHA", 0.99),
        "filter_momentum": cfg.get("CMF.GAMMA", 0.99),
        "process_noise": cfg.get("CMF.Q", 0.005),
        "faithful": True,
    }


def set_initial_state(method: Any, case: Case, recorded: Recorded) -> None:
    """Recorded views."""
    method.augment = RecordedAugmentation()


TRANSLATIONS = (
    Translation(REPOSITORY, "methods/roid.py: ROID", "roid", roid, set_initial_state),
    Translation(REPOSITORY, "methods/cmf.py: CMF", "cmf", cmf, set_initial_state),
)
