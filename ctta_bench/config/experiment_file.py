"""Experiment files: their keys, and the files that the package contains."""

from importlib import resources
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, create_model, field_validator, model_validator

from ctta_bench.config.options import cell_options
from ctta_bench.config.validation import validate
from ctta_bench.config.yaml import read_yaml
from ctta_bench.errors import ConfigError, did_you_mean
from ctta_bench.registry import canonical

Sweep = dict[str, Annotated[list[Any], Field(min_length=1)]]


class MethodEntry(BaseModel):
    """A method in an experiment file: its name, or a mapping with a preset and overrides."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(description="the method")
    preset: str = Field(
        "default",
        description="where its hyper-parameters come from: `default`, `paper`, `code`, ... "
        "(`ctta-bench list methods --verbose` lists them), or a YAML file written by `ctta-bench "
        "tune`",
    )
    models: tuple[str, ...] = Field((), description="models for this method, instead of the file's")
    benchmarks: tuple[str, ...] = Field(
        (), description="benchmarks for this method, instead of the file's"
    )
    not_in_paper: str = Field(
        "",
        description="what was chosen because the paper of `remakes` is silent; tables mark the row",
    )
    semantic_shift: bool = Field(
        False,
        description="run on a task with other classes, which each benchmark declares, with the "
        "model of the benchmark",
    )
    set: dict[str, Any] = Field(
        {}, description="values for this method; they take precedence over the file's"
    )
    sweep: Sweep = Field(
        {},
        description="keys with lists of values for this method; they replace the file's lists "
        "for the same keys",
    )


class SingleCell(BaseModel):
    """A single cell: any field of `CellRequest`, which checks their values."""

    model_config = ConfigDict(extra="allow", frozen=True)

    set: dict[str, Any] = {}


Declared = TypeVar("Declared", bound=BaseModel)


def with_cell_options(declared: type[Declared]) -> type[Declared]:
    """The model with one more key for each option of a cell that experiment files accept."""
    keys: dict[str, Any] = {}
    for name, key in cell_options("file").items():
        kind, default = key.annotated, key.default
        if key.option.lists:  # each value is checked when its cells are resolved
            kind, default = tuple[Any, ...], (default,)
        keys[name] = (kind, Field(default, description=key.option.help))
    documented: dict[str, Any] = {"__doc__": declared.__doc__, "__module__": declared.__module__}
    return create_model(declared.__name__, __base__=declared, **documented, **keys)


@with_cell_options
class Experiment(BaseModel):
    """An experiment file: the product of methods, benchmarks, models, preprocessing and seeds.

    Each option of a cell whose places include "file" (options.py) is a key as well.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(
        "",
        description="name of the experiment and of its folder in `runs/`; if not given, the name "
        "of the file",
    )
    title: str = Field("", description="one line for lists and reports")
    remakes: str = Field(
        "", description="table or figure of a paper that the experiment reproduces; shown in lists"
    )
    methods: tuple[MethodEntry, ...] = Field(
        (), description="names, or mappings with the keys below; optional if `cells` is set"
    )
    benchmarks: tuple[str, ...] = Field((), description="names; optional if `cells` is set")
    models: tuple[str | None, ...] = Field(
        (None,), description="names; `null`: the default model of the benchmark"
    )
    seeds: tuple[int, ...] = Field((0,), min_length=1, description="integers; one cell for each")
    set: dict[str, Any] = Field(
        {},
        description="hyper-parameters, stream settings and options that all cells have in common",
    )
    sweep: Sweep = Field(
        {}, description="keys with lists of values; every method runs once for each combination"
    )
    exclude: tuple[dict[str, Any], ...] = Field(
        (),
        description="cells to leave out: a cell is left out if it has all values of one entry; a "
        "list of values matches any of them",
    )
    cells: tuple[SingleCell, ...] = Field(
        (),
        description="cells in addition to the product, each with the options of `ctta-bench run`",
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
            raise ValueError("list at least one method and one benchmark, or at least one cell")
        return self


def load_experiment(name_or_file: str) -> Experiment:
    """An experiment of the package by its name (`paper/rank`, or `rank` if no other is called so),
    or one from a YAML file. Raises ConfigError."""
    path = Path(name_or_file)
    if path.suffix not in (".yaml", ".yml"):
        known, name = experiment_files(), canonical(name_or_file)
        stems = [full for full in known if full.endswith(f"/{name}")]
        if name not in known and len(stems) != 1:
            names = [full.rpartition("/")[2] for full in known]
            hint = did_you_mean(name, [*known, *names]) or f"; known: {', '.join(known)}."
            raise ConfigError(f"unknown experiment {name_or_file!r}{hint}")
        path = known.get(name) or known[stems[0]]
    values = {"name": path.stem} | read_yaml(path)
    return validate(Experiment, values, str(path), path)


def experiment_files() -> dict[str, Path]:
    """The experiment files of the package by name (`paper/rank` for a file in a folder)."""
    root = Path(str(resources.files("ctta_bench.experiments")))
    files = sorted(f for f in root.rglob("*.yaml") if "base" not in f.relative_to(root).parts)
    return {f.relative_to(root).with_suffix("").as_posix(): f for f in files}
