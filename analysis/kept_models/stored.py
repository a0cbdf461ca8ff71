"""Adapted weights that runs kept: their files, and their linear layers as arrays.

A run with `keep_models` writes `models/NN-DOMAIN.safetensors` (the network at the end of its NN-th
domain) or `models/last.safetensors` (at the end of the stream) into its folder: plain tensors with
the names of the network, adapters merged.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd
from safetensors import SafetensorError, safe_open

from ctta_bench.errors import RunError
from ctta_bench.record.schema import MODELS_FOLDER

Array = npt.NDArray[np.floating]
LAST = "last"
_VISIT = re.compile(r"(\d+)-(.+)")
_IN_A_BLOCK = re.compile(r"(^|[._])\d+\.")
_WEIGHT = re.compile(r"\.(weight|[qkv]_proj_weight)$")
_FUSED = re.compile(r"\.(qkv\.weight|in_proj_weight)$")  # three layers in one matrix


@dataclass(frozen=True)
class KeptModel:
    """One file of weights; `visit` counts the domains of the stream from 0, -1 is its end."""

    file: Path
    visit: int
    domain: str


def kept_models(cell_folder: Path) -> list[KeptModel]:
    """The models that a cell kept, in the order of its stream; [] without any."""
    found = []
    for file in (cell_folder / MODELS_FOLDER).glob("*.safetensors"):
        if file.stem == LAST:
            found.append(KeptModel(file, -1, LAST))
        elif match := _VISIT.fullmatch(file.stem):
            found.append(KeptModel(file, int(match[1]), match[2]))
    return sorted(found, key=lambda kept: (kept.visit < 0, kept.visit))


def with_kept_models(cells: pd.DataFrame) -> pd.DataFrame:
    """The rows of a frame of cells (with `path`) whose run kept a model."""
    mask = np.array([bool(kept_models(Path(path))) for path in cells["path"]], dtype=bool)
    found: pd.DataFrame = cells[mask]
    return found


def linear_layers(file: Path) -> dict[str, Array]:
    """Weights [neurons, inputs] of the linear layers inside a network's blocks, by name.

    A projection of queries, keys and values in one matrix is three layers: `qkv.q`, `qkv.k`,
    `qkv.v`. Patch embedding and head are not in a block. Raises RunError for a file that cannot be
    read or has no such layer.
    """
    try:
        with safe_open(file, framework="numpy") as tensors:
            wanted = [name for name in tensors.keys() if is_block_weight(name)]  # noqa: SIM118
            weights = {name: tensors.get_tensor(name) for name in wanted}
    except (OSError, SafetensorError, TypeError) as error:
        raise RunError(
            f"{file}: cannot be read ({error}); run the cell again with --force."
        ) from error
    layers = dict(split_layers(weights))
    if not layers:
        raise RunError(
            f"{file}: has no linear layer in a numbered block, so there are no neurons to compare."
        )
    return layers


def is_block_weight(name: str) -> bool:
    """Whether a tensor's name is that of a weight in a numbered block."""
    return bool(_WEIGHT.search(name) or _FUSED.search(name)) and bool(_IN_A_BLOCK.search(name))


def split_layers(weights: dict[str, Array]) -> Iterator[tuple[str, Array]]:
    """The matrices inside blocks in natural order; a fused projection as three matrices."""
    for name in sorted(filter(is_block_weight, weights), key=_natural):
        weight = weights[name]
        if weight.ndim != 2:
            continue
        layer = name.removesuffix(".weight").removesuffix("_weight")
        if _FUSED.search(name) and len(weight) % 3 == 0:
            for role, matrix in zip("qkv", np.split(weight, 3), strict=True):
                yield f"{layer}.{role}", matrix
        else:
            yield layer, weight


def _natural(name: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]
