"""The common part of all commands: options from models, errors as one sentence, help, printing.

A parameter of a command may be a dataclass of options, or the options of a cell:

    def run(request: Annotated[CellRequest, OptionsOf("run")], options: CommandOptions) -> None: ...

On the command line it becomes one option for each field.
"""

import dataclasses
import functools
import inspect
import json
import shlex
import subprocess
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import typer
from rich.console import Console

import ctta_bench
from ctta_bench import registry
from ctta_bench.cli.completion import OF_CELLS, completion, one_of
from ctta_bench.config.fields import choices_of
from ctta_bench.config.options import DATA, HOW, MODEL, OUTPUT, REQUIRED, WHAT, cell_options
from ctta_bench.errors import ConfigError, CttaBenchError, expanded

Command = TypeVar("Command", bound=Callable[..., Any])
INTERRUPTED = 130
EXIT_CODES = {
    0: "everything is done",
    1: "a cell failed or is not done, a check failed, or cells contradict each other (or a bug "
    "in the program, with a traceback)",
    2: "an error in the call, the configuration or the data: one sentence says what and where",
    INTERRUPTED: "interrupted by Ctrl-C or a signal: the same command resumes",
}
FORMATS = ("text", "json")
PANELS = (WHAT, MODEL, DATA, HOW, OUTPUT)

Values = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class OptionsOf:
    """Marks a parameter that takes a cell's options.

    "run": a whole CellRequest. "grid": the options that the user gave, by name, for every cell.
    """

    place: Literal["run", "grid"]


def cell_option(name: str) -> Any:
    """The option of a cell, or the argument if it has no default, as typer takes it."""
    declared = cell_options()[name]
    option, choices, text = declared.option, choices_of(declared.type), declared.option.help
    given: Values = {
        "help": f"{text[:1].upper()}{text[1:]}.",
        "metavar": option.metavar or "|".join(choices) or None,
        "envvar": option.envvar,
        "autocompletion": completion(OF_CELLS[name]) if name in OF_CELLS else one_of(*choices),
    }
    if declared.default is REQUIRED:
        return typer.Argument(**given)
    given |= {"rich_help_panel": option.panel, "show_default": option.unset or True}
    return typer.Option(*option.names, **given)


def option(*names: str, panel: str, unset: str = "", **given: Any) -> Any:
    """An option under a heading of `--help`; unset: in words, what holds if it is not given."""
    return typer.Option(*names, rich_help_panel=panel, show_default=unset or True, **given)


Plugin = Annotated[
    list[str] | None,
    option(
        "--plugin",
        panel=WHAT,
        help="Python file or module that registers methods, benchmarks or models; repeatable.",
    ),
]
Throughput = Annotated[
    list[Path] | None,
    option(
        "--throughput",
        panel=HOW,
        metavar="FILE",
        unset="earlier runs",
        help="Expect the hours and the memory that `ctta-bench cost` measured: its cost-….json, "
        "of the GPU that will be used; repeatable, one for each model.",
    ),
]
Format = Annotated[
    str,
    option(
        "--format",
        panel=OUTPUT,
        metavar="text|json",
        help="Format of what is printed.",
        autocompletion=one_of(*FORMATS),
    ),
]
Quiet = Annotated[
    bool, option("--quiet", "-q", panel=OUTPUT, help="Print only results and errors.")
]
Device = Annotated[
    str | None,
    option(
        panel=HOW,
        unset="cuda if there is one, else cpu",
        help="cpu, cuda or cuda:NUMBER.",
        autocompletion=one_of("cpu", "cuda"),
    ),
]
Force = Annotated[bool, option("--force", panel=HOW, help="Run finished cells again.")]
Log = Annotated[
    list[str] | None,
    option(
        "--log",
        panel=OUTPUT,
        help="Additional logger: tensorboard, wandb or mlflow; repeatable.",
        autocompletion=one_of("tensorboard", "wandb", "mlflow"),
    ),
]
# Options of a cell, for commands that take a few of them.
Set = Annotated[list[str] | None, cell_option("set")]
DataRoot = Annotated[Path | None, cell_option("data_root")]
Workers = Annotated[int | None, cell_option("workers")]
CacheDecoded = Annotated[Path | None, cell_option("cache_decoded")]
Model = Annotated[str | None, cell_option("model")]
Weights = Annotated[Path | None, cell_option("weights")]
Preset = Annotated[str, cell_option("preset")]
Preprocessing = Annotated[str, cell_option("preprocessing")]
InputSize = Annotated[str | None, cell_option("input_size")]
Precision = Annotated[str, cell_option("precision")]
BenchmarkArgument = Annotated[str, cell_option("benchmark")]


