"""What a user may ask of a cell: an option is declared here, once, for every place that takes it.

Made from the fields of `CellRequest`: options of `ctta-bench run` and `grid` (cli/options.py), keys
of experiment files (experiment.py), keys of `set` and `sweep` (validation.py), what a cell's record
states (cell.py), and the tables of docs/experiments.md.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic.fields import FieldInfo

from ctta_bench.registry import BENCHMARKS, METHODS, MODELS

Place = Literal["run", "grid", "file", "set"]


@dataclass(frozen=True)
class CellOption:
    """Where a user gives a field of `CellRequest`, and how.

    places: `run` and `grid` have an option, experiment files a key, `set` and `sweep` a key. A new
    option is in the first three. lists: the key of an experiment file takes several values, each
    for the whole product. names, metavar, envvar: of the option, where --NAME does not do.
    complete: what the shell offers, beside the values of a Literal. record: whether the value
    stands in a cell's record, and so in its identity: always, or where it is not the default, so
    that cells of before the option was there stay the same. "": it decides no number, or the
    record states what comes of it (fingerprint, hyper-parameters).
    """

    places: tuple[Place, ...] = ("run", "grid", "file")
    lists: bool = False
    names: tuple[str, ...] = ()
    metavar: str | None = None
    envvar: str | None = None
    complete: Callable[[], Iterable[str]] | None = None
    record: Literal["", "always", "changed"] = ""


def _regime(value: Any) -> Any:
    return "true" if value is True else value  # YAML reads the bare word as a boolean


def _pixels(value: Any) -> Any:
    if value is None or isinstance(value, tuple):
        return value
    found = re.fullmatch(r"([1-9]\d{0,4})(?:x([1-9]\d{0,4}))?", str(value).strip())
    if found is None:
        raise ValueError("write PIXELS or HEIGHTxWIDTH, e.g. 160 or 128x256")
    return int(found[1]), int(found[2] or found[1])


class CellRequest(BaseModel):
    """One cell as a user asks for it; `set` overrides any resolved key."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    method: Annotated[str, CellOption(("run",), complete=METHODS.names)] = Field(
        description="a method (`ctta-bench list methods`)"
    )
    benchmark: Annotated[str, CellOption(("run",), complete=BENCHMARKS.names)] = Field(
        description="a benchmark (`ctta-bench list benchmarks`)"
    )
    preset: Annotated[str, CellOption(("run", "grid"))] = Field(
        "default",
        description="hyper-parameters: default, paper, code, ..., or a YAML file of "
        "`ctta-bench tune`",
    )
    model: Annotated[str | None, CellOption(("run", "set"), complete=MODELS.names)] = Field(
        None, description="a model, or timm:NAME.TAG; default: the benchmark's own"
    )
    weights: Annotated[Path | None, CellOption(("run", "set"))] = Field(
        None, description="file of weights for the model"
    )
    preprocessing: Annotated[
        Literal["true", "lineage"],
        BeforeValidator(_regime),
        CellOption(("run", "file", "set"), lists=True),
    ] = Field(
        "true",
        description="normalisation of images: the checkpoint's own, or raw [0, 1] as in earlier "
        "papers",
    )
    input_size: Annotated[
        tuple[int, int] | None,
        BeforeValidator(_pixels),
        CellOption(("run", "set"), metavar="PIXELS"),
    ] = Field(
        None, description="the network's input in pixels, PIXELS or HEIGHTxWIDTH; as recorded"
    )
    precision: Annotated[
        Literal["float64", "float32", "bfloat16", "float16"],
        CellOption(("run", "file", "set"), record="always"),
    ] = Field("float32", description="number format of the networks")
    seed: Annotated[int, CellOption(("run", "set"), record="always")] = Field(
        0, ge=0, lt=2**31, description="seed of order, method and source sample"
    )
    window: Annotated[int, CellOption(("run", "set"))] = Field(
        0, ge=0, description="images a window of single-sample streams; 0: off"
    )
    adapt: Annotated[bool, CellOption(("run", "set"), record="changed")] = Field(
        True, description="adapt, or score the model as it is before the stream, after a warm-up"
    )
    data_root: Annotated[
        Path | None,
        CellOption(("run", "grid"), names=("--data-root", "--root"), envvar="CTTA_BENCH_DATA"),
    ] = Field(None, description="folder of data sets and caches")
    workers: Annotated[int | None, CellOption(("run", "grid"))] = Field(
        None,
        ge=0,
        le=256,
        description="processes that load images ahead; 0: this one; default: as cores allow",
    )
    cache_decoded: Annotated[Path | None, CellOption(("run", "grid"), metavar="DIR")] = Field(
        None, description="keep decoded images there; later runs read them at once"
    )
    experiment: str = "runs"
    keep_models: Annotated[Literal["none", "last", "domains"], CellOption()] = Field(
        "none", description="adapted networks to leave in the run folder"
    )
    probe: Annotated[Literal["none", "rounds", "domains"], CellOption()] = Field(
        "none", description="when source images are scored again, for forgetting"
    )
    set: Annotated[dict[str, Any], CellOption(("run", "grid"), metavar="KEY=VALUE")] = Field(
        {}, description="override a value, e.g. lr=1e-3; repeatable"
    )


def option_of(field: FieldInfo) -> CellOption | None:
    """How a user gives a field of `CellRequest`; None: not at all."""
    return next((m for m in field.metadata if isinstance(m, CellOption)), None)


def options_in(place: Place) -> dict[str, FieldInfo]:
    """The fields of `CellRequest` that a user gives in one place, in their order."""
    fields = CellRequest.model_fields.items()
    return {name: f for name, f in fields if (o := option_of(f)) and place in o.places}


def stated(request: CellRequest, when: Literal["always", "changed"]) -> dict[str, Any]:
    """What of a request stands in a cell's record under its own name: always, or if changed."""
    fields = CellRequest.model_fields.items()
    return {
        name: value
        for name, field in fields
        if (option := option_of(field)) is not None and option.record == when
        if (value := getattr(request, name)) != field.default or when == "always"
    }
