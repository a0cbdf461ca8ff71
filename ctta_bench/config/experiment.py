"""From an experiment file to resolved cells: the product of its lists, its sweeps, single cells."""

import itertools
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ctta_bench.config.cell import Cell, CellRequest, resolve
from ctta_bench.config.experiment_file import Experiment as Experiment
from ctta_bench.config.experiment_file import MethodEntry as MethodEntry
from ctta_bench.config.experiment_file import SingleCell as SingleCell
from ctta_bench.config.experiment_file import Sweep
from ctta_bench.config.experiment_file import experiment_files as experiment_files
from ctta_bench.config.experiment_file import load_experiment as load_experiment
from ctta_bench.config.options import cell_options
from ctta_bench.config.validation import unknown_key, validate
from ctta_bench.errors import ConfigError, CttaBenchError
from ctta_bench.record.schema import identity
from ctta_bench.registry import BENCHMARKS, METHODS, canonical

if TYPE_CHECKING:
    from ctta_bench.source_models.shared import Models  # at run time it would load torch


def expand(experiment: Experiment, **options: Any) -> list[Cell]:
    """All cells of an experiment; `options` are those of `expand_checked`.

    Raises ConfigError with a list of all problems.
    """
    cells, problems = expand_checked(experiment, **options)
    if problems:
        raise problems_error(experiment, problems)
    return cells


def problems_error(experiment: Experiment, problems: Sequence[str]) -> ConfigError:
    """The error that lists all problems of an experiment."""
    return ConfigError(f"experiment {experiment.name!r}: " + "\n  ".join(problems))


def expand_checked(
    experiment: Experiment,
    *,
    benchmarks: tuple[str, ...] = (),
    seeds: tuple[int, ...] = (),
    overrides: dict[str, Any] | None = None,
    models: "Models | None" = None,
    **request: Any,
) -> tuple[list[Cell], list[str]]:
    """The resolved cells of an experiment, and one sentence for each problem.

    Each warm-up adds a cell that scores the warmed-up model without adaptation.

    benchmarks, seeds: replace those of the file. overrides: take precedence over values of the
    file; `METHOD.KEY` is for one method, a hyper-parameter for every method that has it. models:
    cache with the last model that was read. request: fields of `CellRequest` for every cell; None
    keeps the value of the file or the default.
    """
    from ctta_bench.source_models.shared import Models

    models = models or Models(several=True)
    given = {key: value for key, value in request.items() if value is not None}
    cells: dict[str, Cell] = {}
    warmed: dict[str, Cell] = {}  # by identity; one for cells that differ only in adaptation
    problems: dict[str, list[str]] = {}  # problem -> its places in the file
    requests, idle = _chosen(experiment, benchmarks, seeds)
    by_method = _overrides_by_method(overrides or {}, [values for _, values in requests])
    for place, values in requests:
        if benchmarks or "preset" in given:
            values.pop("not_in_paper", None)
        values |= given | {"set": values["set"] | by_method[values["method"]]}
        try:
            values = _onto_shift(values) if "shift" in values else values
            cell = resolve(validate(CellRequest, values, "cell"), models)
        except CttaBenchError as error:
            problems.setdefault(str(error), []).append(place)
            continue
        if cell.id in cells:
            if overrides or "preprocessing" in given:  # they differed in what it replaces
                continue
            problems.setdefault(f"repeats the cell {cell.id}; remove one of the two.", []).append(
                place
            )
        cells[cell.id] = cell
        # A method that only learns in its warm-up is already the warmed-up model.
        if cell.warmup is not None and not METHODS.get(cell.request.method).learns_labels:
            unadapted = resolve(validate(CellRequest, values | {"adapt": False}, "cell"), models)
            warmed.setdefault(identity(unadapted.record), unadapted)
    everywhere = {place for place, _ in requests}
    found = [_placed(problem, places, everywhere) for problem, places in problems.items()]
    return list((cells | {cell.id: cell for cell in warmed.values()}).values()), idle + found


def _overrides_by_method(
    overrides: dict[str, Any], requests: Sequence[dict[str, Any]]
) -> dict[str, dict[str, Any]]:
    """The overrides of each method of the requests, by its name in them.

    `METHOD.KEY` is for that method alone, and a bare hyper-parameter for the methods that have it.
    Raises ConfigError for a method that no request has, and for a key that nothing has.
    """
    if not overrides:
        return {values["method"]: {} for values in requests}
    named = {values["method"]: METHODS.find(values["method"]).name for values in requests}
    settings = {
        key
        for name in {values["benchmark"] for values in requests}
        for key in BENCHMARKS.get(name).Settings.model_fields
    }
    hyperparameters = {m: METHODS.get(m).Hyperparameters.model_fields for m in named}
    found: dict[str, dict[str, Any]] = {method: {} for method in named}
    for key, value in overrides.items():
        owner, dot, bare = key.partition(".")
        if dot and canonical(owner) in METHODS.names():
            takers = [method for method, name in named.items() if name == canonical(owner)]
            if not takers:
                raise ConfigError(
                    f"--set {key}: no cell has the method {owner!r}; choose "
                    f"{' or '.join(sorted(named.values()))}."
                )
            key = f"method.{bare}"
        else:
            having = [method for method, keys in hyperparameters.items() if key in keys]
            others = {*settings, *cell_options("set")}
            if not dot and not having and key not in others:
                known = others.union(*hyperparameters.values())
                raise ConfigError(f"--set {key}: {unknown_key(key, known)}")
            takers = list(named) if dot or key in others else having
        for method in takers:
            found[method][key] = value
    return found


