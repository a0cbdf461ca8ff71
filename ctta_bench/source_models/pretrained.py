"""Source models by name: building the network and finding its weights.

A name is a registered one (`fashion_vit`) or `timm:MODEL[.TAG]`. Weights come from the first of:
the file or folder given; the model's file in the package; DATA_ROOT/models/NAME.*; for a timm
model, the hub's cache. Nothing is downloaded without a request.
"""

import difflib
import functools
import os
import re
from pathlib import Path
from typing import Any

import torch
from platformdirs import user_cache_path
from torch import nn

from ctta_bench.errors import ConfigError, DataError
from ctta_bench.model import SourceModel
from ctta_bench.model.preprocessing import (
    Preprocessing,
    Regime,
    recorded_cfg,
    recorded_preprocessing,
)
from ctta_bench.registry import MODELS, canonical
from ctta_bench.source_models import hub
from ctta_bench.source_models.weights import SUFFIXES, check_finite, load_weights, recorded_beside

TIMM = "timm:"
# Key of a network's record, if the package lacks the weights: where they come from.
ORIGIN = "origin"


def load_source_model(
    name: str,
    *,
    weights: Path | None = None,
    preprocessing: Regime = "true",
    input_size: tuple[int, int] | None = None,
    num_classes: int | None = None,
    root: Path | None = None,
    task: str | None = None,
) -> SourceModel:
    """The model called `name` with its weights.

    weights: a file or folder used instead of the model's own weights; FILE#KEY is one of several
    sets of weights in it. preprocessing: normalisation, see `model.preprocessing`. input_size:
    (height, width) to which position embeddings are resampled, as in timm; by default the recorded
    size. num_classes: required number of logits, and the size of a timm model's head if its weights
    are read from a file.
    root: the data root. task: required task.

    Example: `load_source_model("timm:vit_base_patch16_224", weights=Path("vit.safetensors"))`

    Raises ConfigError for an unknown name, an impossible size, another task or number of classes,
    DataError for weights that are missing or do not fit.
    """
    stored = None if weights is not None else stored_weights(name, root)
    network = build(name, num_classes if weights is not None or stored is not None else None)
    own = None if name.startswith(TIMM) else recorded_cfg(network).get("file")
    chosen = weights or own or stored
    file = Path(chosen) if chosen else None
    note = ""
    if file is not None:
        note = load_weights(network, file)
        network.pretrained_cfg = recorded_cfg(network) | recorded_beside(file)  # type: ignore[assignment]
    elif absent := missing_weights(name, network, root):
        raise DataError(absent)
    elif name.startswith(TIMM):
        network = _from_hub(name, network)
    if input_size is not None:
        resize_input(network, input_size, name)
    size = input_size or None
    model = SourceModel(
        network, name=name, preprocessing=recorded_preprocessing(network, preprocessing, size)
    )
    model.weights_note = note
    if task is not None and model.task != task:
        raise ConfigError(
            f"model {name}: is for {model.task}, but the benchmark for {task}; give another "
            "--model."
        )
    if task is not None and getattr(network, "num_classes", None) == 0:
        raise ConfigError(
            f"model {name}: has no classifier, its outputs are features; give another --model, or "
            "--weights FILE with a classifier."
        )
    _check_classes(model, num_classes)
    return model


def missing_weights(name: str, network: nn.Module, root: Path | None) -> str:
    """Why a model without a file of its own has no weights, and what to do; "" if it has them."""
    if name.startswith(TIMM):
        if hub.cached(network) is not None:
            return ""
        return (
            f"model {name!r} needs its weights, which are only downloaded on request: use "
            f"`ctta-bench models download {name}`, give --weights FILE, or put them at "
            f"{stored_file(name, root)}."
        )
    if not (origin := recorded_cfg(network).get(ORIGIN)):
        return ""
    return (
        f"model {name!r} needs its weights ({origin}): put them at {stored_file(name, root)} (or "
        ".pth), give --weights FILE, or train the model with `ctta-bench train-source`."
    )


def sketch(
    name: str,
    *,
    preprocessing: Regime = "true",
    input_size: tuple[int, int] | None = None,
    num_classes: int | None = None,
    root: Path | None = None,
    **_: Any,
) -> tuple[str, int, Preprocessing] | None:
    """For plans: why a model has no weights here, its parameters, and its pre-processing.

    None if the weights are here. The network is built without values, if it can be. Without the
    packages that it needs, its parameters are 0. Raises ConfigError.
    """
    if stored_weights(name, root) is not None:
        return None
    try:
        with torch.device("meta"):
            network = build(name, num_classes)
    except (RuntimeError, NotImplementedError):  # it computes with values
        network = build(name, num_classes)
    except ConfigError as error:
        if not MODELS.declared(canonical(name), "extra", ""):
            raise
        return str(error), 0, Preprocessing(preprocessing, size=input_size)
    own = not name.startswith(TIMM) and recorded_cfg(network).get("file")
    if own or not (absent := missing_weights(name, network, root)):
        return None
    count = sum(parameter.numel() for parameter in network.parameters())
    return absent, count, recorded_preprocessing(network, preprocessing, input_size)


