"""The options of a cell. Each option is declared here, once, for every place that accepts it.

Made from the fields of `CellOptions`: the request of a cell, which checks values (request.py), the
options of `ctta-bench run` and `grid` (cli/command.py), keys of experiment files
(experiment_file.py), keys of `set` and `sweep` (validation.py), values in a cell's record
(request.py), and docs/experiments.md. `--help` imports this module, so it imports nothing slow.
"""

import functools
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, get_type_hints

Place = Literal["run", "grid", "file", "set"]
REQUIRED = ...
# Headings of options in `--help`.
WHAT, MODEL, DATA, HOW, OUTPUT = "What to run", "Model", "Data", "Execution", "Output"


@dataclass(frozen=True)
class CellOption:
    """Where and how users set an option of a cell.

    places: where the option can be set: on the command line of `run` and of `grid`, as a key of
    experiment files, as a key of `set` and `sweep`. Default: the first three. lists: the key of an
    experiment file takes several values, and the product contains each. names, metavar, envvar:
    those of the command-line option, if --NAME is not enough. panel: its heading in `--help`.
    unset: text for the default, if the default itself does not explain it. limits: keyword
    arguments of pydantic's `Field` (ge, lt, ...). read: converts what users write to the value;
    raises ValueError. record: whether a cell's record, and so its identity, contains the value:
    "always", or only if "changed" from the default, so that cells from before the option existed
    keep their identity. "": it changes no result, or the record contains its consequence (hash of
    the weights, hyper-parameters).
    """

    help: str
    panel: str = WHAT
    unset: str = ""
    places: tuple[Place, ...] = ("run", "grid", "file")
    lists: bool = False
    names: tuple[str, ...] = ()
    metavar: str | None = None
    envvar: str | None = None
    limits: Mapping[str, Any] = field(default_factory=dict)
    read: Callable[[Any], Any] | None = None
    record: Literal["", "always", "changed"] = ""

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        """Pydantic's hook for annotations: call `read`, then check the type and the limits."""
        from pydantic import Field
        from pydantic_core.core_schema import no_info_before_validator_function

        checks = handler.generate_schema(Annotated[source, Field(**self.limits)])
        return no_info_before_validator_function(self.read, checks) if self.read else checks


def _regime(value: Any) -> Any:
    return "true" if value is True else value  # YAML reads an unquoted true as a boolean


def _pixels(value: Any) -> Any:
    if value is None or isinstance(value, tuple):
        return value
    found = re.fullmatch(r"([1-9]\d{0,4})(?:x([1-9]\d{0,4}))?", str(value).strip())
    if found is None:
        raise ValueError("write PIXELS or HEIGHTxWIDTH, e.g. 160 or 128x256")
    return int(found[1]), int(found[2] or found[1])


