"""The trials of a search, from the ranges that methods declare; trial 0 has published values."""

import itertools
import math
import random
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ctta_bench.analysis.read.measure import metric_named
from ctta_bench.config.experiment import Experiment, MethodEntry
from ctta_bench.config.presets import preset_values, presets_of, read_tuned
from ctta_bench.errors import ConfigError
from ctta_bench.registry import BENCHMARKS, METHODS
from ctta_bench.tuning.plan import Plan, Values

DIGITS = 2  # significant digits of a drawn value
DRAWS = 1000  # attempts to draw a new trial

Space = Mapping[str, Sequence[Any]]


class Trial(NamedTuple):
    """One point of a search: method, number, and values of the searched hyper-parameters."""

    method: str
    number: int
    values: Values


def space_of(method: str, fixed: Mapping[str, Any] = {}) -> dict[str, Sequence[Any]]:
    """The search space that a method declares, without fixed hyper-parameters.

    A tuple (low, high) is a range, a list contains the values. Raises ConfigError if it is empty.
    """
    names = {key.removeprefix("method.") for key in fixed}
    space = {k: v for k, v in METHODS.get(method).search_space.items() if k not in names}
    if not space:
        raise ConfigError(
            f"method {method!r} has nothing to search{' besides --set' if names else ''}: leave "
            "it out, or declare `search_space = {...}` in its class (docs/adding-a-method.md)."
        )
    return space


def published(method: str, plan: Plan) -> Values:
    """The values of trial 0: the preset of the plan for its benchmark.

    Nothing was published for the suite's own benchmarks. There, searched hyper-parameters have the
    preset's values for `any` benchmark, not those that an earlier search has found.
    """
    benchmark = BENCHMARKS.get(plan.benchmark)
    model = plan.model or benchmark.default_model
    values = preset_values(method, plan.preset, plan.benchmark, model)
    fields = METHODS.get(method).Hyperparameters.model_fields
    common = values
    if not benchmark.published:
        common = (presets_of(method).get(plan.preset) or {}).get("any") or {}
    return values | {
        key: common.get(key, fields[key].default) for key in space_of(method, plan.set)
    }


def trials(method: str, plan: Plan) -> list[Trial]:
    """The trials of a method: published values first, then others up to the budget.

    Fewer if the search space has fewer points.
    """
    space = space_of(method, plan.set)
    first = published(method, plan)
    found = [{key: first[key] for key in space}]
    if plan.search == "grid":
        found += _on_grid(space, plan.budget - 1, without=found[0])
    else:
        for number in range(1, plan.budget):
            # One generator per trial: a larger budget includes the trials of a smaller one.
            source = random.Random(f"{plan.seed}:{method}:{number}")
            draws = (_drawn(space, source) for _ in range(DRAWS))
            found += list(itertools.islice((new for new in draws if new not in found), 1))
    return [Trial(method, number, values) for number, values in enumerate(found)]


def best_trials(method: str, plan: Plan) -> list[Trial]:
    """Trial 0 and the best others of the plan's earlier search, `plan.finalists` in all.

    A search on a short stream likes rates that fail on a longer one; so its best trials run again
    on a longer one. Raises ConfigError if the earlier search did not have the method.
    """
    assert plan.earlier is not None
    entry = read_tuned(plan.earlier).get(method, {}).get(plan.key)
    if "trials" not in (entry or {}).get("record", {}):
        raise ConfigError(f"{plan.earlier} has no search of {method!r} on {plan.key}.")
    record = first_search(entry["record"])
    metric = metric_of(record)
    sign = metric_named(metric).ascending
    first, *others = [
        (trial[metric], Trial(method, number, {k: v for k, v in trial.items() if k != metric}))
        for number, trial in enumerate(record["trials"])
    ]
    ranked = sorted(
        (sign * score, trial.number, trial) for score, trial in others if score is not None
    )
    best = [trial for _, _, trial in ranked[: plan.finalists - 1]]
    return [first[1], *sorted(best, key=lambda trial: trial.number)]


def first_search(record: Values) -> Values:
    """The record of the whole search; that of finalists has it as `earlier`."""
    return dict(record.get("earlier", record))


def metric_of(record: Values) -> str:
    """The metric of a stored search, `error` or `miou`: the record has `published_METRIC`."""
    return next(key for key in record if f"published_{key}" in record)


def _drawn(space: Space, source: random.Random) -> Values:
    return {key: _at(options, source.random()) for key, options in space.items()}


def _at(options: Sequence[Any], share: float) -> Any:
    """The value at a share in [0, 1] of a range or a list; on a log scale if the range is > 0."""
    if isinstance(options, list):
        return options[min(int(share * len(options)), len(options) - 1)]
    low, high = options
    if low > 0:
        value = math.exp(math.log(low) + share * (math.log(high) - math.log(low)))
    else:
        value = low + share * (high - low)
    return round(value) if isinstance(low, int) and isinstance(high, int) else _rounded(value)


def _rounded(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")


def _on_grid(space: Space, count: int, without: Values) -> list[Values]:
    """`count` points, spread evenly over the coarsest full grid with that many; else all points."""
    points: list[Values] = []
    for levels in range(1, count + 2):
        axes = [_levels(options, levels) for options in space.values()]
        grid = [dict(zip(space, point, strict=True)) for point in itertools.product(*axes)]
        points = [point for point in grid if point != without]
        if len(points) >= count:
            step = (len(points) - 1) / max(count - 1, 1)
            return [points[round(number * step)] for number in range(count)]
    return points


def _levels(options: Sequence[Any], count: int) -> list[Any]:
    if isinstance(options, list):
        return options
    shares = [0.5] if count == 1 else [number / (count - 1) for number in range(count)]
    return list(dict.fromkeys(_at(options, share) for share in shares))


def experiment(
    planned: Mapping[str, Sequence[Trial]], plan: Plan, domains: Sequence[str]
) -> Experiment:
    """The trials as an experiment; the cells of a trial, one per seed, follow one another."""
    return Experiment(
        name=plan.name,
        title=f"Choice of hyper-parameters on {plan.benchmark}",
        benchmarks=(plan.benchmark,),
        models=(plan.model,),
        seeds=plan.seeds,
        set=plan.set | {"benchmark.domains": list(domains)},
        methods=tuple(
            MethodEntry(name=trial.method, preset=plan.preset, set=trial.values)
            for of_method in planned.values()
            for trial in of_method
        ),
    )
