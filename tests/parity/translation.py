"""From a golden case to a method of ours, by its source, function and hyper-parameters alone."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ctta_bench.method import Method
from ctta_bench.model import SourceModel
from ctta_bench.registry import METHODS

Case = dict[str, Any]
Aux = dict[str, Tensor]
# Names of adapted tensors: theirs, ours.
RENAMED = ((".hra_u", ".vectors"), (".m", ".magnitude"))


def optimizer(settings: dict[str, Any]) -> dict[str, Any]:
    """Our names for an optimiser's settings."""
    values = {k: v for k, v in settings.items() if k != "name"}
    return values | {"optimizer": settings["name"].lower()}


def mario_optimizer(cfg: dict[str, Any]) -> dict[str, Any]:
    """Our names for the second implementation's configuration keys."""
    return {
        "optimizer": cfg["OPTIM.METHOD"].lower(),
        "lr": cfg["OPTIM.LR"],
        "nesterov": cfg.get("OPTIM.NESTEROV", False),
    }


def source(case: Case) -> dict[str, Any]:
    return {}


def tent(case: Case) -> dict[str, Any]:
    hp = case["hyper_parameters"]
    extra = {k: hp[k] for k in ("steps", "episodic") if k in hp}
    return optimizer(hp["optimizer"]) | extra


def tent_mario(case: Case) -> dict[str, Any]:
    return mario_optimizer(case["hyper_parameters"]["cfg"])


def sar(case: Case) -> dict[str, Any]:
    hp = case["hyper_parameters"]
    return {
        "lr": hp["lr"],
        "momentum": hp["momentum"],
        "rho": hp["rho"],
        "margin": hp["margin_e0"] / math.log(10),
        "recovery_threshold": hp["reset_constant_em"],
        "skip_last_blocks": 0,  # theirs skips blocks 9 to 11, which these models lack
        "faithful": True,
    }


def sar_mario(case: Case) -> dict[str, Any]:
    cfg = case["hyper_parameters"]["cfg"]
    forced = any(part in cfg.get("MODEL.ARCH", "") for part in ("vit_", "swin_"))
    return {
        "lr": 1e-3 if forced else cfg["OPTIM.LR"],
        "margin": cfg.get("EATA.MARGIN_E0", 0.4),
        "recovery_threshold": cfg.get("SAR.RESET_CONSTANT_EM", 0.2),
        "skip_last_blocks": 0,
        "faithful": "mariodoebler",
    }


def paid(case: Case) -> dict[str, Any]:
    hp = case["hyper_parameters"]
    return optimizer(hp.get("optimizer", {"name": "AdamW", "lr": 0.0})) | {
        "rank": hp["rank"],
        "std_weight": hp.get("lambda", 1.0),
        "paired_init": hp["paired_init"],
        "chunks": 4 if hp.get("code") == "cifar" else 1,
        "source_samples": 3000,
        "faithful": True,
    }


# (source repository, words of its function) -> (our method, hyper-parameters)
TABLE: tuple[tuple[str, str, str, Callable[[Case], dict[str, Any]]], ...] = (
    ("-", "model(x) in eval mode", "source", source),
    ("DequanWang/tent", "tent.py", "tent", tent),
    ("mr-eggplant/SAR", "tent.py", "tent", tent),
    ("mariodoebler/test-time-adaptation", "methods/tent.py: Tent", "tent", tent_mario),
    ("mr-eggplant/SAR", "sar.py", "sar", sar),
    ("mariodoebler/test-time-adaptation", "methods/sar.py", "sar", sar_mario),
    ("wangkunyu241/PAID", "DORA_ALIGN", "paid", paid),
    ("wangkunyu241/PAID", "HRAInjectedLinear", "paid", paid),
)


def translate(case: Case) -> tuple[str, dict[str, Any]] | None:
    """Our method and its hyper-parameters, or None for a case of a method we do not have."""
    for repository, words, method, hyperparameters in TABLE:
        if case["source"] == repository and case["function"].startswith(
            (words, f"classification/{words}")
        ):
            return method, hyperparameters(case)
        if case["source"] == repository and f": {words}" in case["function"]:
            return method, hyperparameters(case)
    return None


def build(case: Case, aux: Aux, network: nn.Module, dtype: torch.dtype, source_data: Any) -> Method:
    """The method of a case, started and laid at the recorded start.

    Source statistics are of the source model, not of the recorded start (as after a warm-up).
    """
    found = translate(case)
    assert found is not None
    name, hyperparameters = found
    entry = METHODS.get(name)
    model = SourceModel(network).to(dtype)
    precision = "float64" if dtype == torch.float64 else "float32"
    method: Method = entry(model, entry.Hyperparameters(**hyperparameters), precision=precision)
    method.start(source_data if method.source_access != "none" else None)
    lay_start(method, case, aux)
    return method


@torch.no_grad()
def lay_start(method: Method, case: Case, aux: Aux) -> None:
    """Recorded start values: stored columns of U (each twice if paired), and factors on m."""
    paired = case["hyper_parameters"].get("paired_init", False)
    for key, value in aux.items():
        if key.startswith("aux/start_m_factor/"):
            name = key.removeprefix("aux/start_m_factor/").removesuffix(".m")
            magnitude = method.trainable[f"{name}.magnitude"]
            magnitude.mul_(value.to(magnitude).reshape(magnitude.shape))
        elif key.startswith("aux/start/"):
            name = key.removeprefix("aux/start/").removesuffix(".hra_u")
            vectors = method.trainable[f"{name}.vectors"]
            columns = value.repeat_interleave(2, 1) if paired else value
            vectors.copy_(columns.to(vectors))


def adapted(method: Method) -> dict[str, Tensor]:
    """The adapted tensors under the names that the cases use."""
    tensors = {}
    for name, tensor in method.trainable.items():
        for theirs, ours in RENAMED:
            if name.endswith(ours):
                name = name.removesuffix(ours) + theirs
        tensors[name] = tensor.detach()
    return tensors
