"""IoU by class: a table for each domain and one over all of them."""

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pandas as pd

from ctta_bench.analysis.read.collect import Runs
from ctta_bench.analysis.table import notes
from ctta_bench.analysis.table.rows import Row, domain_labels, domain_names, rows
from ctta_bench.analysis.table.table import MISSING, Entry, Table, ranked, safe_name
from ctta_bench.registry import TABLES
from ctta_bench.scoring.miou import CLASS_PREFIX

Floats = npt.NDArray[np.float64]


def classes_of(runs: Runs) -> list[str]:
    """The names of the classes that a group is scored by; [] without scores by class."""
    return next((list(names) for names in runs.cells["classes"] if len(names)), [])


@TABLES.register_module("classes", place=100, shown=1, heading="By class")
def class_tables(runs: Runs) -> list[Table]:
    """IoU by class of one group, over all domains and then for each; [] without such scores."""
    classes = classes_of(runs)
    found = [row for row in rows(runs) if len(row.values)]
    if not classes or not found:
        return []
    cubes = [by_class(runs, row, classes) for row in found]
    stem = notes.table_name(runs)
    tables = [
        _table(
            f"{stem}-classes",
            f"IoU in % by class: {notes.title(runs)}. Each class: mean over the domains, rounds "
            "and seeds in which it has an IoU. Last column: the metric itself, with the mean over "
            f"classes taken first and the mean over domains second. {_LEGEND}",
            found,
            [mean_over(cube, 3) for cube in cubes],
            classes,
            [row.mean for row in found],
            [],
        )
    ]
    for place, (domain, label) in enumerate(domain_labels(runs).items()):
        by_round = [cube[:, :, place] for cube in cubes]
        tables.append(
            _table(
                f"{stem}-classes-{safe_name(domain)}",
                f"IoU in % by class in {label}: {notes.title(runs)}. Mean over rounds and seeds. "
                f"Last column: the number of classes in the mIoU. {_LEGEND}",
                found,
                [mean_over(values, 2) for values in by_round],
                classes,
                [float(row.over(axis=1)[place]) for row in found],
                [_counts(values) for values in by_round],
            )
        )
    return tables


_LEGEND = (
    f"{MISSING}: the class is neither labelled nor predicted, and not in the mean. A class that is "
    f"predicted but never labelled has 0. {notes.MARKS}"
)


def class_notes(runs: Runs) -> Iterator[str]:
    """How many classes are in the mean of each domain, and which are not."""
    classes = classes_of(runs)
    cubes = [by_class(runs, row, classes) for row in rows(runs) if len(row.values)]
    if not classes or not cubes:
        return
    parts = []
    for place, label in enumerate(domain_labels(runs).values()):
        is_in = np.concatenate(
            [np.isfinite(cube[:, :, place]).reshape(-1, len(classes)) for cube in cubes]
        )
        is_in = is_in[is_in.any(axis=1)]  # another note names domains without a label
        if len(is_in):
            parts.append(_domain_note(label, is_in, classes))
    if parts:
        yield f"Classes in the mean, of {len(classes)}: {'; '.join(parts)}."


def _domain_note(domain: str, is_in: npt.NDArray[np.bool_], classes: Sequence[str]) -> str:
    """`night 17 (without train, bus)`, or a range where runs differ in what they predict."""
    some, every = np.asarray(is_in.any(axis=0)), np.asarray(is_in.all(axis=0))
    never = [name for name, there in zip(classes, some, strict=True) if not there]
    partly = [name for name, there in zip(classes, some & ~every, strict=True) if there]
    why = [f"without {', '.join(never)}"] if never else []
    why += [f"in some runs without {', '.join(partly)}"] if partly else []
    return f"{domain} {_range(is_in.sum(axis=1))}" + (f" ({'; '.join(why)})" if why else "")


def by_class(runs: Runs, row: Row, classes: Sequence[str]) -> Floats:
    """[finished seeds, rounds, domains, classes] IoU in %, NaN where a class has none."""
    cells, domains = list(row.finished["cell"]), domain_names(runs)
    here = runs.results[
        runs.results["cell"].isin(cells) & runs.results["metric"].str.startswith(CLASS_PREFIX)
    ]
    cube = np.full((len(cells), int(row.cells["rounds"].iloc[0]), len(domains), len(classes)), None)
    places = [
        here["cell"].map({cell: place for place, cell in enumerate(cells)}),
        here["round"],
        here["domain"].map({name: place for place, name in enumerate(domains)}),
        here["metric"].map({f"{CLASS_PREFIX}{n}": place for place, n in enumerate(classes)}),
    ]
    cube[tuple(place.to_numpy(dtype=np.int64) for place in places)] = here["value"].to_numpy()
    return cube.astype(np.float64)


def mean_over(values: Floats, axes: int) -> Floats:
    """[classes]: the mean over so many first axes of what there is."""
    flat = values.reshape(-1, values.shape[axes])
    present = np.isfinite(flat)
    sums = np.where(present, flat, 0).sum(0)
    means: Floats = np.where(present.any(0), sums / np.maximum(present.sum(0), 1), np.nan)
    return means


def _counts(by_round: Floats) -> str:
    """How many classes are in the mean, over rounds and seeds."""
    return _range(np.isfinite(by_round).sum(-1).ravel())


def _range(counts: npt.NDArray[np.int_]) -> str:
    low, high = int(counts.min()), int(counts.max())
    return str(low) if low == high else f"{low} to {high}"


def _table(
    name: str,
    caption: str,
    found: Sequence[Row],
    by_class: Sequence[Floats],
    classes: Sequence[str],
    mious: Sequence[float],
    counts: Sequence[str],
) -> Table:
    frame = pd.DataFrame(by_class, index=[row.name for row in found], columns=list(classes))
    frame["mIoU"] = mious
    columns = {column: ranked(frame[column], higher=True) for column in frame.columns}
    if counts:
        columns["classes"] = [Entry(count) for count in counts]
    return Table(
        name=name,
        caption=caption,
        frame=frame,
        header=("method", *columns),
        lines=tuple(
            (row.label, tuple(entries[line] for entries in columns.values()))
            for line, row in enumerate(found)
        ),
    )
