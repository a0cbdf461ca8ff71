"""The geometry of all models that the runs below a directory kept."""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from ctta_bench.analysis.kept_models.geometry import (
    LAYER_COLUMNS,
    SourceLayer,
    compare_layers,
    pooled,
    random_change,
    rescaled,
    source_layer,
)
from ctta_bench.analysis.kept_models.stored import (
    KeptModel,
    kept_models,
    linear_layers,
    with_kept_models,
)
from ctta_bench.analysis.paper.components import (
    FULL,
    PAIRWISE_INVARIANT,
    SEMANTIC,
    component_of,
    with_labels,
)
from ctta_bench.analysis.read.collect import Runs, load
from ctta_bench.analysis.table.rows import SOURCE
from ctta_bench.errors import CttaBenchError, RunError
from ctta_bench.registry import domain_display_names
from ctta_bench.stream.settings import setting_display_name

# fmt: off
KEYS = ["label", "method", "cell", "seed", "domain", "kind", "invariant"]
_SHOWN = ["shown", "shown_domain"]  # what is printed for label and domain
MEASURES = [
    "delta_m", "delta_a", "delta_s", "delta_s_per_pair", "change", "relative_change",
    "matched_delta_s_per_pair", "random_delta_s_per_pair",
]
# fmt: on
Weights = Mapping[str, npt.NDArray[np.floating]]


@dataclass(frozen=True)
class Geometry:
    """The changes of one source model by adaptation.

    models: one row per kept model, with `KEYS`, what is printed for label and domain, and
    `MEASURES`. `kind` is "corruption" (adapted to a domain) or "semantic" (fine-tuned on another
    label set); `invariant` says whether the method cannot change pairwise angles. The matched value
    is ΔS per pair of a change scaled to the size of PAID's in the same domain. The random value is
    that of noise with the size of PAID's change in each layer. Both are NaN where PAID was not run.
    layers: the same per layer, with `LAYER_COLUMNS`.
    """

    model: str
    model_sha256: str
    setting: str
    models: pd.DataFrame
    layers: pd.DataFrame

    @property
    def name(self) -> str:
        """Stem of its files."""
        safe = "".join(c if c.isalnum() or c in "_.-" else "-" for c in self.model)
        return f"geometry-{safe[:80]}-{self.model_sha256[:8]}"


def has_kept_models(runs: Runs) -> bool:
    """Whether a finished cell of a method other than source kept a model."""
    cells = with_kept_models(runs.finished().cells)
    return bool((cells["method"] != SOURCE).any())


def read_geometry(
    directory: Path, load_source: Callable[[str, str], Weights] | None = None
) -> tuple[list[Geometry], list[str]]:
    """The geometry of each source model below `directory` with kept adapted models.

    Source weights are those that a finished cell of method `source` kept; without one,
    `load_source(model, sha256)` returns its layers. The second value lists the models that were
    left out, with the reason. Raises RunError if there is nothing to compare.
    """
    found, left_out = geometries(load(directory), load_source)
    if not found:
        raise RunError(
            " ".join(left_out)
            or f"{directory}: no finished cell kept its model; run with --keep-models domains, or "
            "`keep_models: domains` in the experiment."
        )
    return found, left_out


def geometries(
    runs: Runs, load_source: Callable[[str, str], Weights] | None = None
) -> tuple[list[Geometry], list[str]]:
    """`read_geometry` of loaded runs; empty if none kept a model."""
    cells = with_kept_models(runs.finished().cells)
    found, left_out = [], []
    for _, same in cells.groupby(["model_sha256", "model"]):
        sha256, model = (str(same[key].iloc[0]) for key in ("model_sha256", "model"))
        adapted = same[same["method"] != SOURCE]
        if len(adapted):
            try:
                weights = _source_weights(same, model, sha256, load_source)
                found.append(_geometry(adapted, model, sha256, weights))
            except CttaBenchError as error:
                left_out.append(f"{model} ({sha256[:8]}): {error}")
    return found, left_out


def _source_weights(
    cells: pd.DataFrame,
    model: str,
    sha256: str,
    load_source: Callable[[str, str], Weights] | None,
) -> Weights:
    own = cells[cells["method"] == SOURCE]
    if len(own):
        return linear_layers(kept_models(Path(own["path"].iloc[0]))[-1].file)
    if load_source is None:
        raise RunError(
            "no finished `source` cell kept its weights, so there is nothing to compare with; run "
            "source with --keep-models last alongside the others."
        )
    return load_source(model, sha256)


