"""Experiment files: from methods, benchmarks, regimes and seeds to validated cells."""

import difflib
import itertools
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from ctta_bench.config import Cell, CellRequest, identity, read_yaml, resolve, validate
from ctta_bench.errors import ConfigError, CttaBenchError
from ctta_bench.registry import METHODS, canonical

Sweep = dict[str, Annotated[list[Any], Field(min_length=1)]]


class MethodEntry(BaseModel):
    """A method in an experiment file: its name, or a mapping with a preset and overrides."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    preset: str = "default"
    models: tuple[str, ...] = Field((), description="instead of the experiment's")
    benchmarks: tuple[str, ...] = Field((), description="instead of the experiment's")
    set: dict[str, Any] = {}
    sweep: Sweep = Field({}, description="values of keys: a cell for each combination of them")


class Experiment(BaseModel):
    """An experiment file: the product of methods, benchmarks, models, regimes and seeds."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = ""
    title: str = ""
    remakes: str = Field("", description="table or figure of a paper that this remakes")
    methods: tuple[MethodEntry, ...] = Field(min_length=1)
    benchmarks: tuple[str, ...] = Field(min_length=1)
    models: tuple[str | None, ...] = (None,)
    preprocessing: tuple[Any, ...] = ("true",)
    precision: str = "float32"
    seeds: tuple[int, ...] = Field((0,), min_length=1)
    keep_models: Literal["none", "last", "domains"] = "none"
    set: dict[str, Any] = {}
    sweep: Sweep = Field({}, description="as a method's, for all of them")

    @field_validator("methods", mode="before")
    @classmethod
    def _names_are_entries(cls, entries: Any) -> Any:
        if not isinstance(entries, list):
            return entries
        return [{"name": entry} if isinstance(entry, str) else entry for entry in entries]


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


def expand(
    experiment: Experiment,
    *,
    benchmarks: tuple[str, ...] = (),
    seeds: tuple[int, ...] = (),
    preset: str | None = None,
    overrides: dict[str, Any] | None = None,
    **request: Any,
) -> list[Cell]:
    """All cells of an experiment, resolved, and one for each warm-up, of the model that it leaves.

    benchmarks, seeds, preset: instead of the file's. request: fields of `CellRequest` that hold for
    every cell; None leaves what the file or the class says. Raises ConfigError that lists every
    problem at once.
    """
    request |= {} if preset is None else {"preset": preset}
    given = {key: value for key, value in request.items() if value is not None}
    cells: dict[str, Cell] = {}
    warmed: dict[str, Cell] = {}  # by identity: cells that differ in what only adaptation uses
    problems: list[str] = []
    for number, values in _requests(experiment, benchmarks, seeds):
        values |= given | {"set": values["set"] | (overrides or {})}
        try:
            cell = resolve(validate(CellRequest, values, "cell"))
        except CttaBenchError as error:
            problem = f"methods[{number}]: {error}"
            if problem not in problems:
                problems.append(problem)
            continue
        if cell.id in cells:
            problems.append(f"methods[{number}]: gives the cell {cell.id} again.")
        cells[cell.id] = cell
        # A method that does all its learning there is its warm-up alone already.
        if cell.warmup is not None and not METHODS.get(cell.request.method).learns_labels:
            unadapted = resolve(validate(CellRequest, values | {"adapt": False}, "cell"))
            warmed.setdefault(identity(unadapted.record), unadapted)
    if problems:
        raise ConfigError(f"experiment {experiment.name!r}: " + "\n  ".join(problems))
    return list((cells | {cell.id: cell for cell in warmed.values()}).values())


def count_cells(experiment: Experiment) -> int:
    """How many cells a file asks for, beside warm-ups and their own rows; needs no data."""
    return sum(1 for _ in _requests(experiment, (), ()))


def _requests(
    experiment: Experiment, benchmarks: tuple[str, ...], seeds: tuple[int, ...]
) -> Iterator[tuple[int, dict[str, Any]]]:
    """The product of an experiment's lists: number of the method's entry, values of the request."""
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
                for model in entry.models or experiment.models:
                    for seed in seeds or experiment.seeds:
                        yield (
                            number,
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
                                "set": experiment.set | entry.set | chosen,
                            },
                        )


def combinations(sweep: Sweep) -> list[dict[str, Any]]:
    """Every combination of the values of a sweep, the last key turning fastest; [{}] for none."""
    return [dict(zip(sweep, values, strict=True)) for values in itertools.product(*sweep.values())]
