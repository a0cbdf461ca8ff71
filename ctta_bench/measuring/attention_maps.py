"""Attention maps of adapted models: load saved models, and run them on images of their benchmark.

The analysis draws the maps; this module prepares networks, weights and images.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from torch import Tensor

from ctta_bench.analysis.figure.canvas import Canvas
from ctta_bench.analysis.figures.attention import AttentionGrid, Picture, attention_figure
from ctta_bench.analysis.kept_models.attention import (
    RolloutSettings,
    attention_maps,
    patch_maps,
    rollout,
    spread,
)
from ctta_bench.analysis.kept_models.stored import (
    LAST,
    KeptModel,
    kept_models,
    split_layers,
    with_kept_models,
)
from ctta_bench.analysis.paper.components import SEMANTIC, with_labels
from ctta_bench.analysis.read.collect import Runs, load
from ctta_bench.analysis.table.notes import table_name, title
from ctta_bench.analysis.table.rows import SOURCE
from ctta_bench.errors import ConfigError, RunError
from ctta_bench.model import SourceModel
from ctta_bench.record.folder import check_writable
from ctta_bench.record.read import read_cell
from ctta_bench.registry import BENCHMARKS
from ctta_bench.source_models.pretrained import load_source_model
from ctta_bench.stream import CLEAN, Benchmark, as_input

DEFAULT_PICTURES = (0, 1, 2, 3)


def source_layers(
    model: str, sha256: str, weights: Path | None = None
) -> dict[str, npt.NDArray[np.floating]]:
    """The linear layers of a source model, by name.

    Raises RunError if the SHA-256 of the weights is not `sha256`.
    """
    loaded = load_source_model(model, weights=weights)
    if loaded.sha256() != sha256:
        raise RunError(
            f"{model}: the loaded weights ({loaded.sha256()[:8]}) are not those of the runs "
            f"({sha256[:8]}); name the right file with --weights FILE."
        )
    state = loaded.network.state_dict()
    return dict(split_layers({name: value.numpy() for name, value in state.items()}))


def attention_grids(
    directory: Path,
    *,
    domains: Sequence[str] = (),
    pictures: Sequence[int] = DEFAULT_PICTURES,
    settings: RolloutSettings | None = None,
    seed: int | None = None,
    data_root: Path | None = None,
) -> list[AttentionGrid]:
    """Attention rollout of all saved models below `directory`, one grid per group of cells.

    domains: those of the images; empty: the first one. pictures: numbers of images within a domain.
    seed: that of the cells; default: the lowest. Raises RunError if no cell saved a model of such a
    domain, ConfigError for an image number that the domain does not have.
    """
    grids = grids_of(
        load(directory), domains, pictures, settings or RolloutSettings(), seed, data_root
    )
    if not grids:
        raise RunError(
            f"{directory}: no finished cell saved its model; rerun with --keep-models domains (or "
            "last), or set `keep_models` in the experiment."
        )
    return grids


def grids_of(
    runs: Runs,
    domains: Sequence[str],
    pictures: Sequence[int],
    settings: RolloutSettings,
    seed: int | None = None,
    data_root: Path | None = None,
) -> list[AttentionGrid]:
    """`attention_grids` of loaded runs; [] if no cell saved a model."""
    found = []
    for group in runs.finished().groups() if len(runs.finished().cells) else []:
        cells = group.cells[group.cells["method"] != SEMANTIC]  # its head is of another task
        cells = with_kept_models(cells)
        if not len(cells):
            continue
        wanted = cells[cells["seed"] == (cells["seed"].min() if seed is None else seed)]
        if not len(wanted):
            raise RunError(f"no cell with seed {seed} saved a model; choose another --seed.")
        found.append(_grid(group, with_labels(wanted), domains, pictures, settings, data_root))
    return found


def _grid(
    group: Runs,
    cells: pd.DataFrame,
    domains: Sequence[str],
    pictures: Sequence[int],
    settings: RolloutSettings,
    data_root: Path | None,
) -> AttentionGrid:
    record = read_cell(Path(cells["path"].iloc[0]))
    benchmark = _benchmark(record, data_root)
    chosen = _chosen_domains(cells, list(record["benchmark"]["domains"]), domains)
    rows = [
        picture
        for domain in chosen
        for picture in _pictures(benchmark, cells, domain, pictures, settings)
    ]
    return AttentionGrid(
        name=f"{table_name(group)}-attention",
        title=f"Attention maps: {title(group)}, seed {record['seed']}",
        how=(
            f"{settings.fusion} over heads, lowest {100 * settings.discard:g} % discarded, "
            f"residual {settings.residual:g}"
        ),
        labels=list(cells["label"]),
        pictures=rows,
        shown=list(cells["shown"]),
    )


def _benchmark(record: Mapping[str, Any], data_root: Path | None) -> Benchmark:
    """The benchmark of a cell, created from its record."""
    kind: type[Benchmark] = BENCHMARKS.get(record["benchmark"]["name"])
    fields = kind.Settings.model_fields
    values = {key: value for key, value in record["benchmark"].items() if key in fields}
    return kind(kind.Settings(**values), data_root)


def _chosen_domains(cells: pd.DataFrame, known: list[str], wanted: Sequence[str]) -> Sequence[str]:
    for domain in wanted:
        if domain not in known:
            raise ConfigError(
                f"--domain {domain!r}: the runs have no such domain; choose from "
                f"{', '.join(known)}."
            )
    return wanted or known[:1]


def _pictures(
    benchmark: Benchmark,
    cells: pd.DataFrame,
    domain: str,
    pictures: Sequence[int],
    settings: RolloutSettings,
) -> list[Picture]:
    corrupted = benchmark.domain(domain)
    count = len(corrupted.labels)
    for number in pictures:
        if not 0 <= number < count:
            raise ConfigError(f"--image {number}: {domain} has images 0 to {count - 1}.")
    index = np.asarray(pictures, dtype=np.int64)
    benchmark_images = as_input(corrupted.load(index))
    clean = None
    if CLEAN in (*benchmark.domain_names(), *benchmark.extra_domains()):
        clean = as_input(benchmark.domain(CLEAN).load(index))
    maps, predictions, spreads = [], [], []
    for _, cell in cells.iterrows():
        model = _model(cell, domain)
        matrices, logits = attention_maps(model, benchmark_images)
        shares = patch_maps(model.network, rollout(matrices, settings))
        maps.append(shares.numpy())
        predictions.append(logits.argmax(-1).numpy())
        spreads.append(spread(shares).numpy())
    return [
        Picture(
            domain=domain,
            index=int(number),
            label=int(corrupted.labels[number]),
            clean=None if clean is None else _drawable(clean[row]),
            corrupted=_drawable(benchmark_images[row]),
            maps=np.stack([m[row] for m in maps]),
            predictions=np.array([p[row] for p in predictions]),
            spreads=np.array([s[row] for s in spreads]),
        )
        for row, number in enumerate(index)
    ]


def _model(cell: "pd.Series[Any]", domain: str) -> SourceModel:
    """The network that a cell saved at the end of a domain (its last visit), or of its stream."""
    found: dict[str, KeptModel] = {kept.domain: kept for kept in kept_models(Path(cell["path"]))}
    kept = found.get(domain, found.get(LAST))
    if kept is None and cell["method"] == SOURCE and found:
        kept = next(iter(found.values()))  # the source model does not change
    if kept is None:
        raise RunError(
            f"{cell['path']}: has no saved model of domain {domain!r}; it has {', '.join(found)}."
        )
    model = load_source_model(cell["model"], weights=kept.file, preprocessing=cell["preprocessing"])
    return model.eval()


def _drawable(image: Tensor) -> npt.NDArray[np.floating]:
    """[3, H, W] in [0, 1] to [H, W, 3]."""
    array: npt.NDArray[np.floating] = image.permute(1, 2, 0).clamp(0, 1).numpy()
    return array


def visualisation_folder(directory: Path, out: Path | None) -> Path:
    """Create the folder for tables and figures about `directory`; default: DIRECTORY/looking.

    Raises RunError if the directory does not exist, or if the folder cannot be written.
    """
    if not directory.is_dir():
        raise RunError(
            f"{directory}: no such folder; name the folder of an experiment, e.g. runs/geometry."
        )
    folder = out or directory / "looking"
    check_writable(folder)
    return folder


def draw_attention(runs: Runs, folder: Path, canvas: Canvas) -> list[tuple[str, list[Path]]]:
    """For a report: title and files of the figure of each group with saved models."""
    grids = grids_of(runs, (), DEFAULT_PICTURES, RolloutSettings())
    return [(grid.title, attention_figure(grid, folder / grid.name, canvas)) for grid in grids]
