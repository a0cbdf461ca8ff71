"""Files of weights: read without running anything, unwrapped, loaded strictly, fingerprinted."""

import hashlib
from collections.abc import Iterator
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from ctta_bench.errors import DataError


def fingerprint(network: nn.Module) -> str:
    """SHA-256 over names, types, shapes and bytes of all tensors, in the order of their names."""
    digest = hashlib.sha256()
    for name, tensor in sorted(network.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)};".encode())
        values = tensor.detach().cpu().contiguous().reshape(-1)
        digest.update(values.view(torch.uint8).numpy().data)
    return digest.hexdigest()


def load_weights(network: nn.Module, file: Path) -> None:
    """Load a checkpoint strictly: plain, or under `state_dict` or `model`, keys prefixed or not.

    Raises DataError naming the first key that is missing, left over, of another shape or NaN.
    """
    tensors = strip_prefix(unwrap(read_tensors(file), file))
    wanted = network.state_dict()
    problems = list(_mismatches(wanted, tensors))
    if problems:
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        raise DataError(f"{file}: does not fit {type(network).__name__}: {problems[0]}{more}.")
    for key, value in tensors.items():
        if value.is_floating_point() and not bool(torch.isfinite(value).all()):
            raise DataError(f"{file}: {key} holds values that are not finite; the file is damaged.")
    network.load_state_dict(tensors, strict=True)


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


def read_tensors(file: Path) -> dict[str, Any]:
    """The contents of a .safetensors or torch file, without running anything from it."""
    try:
        if file.suffix == ".safetensors":
            return safetensors.torch.load_file(file)
        return torch.load(file, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise DataError(f"{file}: no such file of weights.") from None
    except (OSError, SafetensorError, RuntimeError, EOFError, ValueError, KeyError) as error:
        raise DataError(f"{file}: is not a whole file of weights ({error}).") from error
    except UnpicklingError as error:
        raise DataError(
            f"{file}: holds more than tensors and is refused; save the weights alone."
        ) from error


def unwrap(contents: Any, file: Path) -> dict[str, Tensor]:
    """The state dict inside the usual wrappings: itself, or under `state_dict` or `model`."""
    for key in ("state_dict", "model"):
        if isinstance(contents, dict) and isinstance(contents.get(key), dict):
            contents = contents[key]
    if not isinstance(contents, dict):
        raise DataError(f"{file}: holds no state dict, but a {type(contents).__name__}.")
    return {k: v for k, v in contents.items() if isinstance(v, Tensor)}


def strip_prefix(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Drop one leading `module.` (DataParallel) if every key has it."""
    if tensors and all(k.startswith("module.") for k in tensors):
        return {k.removeprefix("module."): v for k, v in tensors.items()}
    return tensors
