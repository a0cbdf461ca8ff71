"""Files of weights: read without executing code, unwrapped, loaded strictly, fingerprinted.

Supported: .safetensors, files of torch.save (.pth, .pt, .bin, .tar), Google's .npz of ViTs, and
folders with one such file (and optionally timm's config.json).
"""

import copy
import json
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import numpy as np
import safetensors.torch
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from ctta_bench.errors import DataError
from ctta_bench.model import fingerprint as fingerprint
from ctta_bench.source_models.weight_sets import chosen_set, located

SUFFIXES = (".safetensors", ".npz", ".pth", ".pt", ".bin", ".tar")
RECORD = "ctta_bench"  # key in a safetensors file's metadata: the record of `train-source`
LISTED_KEYS = 5
_DAMAGE = (OSError, SafetensorError, RuntimeError, EOFError, ValueError, KeyError, TypeError)

# Substrings of names in checkpoints that official codes, PEFT and our own warm-ups write.
_ADAPTERS = {
    "vida_down": "ViDA's adapters (vida_down, vida_up)",
    "hra_u": "PAID's rotations (hra_u)",
    "lora_A": "LoRA's matrices (lora_A, lora_B)",
    "random_state": "the state of a method after its warm-up",
}

# Types of loggers, counters and arguments that trainers save next to the weights.
_HARMLESS = (
    *(f"numpy.{c}.multiarray.{n}" for c in ("core", "_core") for n in ("scalar", "_reconstruct")),
    *("numpy.dtype", "numpy.ndarray"),
    *(f"numpy.dtypes.{kind}{bits}DType" for kind in ("Int", "UInt") for bits in (8, 16, 32, 64)),
    *(f"numpy.dtypes.{kind}DType" for kind in ("Float64", "Float32", "Float16", "Bool", "Str")),
    *(f"numpy.random._pickle.__{kind}_ctor" for kind in ("randomstate", "generator")),
    *("numpy.random._pickle.__bit_generator_ctor", "numpy.random.bit_generator.SeedSequence"),
    *("numpy.random._mt19937.MT19937", "numpy.random._pcg64.PCG64"),
    "numpy.random.bit_generator.__pyx_unpickle_SeedSequence",
    *("mmengine.logging.history_buffer.HistoryBuffer", "builtins.getattr"),
    *("argparse.Namespace", "pathlib.PosixPath", "pathlib.WindowsPath"),
)  # fmt: skip


