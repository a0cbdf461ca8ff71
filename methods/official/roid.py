"""ROID and CMF: mariodoebler/test-time-adaptation, with recorded views."""

from typing import Any

from ctta_bench.methods.official import (
    Case,
    Recorded,
    RecordedAugmentation,
    Settings,
    Translation,
    mario_optimizer,
)

REPOSITORY = "mariodoebler/test-time-adaptation"


def shared(cfg: Settings) -> dict[str, Any]:
    """Settings of both, which are named after ROID, and where unset its defaults."""
    return mario_optimizer(cfg) | {
        "weighting": cfg.get("ROID.USE_WEIGHTING", True),
        "consistency": cfg.get("ROID.USE_CONSISTENCY", True),
        "prior": "logits" if cfg.get("ROID.USE_PRIOR_CORRECTION", True) else "off",
        "prediction_rate": round(1 - cfg.get("ROID.MOMENTUM_PROBS", 0.9), 12),
        "temperature": cfg.get("ROID.TEMPERATURE", 1 / 3),
    }


def roid(case: Case) -> dict[str, Any]:
    """Settings of the official code."""
    cfg = case["hyper_parameters"]["cfg"]
    return shared(cfg) | {"source_momentum": cfg.get("ROID.MOMENTUM_SRC", 0.99)}


def cmf(case: Case) -> dict[str, Any]:
    """Settings of the published code and, where unset, its defaults."""
    cfg = case["hyper_parameters"]["cfg"]
    cfg.get("CMF.TYPE")  # lp and op are the same in the published code
    return shared(cfg) | {
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