def build(name: str, num_classes: int | None = None) -> nn.Module:
    """The network called `name`, without its weights; `num_classes`: size of a timm model's head.

    Raises ConfigError for an unknown name, with suggestions.
    """
    if not name.startswith(TIMM):
        if canonical(name) not in MODELS.names() and (close := _close_in_timm(name, 0.8)):
            raise ConfigError(f"unknown model {name!r}; did you mean {close}?")
        registered: nn.Module = MODELS.get(name)()
        return registered
    import timm

    bare = name.removeprefix(TIMM)
    if bare not in _timm_names():
        close = _close_in_timm(bare, 0.6)
        hint = f" Did you mean {close}?" if close else ""
        raise ConfigError(f"model {name!r}: timm has no model {bare!r}.{hint}")
    options: dict[str, Any] = {"num_classes": num_classes} if num_classes else {}
    network: nn.Module = timm.create_model(bare, pretrained=False, **options)
    return network


def _close_in_timm(name: str, cutoff: float) -> str:
    """Names in timm that are close to one, best first; "" if there are none."""
    close = difflib.get_close_matches(name, _timm_names(), n=3, cutoff=cutoff)
    return ", ".join(TIMM + found for found in close)


@functools.cache
def _timm_names() -> tuple[str, ...]:
    """Architectures, then those with a tag; cached, since sorting them all is slow."""
    import timm

    return (*timm.list_models(), *timm.list_models(include_tags=True))


def stored_weights(name: str, root: Path | None = None) -> Path | None:
    """The file or folder of a model in DATA_ROOT/models; None if there is none.

    Raises ConfigError if there are several.
    """
    bare = stored_file(name, root, "")  # once: a grid calls this for each cell
    found = [f for s in ("", *SUFFIXES) if (f := bare.with_name(bare.name + s)).exists()]
    if len(found) > 1:
        raise ConfigError(
            f"model {name!r}: {found[0]} and {found[1].name} both exist; remove one, or give "
            "--weights FILE."
        )
    return found[0] if found else None


def stored_file(name: str, root: Path | None = None, suffix: str = ".safetensors") -> Path:
    """The path at which a model's weights are searched: DATA_ROOT/models/NAME.safetensors.

    Without `root`, the data root is CTTA_BENCH_DATA or the user's cache folder.
    """
    folder = root or Path(os.environ.get("CTTA_BENCH_DATA") or user_cache_path("ctta-bench"))
    bare = re.sub(r"[^A-Za-z0-9_.]+", "_", name.removeprefix(TIMM))
    stem = bare if name.startswith(TIMM) else canonical(bare)
    return folder / "models" / f"{stem}{suffix}"


def _from_hub(name: str, network: nn.Module) -> nn.Module:
    """The network with weights from the hub's cache, loaded strictly by timm."""
    import timm

    cached = hub.cached(network)
    assert cached is not None  # `missing_weights` has looked
    overlay = {"file": str(cached), "custom_load": False}
    try:
        loaded: Any = timm.create_model(
            name.removeprefix(TIMM), pretrained=True, pretrained_cfg_overlay=overlay
        )
    except (RuntimeError, KeyError, ValueError, OSError) as error:
        first = str(error).strip().partition("\n")[0]
        raise DataError(
            f"{cached}: is not the complete file of {name} ({first}); download it again."
        ) from error
    check_finite(loaded.state_dict(), cached)
    return loaded


def resize_input(network: Any, size: tuple[int, int], name: str) -> None:
    """Change a network's input size; timm resamples position embeddings.

    Convolutional networks accept any size. Raises ConfigError if the size is not a multiple of the
    patch size or the network's size is fixed.
    """
    patch = getattr(getattr(network, "patch_embed", None), "patch_size", None)
    if patch is not None and any(s % p for s, p in zip(size, patch, strict=True)):
        raise ConfigError(
            f"input_size {size[0]}x{size[1]}: is not a multiple of the {patch[0]}x{patch[1]} "
            f"patches of {name}."
        )
    recorded = recorded_cfg(network)
    if hasattr(network, "set_input_size"):
        network.set_input_size(img_size=size)
    elif recorded.get("fixed_input_size"):
        raise ConfigError(f"input_size: {name} only takes {recorded['input_size'][1:]} images.")


def _check_classes(model: SourceModel, num_classes: int | None) -> None:
    known = model.known_classes
    if num_classes and known is not None and known != num_classes:
        raise ConfigError(
            f"model {model.name} has {known} classes, but the benchmark has "
            f"{num_classes}; give weights trained on it (--weights FILE), or train a model with "
            "`ctta-bench train-source`."
        )
