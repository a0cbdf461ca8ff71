"""Norm: DequanWang/tent (batch statistics), mariodoebler's mixed and averaged ones."""

from typing import Any

from torch import Tensor

from ctta_bench.method import Method
from ctta_bench.methods.official import Case, Translation

MARIO = "mariodoebler/test-time-adaptation"


def batch(case: Case) -> dict[str, Any]:
    """The official form, which updates running statistics without using them."""
    plain = {"eps": 1e-5, "momentum": 0.1, "reset_stats": False, "no_stats": False}
    case["hyper_parameters"].require(plain)
    return {"statistics": "batch", "faithful": True}


def alpha(case: Case) -> dict[str, Any]:
    """Statistics mixed by α."""
    return {"statistics": "alpha", "alpha": case["hyper_parameters"]["cfg"].get("BN.ALPHA", 0.1)}


def ema(case: Case) -> dict[str, Any]:
    """Running statistics with the layers' default momentum."""
    case["hyper_parameters"].get("cfg")  # may be empty
    return {"statistics": "ema", "faithful": True}


def statistics(method: Method, prefix: str = "") -> dict[str, Tensor]:
    """Running statistics by name."""
    buffers = method.model.network.named_buffers()
    return {f"{prefix}{n}": b for n, b in buffers if "running" in n}


def wrapped(method: Method) -> dict[str, Tensor]:
    """The same by the names of the official wrapper."""
    return statistics(method, "model.")


def of_the_batch(method: Method) -> dict[str, Tensor]:
    """The batch's share of mixed statistics, which the official code has in an inner layer."""
    found, share = {}, method.hp.alpha
    norms: dict[str, Any] = method.norms()  # type: ignore[attr-defined]
    for name, norm in norms.items():
        source = method.source[name]  # type: ignore[attr-defined]
        for key, old in zip(("running_mean", "running_var"), source, strict=True):
            mixed = getattr(norm, key)
            found[f"{name}.norm.{key}"] = (mixed - (1 - share) * old) / share
    return found


TRANSLATIONS = (
    Translation("DequanWang/tent", "norm.py: Norm", "norm", batch, tensors=statistics),
    Translation(MARIO, "methods/norm.py: BNAlpha", "norm", alpha, tensors=of_the_batch),
    Translation(MARIO, "methods/norm.py: BNEMA", "norm", ema, tensors=wrapped),
)