class State:
    """What the options before the command set, and how to remove the bar that is shown."""

    debug = False
    stop_bar: Callable[[], None] = staticmethod(lambda: None)


def command(function: Command) -> Command:
    """A command for typer: a model of options becomes one option for each field.

    A user's mistake prints one sentence and ends with exit code 2, Ctrl-C with 130.
    """
    signature, arguments_of = expand_options(function)

    @functools.wraps(function)
    def wrapped(**values: Any) -> Any:
        try:
            return function(**arguments_of({k: _from_home(v) for k, v in values.items()}))
        except CttaBenchError as error:
            State.stop_bar()
            if State.debug:
                raise
            print_error(str(error))
            raise typer.Exit(2) from None
        except KeyboardInterrupt:
            State.stop_bar()
            error_printer().print("interrupted: the same command resumes here.", highlight=False)
            raise typer.Exit(INTERRUPTED) from None

    wrapped.__signature__ = signature  # type: ignore[attr-defined]
    wrapped.__annotations__ = {p.name: p.annotation for p in signature.parameters.values()}
    return wrapped  # type: ignore[return-value]


def _from_home(value: Any) -> Any:
    """A path that begins with `~`, or a list of texts with such paths, with the home folder."""
    if isinstance(value, list):
        return [_from_home(one) for one in value]
    if isinstance(value, Path):
        return expanded(value)
    is_path = isinstance(value, str) and value.startswith("~/")
    return str(expanded(value)) if is_path else value


def error_printer() -> Console:
    """Stderr, for everything except results."""
    return Console(stderr=True)


def print_error(sentence: str, kind: str = "error") -> None:
    """Print `KIND: SENTENCE` on stderr, as it is, on one line."""
    error_printer().print(f"{kind}: {sentence}", markup=False, highlight=False, soft_wrap=True)


def follow_up(*words: object) -> str:
    """A command that the user can copy: words with spaces are quoted."""
    return shlex.join(["ctta-bench", *map(str, words)])


def printer() -> Console:
    """Stdout; 160 columns wide if it is no terminal, so that a piped table is complete."""
    return Console(width=None if Console().is_terminal else 160)


def check_format(value: str) -> bool:
    """Whether JSON is wanted. Raises ConfigError for an unknown format."""
    if value not in FORMATS:
        raise ConfigError(f"--format {value!r}: choose text or json.")
    return value == "json"


def load_plugins(plugins: list[str] | None) -> None:
    """Load the plug-ins that the options `--plugin` name."""
    for plugin in plugins or ():
        registry.load_plugin(plugin)


def print_json(value: Any) -> None:
    """Write a value to stdout as JSON."""
    typer.echo(json.dumps(value, indent=2, default=str))


# -- help


class _PlainHelp:
    """Help without a type next to flags, with the panels of options in one order."""

    def get_params(self, ctx: Any) -> list[Any]:
        params: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        for param in params:
            if param.metavar is None and getattr(param, "is_flag", False):
                param.metavar = ""
            elif param.metavar is None and getattr(param, "multiple", False):
                param.metavar = "<str>"
        panels = [getattr(param, "rich_help_panel", None) for param in params]
        if OUTPUT in panels:
            params[-1].rich_help_panel = panels[-1] = OUTPUT  # --help
        order = [PANELS.index(panel) if panel in PANELS else -1 for panel in panels]
        return [params[n] for n in sorted(range(len(params)), key=order.__getitem__)]


class PlainCommand(_PlainHelp, typer.core.TyperCommand):
    """A command with this help."""


class PlainGroup(_PlainHelp, typer.core.TyperGroup):
    """A group of commands with this help."""


def exit_codes() -> str:
    """The exit codes as Markdown, for `--help` and the docs."""
    return "Exit codes: " + "; ".join(f"`{code}` {text}" for code, text in EXIT_CODES.items()) + "."