def _geometry(cells: pd.DataFrame, model: str, sha256: str, weights: Weights) -> Geometry:
    source = {name: source_layer(weight) for name, weight in weights.items()}
    cells = with_labels(cells)
    models, layers = [], []
    references = _references(cells, source)
    for _, cell in cells.iterrows():
        for kept in _last_visits(cell):
            key = _key(cell, kept)
            adapted = linear_layers(kept.file)
            frame = compare_layers(source, adapted, str(kept.file))
            measures = pooled(frame)
            reference = references.get((key["kind"], kept.domain, cell["seed"]))
            (domain,) = domain_display_names(str(cell["benchmark"]), [kept.domain])
            shown = dict(zip(_SHOWN, (cell["shown"], domain), strict=True))
            models.append(
                key | shown | measures | _at_same_size(source, adapted, measures, reference)
            )
            layers.append(frame.assign(**key))
    settings = sorted(
        set(cells.loc[cells["method"] != SEMANTIC, "setting"].map(setting_display_name))
    )
    return Geometry(
        model,
        sha256,
        ", ".join(settings),
        pd.DataFrame(models, columns=[*KEYS, *_SHOWN, *MEASURES]),
        pd.concat(layers, ignore_index=True)[[*KEYS, *LAYER_COLUMNS]],
    )


def _key(cell: "pd.Series[Any]", kept: KeptModel) -> dict[str, Any]:
    return {
        "label": cell["label"],
        "method": cell["method"],
        "cell": cell["cell"],
        "seed": cell["seed"],
        "domain": kept.domain,
        "kind": _kind(cell),
        "invariant": _component(cell) in PAIRWISE_INVARIANT,
    }


def _kind(cell: "pd.Series[Any]") -> str:
    return "semantic" if cell["method"] == SEMANTIC else "corruption"


def _component(cell: "pd.Series[Any]") -> str | None:
    """The component of PAID that changes the weights of a cell; None for other methods."""
    if cell["method"] == SEMANTIC:
        adapter = json.loads(cell["hyperparameters"]).get("adapter")
        return FULL if adapter == "paid" else None
    return component_of(cell["method"], cell["hyperparameters"])


def _last_visits(cell: "pd.Series[Any]") -> Iterator[KeptModel]:
    """The models of a cell by domain, each at the end of its last visit; else `last`."""
    found = kept_models(Path(cell["path"]))
    by_domain = {kept.domain: kept for kept in found if kept.visit >= 0}
    yield from by_domain.values() if by_domain else found


@dataclass(frozen=True)
class _Reference:
    """PAID's change in one domain: its size, and ΔS per pair of noise of that size."""

    change: float
    random: float


def _references(
    cells: pd.DataFrame, source: Mapping[str, SourceLayer]
) -> dict[tuple[str, str, int], _Reference]:
    """PAID's changes by kind, domain and seed."""
    found: dict[tuple[str, str, int], _Reference] = {}
    for _, cell in cells.iterrows():
        for kept in _last_visits(cell) if _component(cell) == FULL else ():
            key = (_kind(cell), kept.domain, cell["seed"])
            if key not in found:
                frame = compare_layers(source, linear_layers(kept.file), str(kept.file))
                sizes = dict(zip(frame["layer"], frame["change"], strict=True))
                noise = compare_layers(source, random_change(source, sizes), "noise")
                found[key] = _Reference(pooled(frame)["change"], pooled(noise)["delta_s_per_pair"])
    return found


def _at_same_size(
    source: Mapping[str, SourceLayer],
    adapted: Weights,
    measures: Mapping[str, float],
    reference: _Reference | None,
) -> dict[str, float]:
    """ΔS per pair of this change, and of noise, at the size of PAID's change; NaN without one."""
    if reference is None:
        return dict.fromkeys(MEASURES[-2:], float("nan"))
    if measures["change"] in (0.0, reference.change):
        matched = measures["delta_s_per_pair"]
    else:
        scaled = compare_layers(source, rescaled(source, adapted, reference.change), "scaled")
        matched = pooled(scaled)["delta_s_per_pair"]
    return dict(zip(MEASURES[-2:], (matched, reference.random), strict=True))
