"""Captions and footnotes of the tables of a group."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd

from ctta_bench.analysis.read.collect import Runs
from ctta_bench.analysis.table.latex import GROUPS
from ctta_bench.analysis.table.missing import listed, missing_cells
from ctta_bench.analysis.table.rows import (
    SOURCE,
    Row,
    domain_labels,
    domain_names,
    is_balanced,
    metric_of,
    source_row,
)
from ctta_bench.analysis.table.table import DAGGER, EMPTY, safe_name
from ctta_bench.errors import counted
from ctta_bench.registry import BENCHMARKS, METHODS, MODELS
from ctta_bench.scoring.metric import COLLAPSE_SHARE
from ctta_bench.stream.settings import setting_display_name

HELD_OUT, TRAINING = "held-out images", "training images"  # of the source domain
_MICRO = "Micro mean: over all images, so that a domain with more images counts more"
MARKS = "Bold: best of the column, if at most three are equal; underlined: second best."
ALIKE = "Bold mean: the best, and what is not distinguishable from it."
_VERSIONS = [
    "ctta_bench", "commit", "torch", "timm", "numpy", "device", "threads", "attention", "data",
]  # fmt: skip
_VERSION_NAMES = {"data": "the fingerprint of the streamed data"}


def protocol(runs: Runs) -> str:
    """What all cells of a group share, in sentences: model, normalisation, amounts, seeds."""
    cell = runs.cells.iloc[0]
    amounts = (
        f"Precision {cell['precision']}",
        f"batch size {cell['batch_size']}",
        f"{_images(cell)} per domain",
        counted(len(domain_names(runs)), "domain"),
        counted(int(cell["rounds"]), "round"),
        _seeds(runs.cells),
    )
    sentences = (
        _subject(cell),
        f"Normalisation: {normalisation_label(cell)}",
        ", ".join(amounts),
        f"Other settings: {cell['details']}" if cell["details"] else "",
        _source_accuracy(runs),
    )
    return ". ".join(sentence for sentence in sentences if sentence)


def title(runs: Runs) -> str:
    """Benchmark, setting and model of a group: `ImageNet-C, Continual, severity 5 – ViT-B/16`."""
    cell = runs.cells.iloc[0]
    of_papers = cell["preprocessing"] == "lineage"
    more = f", normalisation: {normalisation_label(cell)}" if of_papers else ""
    return _subject(cell) + more


def _subject(cell: "pd.Series[Any]") -> str:
    benchmark = BENCHMARKS.display_name(cell["benchmark"])
    return f"{benchmark}, {setting_label(cell)} – {MODELS.display_name(cell['model'])}"


def setting_label(cell: "pd.Series[Any]") -> str:
    """The setting of a cell, with its severity if the benchmark has any: `Mixed, severity 5`."""
    parts = (setting_display_name(cell["setting"]), severity_text(cell["severity"]))
    return ", ".join(part for part in parts if part)


def severity_text(value: Any) -> str:
    """`severity 5`, `severities 1-3-5-3-1` of one gradual stream; "" for a benchmark without."""
    if isinstance(value, list | tuple):
        return f"severities {'-'.join(map(str, value))}"
    return "" if pd.isna(value) else f"severity {value:g}"


def normalisation_label(cell: "pd.Series[Any]") -> str:
    """How the inputs of a cell are normalised, and who chose it."""
    values = str(cell["normalisation"])
    values = "none, raw [0, 1]" if values.startswith("none") else values
    if cell["preprocessing"] == "true":
        return f"the checkpoint's own ({values})"
    if cell["preprocessing"] == "lineage":
        return f"{values} as in earlier papers"
    return f"{cell['preprocessing']} ({values})"


def averaged(runs: Runs, *over: str) -> str:
    """`over domains, rounds and seeds`, without rounds or seeds if there is one; "" for none."""
    single = {
        "rounds": int(runs.cells["rounds"].iloc[0]) == 1,
        "seeds": runs.cells["seed"].nunique() == 1,
    }
    several = [name for name in over if not single.get(name)]
    return f"over {enumerated(several)}" if several else ""


def spread(found: Sequence[Row]) -> str:
    """The meaning of ±, or "" where no row has several finished seeds."""
    seeds = max((len(row.values) for row in found), default=0)
    of = f"sample standard deviation over {seeds} seeds, no interval and no test"
    return f"; ±: {of}" if seeds > 1 else ""


def interval(found: Sequence[Row]) -> str:
    """The meaning of ± where it is an interval of the error; "" where no row is complete."""
    seeds = {len(row.values) for row in found if not np.isnan(row.mean)}
    if not seeds:
        return ""
    return f"; ±: {half_interval(max(seeds))}"


def half_interval(seeds: int) -> str:
    """What half an interval of an error is, and what it holds for, in words."""
    return f"half the 95 % interval, {holds_for(seeds)}"


def holds_for(seeds: int) -> str:
    """What was sampled, and so what an interval or a p holds for."""
    if seeds == 1:
        return "for other images, not for other seeds (one seed was run)"
    return "for other images and other seeds"


def enumerated(texts: Sequence[str]) -> str:
    """`a, b and c`."""
    *others, last = texts
    return f"{', '.join(others)} and {last}" if others else last


def table_name(runs: Runs) -> str:
    """A short, safe and unique stem for the files of a group."""
    cell = runs.cells.iloc[0]
    text = f"{cell['benchmark']}-{cell['setting']}-{cell['model']}"
    return f"{safe_name(text)}-{cell['group']}"


def brief(runs: Runs, found: Sequence[Row], over: Sequence[str] = ("domains", "rounds")) -> str:
    """The caption in print: metric, benchmark, setting and model, and what ± and bold mean."""
    cell = runs.cells.iloc[0]
    parts = [
        f"{upper_first(metric_of(runs).text)} on {BENCHMARKS.display_name(cell['benchmark'])} "
        f"({setting_label(cell)}) with {MODELS.display_name(cell['model'])}",
        *([f"mean {of}"] if (of := averaged(runs, *over, "seeds")) else []),
        *(["±: half the 95 % interval"] if interval(found) else []),
        "bold: best of the column, or mean not distinguishable from the best",
    ]
    return "; ".join(parts)


def source_data_group(row: Row) -> str:
    """The group of a row in print: whether it needs source data; "" for source itself.

    As recorded with its cells; for older cells, as the method declares it.
    """
    if row.method == SOURCE:
        return ""
    recorded = set(row.finished["source_access"].dropna())
    access = (recorded or {METHODS.declared(row.method, "source_access", "none")}) - {"none"}
    return GROUPS[bool(access or row.cells["warmup"].astype(bool).any())]


def caption(runs: Runs, found: Sequence[Row]) -> str:
    """The protocol, the metric, and how to read the columns."""
    metric = metric_of(runs)
    sentences = [
        protocol(runs),
        upper_first(metric.text),
        f"Mean {averaged(runs, 'domains', 'rounds', 'seeds')}{interval(found)}",
        *([] if is_balanced(runs) else [_MICRO]),
        *([f"Gain: {metric.gain_text}, in points"] if source_row(found) else []),
    ]
    return f"{'. '.join(sentences)}. {MARKS} {ALIKE}"


def footnotes(runs: Runs, found: Sequence[Row]) -> tuple[str, ...]:
    """Sentences on what a reader must know: collapse, missing cells, source data, versions, ..."""
    return tuple(
        note
        for part in (
            _collapsed(runs, found),
            _empty(runs, found),
            _absent(runs),
            _published_normalisation(runs.cells),
            _source_data(found),
            corruptions(runs.cells),
            _tuned(found),
            chosen(found),
            _counted(
                found,
                "skipped_updates",
                "Updates skipped because no image was selected or the loss was not finite",
            ),
            _counted(found, "resets", "Resets to the source model by the method itself"),
            _versions(runs.cells, found),
            _orders(runs.cells),
            missing_cells(found),
        )
        for note in part
    )


def upper_first(text: str) -> str:
    """`Error in %`, but `mIoU in %`."""
    if any(char.isupper() for char in text.split()[0]):  # mIoU
        return text
    return text[:1].upper() + text[1:]


def _images(cell: "pd.Series[Any]") -> str:
    examples = cell["examples"]
    return "all images" if pd.isna(examples) else f"{examples:g} images"


def _seeds(cells: pd.DataFrame) -> str:
    seeds = sorted(cells["seed"].unique())
    return ("seed " if len(seeds) == 1 else "seeds ") + ", ".join(map(str, seeds))


def _source_accuracy(runs: Runs) -> str:
    what = metric_of(runs).check
    for column, images in (("held_out_accuracy", HELD_OUT), ("source_accuracy", TRAINING)):
        known = runs.cells[column].dropna()
        if len(known):
            return (
                f"{what.capitalize()} of the source model on its source domain ({images}): "
                f"{known.iloc[0]:.1f} %"
            )
    return ""


def _collapsed(runs: Runs, found: Sequence[Row]) -> Iterator[str]:
    labels = domain_labels(runs)
    parts = [
        f"{row.label}: {', '.join(label for name, label in labels.items() if name in names)}"
        for row in found
        if (names := collapsed_domains(runs, row))
    ]
    if parts:
        yield (
            f"{DAGGER} Collapsed: in at least one round of one seed, a single class makes up "
            f"{100 * COLLAPSE_SHARE:.0f} % or more of the predictions although the labels are "
            f"mixed ({'; '.join(parts)})."
        )


def _empty(runs: Runs, found: Sequence[Row]) -> Iterator[str]:
    rounds = range(int(runs.cells["rounds"].iloc[0]))
    labels = domain_labels(runs).values()
    parts = [
        f"{label} (round {step + 1})" if len(rounds) > 1 else label
        for step in rounds
        for place, label in enumerate(labels)
        if any(row.is_empty(0)[step, place] for row in found)
    ]
    if parts:
        yield (
            f"{EMPTY}: no labelled pixel in {listed(parts)}. The means are over the other domains."
        )


def _absent(runs: Runs) -> Iterator[str]:
    """Domains whose labels lack classes that other domains of the same cells have."""
    if not metric_of(runs).missing_note:
        return
    most = runs.domains.groupby("cell")["classes"].transform("max")
    lacking = runs.domains[runs.domains["classes"] < most]
    if lacking.empty:
        return
    fewest = lacking.groupby("domain")["classes"].min()
    parts = [
        f"{label} has {fewest[name]} ({most.max() - fewest[name]} absent)"
        for name, label in domain_labels(runs).items()
        if name in fewest
    ]
    yield (
        f"Not all {most.max()} classes occur in every domain: {listed(parts)}. "
        f"{metric_of(runs).missing_note}"
    )


def collapsed_domains(runs: Runs, row: Row) -> set[str]:
    """Domains in which a row's predictions collapsed, in any seed or round."""
    here = runs.domains[runs.domains["cell"].isin(row.cells["cell"])]
    return set(here.loc[here["collapsed"].astype(bool), "domain"])