class _Inert:
    """A harmless replacement for these types: accepts any arguments and does nothing."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __new__(cls, *_: Any, **__: Any) -> "_Inert":
        return super().__new__(cls)

    def __setstate__(self, _: Any) -> None:
        pass


def load_weights(network: nn.Module, path: Path) -> str:
    """Load a file (or the file in a folder) strictly; common wrappings of tensors are removed.

    path: FILE, or FILE#KEY for one of several sets of weights. Returns a sentence on the set that
    was read if there are others, else "".

    Raises DataError that lists keys which are missing, unexpected, of another shape or not finite;
    then the network is unchanged.
    """
    file, (_, key), note = weight_file(path), located(path), ""
    if file.suffix == ".npz" and key:
        raise DataError(f"{file}: an .npz holds one set of weights; leave out #{key}.")
    if file.suffix == ".npz":
        tensors = read_npz(network, file)
        check_finite(tensors, file)
    else:
        tensors, note = chosen_set(read_tensors(file), key, network.state_dict(), file)
        check_finite(tensors, file)
        # A network whose checkpoints have several naming schemes converts them itself.
        read_layout: Any = getattr(network, "read_layout", lambda given, _: given)
        tensors = read_layout(tensors, file)
        _check_fit(network.state_dict(), tensors, f"{file}: does not fit {type(network).__name__}")
    network.load_state_dict(tensors, strict=True)
    return note


def weight_file(path: Path) -> Path:
    """The file of FILE or FILE#KEY, or the only file of weights in a folder.

    Raises DataError if it is not unique.
    """
    path, _ = located(path)
    if not path.is_dir():
        return path
    found = sorted(p for p in path.iterdir() if p.suffix in SUFFIXES and p.is_file())
    usual = [p for p in found if p.name == "model.safetensors"]
    usual = usual or [p for p in found if p.stem in ("model", "pytorch_model")]
    chosen = usual or found
    if len(chosen) != 1:
        names = ", ".join(p.name for p in found) or f"none of {', '.join(SUFFIXES)}"
        raise DataError(
            f"{path}: does not hold exactly one file of weights ({names}); give the file itself."
        )
    return chosen[0]


def recorded_beside(path: Path) -> dict[str, Any]:
    """Input normalisation recorded with the weights: mean, std, input_size; {} without a record.

    The record is the metadata of a safetensors file of `train-source`, or a folder's config.json
    (timm's). Raises DataError if it is not readable.
    """
    path, _ = located(path)
    file, config = weight_file(path), path / "config.json"
    try:
        if path.is_dir() and config.is_file():
            noted = json.loads(config.read_text("utf-8"))
            noted = noted.get("pretrained_cfg", noted)
        elif file.suffix == ".safetensors":
            with safe_open(file, "pt") as content:
                noted = json.loads((content.metadata() or {}).get(RECORD, "{}"))
        else:
            return {}
        return {k: noted[k] for k in ("mean", "std", "input_size") if k in noted}
    except (*_DAMAGE, AttributeError) as error:
        raise DataError(f"{path}: the record next to the weights is damaged ({error}).") from error


def _check_fit(wanted: dict[str, Tensor], given: dict[str, Tensor], where: str) -> None:
    for name, whose in _ADAPTERS.items():
        if any(name in key for key in given):
            raise DataError(
                f"{where}: it holds {whose}, so it is a model after a warm-up; give the source "
                "model's own weights."
            )
    problems = list(_mismatches(wanted, given))
    if problems:
        listed, more = problems[:LISTED_KEYS], len(problems) - LISTED_KEYS
        rest = f"; and {more} more" if more > 0 else ""
        raise DataError(f"{where}: {'; '.join(listed)}{rest}.")


def _mismatches(wanted: dict[str, Tensor], given: dict[str, Tensor]) -> Iterator[str]:
    for key in wanted:
        if key not in given:
            yield f"key {key!r} is missing"
        elif given[key].shape != wanted[key].shape:
            ours, theirs = tuple(wanted[key].shape), tuple(given[key].shape)
            yield f"{key!r} has shape {theirs} where the model has {ours}"
    for key in given:
        if key not in wanted:
            yield f"key {key!r} belongs to no layer of the model"


def check_finite(tensors: dict[str, Tensor], file: Path) -> None:
    """Raise DataError that names the first tensor with NaN or infinite values."""
    for key, value in tensors.items():
        if value.is_floating_point() and not bool(torch.isfinite(value).all()):
            raise DataError(f"{file}: {key} holds values that are not finite; the file is damaged.")


def read_tensors(file: Path) -> dict[str, Any]:
    """The contents of a .safetensors or torch file, read without executing code."""
    try:
        if file.suffix == ".safetensors":
            return safetensors.torch.load_file(file)
        inert: list[Any] = [(_Inert, name) for name in _HARMLESS]
        with torch.serialization.safe_globals(inert):
            return torch.load(file, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise DataError(f"{file}: no such file of weights.") from None
    except UnpicklingError as error:
        refused = _refused_types(file, str(error))
        raise DataError(
            f"{file}: holds more than tensors and is refused{refused}; save only the state dict "
            "where the file was made."
        ) from error
    except _DAMAGE as error:
        raise DataError(f"{file}: is not a complete file of weights ({error}).") from error


def _refused_types(file: Path, reason: str) -> str:
    try:
        found = set(torch.serialization.get_unsafe_globals_in_checkpoint(file))
    except (*_DAMAGE, UnpicklingError):  # not in torch's format since 1.6
        found = set(re.findall(r"GLOBAL (\S+)", reason)[:1])  # the type at which reading stopped
    refused = sorted(found - set(_HARMLESS))
    return f" ({', '.join(refused[:LISTED_KEYS])})" if refused else ""


def read_npz(network: nn.Module, file: Path) -> dict[str, Tensor]:
    """Tensors of one of Google's JAX checkpoints under the network's names, read by timm.

    Raises DataError if the network has no such reader, or if a tensor was not read or not filled.
    """
    trial: Any = copy.deepcopy(network)
    if not hasattr(trial, "load_pretrained"):
        raise DataError(f"{file}: {type(network).__name__} cannot read .npz; give .safetensors.")
    with torch.no_grad():
        for parameter in trial.parameters():
            parameter.fill_(torch.nan)
    try:
        trial.load_pretrained(str(file))  # reads with allow_pickle=False
        with np.load(file, allow_pickle=False) as arrays:
            given = sum(arrays[name].size for name in arrays.files)
    except FileNotFoundError:
        raise DataError(f"{file}: no such file of weights.") from None
    except (*_DAMAGE, IndexError, AttributeError, zipfile.BadZipFile) as error:
        raise DataError(f"{file}: does not fit {type(network).__name__} ({error}).") from error
    tensors: dict[str, Tensor] = trial.state_dict()
    unfilled = [k for k, v in tensors.items() if v.is_floating_point() and bool(v.isnan().any())]
    # Reject what the reader accepts: a skipped head of other classes, resampled positions.
    wanted = sum(p.numel() for p in trial.parameters())
    if unfilled or given != wanted:
        first = f"nothing for {', '.join(unfilled[:LISTED_KEYS])}; " if unfilled else ""
        raise DataError(
            f"{file}: does not fit {type(network).__name__}: {first}{given:,} values where the "
            f"model has {wanted:,}."
        )
    return tensors