def version_line() -> str:
    """Versions of ctta-bench and torch, and the commit of a checkout, without importing torch."""
    from importlib import metadata

    try:
        torch = metadata.version("torch")
    except metadata.PackageNotFoundError:
        torch = "not installed"
    commit = _git("rev-parse", "--short=12", "HEAD")
    edited = "+edited" if commit and _git("status", "--porcelain", "--untracked-files=no") else ""
    source = f", commit {commit}{edited}" if commit else ""
    return f"ctta-bench {ctta_bench.__version__}, torch {torch}{source}"


def _git(*words: str) -> str:
    """What git prints about the checkout of the package; "" if it lies in none."""
    root = Path(ctta_bench.__file__).resolve().parents[1]
    if not (root / ".git").exists():
        return ""
    call = ["git", "-C", str(root), "--no-optional-locks", *words]
    try:
        done = subprocess.run(call, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip()


# -- models of options


def expand_options(
    command: Callable[..., Any],
) -> tuple[inspect.Signature, Callable[[Values], Values]]:
    """A command's signature with one option for each field of its models, and a function that
    makes the command's arguments from the values of the options."""
    signature = inspect.signature(command, eval_str=True)
    groups = {p.name: _group(p.annotation) for p in signature.parameters.values()}
    parameters = [
        part
        for parameter in signature.parameters.values()
        for part in groups[parameter.name][0] or [parameter]
    ]

    def arguments_of(values: Values) -> Values:
        arguments = {}
        for name, (parts, build) in groups.items():
            own = {part.name: values[part.name] for part in parts}
            arguments[name] = build(own) if parts else values[name]
        return arguments

    keywords = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in parameters]
    return signature.replace(parameters=keywords), arguments_of


Group = tuple[list[inspect.Parameter], Callable[[Values], Any]]


def _group(annotation: Any) -> Group:
    """The options of a parameter's model and a function from their values to its value; [] if the
    parameter is an option itself."""
    place = next(
        (m.place for m in getattr(annotation, "__metadata__", ()) if isinstance(m, OptionsOf)), ""
    )
    if place == "run":
        return [*_cell_parameters("run")], _request
    if place == "grid":
        return [*_cell_parameters("grid")], _given
    if dataclasses.is_dataclass(annotation) and isinstance(annotation, type):
        return [*_field_parameters(annotation)], lambda values: annotation(**values)
    return [], lambda values: None


def _cell_parameters(place: Literal["run", "grid"]) -> Iterator[inspect.Parameter]:
    for name, declared in cell_options(place).items():
        kind, default = _typed(declared.type), declared.default
        if place == "grid" or kind == list[str]:
            default = None
        if default is None:
            kind = kind | None
        yield _parameter(
            name,
            inspect.Parameter.empty if declared.default is REQUIRED else default,
            Annotated[kind, cell_option(name)],
        )


def _field_parameters(model: type) -> Iterator[inspect.Parameter]:
    hints = get_type_hints(model, include_extras=True)
    for field in dataclasses.fields(model):
        default = field.default
        yield _parameter(
            field.name,
            inspect.Parameter.empty if default is dataclasses.MISSING else default,
            hints[field.name],
        )


def _parameter(name: str, default: Any, annotation: Any) -> inspect.Parameter:
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, kind, default=default, annotation=annotation)


def _typed(annotation: Any) -> Any:
    """The type that typer takes for a field: a plain type, a list for a mapping, else text."""
    if get_origin(annotation) is dict:
        return list[str]
    parts = get_args(annotation) if isinstance(annotation, types.UnionType) else (annotation,)
    return next((kind for kind in (bool, int, float, Path) if kind in parts), str)


def _request(values: Values) -> Any:
    from ctta_bench.config.request import CellRequest
    from ctta_bench.config.validation import validate

    return validate(CellRequest, _with_parsed_set(values), "run")


def _given(values: Values) -> Values:
    return {name: value for name, value in _with_parsed_set(values).items() if value is not None}


def _with_parsed_set(values: Values) -> Values:
    from ctta_bench.config.validation import parse_assignments

    return values | {"set": parse_assignments(values["set"] or ())}