def _published_normalisation(cells: pd.DataFrame) -> Iterator[str]:
    if cells["preprocessing"].iloc[0] == "lineage":
        yield (
            "Pre-processing `lineage`: the inputs are normalised as in the published tables of "
            f"this benchmark ({cells['normalisation'].iloc[0]}), not as the weights were trained."
        )


def _source_data(found: Sequence[Row]) -> Iterator[str]:
    """Rows that were trained on source images before the stream, and rows that read any."""
    warmed = [row.label for row in found if row.cells["warmup"].astype(bool).any()]
    if warmed:
        yield f"Trained on source images before the stream (warm-up): {listed(warmed)}."
    readers: dict[str, list[str]] = {}
    for row in found:
        for access in row.finished["source_access"].dropna().unique():
            readers.setdefault(str(access), []).append(row.label)
    for access in ("labelled", "unlabelled"):
        if access in readers:
            yield f"Read {access} source images before the stream: {listed(readers[access])}."


def corruptions(cells: pd.DataFrame) -> Iterator[str]:
    """What cells say of their images: that they are self-made, a part of the set, ..."""
    for text in sorted(cells["corruptions"].dropna().unique()):
        yield f"{upper_first(str(text)).rstrip('.')}."


def _tuned(found: Sequence[Row]) -> Iterator[str]:
    """The rows with tuned hyper-parameters, by how and on what they were tuned."""
    users: dict[str, list[str]] = {}
    for row in found:
        for text in dict.fromkeys(row.cells["tuned"].dropna()):
            if text:
                users.setdefault(str(text), []).append(row.label)
    for how, labels in users.items():
        yield f"Tuned, hyper-parameters chosen on hold-out domains ({how}): {listed(labels)}."