def _placed(problem: str, places: Sequence[str], everywhere: Collection[str]) -> str:
    """A problem after its places in the file; without places if all of several entries have it."""
    own = list(dict.fromkeys(places))
    if len(own) == len(everywhere) > 1:
        return problem
    more = f" and {len(own) - 3} more" if len(own) > 3 else ""
    return f"{', '.join(own[:3])}{more}: {problem}"


def requested(experiment: Experiment) -> list[dict[str, Any]]:
    """The requests of an experiment's cells, unresolved, as plain values; needs no data."""
    return [values for _, values in _chosen(experiment, (), ())[0]]


def count_cells(experiment: Experiment) -> int:
    """Number of cells of an experiment, without those that warm-ups add; needs no data."""
    return len(requested(experiment))


Placed = tuple[str, dict[str, Any]]  # place of a request in the file, and its values


def _chosen(
    experiment: Experiment, benchmarks: tuple[str, ...], seeds: tuple[int, ...]
) -> tuple[list[Placed], list[str]]:
    """The product without excluded cells, then single cells; and problems with `exclude`."""
    product = [*_requests(experiment, benchmarks, seeds)]
    matches = [
        [number for number, (_, values) in enumerate(product) if _is_like(values, entry)]
        for entry in experiment.exclude
    ]
    # If the command line replaces lists of the file, an exclusion may match no cell.
    idle = [] if benchmarks or seeds else [n for n, found in enumerate(matches) if not found]
    problems = [
        f"exclude[{n}]: {experiment.exclude[n]} matches no cell; correct or remove it."
        for n in idle
    ]
    out = {number for found in matches for number in found}
    kept = [placed for number, placed in enumerate(product) if number not in out]
    common = _common(experiment)
    single = [
        (f"cells[{n}]", common | single.model_dump() | {"set": experiment.set | single.set})
        for n, single in enumerate(experiment.cells)
    ]
    return kept + single, problems


def _common(experiment: Experiment) -> dict[str, Any]:
    """The values that an experiment sets for every cell, single cells included."""
    single = [name for name, key in cell_options("file").items() if not key.option.lists]
    return {name: getattr(experiment, name) for name in single} | {"experiment": experiment.name}


def _is_like(values: dict[str, Any], entry: dict[str, Any]) -> bool:
    """Whether a request has every value of an entry of `exclude`; of a list, any of its values."""
    if not entry:
        return False
    flat = {key: value for key, value in values.items() if key != "set"} | values["set"]
    for key, wanted in entry.items():
        options = wanted if isinstance(wanted, list) else [wanted]
        if key not in flat or flat[key] not in options:
            return False
    return True


def _requests(
    experiment: Experiment, benchmarks: tuple[str, ...], seeds: tuple[int, ...]
) -> Iterator[Placed]:
    """The product of an experiment's lists: place of the method's entry, values of the request."""
    entries = [
        (number, entry, chosen)
        for number, entry in enumerate(experiment.methods)
        for chosen in combinations(experiment.sweep | entry.sweep)
    ]
    everywhere = benchmarks or experiment.benchmarks
    own = [benchmark for entry in experiment.methods for benchmark in entry.benchmarks]
    lists = {
        name: getattr(experiment, name)
        for name, key in cell_options("file").items()
        if key.option.lists
    }
    for benchmark in dict.fromkeys([*everywhere, *own]):
        for listed in combinations(lists):
            for number, entry, chosen in entries:
                if benchmark not in (entry.benchmarks or everywhere):
                    continue
                shift = _shift_of(benchmark) if entry.semantic_shift else {}
                for model in entry.models or experiment.models:
                    for seed in seeds or experiment.seeds:
                        yield (
                            f"methods[{number}]",
                            _common(experiment)
                            | listed
                            | {
                                "method": entry.name,
                                "preset": entry.preset,
                                "not_in_paper": entry.not_in_paper,
                                "benchmark": benchmark,
                                "model": model,
                                "seed": seed,
                                "set": experiment.set | entry.set | chosen,
                            }
                            | ({"shift": shift} if shift else {}),
                        )


def _shift_of(benchmark: str) -> dict[str, Any]:
    """The second label set that a benchmark declares: its benchmark, number of labels, domains.

    Raises ConfigError if the benchmark declares none.
    """
    shift: dict[str, Any] | None = BENCHMARKS.find(benchmark).attributes.get("semantic_shift")
    if shift is None:
        raise ConfigError(
            f"benchmark {benchmark!r} declares no second label set for `semantic_shift: true`; set "
            "benchmarks, models and labels in this entry instead."
        )
    return shift


def _onto_shift(values: dict[str, Any]) -> dict[str, Any]:
    """A request for the second label set, on the model of the benchmark that declares it.

    Settings that both benchmarks have are passed on, except the domains.
    """
    shift = values["shift"]
    settings = BENCHMARKS.get(shift["benchmark"]).Settings.model_fields
    own = {"labels": shift["labels"]}
    if "domains" in shift:
        own["benchmark.domains"] = shift["domains"]
    of_stream = BENCHMARKS.get(values["benchmark"]).Settings.model_fields
    kept = {
        key: value
        for key, value in values["set"].items()
        if (bare := key.removeprefix("benchmark.")) not in of_stream
        or (bare in settings and bare != "domains")
    }
    return {key: value for key, value in values.items() if key != "shift"} | {
        "benchmark": shift["benchmark"],
        "model": values.get("model") or BENCHMARKS.get(values["benchmark"]).default_model,
        "set": kept | own,
    }


def combinations(sweep: Sweep) -> list[dict[str, Any]]:
    """Every combination of the values of a sweep; the last key varies fastest. [{}] if empty."""
    return [dict(zip(sweep, values, strict=True)) for values in itertools.product(*sweep.values())]
