"""What a reader must know beside a number: the caption and the footnotes of a group."""

from collections.abc import Iterator, Sequence
from typing import Any

import pandas as pd

from ctta_bench.analysis.read.collect import Runs
from ctta_bench.analysis.table.missing import listed, missing_cells
from ctta_bench.analysis.table.rows import Row, domain_labels, domain_names, metric_of
from ctta_bench.analysis.table.table import DAGGER, EMPTY, safe_name
from ctta_bench.scoring.metric import COLLAPSE_SHARE

_VERSIONS = ["ctta_bench", "commit", "torch", "timm", "numpy", "device", "attention"]


def protocol(runs: Runs) -> str:
    """What all cells of a group share: benchmark, model, pre-processing, precision, amounts."""
    cell = runs.cells.iloc[0]
    return "; ".join(
        part
        for part in (
            f"{cell['benchmark']}, {cell['setting']}{_severity(cell)}: "
            f"model {cell['model']} (weights {cell['model_sha256'][:8]})",
            f"pre-processing {cell['preprocessing']} ({cell['normalisation']})",
            str(cell["precision"]),
            f"batch size {cell['batch_size']}",
            f"{_images(cell)} per domain",
            f"{len(domain_names(runs))} domains",
            "1 round" if cell["rounds"] == 1 else f"{cell['rounds']} rounds",
            _seeds(runs.cells),
            cell["details"],
            _source_accuracy(runs),
        )
        if part
    )


def title(runs: Runs) -> str:
    """Benchmark, setting, model and pre-processing of a group, in a line."""
    cell = runs.cells.iloc[0]
    return (
        f"{cell['benchmark']}, {cell['setting']}{_severity(cell)} – {cell['model']} "
        f"({cell['model_sha256'][:8]}), pre-processing {cell['preprocessing']}"
    )


def table_name(runs: Runs) -> str:
    """A short, safe and unique stem for the files of a group."""
    cell = runs.cells.iloc[0]
    text = f"{cell['benchmark']}-{cell['setting']}-{cell['model']}"
    return f"{safe_name(text)}-{cell['group']}"


def caption(runs: Runs, found: Sequence[Row]) -> str:
    """The protocol, the metric, and how to read the columns."""
    rounds = ", rounds" if runs.cells["rounds"].iloc[0] > 1 else ""
    spread = " ± standard deviation over seeds" if any(len(r.values) > 1 for r in found) else ""
    metric = metric_of(runs)
    return (
        f"{protocol(runs)}. {_upper_first(metric.text)}; mean over domains{rounds} and "
        f"seeds{spread}; gain is {metric.gain_text}, in points. Best bold, second underlined."
    )


def _severity(cell: "pd.Series[Any]") -> str:
    """`, severity 5`, `, severities 1, 3`, or nothing where the benchmark has none."""
    value = cell["severity"]
    if isinstance(value, list | tuple):
        return f", severities {', '.join(map(str, value))}"
    return "" if pd.isna(value) else f", severity {value:g}"


def footnotes(runs: Runs, found: Sequence[Row]) -> tuple[str, ...]:
    """All that departs from a complete, uniform, uneventful table, as sentences."""
    return tuple(
        note
        for part in (
            _collapsed(runs, found),
            _empty(runs, found),
            _absent(runs),
            _published_normalisation(runs.cells),
            _source_data(found),
            _corruptions(runs.cells),
            _chosen(found),
            _counted(found, "skipped_updates", "Updates skipped as their loss was not finite"),
            _counted(found, "resets", "Resets to the source model, by the method"),
            _versions(found),
            _orders(runs.cells),
            missing_cells(found),
        )
        for note in part
    )


def _upper_first(text: str) -> str:
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
    known = runs.cells["source_accuracy"].dropna()
    what = metric_of(runs).check
    return f"{what} on the source domain {known.iloc[0]:.1f} %" if len(known) else ""


def _collapsed(runs: Runs, found: Sequence[Row]) -> Iterator[str]:
    domains = domain_names(runs)
    short = dict(zip(domains, domain_labels(domains), strict=True))
    parts = [
        f"{row.label}: {', '.join(short[name] for name in domains if name in names)}"
        for row in found
        if (names := collapsed_domains(runs, row))
    ]
    if parts:
        yield (
            f"{DAGGER} Collapsed: in at least one seed or round a single class makes up "
            f"{100 * COLLAPSE_SHARE:.0f} % or more of the predictions ({'; '.join(parts)})."
        )


