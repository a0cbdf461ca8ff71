"""The gain of each method under each setting: which method to use when."""

import textwrap
from pathlib import Path

import matplotlib
import numpy as np
import pandas as pd

from ctta_bench.analysis.figure.canvas import SCREEN, Canvas, save_figure
from ctta_bench.analysis.figure.dots import write_column
from ctta_bench.analysis.read.collect import Runs
from ctta_bench.analysis.read.error_model import LEVEL
from ctta_bench.analysis.table import notes
from ctta_bench.analysis.table.compared import compared_with
from ctta_bench.analysis.table.rows import metric_of, rows, source_row
from ctta_bench.analysis.table.table import MISSING, signed
from ctta_bench.analysis.tables.by_setting import names_of, settings_of, shared
from ctta_bench.analysis.tables.leaderboard import (
    BETTER,
    WORSE,
    measured_times,
    relative_times,
)
from ctta_bench.registry import BENCHMARKS, FIGURES, MODELS

COLOURS = "PuOr"  # orange is worse, purple better; told apart with each kind of colour blindness
STRONGEST = 90  # percentile of |gain| with the strongest colour: a few extremes leave the rest pale
LETTERS = 11  # of a line of a head
TEXT = (
    "Gain of each method over source under each setting, in points: purple, positive: better; "
    f"{BETTER}, {WORSE}: differs from source (p < {LEVEL}, Holm's correction within the column)"
)


@FIGURES.register_module("by_setting", place=15, of="all", kind="means")
def setting_figures(
    runs: Runs, stem: Path, canvas: Canvas = SCREEN
) -> list[tuple[str, list[Path]]]:
    """For each benchmark and model with several settings: what its figure shows, and its files."""
    drawn = [(columns, gains(columns)) for columns in settings_of(runs)]
    return [
        (TEXT, _figure(columns, found, stem.with_name(f"by-setting-{number + 1}"), canvas))
        for number, (columns, found) in enumerate(drawn)
        if not found.empty
    ]


def gains(columns: dict[str, Runs]) -> pd.DataFrame:
    """The gain of each method over source by setting; empty if source was run under none.

    Columns method (label), setting (head), gain in points (positive: better), p_holm (corrected
    within the setting, NaN without a test), time (multiple of source's) and seeds. Methods are
    sorted by their median gain, the best first. Where some settings have a record of `ctta-bench
    cost`, times are from it alone.
    """
    name_of, labels = names_of(columns)
    found, measured = [], set()
    for head, group in columns.items():
        of_group, metric = rows(group), metric_of(group)
        source = source_row(of_group)
        if source is None:
            continue
        others = [row for row in of_group if row is not source and not np.isnan(row.mean)]
        times = measured_times(of_group, source)
        if times:
            measured.add(head)
        else:
            times = relative_times(of_group, source)
        for one in compared_with(source, others, metric):
            name = name_of[one.row.cells["cell"].iloc[0]]
            gain = metric.gain(source.mean, one.row.mean)
            if one.estimate is not None:  # over the seeds that both have
                gain = one.estimate.scaled(-metric.ascending).mean
            time, seeds = times.get(one.row.name, np.nan), len(one.row.values)
            found.append((name, labels[name], head, gain, one.p_holm, time, seeds))
    frame = pd.DataFrame(
        found, columns=["name", "method", "setting", "gain", "p_holm", "time", "seeds"]
    )
    order = frame.groupby("name", sort=False)["gain"].median().sort_values(ascending=False).index
    if measured:
        frame.loc[~frame["setting"].isin(measured), "time"] = np.nan
    frame["name"] = pd.Categorical(frame["name"], order, ordered=True)
    return frame.sort_values("name", kind="stable").reset_index(drop=True)


def _figure(
    columns: dict[str, Runs], found: pd.DataFrame, stem: Path, canvas: Canvas
) -> list[Path]:
    heads = [head for head in columns if head in set(found["setting"])]
    table = found.pivot(index="name", columns="setting", values="gain")[heads]
    gains_of = table.to_numpy()
    sure = (found.pivot(index="name", columns="setting", values="p_holm")[heads] < LEVEL).to_numpy()
    labels = found.drop_duplicates("name").set_index("name").loc[table.index, "method"]
    times = found.groupby("name", observed=True)["time"].median().loc[table.index]
    strongest = max(float(np.nanpercentile(np.abs(gains_of), STRONGEST)), 0.1)
    cell = columns[heads[0]].cells.iloc[0]
    about = f"{BENCHMARKS.display_name(cell['benchmark'])} – {MODELS.display_name(cell['model'])}"
    with canvas.drawing():
        height = 1.6 + 0.24 * len(table)
        figure = canvas.wide.figure((3.2 + 0.85 * len(heads), height), 0.7 + 0.155 * len(table))
        axes = figure.subplots()
        axes.pcolormesh(
            np.arange(len(heads) + 1) - 0.5,
            np.arange(len(table) + 1) - 0.5,
            np.ma.masked_invalid(gains_of),
            cmap=COLOURS,
            norm=matplotlib.colors.Normalize(-strongest, strongest),
            edgecolors="white",
            linewidth=0.8,
        )
        for (line, column), gain in np.ndenumerate(gains_of):
            mark = f" {BETTER if gain > 0 else WORSE}" * bool(sure[line, column])
            dark = abs(gain) > 0.65 * strongest  # false where it was not run
            axes.text(
                column, line, signed(gain) + mark, ha="center", va="center", fontsize="small",
                color="white" if dark else "black",
            )  # fmt: skip
        axes.set_yticks(range(len(table)), canvas.names(labels))
        axes.set_xticks(
            range(len(heads)),
            [textwrap.fill(head.replace(", ", " "), LETTERS) for head in heads],
            fontsize="small",
        )
        axes.xaxis.tick_top()
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
        axes.set_ylim(len(table) - 0.5, -0.5)
        write_column(
            axes, "time ×\nSource", [MISSING if np.isnan(t) else f"{t:.1f}" for t in times]
        )
        canvas.title(figure, f"Gain over Source by setting: {about}")
        held = notes.upper_first(notes.holds_for(int(found["seeds"].min())))
        caption = (
            f"{TEXT}. {about}. {shared(columns)}Rows are sorted by their median gain; time is "
            f"the median over the settings. {held}. {MISSING}: not run. "
            f"The colour is strongest from {strongest:.1f} points on."
        )
        return save_figure(figure, found.drop(columns="name"), stem, caption)
