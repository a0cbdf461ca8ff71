"""Whether runs agree with the paper of PAID: a verdict for each row, and why it may differ."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd

from ctta_bench.analysis.paper.as_run import AsRun, as_run
from ctta_bench.analysis.paper.match import BATCH_SIZE, Candidate, Family, families, regimes
from ctta_bench.analysis.paper.of_runs import filled
from ctta_bench.analysis.paper.shape import MAIN, OURS, SOURCE, name_of, quoted
from ctta_bench.analysis.read.collect import Runs
from ctta_bench.analysis.table import notes
from ctta_bench.analysis.table.compared import uncertainty
from ctta_bench.analysis.table.missing import listed
from ctta_bench.analysis.table.rows import metric_of
from ctta_bench.analysis.table.table import MISSING, Entry, Table, signed
from ctta_bench.record.schema import NOT_IN_PAPER
from ctta_bench.registry import BENCHMARKS
from ctta_bench.scoring.metric import printed

ROUNDING = 0.05 + 1e-9  # of a printed number
WITHIN, OUTSIDE, NO_INTERVAL = "within", "outside", "no interval"
_SEVERITY = 5
_NO_REASON = "no field of the protocol differs"


@dataclass(frozen=True, eq=False)
class Verdict:
    """A row of the paper and of the runs. half: of the 95 % interval of our mean; NaN: none."""

    label: str
    printed: float
    ours: float
    half: float
    reasons: tuple[str, ...]

    @property
    def difference(self) -> float:
        """Ours minus the printed mean."""
        return self.ours - self.printed

    @property
    def verdict(self) -> str:
        """`within` if the printed mean, which is rounded, lies in the interval of ours."""
        if not np.isfinite(self.half):
            return NO_INTERVAL
        return WITHIN if abs(self.difference) <= self.half + ROUNDING else OUTSIDE


def verdicts_of(runs: Runs) -> list[Verdict]:
    """A verdict on each row of the paper's tables for which there is a finished run."""
    found: dict[tuple[str, float, float], Verdict] = {}
    for candidates in regimes(runs):
        for table, family in filled([*families(candidates)]):
            source = _of_source(table, family)
            for name, one in family.taken.items():
                stated = _printed(table, family, name)
                if np.isnan(stated):
                    continue
                verdict = _verdict(table, family, name, one, stated, source)
                # PAID is a row of several tables.
                found.setdefault((one.row.name, stated, one.row.mean), verdict)
    return [*found.values()]


def agreement_table(runs: Runs) -> Table | None:
    """The verdicts as a table; None if no run is one of the paper's rows.

    Example: the last table of `ctta-bench report runs/main_imagenet_c --against paper`
    """
    found = verdicts_of(runs)
    if not found:
        return None
    counts = [one.verdict for one in found]
    return Table(
        name="agreement",
        caption=(
            "Agreement with the paper of PAID. Printed, ours: means over domains and rounds; "
            "difference: ours minus printed, in points. Within: the printed mean is in the 95 % "
            "interval of ours, after its rounding. Likely reason: what differs between the run and "
            "the published row as the experiments `paper/*` have it; not a proof."
        ),
        frame=pd.DataFrame(
            [
                (one.printed, one.ours, one.difference, one.half, one.verdict, *_reason(one))
                for one in found
            ],
            index=[one.label for one in found],
            columns=["printed", "ours", "difference", "half_interval", "verdict", "likely_reason"],
        ),
        header=("cell", "printed", "ours", "difference", "± interval", "verdict", "likely reason"),
        lines=tuple(
            (
                one.label,
                (
                    Entry(printed(one.printed)),
                    Entry(printed(one.ours)),
                    Entry(signed(one.difference)),
                    Entry(printed(one.half) if np.isfinite(one.half) else MISSING),
                    Entry(one.verdict),
                    *map(Entry, _reason(one)),
                ),
            )
            for one in found
        ),
        footnotes=(f"{counts.count(WITHIN)} of {len(found)} rows agree with the paper.",),
        brief="Agreement with the paper of PAID",
    )


def _reason(one: Verdict) -> tuple[str]:
    return (MISSING if one.verdict == WITHIN else listed(one.reasons, "; ") or _NO_REASON,)