def chosen(found: Sequence[Row], start: str = "") -> Iterator[str]:
    """The notes in the records of cells that begin with `start`, each with its rows.

    For example, that a preset was made for another model.
    """
    users: dict[str, list[str]] = {}
    for row in found:
        notes = (note for notes in row.cells["notes"] for note in notes if note.startswith(start))
        for note in dict.fromkeys(notes):
            users.setdefault(note, []).append(row.label)
    for note, labels in users.items():
        yield f"{listed(labels)}: {note}."


def _counted(found: Sequence[Row], counter: str, text: str) -> Iterator[str]:
    parts = [
        f"{row.label}, seed {seed}: {int(count)}"
        for row in found
        for seed, count in zip(row.finished["seed"], row.finished[counter], strict=True)
        if pd.notna(count) and count > 0
    ]
    if parts:
        yield f"{text} ({listed(parts, '; ')})."


def _versions(cells: pd.DataFrame, found: Sequence[Row]) -> Iterator[str]:
    users: dict[str, dict[str, list[str]]] = {name: {} for name in _VERSIONS}
    for row in found:
        for name in _VERSIONS:
            for value in row.finished[name].dropna().unique():
                users[name].setdefault(_plain(value), []).append(row.label)
    same = [f"{name} {next(iter(values))}" for name, values in users.items() if len(values) == 1]
    same.append(f"weights {cells['model_sha256'].iloc[0][:8]} (first digits of the SHA-256)")
    yield f"Made with {', '.join(same)}."
    for name, values in users.items():
        if len(values) > 1:
            parts = [f"{value} ({', '.join(labels)})" for value, labels in sorted(values.items())]
            yield f"The cells differ in {_VERSION_NAMES.get(name, name)}: {'; '.join(parts)}."
    yield from _plugins(found)


def _plain(value: Any) -> str:
    """A version as text; numbers of a column with gaps are floats, of `threads` too."""
    return f"{value:g}" if isinstance(value, float) else str(value)


def _plugins(found: Sequence[Row]) -> Iterator[str]:
    """The files of plug-ins of which rows have several versions."""
    users: dict[str, dict[str, dict[str, None]]] = {}
    for row in found:
        for file in dict.fromkeys(file for files in row.finished["plugin_files"] for file in files):
            name, _, version = file.rpartition(" ")
            users.setdefault(name, {}).setdefault(version, {})[row.label] = None
    for name, versions in users.items():
        if len(versions) > 1:
            parts = [
                f"{version} ({', '.join(labels)})" for version, labels in sorted(versions.items())
            ]
            yield f"The cells differ in the plug-in file {name} (SHA-256): {'; '.join(parts)}."


def _orders(cells: pd.DataFrame) -> Iterator[str]:
    orders = cells.dropna(subset=["order_sha256"]).groupby("seed")["order_sha256"].nunique()
    for seed in orders[orders > 1].index:
        yield f"With seed {seed} the methods did not see the images in the same order."
