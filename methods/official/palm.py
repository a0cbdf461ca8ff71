"""PALM: sarthaxxxxx/PALM, with recorded views."""

from typing import Any

from ctta_bench.methods.official import Case, Recorded, RecordedAugmentation, Translation


def official(case: Case) -> dict[str, Any]:
    """Settings of the official code."""
    settings = case["hyper_parameters"]
    return {
        "lr": settings["lr"],
        "weight_decay": settings["weight_decay"],
        "sensitivity_momentum": settings["beta3"],
        "temperature": settings["temperature"],
        "max_gradient": settings["threshold"],
        "consistency_weight": settings["lambda"],
        "faithful": True,
    }


def set_initial_state(method: Any, case: Case, recorded: Recorded) -> None:
    """Recorded views."""
    method.augment = RecordedAugmentation()


TRANSLATIONS = (
    Translation("sarthaxxxxx/PALM", "ours.py: OURS", "palm", official, set_initial_state),
)
