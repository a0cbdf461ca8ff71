"""How far adaptation moves the neurons of a layer: lengths, angles, and angles between them.

A layer's weight is [k, d], a neuron a row w = |w| ŵ. Between two weights W¹ and W² (PAID, Wang et
al. 2025, its motivation):

    ΔM = 1/k Σ | |w¹| - |w²| |                       lengths
    ΔA = 1/k Σ (1 - cos(ŵ¹, ŵ²))                     absolute angles
    ΔS = | E(W¹) - E(W²) |,  E(W) = Σ_{i≠j} |ŵ_i - ŵ_j|⁻¹    pairwise angles

E, the hyperspherical energy (Liu et al. 2018), has k(k-1) terms, so its change is also given per
pair. All is in float64: at k = 768 float32 is wrong by 5e-3, more than the change by PAID itself.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from ctta_bench.errors import RunError

Array = npt.NDArray[np.floating]
SQUARED_DISTANCE_FLOOR = 1e-12  # of two neurons that point the same way
BLOCK = 512  # neurons per block of the Gram matrix
LAYER_COLUMNS = [
    "layer", "neurons", "undirected", "delta_m", "delta_a", "delta_s", "energy", "change", "norm",
]  # fmt: skip


@dataclass(frozen=True)
class SourceLayer:
    """A layer of the source model, with the values that every comparison needs."""

    weight: npt.NDArray[np.float64]
    lengths: npt.NDArray[np.float64]
    directions: npt.NDArray[np.float64]
    energy: float


def hyperspherical_energy(directions: Array, block: int = BLOCK) -> float:
    """Σ_{i≠j} |ŵ_i - ŵ_j|⁻¹ over unit rows [k, d], from blocks of the Gram matrix."""
    directions = np.asarray(directions, dtype=np.float64)
    total = 0.0
    for start in range(0, len(directions), block):
        rows = directions[start : start + block]
        cosines = rows @ directions[start:].T  # the matrix is symmetric: twice its upper half
        inverse = 1 / np.sqrt(np.maximum(2 - 2 * cosines, SQUARED_DISTANCE_FLOOR))
        own = inverse[:, : len(rows)]
        np.fill_diagonal(own, 0)
        total += float(own.sum()) + 2 * float(inverse[:, len(rows) :].sum())
    return total


def source_layer(weight: Array) -> SourceLayer:
    """A source weight [k, d] with its lengths [k], unit rows and energy."""
    exact = np.asarray(weight, dtype=np.float64)
    lengths, directions = _decompose(exact)
    return SourceLayer(exact, lengths, directions, hyperspherical_energy(directions[lengths > 0]))


def compare(source: SourceLayer, weight: Array) -> dict[str, float]:
    """The measures of one layer: `LAYER_COLUMNS` without its name.

    A neuron of length zero in either weight has no direction: it is left out of ΔA and ΔS and
    counted as `undirected`. `energy` is that of the source over the remaining neurons; `change` and
    `norm` are the Frobenius norms of W² - W¹ and of W¹.
    """
    exact = np.asarray(weight, dtype=np.float64)
    lengths, directions = _decompose(exact)
    directed = (lengths > 0) & (source.lengths > 0)
    before, after = source.directions[directed], directions[directed]
    is_whole = int(directed.sum()) == int((source.lengths > 0).sum())
    energy = source.energy if is_whole else hyperspherical_energy(before)
    # 1 - cos from the distance: a difference of two numbers near 1 would lose half of the digits.
    angles = 0.5 * np.square(before - after).sum(axis=1)
    return {
        "neurons": len(exact),
        "undirected": len(exact) - int(directed.sum()),
        "delta_m": float(np.abs(source.lengths - lengths).mean()),
        "delta_a": float(angles.mean()) if len(angles) else float("nan"),
        "delta_s": abs(hyperspherical_energy(after) - energy),
        "energy": energy,
        "change": float(np.linalg.norm(exact - source.weight)),
        "norm": float(np.linalg.norm(source.weight)),
    }


def compare_layers(
    source: Mapping[str, SourceLayer], adapted: Mapping[str, Array], where: str
) -> pd.DataFrame:
    """One row per layer, with `LAYER_COLUMNS`.

    Raises RunError, with `where` in its message, if the two networks have different layers or if a
    weight is not finite.
    """
    if adapted.keys() != source.keys():
        odd = sorted(adapted.keys() ^ source.keys())
        raise RunError(
            f"{where}: its linear layers are not those of the source model ({odd[0]} is only in "
            "one of them); was it kept by a run on another model?"
        )
    rows = []
    for name, layer in source.items():
        weight = adapted[name]
        if weight.shape != layer.weight.shape:
            raise RunError(
                f"{where}: {name} is {weight.shape}, but {layer.weight.shape} in the source model."
            )
        if not np.isfinite(weight).all():
            raise RunError(f"{where}: {name} has values that are not finite: the run collapsed.")
        rows.append({"layer": name} | compare(layer, weight))
    return pd.DataFrame(rows, columns=LAYER_COLUMNS)


def pooled(layers: pd.DataFrame) -> dict[str, float]:
    """The measures over all layers: each neuron counts once in ΔM and ΔA, each pair once in ΔS.

    `delta_m` and `delta_a` are means weighted by k, `delta_s` is a mean weighted by k(k-1), and
    `delta_s_per_pair` is Σ ΔS / Σ k(k-1). `relative_change` is |ΔW| / |W| over all layers.
    """
    neurons = layers["neurons"].to_numpy(dtype=np.float64)
    directed = neurons - layers["undirected"].to_numpy(dtype=np.float64)
    pairs = directed * (directed - 1)
    delta_s = layers["delta_s"].to_numpy(dtype=np.float64)
    return {
        "delta_m": float(np.average(layers["delta_m"], weights=neurons)),
        "delta_a": float(np.nansum(layers["delta_a"] * directed) / directed.sum()),
        "delta_s": float(np.average(delta_s, weights=pairs)),
        "delta_s_per_pair": float(delta_s.sum() / pairs.sum()),
        "change": float(np.sqrt(np.square(layers["change"]).sum())),
        "relative_change": float(
            np.sqrt(np.square(layers["change"]).sum() / np.square(layers["norm"]).sum())
        ),
    }


def rescaled(
    source: Mapping[str, SourceLayer], adapted: Mapping[str, Array], change: float
) -> dict[str, Array]:
    """W¹ + α (W² - W¹) with one α for all layers, so that |W² - W¹| over all layers is `change`."""
    steps = {name: adapted[name] - layer.weight for name, layer in source.items()}
    size = float(np.sqrt(sum(np.square(step).sum() for step in steps.values())))
    factor = change / size if size else 0.0
    return {name: layer.weight + factor * steps[name] for name, layer in source.items()}


def random_change(
    source: Mapping[str, SourceLayer], changes: Mapping[str, float], seed: int = 0
) -> dict[str, Array]:
    """The source plus Gaussian noise of norm `changes` in each layer, as a control."""
    generator = np.random.default_rng(seed)
    result: dict[str, Array] = {}
    for name, layer in source.items():
        noise = generator.standard_normal(layer.weight.shape)
        result[name] = layer.weight + changes[name] / np.linalg.norm(noise) * noise
    return result


def _decompose(
    weight: npt.NDArray[np.float64],
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Lengths [k] and unit rows [k, d]; a row of zeros stays zero."""
    lengths = np.linalg.norm(weight, axis=1)
    return lengths, weight / np.where(lengths > 0, lengths, 1)[:, None]
