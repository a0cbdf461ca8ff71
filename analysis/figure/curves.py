"""Errors along the stream: batches averaged over seeds, smoothed within each domain."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from ctta_bench.analysis.read.collect import Runs, batches
from ctta_bench.analysis.table.rows import Row, metric_of
from ctta_bench.record.schema import BATCHES_FILE

MAX_BANDS = 60  # domains over all rounds; with more, a curve has one value per round
MAX_WINDOW = 50  # batches


def curves(
    found: Sequence[Row], of: str = "n", factor: float = 100
) -> tuple[pd.DataFrame, int | None]:
    """The curves of all rows in one frame, and the window of the moving average in batches.

    Columns: method (the row's name), batch, round, domain, band (number of the domain along the
    stream), images (seen so far), n, errors, of (the images or pixels that the key `of` of
    batches.jsonl counts), error and smoothed (`factor` times errors by `of`: in %), resets. The
    average is over the last `window` batches of the same domain. With more than MAX_BANDS domains
    the window is None, and the average is over the round.
    """
    means = [_mean_batches(row, of, factor) for row in found]
    window = _window(means[0])
    return (
        pd.concat([c.assign(smoothed=_smoothed(c, window, factor)) for c in means]),
        window,
    )


def has_all_batches(row: Row, runs: Runs) -> bool:
    """Whether the batches.jsonl of every finished cell of the row has all images."""
    of = metric_of(runs).count_key
    images = runs.domains.groupby("cell")["n"].sum().to_dict()
    return all(
        (Path(path) / BATCHES_FILE).is_file() and _num_images(path, of) == images.get(cell)
        for path, cell in zip(row.finished["path"], row.finished["cell"], strict=True)
    )


def _num_images(path: str, of: str) -> int:
    frame = batches(path)
    return int(frame["n"].sum()) if of in frame else 0


def window_text(window: int | None) -> str:
    """The window of the average in words, for the axis."""
    if window is None:
        return "mean of each round"
    return "each batch" if window == 1 else f"mean of the last {window} batches in the domain"


def _mean_batches(row: Row, of: str, factor: float) -> pd.DataFrame:
    """The batches of a row, averaged over seeds: errors and images per batch, and the domain."""
    frames = []
    for path in row.finished["path"]:
        frame = batches(path)
        resets = frame["resets"].fillna(0) if "resets" in frame else 0
        frames.append(frame.assign(resets=resets, of=frame[of]))
    merged = {"round": "first", "domain": "first", "n": "mean", "errors": "mean", "of": "mean"}
    curve: pd.DataFrame = (
        pd.concat(frames).groupby("batch", sort=True).agg(merged | {"resets": "max"}).reset_index()
    )
    same = ["round", "domain"]
    curve["band"] = (curve[same] != curve[same].shift()).any(axis=1).cumsum()
    curve["images"] = curve["n"].cumsum()
    curve["error"] = factor * curve["errors"] / curve["of"]
    curve["method"] = row.name
    return curve


def _window(curve: pd.DataFrame) -> int | None:
    """A sixth of a domain, at most MAX_WINDOW batches; None for whole rounds."""
    sizes = curve.groupby("band").size()
    if len(sizes) > MAX_BANDS:
        return None
    return int(np.clip(float(sizes.median()) // 6, 1, MAX_WINDOW))


def _smoothed(curve: pd.DataFrame, window: int | None, factor: float) -> "pd.Series[float]":
    """Errors in %: over the last `window` batches of the same domain, or over the round."""
    counts = ["errors", "of"]
    if window is None:
        sums = curve.groupby("round")[counts].transform("sum")
    else:
        rolling = curve.groupby("band")[counts].rolling(window, min_periods=1).sum()
        sums = rolling.reset_index(level=0, drop=True)
    share: pd.Series[float] = factor * sums["errors"] / sums["of"]
    return share
