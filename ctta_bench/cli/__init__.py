"""The command `ctta-bench`. No logic here: each command builds, calls and prints.

A command is a function in one of the modules of this folder; here they get their names.
"""

import signal
from typing import Annotated, Any

import typer

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
    sharing,
    status,
    tuning,
    warmup,
)
from ctta_bench.cli.command import PlainCommand, PlainGroup, State, exit_codes, version_line
from ctta_bench.cli.completion import whole_words_in_bash

app = typer.Typer(
    cls=PlainGroup,
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    help="Continual test-time adaptation: every method, every benchmark, one protocol.",
    epilog=exit_codes(),
)
data_app = typer.Typer(cls=PlainGroup, no_args_is_help=True, help="Get and check data sets.")
models_app = typer.Typer(cls=PlainGroup, no_args_is_help=True, help="Get and show source models.")
warmup_app = typer.Typer(
    cls=PlainGroup, no_args_is_help=True, help="Take warm-ups from published checkpoints."
)
protocol_app = typer.Typer(
    cls=PlainGroup, no_args_is_help=True, help="Check runs by the rules of a protocol."
)
new_app = typer.Typer(cls=PlainGroup, no_args_is_help=True, help="Write a template to start from.")


GET, WRITE = "Methods, models and data", "Write a method, benchmark or experiment"
SHARE = "Share and verify results"


def _add(group: typer.Typer, panel: str | None, **commands: Any) -> None:
    for name, function in commands.items():
        name = name.replace("_", "-")
        group.command(name, cls=PlainCommand, rich_help_panel=panel)(function)


_add(app, "Run", run=running.run, grid=launching.grid, tune=tuning.tune, cost=cost.cost)
_add(
    app,
    "Follow runs",
    status=status.status,
    logs=status.logs,
    cancel=status.cancel,
    work=status.work,
    merge=status.merge,
)
_add(
    app,
    "Results",
    report=reporting.report,
    audit=reporting.audit,
    geometry=reporting.geometry,
    attention=reporting.attention,
    export=models.export,
)
_add(
    app,
    SHARE,
    bundle=sharing.bundle,
    verify=sharing.verify,
    leaderboard=sharing.leaderboard,
    diff=sharing.diff,
)
_add(app, GET, list=listing.list_entries, train_source=models.train_source)
_add(
    app,
    WRITE,
    check=authoring.check,
    parity=authoring.parity,
    import_config=authoring.import_config,
)
_add(protocol_app, None, check=sharing.protocol_check)
app.add_typer(protocol_app, name="protocol", rich_help_panel=SHARE)
app.add_typer(data_app, name="data", rich_help_panel=GET)
app.add_typer(models_app, name="models", rich_help_panel=GET)
app.add_typer(warmup_app, name="warmup", rich_help_panel=GET)
app.add_typer(new_app, name="new", rich_help_panel=WRITE)
_add(
    data_app,
    None,
    list=data.data_list,
    download=data.data_download,
    make=data.data_make,
    verify=data.data_verify,
    check=data_reading.data_check,
    bench=data_reading.data_bench,
)
_add(
    models_app,
    None,
    list=models.models_list,
    download=models.models_download,
    show=models.models_show,
    check=models.models_check,
)
_add(warmup_app, None, **{"import": warmup.warmup_import})
_add(new_app, None, method=authoring.new_method, benchmark=authoring.new_benchmark)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(version_line())
        raise typer.Exit


@app.callback()
def common(
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks of errors.")] = False,
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=_version,
            is_eager=True,
            help="Print the versions of ctta-bench and torch and the commit, and exit.",
        ),
    ] = False,
) -> None:
    """Options before the command."""
    State.debug = debug


def _interrupted(number: int, frame: object) -> None:
    raise KeyboardInterrupt(signal.Signals(number).name)


def main() -> None:
    """Entry point of the console script."""
    # SIGTERM of a scheduler or a user does what Ctrl-C does: write a checkpoint, then exit.
    for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, _interrupted)
    with whole_words_in_bash():
        app()
