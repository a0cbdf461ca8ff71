"""From an experiment file to resolved cells: its product, its sweeps, and single cells."""

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
from ctta_bench.config.validation import validate
from ctta_bench.errors import ConfigError, CttaBenchError
from ctta_bench.record.schema import identity
from ctta_bench.registry import BENCHMARKS, METHODS

if TYPE_CHECKING:
    from ctta_bench.source_models.shared import Models  # at run time it would load torch


def expand(experiment: Experiment, **options: Any) -> list[Cell]:
    """All cells of an experiment, as `expand_checked` makes them; options: its own.

    Raises ConfigError that lists every problem at once.
    """
    cells, problems = expand_checked(experiment, **options)
    if problems:
        raise problems_error(experiment, problems)
    return cells


def problems_error(experiment: Experiment, problems: Sequence[str]) -> ConfigError:
    """The error that tells every problem of an experiment."""
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
    """The cells of an experiment, resolved, and one for each warm-up, of the model that it leaves;
    and what is wrong with the others, a sentence each.

    benchmarks, seeds: instead of the file's. overrides: over what the file sets. models: what keeps
    the model that was read last. request: fields of `CellRequest` that hold for every cell; None
    leaves what the file or the class says.
    """
    from ctta_bench.source_models.shared import Models

    models = models or Models(several=True)
    given = {key: value for key, value in request.items() if value is not None}
    cells: dict[str, Cell] = {}
    warmed: dict[str, Cell] = {}  # by identity: cells that differ in what only adaptation uses
    problems: dict[str, list[str]] = {}  # what is wrong, and where in the file
    requests, idle = _chosen(experiment, benchmarks, seeds)
    for place, values in requests:
        values |= given | {"set": values["set"] | (overrides or {})}
        try:
            values = _onto_shift(values) if "shift" in values else values
            cell = resolve(validate(CellRequest, values, "cell"), models)
        except CttaBenchError as error:
            problems.setdefault(str(error), []).append(place)
            continue
        if cell.id in cells:
            problems.setdefault(f"gives the cell {cell.id} again.", []).append(place)
        cells[cell.id] = cell
        # A method that does all its learning there is its warm-up alone already.
        if cell.warmup is not None and not METHODS.get(cell.request.method).learns_labels:
            unadapted = resolve(validate(CellRequest, values | {"adapt": False}, "cell"), models)
            warmed.setdefault(identity(unadapted.record), unadapted)
    everywhere = {place for place, _ in requests}
    found = [_placed(problem, places, everywhere) for problem, places in problems.items()]
    return list((cells | {cell.id: cell for cell in warmed.values()}).values()), idle + found


def _placed(problem: str, places: Sequence[str], everywhere: Collection[str]) -> str:
    """A problem after the places where it is; without them if it is the same in all of several."""
    own = list(dict.fromkeys(places))
    if len(own) == len(everywhere) > 1:
        return problem
    more = f" and {len(own) - 3} more" if len(own) > 3 else ""
    return f"{', '.join(own[:3])}{more}: {problem}"


def requested(experiment: Experiment) -> list[dict[str, Any]]:
    """The cells that a file asks for, unresolved: `CellRequest`s as plain values; needs no data."""
    return [values for _, values in _chosen(experiment, (), ())[0]]


def count_cells(experiment: Experiment) -> int:
    """How many cells a file asks for, beside warm-ups and their own rows; needs no data."""
    return len(requested(experiment))


Placed = tuple[str, dict[str, Any]]  # where in the file a request comes from, and its values


def _chosen(
    experiment: Experiment, benchmarks: tuple[str, ...], seeds: tuple[int, ...]
) -> tuple[list[Placed], list[str]]:
    """The product without what is excluded, then single cells; and exclusions of nothing."""
    product = [*_requests(experiment, benchmarks, seeds)]
    matches = [
        [number for number, (_, values) in enumerate(product) if _is_like(values, entry)]
        for entry in experiment.exclude
    ]
    # Where the command line replaces lists of the file, an exclusion may well find nothing.
    idle = [] if benchmarks or seeds else [n for n, found in enumerate(matches) if not found]
    problems = [
        f"exclude[{n}]: {experiment.exclude[n]} matches no cell of the product." for n in idle
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
    """What an experiment asks of every cell, single ones too."""
    single = [name for name, key in cell_options("file").items() if not key.option.lists]
    return {name: getattr(experiment, name) for name in single} | {"experiment": experiment.name}


def _is_like(values: dict[str, Any], entry: dict[str, Any]) -> bool:
    """Whether a request has every value of an entry of `exclude`; a list there is any of them."""
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
                                "benchmark": benchmark,
                                "model": model,
                                "seed": seed,
                                "set": experiment.set | entry.set | chosen,
                            }
                            | ({"shift": shift} if shift else {}),
                        )


def _shift_of(benchmark: str) -> dict[str, Any]:
    """The other label set that a benchmark names: its benchmark, number of labels and domains.

    Raises ConfigError if it names none.
    """
    shift: dict[str, Any] | None = BENCHMARKS.find(benchmark).attributes.get("semantic_shift")
    if shift is None:
        raise ConfigError(
            f"benchmark {benchmark!r} names no other label set for `semantic_shift: true`; give "
            "the entry benchmarks, models and labels of its own."
        )
    return shift


def _onto_shift(values: dict[str, Any]) -> dict[str, Any]:
    """A request for the other label set, on the model of the benchmark that names it.

    Of the settings those stay that it has, too, but for the domains.
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
    """Every combination of the values of a sweep, the last key turning fastest; [{}] for none."""
    return [dict(zip(sweep, values, strict=True)) for values in itertools.product(*sweep.values())]
