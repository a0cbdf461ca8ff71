"""Forgetting of the source domain: accuracy before, during and after the stream."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from ctta_bench.analysis.read.collect import Runs
from ctta_bench.analysis.table import notes
from ctta_bench.analysis.table.rows import Row, domain_labels, metric_of, rows
from ctta_bench.analysis.table.swept import in_axis_order
from ctta_bench.analysis.table.table import MISSING, Entry, Table, ranked, signed
from ctta_bench.registry import TABLES

HELD_OUT_KEY = "held_out_accuracy"
IMAGES = {HELD_OUT_KEY: notes.HELD_OUT, "accuracy": notes.TRAINING}
MAX_COLUMNS = 20  # probes with a column each; with more there are only the first and the last


@TABLES.register_module("forgetting", place=40, heading="On the source domain")
def forgetting_table(runs: Runs) -> Table | None:
    """Accuracy on source images at each probe of a group's runs; None if no run was probed.

    Means over the seeds that have the probes. `forgotten` is the accuracy before the stream minus
    that after it, in points. A probe that a method does not have is missing in its row.
    """
    ordered = in_axis_order(rows(runs))
    measured = _measured(ordered)
    each = [(row, _probes(row, measured)) for row in ordered]
    found = [(row, probes) for row, probes in each if not probes.empty]
    if not found:
        return None
    places = max((probes for _, probes in found), key=lambda probes: len(probes.columns)).columns
    frame = pd.DataFrame(
        [probes.mean().reindex(places) for _, probes in found],
        index=[row.name for row, _ in found],
    )
    ends = [probes.iloc[:, [0, -1]].to_numpy() for _, probes in found]
    frame["lowest"] = [float(probes.mean().min()) for _, probes in found]
    frame["forgotten"] = [float((values[:, 0] - values[:, 1]).mean()) for values in ends]
    one_by_one = len(places) <= MAX_COLUMNS
    shown = list(places) if one_by_one else [places[0], places[-1]]
    columns = {name: ranked(frame[name], higher=True) for name in [*shown, "lowest"]}
    columns["forgotten"] = [
        Entry(MISSING if np.isnan(value) else signed(value)) for value in frame["forgotten"]
    ]
    check = metric_of(runs).check
    return Table(
        name=f"{notes.table_name(runs)}-forgetting",
        caption=(
            f"Forgetting of the source domain: {notes.title(runs)}. {check[0].upper()}{check[1:]} "
            f"in % on source images ({IMAGES[measured]}), before the stream and at the end of each "
            "domain or round. The method does not adapt to these images. Lowest: of all probes. "
            "Forgotten: accuracy before minus after the stream, in points. Means over seeds. "
            f"{notes.MARKS}"
        ),
        frame=frame,
        header=("method", *_heads(shown, domain_labels(runs)), "lowest", "forgotten"),
        lines=tuple(
            (row.label, tuple(entries[line] for entries in columns.values()))
            for line, (row, _) in enumerate(found)
        ),
    )


def _measured(each: Sequence[Row]) -> str:
    """The key of the accuracies: on held-out images if every probe has it, else on training ones.

    Records of 0.2 and older have no held-out images.
    """
    found = [probe for row in each for probes in _of_seeds(row) for probe in probes]
    has_all = all(probe.get(HELD_OUT_KEY) is not None for probe in found)
    return HELD_OUT_KEY if has_all else "accuracy"


def _probes(row: Row, measured: str) -> pd.DataFrame:
    """One row per finished seed, one column per probe, by what was seen before it."""
    of_seeds = [
        {_place(probe, probes): probe[measured] for probe in probes} for probes in _of_seeds(row)
    ]
    return pd.DataFrame(of_seeds, dtype=float)


def _of_seeds(row: Row) -> list[Sequence[Mapping[str, Any]]]:
    """The probes of each finished seed that has any."""
    found = row.finished["source_probes"]
    return [probes for probes in found if isinstance(probes, list | tuple) and probes]


def _place(probe: Mapping[str, Any], probes: Sequence[Mapping[str, Any]]) -> str:
    """`before`, `after round 2`, or `after round 2 fog` where domains were probed one by one."""
    if probe["domain"] is None:
        return "before"
    steps = [other["round"] for other in probes]
    domain = f" {probe['domain']}" if len(set(steps)) < len(steps) else ""
    return f"after round {probe['round'] + 1}{domain}"


def _heads(places: Sequence[str], labels: Mapping[str, str]) -> list[str]:
    """The places as column heads: display names of domains, no round where there is only one."""
    parts = [place.split(" ", 3) for place in places]  # after, round, 1, DOMAIN
    is_one_round = all(len(part) == 1 or (len(part) == 4 and part[2] == "1") for part in parts)
    return [
        " ".join(
            [*part[: 1 if is_one_round else 3], *(labels.get(name, name) for name in part[3:])]
        )
        for part in parts
    ]
