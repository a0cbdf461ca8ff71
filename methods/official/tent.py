"""TENT: DequanWang/tent (BatchNorm), mr-eggplant/SAR (LayerNorm), mariodoebler's."""

from typing import Any

from ctta_bench.methods.official import Case, Translation, given, mario_optimizer, optimizer


def official(case: Case) -> dict[str, Any]:
    """Settings of the two official forms."""
    settings = case["hyper_parameters"]
    extra = {key: settings[key] for key in ("steps", "episodic") if key in settings}
    return optimizer(settings["optimizer"]) | extra


def mario(case: Case) -> dict[str, Any]:
    """Settings of the second implementation."""
    cfg = case["hyper_parameters"]["cfg"]
    repeated = given(cfg, {"OPTIM.STEPS": "steps", "MODEL.EPISODIC": "episodic"})
    return mario_optimizer(cfg) | repeated


TRANSLATIONS = (
    Translation("DequanWang/tent", "tent.py: Tent", "tent", official),
    Translation("mr-eggplant/SAR", "tent.py: Tent", "tent", official),
    Translation("mariodoebler/test-time-adaptation", "methods/tent.py: Tent", "tent", mario),
)
