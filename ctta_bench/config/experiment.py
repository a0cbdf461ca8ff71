"""Experiment files: from methods, benchmarks, regimes and seeds to validated cells."""

import difflib
import itertools
from collections.abc import Iterator, Sequence
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from ctta_bench.config.cell import Cell, CellRequest, resolve
from ctta_bench.config.validation import validate
from ctta_bench.config.yaml import read_yaml
from ctta_bench.errors import ConfigError, CttaBenchError
from ctta_bench.record.schema import identity
from ctta_bench.registry import BENCHMARKS, METHODS, canonical

Sweep = dict[str, Annotated[list[Any], Field(min_length=1)]]


class MethodEntry(BaseModel):
    """A method in an experiment file: its name, or a mapping with a preset and overrides."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    preset: str = "default"
    models: tuple[str, ...] = Field((), description="instead of the experiment's")
    benchmarks: tuple[str, ...] = Field((), description="instead of the experiment's")
    semantic_shift: bool = Field(
        False, description="run on the other label set that each benchmark names, on its own model"
    )
    set: dict[str, Any] = {}
    sweep: Sweep = Field({}, description="values of keys: a cell for each combination of them")


class SingleCell(BaseModel):
    """A cell by itself: any field of `CellRequest`, which checks the others."""

    model_config = ConfigDict(extra="allow", frozen=True)

    set: dict[str, Any] = {}


class Experiment(BaseModel):
    """An experiment file: the product of methods, benchmarks, models, regimes and seeds."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = ""
    title: str = ""
    remakes: str = Field("", description="table or figure of a paper that this remakes")
    methods: tuple[MethodEntry, ...] = ()
    benchmarks: tuple[str, ...] = ()
    models: tuple[str | None, ...] = (None,)
    preprocessing: tuple[Any, ...] = ("true",)
    precision: str = "float32"
    seeds: tuple[int, ...] = Field((0,), min_length=1)
    keep_models: Literal["none", "last", "domains"] = "none"
    probe: Literal["none", "rounds", "domains"] = "none"
    set: dict[str, Any] = {}
    sweep: Sweep = Field({}, description="as a method's, for all of them")
    exclude: tuple[dict[str, Any], ...] = Field(
        (), description="cells of the product to leave out: those with all values of an entry"
    )
    cells: tuple[SingleCell, ...] = Field(
        (),
        description="further cells one by one, as `run` takes them: method, benchmark, seed, ...",
    )

    @field_validator("methods", mode="before")
    @classmethod
    def _names_are_entries(cls, entries: Any) -> Any:
        if not isinstance(entries, list):
            return entries
        return [{"name": entry} if isinstance(entry, str) else entry for entry in entries]

    @model_validator(mode="after")
    def _asks_for_something(self) -> "Experiment":
        if bool(self.methods) != bool(self.benchmarks) or not (self.methods or self.cells):
            raise ValueError("give methods and benchmarks, or cells; at least 1 of each")
        return self


def load_experiment(name_or_file: str) -> Experiment:
    """An experiment by name (of those in the package) or from a YAML file. Raises ConfigError."""
    path = Path(name_or_file)
    if path.suffix not in (".yaml", ".yml"):
        known = experiment_files()
        if canonical(name_or_file) not in known:
            close = difflib.get_close_matches(canonical(name_or_file), known, n=1, cutoff=0.5)
            hint = f"; did you mean {close[0]!r}?" if close else f"; there are: {', '.join(known)}."
            raise ConfigError(f"unknown experiment {name_or_file!r}{hint}")
        path = known[canonical(name_or_file)]
    values = {"name": path.stem} | read_yaml(path)
    return validate(Experiment, values, str(path))


def experiment_files() -> dict[str, Path]:
    """The experiment files of the package by name (`paper/rank` for one in a folder)."""
    root = Path(str(resources.files("ctta_bench.experiments")))
    files = sorted(f for f in root.rglob("*.yaml") if "base" not in f.relative_to(root).parts)
    return {f.relative_to(root).with_suffix("").as_posix(): f for f in files}


def expand(experiment: Experiment, **options: Any) -> list[Cell]:
    """All cells of an experiment, as `expand_checked` makes them; options: its own.

    Raises ConfigError that lists every problem at once.
    """
    cells, problems = expand_checked(experiment, **options)
    if problems:
        raise refusal(experiment, problems)
    return cells


def refusal(experiment: Experiment, problems: Sequence[str]) -> ConfigError:
    """The error that tells every problem of an experiment."""
    return ConfigError(f"experiment {experiment.name!r}: " + "\n  ".join(problems))


def expand_checked(
    experiment: Experiment,
    *,
    benchmarks: tuple[str, ...] = (),
    seeds: tuple[int, ...] = (),
    preset: str | None = None,
    overrides: dict[str, Any] | None = None,
    **request: Any,
) -> tuple[list[Cell], list[str]]:
    """The cells of an experiment, resolved, and one for each warm-up, of the model that it leaves;
    and what is wrong with the others, a sentence each.

    benchmarks, seeds, preset: instead of the file's. request: fields of `CellRequest` that hold for
    every cell; None leaves what the file or the class says.
    """
    request |= {} if preset is None else {"preset": preset}
    given = {key: value for key, value in request.items() if value is not None}
    cells: dict[str, Cell] = {}
    warmed: dict[str, Cell] = {}  # by identity: cells that differ in what only adaptation uses
    problems: list[str] = []
    requests, idle = _chosen(experiment, benchmarks, seeds)
    problems += idle
    for place, values in requests:
        values |= given | {"set": values["set"] | (overrides or {})}
        try:
            values = _onto_shift(values) if "shift" in values else values
            cell = resolve(validate(CellRequest, values, "cell"))
        except CttaBenchError as error:
            problem = f"{place}: {error}"
            if problem not in problems:
                problems.append(problem)
            continue
        if cell.id in cells:
            problems.append(f"{place}: gives the cell {cell.id} again.")
        cells[cell.id] = cell
        # A method that does all its learning there is its warm-up alone already.
        if cell.warmup is not None and not METHODS.get(cell.request.method).learns_labels:
            unadapted = resolve(validate(CellRequest, values | {"adapt": False}, "cell"))
            warmed.setdefault(identity(unadapted.record), unadapted)
    return list((cells | {cell.id: cell for cell in warmed.values()}).values()), problems


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
    common = {
        "precision": experiment.precision,
        "experiment": experiment.name,
        "keep_models": experiment.keep_models,
        "probe": experiment.probe,
    }
    single = [
        (f"cells[{n}]", common | single.model_dump() | {"set": experiment.set | single.set})
        for n, single in enumerate(experiment.cells)
    ]
    return kept + single, problems


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
    common = benchmarks or experiment.benchmarks
    own = [benchmark for entry in experiment.methods for benchmark in entry.benchmarks]
    for benchmark in dict.fromkeys([*common, *own]):
        for regime in experiment.preprocessing:
            for number, entry, chosen in entries:
                if benchmark not in (entry.benchmarks or common):
                    continue
                shift = _shift_of(benchmark) if entry.semantic_shift else {}
                for model in entry.models or experiment.models:
                    for seed in seeds or experiment.seeds:
                        yield (
                            f"methods[{number}]",
                            {
                                "method": entry.name,
                                "preset": entry.preset,
                                "benchmark": benchmark,
                                "model": model,
                                "preprocessing": regime,
                                "precision": experiment.precision,
                                "seed": seed,
                                "experiment": experiment.name,
                                "keep_models": experiment.keep_models,
                                "probe": experiment.probe,
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