def _empty(runs: Runs, found: Sequence[Row]) -> Iterator[str]:
    rounds = range(int(runs.cells["rounds"].iloc[0]))
    names = domain_labels(domain_names(runs))
    parts = [
        f"{name} (round {step + 1})" if len(rounds) > 1 else name
        for step in rounds
        for place, name in enumerate(names)
        if any(row.is_empty(0)[step, place] for row in found)
    ]
    if parts:
        yield (
            f"{EMPTY}: no labelled pixel in {listed(parts)}; left out of the means, which are "
            "over the others."
        )


def _absent(runs: Runs) -> Iterator[str]:
    """Domains whose labels lack classes that other domains of the same cells have."""
    if not metric_of(runs).missing_note:
        return
    most = runs.domains.groupby("cell")["classes"].transform("max")
    lacking = runs.domains[runs.domains["classes"] < most]
    if lacking.empty:
        return
    short = dict(zip(domain_names(runs), domain_labels(domain_names(runs)), strict=True))
    fewest = lacking.groupby("domain")["classes"].min()
    parts = [
        f"{short[name]} {fewest[name]} ({most.max() - fewest[name]} absent)"
        for name in short
        if name in fewest
    ]
    yield f"Classes that occur, of {most.max()}: {listed(parts)}. {metric_of(runs).missing_note}"


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
    """Which rows were trained on source images before the stream, and which read them at all."""
    warmed = [row.label for row in found if row.cells["warmup"].astype(bool).any()]
    if warmed:
        yield f"Trained on source images before the stream (warm-up): {listed(warmed)}."
    readers: dict[str, list[str]] = {}
    for row in found:
        for access in row.finished["source_access"].dropna().unique():
            readers.setdefault(str(access), []).append(row.label)
    parts = [
        f"{access} source images were read by {listed(readers[access])}"
        for access in ("labelled", "unlabelled")
        if access in readers
    ]
    if parts:
        yield f"Before the stream, {'; '.join(parts)}."


def _corruptions(cells: pd.DataFrame) -> Iterator[str]:
    for text in sorted(cells["corruptions"].dropna().unique()):
        yield f"{_upper_first(str(text)).rstrip('.')}."


def _chosen(found: Sequence[Row]) -> Iterator[str]:
    """What cells say of themselves, e.g. that a preset was made for another model."""
    users: dict[str, list[str]] = {}
    for row in found:
        for note in dict.fromkeys(note for notes in row.cells["notes"] for note in notes):
            users.setdefault(note, []).append(row.label)
    for note, labels in users.items():
        yield f"{listed(labels)}: {note}."


def _counted(found: Sequence[Row], counter: str, text: str) -> Iterator[str]:
    parts = [
        f"{row.label} seed {seed}: {int(count)}"
        for row in found
        for seed, count in zip(row.finished["seed"], row.finished[counter], strict=True)
        if count > 0
    ]
    if parts:
        yield f"{text}: {listed(parts)}."


def _versions(found: Sequence[Row]) -> Iterator[str]:
    users: dict[str, dict[str, list[str]]] = {name: {} for name in _VERSIONS}
    for row in found:
        for name in _VERSIONS:
            for value in row.finished[name].dropna().unique():
                users[name].setdefault(str(value), []).append(row.label)
    same = [f"{name} {next(iter(values))}" for name, values in users.items() if len(values) == 1]
    if same:
        yield f"Made with {', '.join(same)}."
    for name, values in users.items():
        if len(values) > 1:
            parts = [f"{value} ({', '.join(labels)})" for value, labels in sorted(values.items())]
            yield f"The cells differ in {name}: {'; '.join(parts)}."


def _orders(cells: pd.DataFrame) -> Iterator[str]:
    orders = cells.dropna(subset=["order_sha256"]).groupby("seed")["order_sha256"].nunique()
    for seed in orders[orders > 1].index:
        yield f"The cells of seed {seed} did not see the images in the same order."
