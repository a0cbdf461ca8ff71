"""Experiment files: from methods, benchmarks, regimes and seeds to validated cells."""

import difflib
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, field_validator

from ctta_bench.config import Cell, CellRequest, read_yaml, resolve, validate
from ctta_bench.errors import ConfigError, CttaBenchError
from ctta_bench.registry import canonical


class MethodEntry(BaseModel):
    """A method in an experiment file: its name, or a mapping with a preset and overrides."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    preset: str = "default"
    models: tuple[str, ...] = Field((), description="instead of the experiment's")
    set: dict[str, Any] = {}


class Experiment(BaseModel):
    """An experiment file: the product of methods, benchmarks, models, regimes and seeds."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = ""
    title: str = ""
    methods: tuple[MethodEntry, ...] = Field(min_length=1)
    benchmarks: tuple[str, ...] = Field(min_length=1)
    models: tuple[str | None, ...] = (None,)
    preprocessing: tuple[Any, ...] = ("true",)
    precision: str = "float32"
    seeds: tuple[int, ...] = Field((0,), min_length=1)
    set: dict[str, Any] = {}

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
    overrides: dict[str, Any] | None = None,
    data_root: Path | None = None,
) -> list[Cell]:
    """All cells of an experiment, resolved. Raises ConfigError that lists every problem at once."""
    cells: dict[str, Cell] = {}
    problems: list[str] = []
    for number, values in _requests(experiment, benchmarks, seeds):
        values |= {"data_root": data_root, "set": values["set"] | (overrides or {})}
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
    if problems:
        raise ConfigError(f"experiment {experiment.name!r}: " + "\n  ".join(problems))
    return list(cells.values())


def _requests(
    experiment: Experiment, benchmarks: tuple[str, ...], seeds: tuple[int, ...]
) -> Iterator[tuple[int, dict[str, Any]]]:
    """The product of an experiment's lists: number of the method's entry, values of the request."""
    for benchmark in benchmarks or experiment.benchmarks:
        for regime in experiment.preprocessing:
            for number, entry in enumerate(experiment.methods):
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
                                "set": experiment.set | entry.set,
                            },
                        )
