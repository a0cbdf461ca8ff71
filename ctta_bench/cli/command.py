"""What every command is made of: common options, errors as one sentence, printing."""

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from rich.console import Console

from ctta_bench import registry
from ctta_bench.cli.options import cell_option, completion, expanded
from ctta_bench.errors import ConfigError, CttaBenchError

Command = TypeVar("Command", bound=Callable[..., Any])
INTERRUPTED = 130
FORMATS = ("text", "json")

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
    """A command for typer: models of options as one option for each field (see options.py).

    A user's mistake is one sentence and exit code 2, Ctrl-C exit code 130.
    """
    signature, filled = expanded(function)

    @functools.wraps(function)
    def wrapped(**values: Any) -> Any:
        try:
            return function(**filled(values))
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
