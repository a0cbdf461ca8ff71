"""What a method forgets of its source domain: accuracy before, along and after the stream."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from ctta_bench.analysis.read.collect import Runs
from ctta_bench.analysis.table import notes
from ctta_bench.analysis.table.rows import SHORT_NAMES, Row, metric_of, rows
from ctta_bench.analysis.table.swept import in_axis_order
from ctta_bench.analysis.table.table import MISSING, Entry, Table, ranked, signed
from ctta_bench.registry import TABLES

MAX_COLUMNS = 20  # probes that stand one by one; of more, before, lowest and after alone


@TABLES.register_module("forgetting", place=40)
def forgetting_table(runs: Runs) -> Table | None:
    """Accuracy on source images at each probe of a group's runs; None if none was probed.

    Means over the seeds that have the probes. `forgotten` is the accuracy before the stream minus
    that after it, in points; a method that was probed at other places stands without the others'.
    """
    each = [(row, _probes(row)) for row in in_axis_order(rows(runs))]
    found = [(row, probes) for row, probes in each if not probes.empty]
    if not found:
        return None
    places = max((probes for _, probes in found), key=lambda probes: len(probes.columns)).columns
    frame = pd.DataFrame(
        [probes.mean().reindex(places) for _, probes in found],
        index=[row.label for row, _ in found],
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
            f"On the source domain: {notes.title(runs)}. {check[0].upper()}{check[1:]} in % on "
            "source images before the stream, as the method stands at the end of each domain or "
            "round, without adapting to them; the lowest of these; and points lost from before to "
            "after the stream. Best bold, second underlined."
        ),
        frame=frame,
        header=("method", *_heads(shown), "lowest", "forgotten"),
        lines=tuple(
            (row.label, tuple(entries[line] for entries in columns.values()))
            for line, (row, _) in enumerate(found)
        ),
    )


def _probes(row: Row) -> pd.DataFrame:
    """A line a finished seed, a column a probe, by what was seen before it; empty without any."""
    of_seeds = [
        {_place(probe, probes): probe["accuracy"] for probe in probes}
        for probes in row.finished["source_probes"]
        if isinstance(probes, list | tuple) and probes
    ]
    return pd.DataFrame(of_seeds)


def _place(probe: Mapping[str, Any], probes: Sequence[Mapping[str, Any]]) -> str:
    """`before`, `after round 2`, or `after round 2 fog` where domains were probed one by one."""
    if probe["domain"] is None:
        return "before"
    steps = [other["round"] for other in probes]
    domain = f" {probe['domain']}" if len(set(steps)) < len(steps) else ""
    return f"after round {probe['round'] + 1}{domain}"


def _heads(places: Sequence[str]) -> list[str]:
    """The places as column heads: short names, and no round where there is one alone."""
    is_one_round = all(place == "before" or place.startswith("after round 1 ") for place in places)
    heads = [place.replace("round 1 ", "") if is_one_round else place for place in places]
    return [
        " ".join(SHORT_NAMES.get(word, word.replace("_", " ")) for word in head.split())
        for head in heads
    ]
