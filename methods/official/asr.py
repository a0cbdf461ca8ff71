"""ASR: YonseiML/asr on its ETA and its ROID, with recorded views."""

from typing import Any

from ctta_bench.methods.official import (
    Case,
    Recorded,
    RecordedAugmentation,
    Settings,
    Translation,
    mario_optimizer,
)

NAMES = {
    "M0": "concentration_rate",
    "P0": "consolidation_weight",
    "A0": "threshold",
    "R0": "kept_share",
    "R1": "kept_slope",
}


def shared(settings: Settings, form: str) -> dict[str, Any]:
    """Settings of the host's optimiser, and of ASR."""
    settings.require({"form": form})
    settings["asr"].require({"ON": True})
    own = {ours: settings["asr"][theirs] for theirs, ours in NAMES.items()}
    return mario_optimizer(settings["cfg"]) | own


def eta(case: Case) -> dict[str, Any]:
    """Settings of ASR on ETA: their EATA without a Fisher term."""
    settings = case["hyper_parameters"]
    cfg: Settings = settings["cfg"]
    cfg.require({"EATA.FISHER_ALPHA": 0.0})
    return shared(settings, "eata") | {
        "margin": cfg["EATA.MARGIN_E0"],
        "max_similarity": cfg["EATA.D_MARGIN"],
    }


def roid(case: Case) -> dict[str, Any]:
    """Settings of ASR on ROID. Its own prior correction is off; the code of ASR has the same."""
    settings = case["hyper_parameters"]
    cfg: Settings = settings["cfg"]
    cfg.require({"ROID.USE_PRIOR_CORRECTION": False})
    return shared(settings, "roid") | {
        "prior": "logits",
        "source_momentum": cfg["ROID.MOMENTUM_SRC"],
        "faithful": not settings.get("reset_network", False),
    }


def set_initial_state(method: Any, case: Case, recorded: Recorded) -> None:
    """Recorded views."""
    method.augment = RecordedAugmentation()


TRANSLATIONS = (
    Translation("YonseiML/asr", "methods/eata.py: EATA with ASR.ON", "asr_eta", eta),
    Translation(
        "YonseiML/asr",
        "methods/roid.py: ROID with ASR.ON",
        "asr_roid",
        roid,
        set_initial_state,
        facts=frozenset({"TEST.BATCH_SIZE"}),  # of the largest batch here
    ),
)
