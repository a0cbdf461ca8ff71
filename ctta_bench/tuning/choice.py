"""The best trial of a search, and the preset file that it is written to."""

import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from ctta_bench.analysis.read.measure import metric_named
from ctta_bench.config.presets import read_tuned
from ctta_bench.errors import RunError
from ctta_bench.record.folder import RunFolder, atomic
from ctta_bench.record.schema import HELD_OUT, SCORED
from ctta_bench.tuning.plan import Plan, Values
from ctta_bench.tuning.trials import Trial, first_search, published

HEAD = "# Written by `ctta-bench tune`; the keys `command` contain its calls.\n"


@dataclass(frozen=True)
class Tuned:
    """The result of a method's search.

    values: the best preset. best: the place of its trial in `scores`, number: the trial's own.
    scores: mean error or mIoU in % by trial, None for a failed trial.
    """

    method: str
    values: Values
    published: Values
    searched: tuple[str, ...]
    best: int
    number: int
    scores: list[float | None]
    record: Values


def outcome(
    of_method: Sequence[Trial],
    folders: Sequence[Sequence[Path]],
    plan: Plan,
    domains: Sequence[str],
) -> Tuned:
    """The best of a method's trials, by the results in their folders. RunError if all failed."""
    method = of_method[0].method
    results = [[RunFolder(folder) for folder in of_trial] for of_trial in folders]
    scores, metric = [], "error"
    for of_trial in results:
        done = [folder.result() for folder in of_trial if folder.is_done]
        metric = done[0]["metric"] if done else metric
        means: list[Any] = [result["mean"] for result in done]
        complete = len(done) == len(of_trial) and all(map(_is_number, means))
        scores.append(round(statistics.fmean(means), 4) if complete else None)
    sign = metric_named(metric).ascending
    ranked = [(sign * score, n) for n, score in enumerate(scores) if score is not None]
    if not ranked:
        raise RunError(f"{method}: every trial failed; `ctta-bench status DIR` shows the reasons.")
    best = min(ranked)[1]
    first = published(method, plan)
    return Tuned(
        method,
        first | of_method[best].values,
        first,
        tuple(of_method[0].values),
        best,
        of_method[best].number,
        scores,
        {
            "command": plan.command(method),
            "domains": list(domains),
            "images": images_of_trials(plan),
            metric: scores[best],
            f"published_{metric}": scores[0],
            "trials": [
                trial.values | {metric: score}
                for trial, score in zip(of_method, scores, strict=True)
            ],
        }
        | _earlier(method, plan),
    )


def _earlier(method: str, plan: Plan) -> Values:
    """The record of the search whose best trials ran again, if that is what the plan is."""
    if plan.earlier is None:
        return {}
    record = read_tuned(plan.earlier)[method][plan.key]["record"]
    return {"earlier": first_search(record)}


def images_of_trials(plan: Plan) -> str | Values:
    """Which images the trials see, as stored with their result.

    HELD_OUT or SCORED; of a part of the photographs that other domains show too, the part and the
    settings that select the photographs. Whether they are scored is known in the cell that is.
    """
    built = plan.benchmark_of()
    if built.separate_hold_out:
        return HELD_OUT
    part = built.settings.part
    return SCORED if part is None else {"part": part, **built.settings.own()}


def _is_number(value: Any) -> bool:
    return value is not None and math.isfinite(value)


def write(file: Path, found: Sequence[Tuned], plan: Plan) -> None:
    """Add results to a preset file; they replace its entries for the same method and benchmark."""
    stored = read_tuned(file) if file.is_file() else {}
    for tuned in found:
        of_method = stored.get(tuned.method, {})
        entry = {"values": tuned.values, "published": tuned.published, "record": tuned.record}
        stored[tuned.method] = of_method | {plan.key: entry}
    plain = json.loads(json.dumps(dict(sorted(stored.items()))))  # lists for tuples
    text = yaml.safe_dump(plain, sort_keys=False, default_flow_style=None, width=100)
    with atomic(file) as temporary:
        temporary.write_text(HEAD + text, encoding="utf-8")