def _verdict(
    table: str, family: Family, name: str, one: Candidate, stated: float, source: str
) -> Verdict:
    sure = uncertainty(one.row, metric_of(one.group))
    label = f"{BENCHMARKS.display_name(family.benchmark)}, {_label(table, name)}"
    known = as_run(family.benchmark, one.row.method)
    reasons = [*_differences(one, known), *_of_print(table, family, name, stated)]
    reasons += [source] if source and one.row.method != SOURCE else []
    half = sure.half_width if sure is not None else float("nan")
    return Verdict(label, stated, one.row.mean, half, tuple(reasons))


def _label(table: str, name: str) -> str:
    if table == "10_round":
        return f"PAID, {'one round' if name == '1' else 'ten rounds'}"
    method, _, variant = name.partition(":")
    shown = "PAID" if method == OURS else name_of(method)
    return SOURCE.capitalize() if variant == "none" else shown + f" ({variant})" * bool(variant)


def _printed(table: str, family: Family, name: str) -> float:
    """The printed mean of a row of a table."""
    metric = metric_of(family.candidates[0].group).name
    method, step = (OURS, name) if table == "10_round" else (name, "1")
    step = "all" if table == "acdc" else step
    return quoted().value(table, family.benchmark, method, step, "mean", metric)


def _of_source(table: str, family: Family) -> str:
    """That the source model itself has another mean than the paper's; "" if not."""
    one = family.taken.get(SOURCE) or family.pick(SOURCE)
    main = next((t for t in MAIN if not np.isnan(_printed(t, family, SOURCE))), None)
    if one is None or main is None:
        return ""
    stated = _printed(main, family, SOURCE)
    sure = uncertainty(one.row, metric_of(one.group))
    half = sure.half_width if sure is not None and np.isfinite(sure.half_width) else 0.0
    if abs(one.row.mean - stated) <= half + ROUNDING:
        return ""
    return f"source model or images: Source is {printed(one.row.mean)}, printed {printed(stated)}"


def _differences(one: Candidate, known: AsRun | None) -> Iterator[str]:
    """The fields of the protocol that differ from those of the published row."""
    cell = one.cell
    corrupted = {str(text) for text in one.row.finished["corruptions"].dropna()}
    if corrupted:
        yield f"images: {', '.join(sorted(corrupted))}"
    if known is not None:
        if cell["preprocessing"] != known.preprocessing:
            yield f"normalisation: {cell['preprocessing']}, published {known.preprocessing}"
        differing = one.differing()
        has_warmup = bool(one.row.cells["warmup"].astype(bool).any())
        if has_warmup != known.has_warmup:
            yield "warm-up: none" if known.has_warmup else "warm-up: one, published without"
        if BATCH_SIZE in differing:
            yield "batch size: {}, published {}".format(*differing.pop(BATCH_SIZE))
        others = [
            f"{key}={value} (published: {paper})"
            for key, (value, paper) in differing.items()
            if has_warmup == known.has_warmup or not key.startswith("warmup_")
        ]
        if others:
            yield f"hyper-parameters: {listed(others)}"
    if pd.notna(cell["examples"]):
        yield f"subset: {notes.counted(int(cell['examples']), 'image')} per domain"
    if pd.notna(cell["severity"]) and cell["severity"] != _SEVERITY:
        yield f"severity: {cell['severity']}, published {_SEVERITY}"
    if cell["precision"] != "float32":
        yield f"precision: {cell['precision']}"
    chosen = {text for texts in one.row.cells["notes"] for text in texts}
    yield from sorted(text for text in chosen if text.startswith(NOT_IN_PAPER))


def _of_print(table: str, family: Family, name: str, stated: float) -> Iterator[str]:
    """That the printed mean is not the mean of its printed cells."""
    results = quoted().results
    own = results[
        (results["table"] == table)
        & (results["benchmark"] == family.benchmark)
        & (results["method"] == name)
        & (results["domain"] != "mean")
    ]
    if table in MAIN and len(own) and abs(own["value"].mean() - stated) > ROUNDING:
        yield f"erratum: the printed cells give {printed(own['value'].mean())}"