class CellOptions:
    """The options of a cell. A field without a default is an argument of the command."""

    method: Annotated[
        str,
        CellOption("the method (`ctta-bench list methods`)", places=("run",)),
    ]
    benchmark: Annotated[
        str,
        CellOption(
            "the benchmark (`ctta-bench list benchmarks`)",
            places=("run",),
        ),
    ]
    preset: Annotated[
        str,
        CellOption(
            "hyper-parameters: default, paper, code, ... or a YAML file from `ctta-bench tune`",
            places=("run", "grid"),
        ),
    ] = "default"
    model: Annotated[
        str | None,
        CellOption(
            "the source model (`ctta-bench list models`), or timm:NAME.TAG",
            panel=MODEL,
            unset="the benchmark's own",
            places=("run", "set"),
        ),
    ] = None
    weights: Annotated[
        Path | None,
        CellOption(
            "file with the weights of the source model; FILE#KEY: one of several sets in it",
            panel=MODEL,
            places=("run", "set"),
        ),
    ] = None
    preprocessing: Annotated[
        Literal["true", "lineage"],
        CellOption(
            "normalisation of images; true: the checkpoint's own; lineage: none, raw [0, 1], as in "
            "earlier papers",
            panel=MODEL,
            unset="true; grid: those of the file",
            lists=True,
            places=("run", "grid", "file", "set"),
            read=_regime,
        ),
    ] = "true"
    input_size: Annotated[
        tuple[int, int] | None,
        CellOption(
            "size of the network's input: PIXELS or HEIGHTxWIDTH",
            panel=MODEL,
            unset="the checkpoint's",
            places=("run", "set"),
            metavar="PIXELS",
            read=_pixels,
        ),
    ] = None
    precision: Annotated[
        Literal["float64", "float32", "bfloat16", "float16"],
        CellOption(
            "floating-point format of the forward and backward passes",
            panel=MODEL,
            places=("run", "file", "set"),
            record="always",
        ),
    ] = "float32"
    seed: Annotated[
        int,
        CellOption(
            "random seed of image order, method and sample of source images",
            places=("run", "set"),
            limits={"ge": 0, "lt": 2**31},
            record="always",
        ),
    ] = 0
    window: Annotated[
        int,
        CellOption(
            "images per window in single-sample streams; 0: off",
            places=("run", "set"),
            limits={"ge": 0},
        ),
    ] = 0
    adapt: Annotated[
        bool,
        CellOption(
            "whether to adapt; false: score the model without adaptation, after its warm-up",
            places=("run", "set"),
            record="changed",
        ),
    ] = True
    data_root: Annotated[
        Path | None,
        CellOption(
            "folder of data sets and caches",
            panel=DATA,
            places=("run", "grid"),
            names=("--data-root", "--root"),
            envvar="CTTA_BENCH_DATA",
        ),
    ] = None
    workers: Annotated[
        int | None,
        CellOption(
            "processes that load images in advance; 0: load in the main process",
            panel=DATA,
            unset="as many as the cores allow",
            places=("run", "grid"),
            limits={"ge": 0, "le": 256},
        ),
    ] = None
    cache_decoded: Annotated[
        Path | None,
        CellOption(
            "store decoded images in this folder, so that later runs need not decode them",
            panel=DATA,
            places=("run", "grid"),
            metavar="DIR",
        ),
    ] = None
    repeat: Annotated[
        int,
        CellOption(
            "number that distinguishes repeated runs of the same cell, e.g. to measure how much "
            "runs on a GPU differ",
            places=("run", "grid", "file", "set"),
            limits={"ge": 0},
            record="changed",
        ),
    ] = 0
    near_chance: Annotated[
        Literal["refuse", "accept"],
        CellOption(
            "what to do with a source model that is near chance on source images: refuse it, or "
            "accept it with a note",
            panel=MODEL,
        ),
    ] = "refuse"
    keep_models: Annotated[
        Literal["none", "last", "domains"],
        CellOption(
            "which adapted networks to store in the run folder: none, that at the end of the "
            "stream, or that at the end of each domain",
            panel=OUTPUT,
        ),
    ] = "none"
    probe: Annotated[
        Literal["none", "rounds", "domains"],
        CellOption(
            "when to predict source images again, to measure forgetting: never, after each round, "
            "or after each domain",
            panel=OUTPUT,
        ),
    ] = "none"
    set: Annotated[
        dict[str, Any],
        CellOption(
            "override a value, e.g. lr=1e-3; may be repeated",
            places=("run", "grid"),
            metavar="KEY=VALUE",
        ),
    ] = {}  # pydantic copies it


class Declared(NamedTuple):
    """An option of a cell as declared. default: REQUIRED if it has none."""

    annotated: Any
    type: Any
    option: CellOption
    default: Any


def cell_options(place: Place | None = None) -> dict[str, Declared]:
    """All options of a cell by name, or those that can be set in one place, in their order."""
    return {k: d for k, d in _declared().items() if place is None or place in d.option.places}


@functools.cache
def _declared() -> dict[str, Declared]:
    hints = get_type_hints(CellOptions, include_extras=True).items()
    return {
        name: Declared(
            hint, hint.__origin__, hint.__metadata__[0], getattr(CellOptions, name, REQUIRED)
        )
        for name, hint in hints
    }
