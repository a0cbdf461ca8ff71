"""What the commands share: options, one way of saying errors, and printing."""

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from rich.console import Console

from ctta_bench import registry
from ctta_bench.errors import ConfigError, CttaBenchError

Command = TypeVar("Command", bound=Callable[..., Any])
INTERRUPTED = 130

Plugin = Annotated[
    list[str] | None,
    typer.Option("--plugin", help="Python file or module that registers methods; repeatable."),
]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override a value, e.g. lr=1e-3; repeatable."),
]
Format = Annotated[str, typer.Option("--format", help="text or json.", metavar="FORMAT")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print results and errors alone.")]
DataRoot = Annotated[
    Path | None,
    typer.Option(
        "--data-root", "--root", envvar="CTTA_BENCH_DATA", help="Folder of data sets and caches."
    ),
]
Device = Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1; default: what there is.")]
Workers = Annotated[
    int | None,
    typer.Option(help="Processes that load images ahead; 0: this one; default: as cores allow."),
]
CacheDecoded = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Keep decoded images there; later runs read them at once."),
]
Force = Annotated[bool, typer.Option("--force", help="Run again what is done.")]
KeepModels = Annotated[
    str | None,
    typer.Option(help="Adapted networks to leave in the run folder: none, last or domains."),
]
Probe = Annotated[
    str | None,
    typer.Option(help="Score source images again, for forgetting: none, rounds or domains."),
]
Log = Annotated[
    list[str] | None, typer.Option("--log", help="Further logger: tensorboard, wandb, mlflow.")
]


class State:
    """What the options before the command set."""

    debug = False


def kind(command: Command) -> Command:
    """Turn a user's mistake into one sentence and exit code 2, Ctrl-C into 130."""

    @functools.wraps(command)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        try:
            return command(*args, **kwargs)
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

    return wrapped  # type: ignore[return-value]


def error_printer() -> Console:
    """Stderr, where everything but results goes."""
    return Console(stderr=True)


def printer() -> Console:
    """Stdout; 160 columns where it is no terminal, so that a piped table is whole."""
    return Console(width=None if Console().is_terminal else 160)


def check_format(value: str) -> bool:
    """Whether JSON is wanted. Raises ConfigError for a format that is not there."""
    if value not in ("text", "json"):
        raise ConfigError(f"--format {value!r}: choose text or json.")
    return value == "json"


def load_plugins(plugins: list[str] | None) -> None:
    """Register what the options --plugin name."""
    for plugin in plugins or ():
        registry.load_plugin(plugin)


def print_json(value: Any) -> None:
    """Write a value to stdout as JSON."""
    typer.echo(json.dumps(value, indent=2, default=str))
