"""The command `ctta-bench`. No logic here: each command builds, calls and prints.

A command is a function in one of the modules beside this one; here they get their names.
"""

import signal
from typing import Annotated

import typer

from ctta_bench import __version__
from ctta_bench.cli import (
    authoring,
    cost,
    data,
    data_reading,
    launching,
    listing,
    models,
    reporting,
    running,
    status,
    tuning,
)
from ctta_bench.cli.command import State

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    help="Continual test-time adaptation: every method, every benchmark, one protocol.",
)
new_app = typer.Typer(no_args_is_help=True, help="Skeletons to start from.")
data_app = typer.Typer(no_args_is_help=True, help="The data of a benchmark.")
app.add_typer(data_app, name="data")
app.add_typer(new_app, name="new")
models_app = typer.Typer(no_args_is_help=True, help="Source models: their weights and facts.")
app.add_typer(models_app, name="models")

app.command("list")(listing.list_entries)
app.command()(running.run)
app.command()(launching.grid)
app.command()(tuning.tune)
app.command()(cost.cost)
app.command()(status.status)
app.command()(status.logs)
app.command()(status.cancel)
app.command()(status.merge)
app.command()(reporting.report)
app.command()(reporting.geometry)
app.command()(reporting.attention)
app.command()(models.export)
app.command()(authoring.check)
app.command()(authoring.parity)
new_app.command("method")(authoring.new_method)
data_app.command("list")(data.data_list)
data_app.command("download")(data.data_download)
data_app.command("make")(data.data_make)
data_app.command("verify")(data.data_verify)
data_app.command("check")(data_reading.data_check)
data_app.command("bench")(data_reading.data_bench)
models_app.command("download")(models.models_download)
models_app.command("show")(models.models_show)
app.command("train-source")(models.train_source)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"ctta-bench {__version__}")
        raise typer.Exit


@app.callback()
def common(
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print and exit.")
    ] = False,
) -> None:
    """Options before the command."""
    State.debug = debug


def _interrupted(number: int, frame: object) -> None:
    raise KeyboardInterrupt(signal.Signals(number).name)


def main() -> None:
    """Entry point of the console script."""
    # A scheduler's or a user's polite kill is answered like Ctrl-C: checkpoint, then leave.
    for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, _interrupted)
    app()
