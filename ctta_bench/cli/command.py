"""What every command is made of: options from models, errors as one sentence, printing.

A parameter of a command may be a dataclass of options, or a cell's options in one place:

    def run(request: Annotated[CellRequest, OptionsOf("run")], options: CommandOptions) -> None: ...

On the command line it becomes one option for each field.
"""

import dataclasses
import functools
import inspect
import json
import types
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import typer
from rich.console import Console

from ctta_bench import registry
from ctta_bench.config.fields import choices_of
from ctta_bench.config.options import REQUIRED, cell_options
from ctta_bench.errors import ConfigError, CttaBenchError

Command = TypeVar("Command", bound=Callable[..., Any])
INTERRUPTED = 130
FORMATS = ("text", "json")

Values = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class OptionsOf:
    """Marks a parameter that takes a cell's options.

    "run": a whole CellRequest. "grid": those that were given, by name, to hold for every cell.
    """

    place: Literal["run", "grid"]


def cell_option(name: str) -> Any:
    """The option of a cell, or for one without default the argument, as typer has it."""
    declared = cell_options()[name]
    option, choices, text = declared.option, choices_of(declared.type), declared.option.help
    given: Values = {
        "help": f"{text[:1].upper()}{text[1:]}.",
        "metavar": option.metavar or "|".join(choices) or None,
        "envvar": option.envvar,
        "autocompletion": completion(option.complete or (lambda: choices)),
    }
    is_argument = declared.default is REQUIRED
    return typer.Argument(**given) if is_argument else typer.Option(*option.names, **given)


def completion(names: Callable[[], Iterable[str]]) -> Callable[[str], list[str]]:
    """What typer asks for the words that may follow in the shell."""

    def complete(incomplete: str) -> list[str]:
        return [name for name in names() if name.startswith(incomplete)]

    return complete


Plugin = Annotated[
    list[str] | None,
    typer.Option("--plugin", help="Python file or module that registers methods; repeatable."),
]
Format = Annotated[
    str,
    typer.Option(
        "--format",
        metavar="text|json",
        help="Of what is printed.",
        autocompletion=completion(lambda: FORMATS),
    ),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print results and errors alone.")]
Device = Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1; default: what there is.")]
Force = Annotated[bool, typer.Option("--force", help="Run again what is done.")]
Log = Annotated[
    list[str] | None, typer.Option("--log", help="Further logger: tensorboard, wandb, mlflow.")
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
    """What the options before the command set."""

    debug = False


def command(function: Command) -> Command:
    """A command for typer: models of options as one option for each field.

    A user's mistake is one sentence and exit code 2, Ctrl-C exit code 130.
    """
    signature, arguments_of = expand_options(function)

    @functools.wraps(function)
    def wrapped(**values: Any) -> Any:
        try:
            return function(**arguments_of(values))
        except CttaBenchError as error:
            if State.debug:
                raise
            error_printer().print(f"error: {error}", markup=False, highlight=False, soft_wrap=True)
            raise typer.Exit(2) from None
        except KeyboardInterrupt:
            error_printer().print(
                "interrupted: the same command goes on from here.", highlight=False
            )
            raise typer.Exit(INTERRUPTED) from None

    wrapped.__signature__ = signature  # type: ignore[attr-defined]
    wrapped.__annotations__ = {p.name: p.annotation for p in signature.parameters.values()}
    return wrapped  # type: ignore[return-value]


def error_printer() -> Console:
    """Stderr, where everything but results goes."""
    return Console(stderr=True)


def printer() -> Console:
    """Stdout; 160 columns where it is no terminal, so that a piped table is whole."""
    return Console(width=None if Console().is_terminal else 160)


def check_format(value: str) -> bool:
    """Whether JSON is wanted. Raises ConfigError for a format that is not there."""
    if value not in FORMATS:
        raise ConfigError(f"--format {value!r}: choose text or json.")
    return value == "json"


def load_plugins(plugins: list[str] | None) -> None:
    """Register what the options --plugin name."""
    for plugin in plugins or ():
        registry.load_plugin(plugin)


def print_json(value: Any) -> None:
    """Write a value to stdout as JSON."""
    typer.echo(json.dumps(value, indent=2, default=str))


# -- models of options


def expand_options(
    command: Callable[..., Any],
) -> tuple[inspect.Signature, Callable[[Values], Values]]:
    """A command's signature with one option for each field, and what fills its parameters again."""
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
    """The options that a parameter stands for, and what makes its value of theirs; none: itself."""
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
    """What typer reads for a field: a plain type, repeated KEY=VALUE for a mapping, or text."""
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
