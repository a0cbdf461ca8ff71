"""One cell."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from ctta_bench.cli.command import (
    Device,
    Force,
    Format,
    Log,
    OptionsOf,
    Plugin,
    Quiet,
    check_format,
    command,
    load_plugins,
    option,
    print_json,
    printer,
)
from ctta_bench.cli.completion import completion, settings
from ctta_bench.config.options import OUTPUT, WHAT

if TYPE_CHECKING:
    from ctta_bench.config.request import CellRequest
    from ctta_bench.record.schema import CellRecord, ResultRecord

SOURCE = "source"
PROTOCOL = ("benchmark", "model", "preprocessing", "precision", "seed")  # keys of cell.yaml


@dataclass(frozen=True)
class CommandOptions:
    """Options of `run` next to those of its cell."""

    setting: Annotated[
        str | None,
        option(
            panel=WHAT,
            unset="the benchmark's own",
            help="The protocol of the stream (`ctta-bench list settings`).",
            autocompletion=completion(settings),
        ),
    ] = None
    rounds: Annotated[
        int | None,
        option(panel=WHAT, unset="the benchmark's own", help="Times the sequence is seen."),
    ] = None
    out: Annotated[Path, option(panel=OUTPUT, help="Folder that gets the folder of the run.")] = (
        Path("runs/single")
    )
    device: Device = None
    plugin: Plugin = None
    log: Log = None
    force: Force = False
    quiet: Quiet = False
    format: Format = "text"

    def complete(self, request: "CellRequest") -> "CellRequest":
        """The request with the setting, the rounds and the experiment's name of these options."""
        from ctta_bench.config.cell import request_with

        stream = {"benchmark.setting": self.setting, "benchmark.rounds": self.rounds}
        given = {key: value for key, value in stream.items() if value is not None}
        return request_with(request, set=request.set | given, experiment=self.out.resolve().name)


@command
def run(request: Annotated["CellRequest", OptionsOf("run")], options: CommandOptions) -> None:
    """Run one method on one benchmark.

    Example: `ctta-bench run tent fashion_c --set lr=1e-3 --set examples=100 --seed 1`
    """
    as_json = check_format(options.format)
    from ctta_bench.config.cell import resolve
    from ctta_bench.record.folder import RunFolder, check_writable
    from ctta_bench.source_models.shared import Models

    check_writable(options.out)
    load_plugins(options.plugin)
    models = Models()
    cell = resolve(options.complete(request), models)
    folder = RunFolder(options.out / cell.id)
    from ctta_bench.cli.terminal.console import model_line, result_table, updates_line
    from ctta_bench.run.engine import run_cell
    from ctta_bench.run.environment import chosen_device
    from ctta_bench.run.options import RunOptions

    was_done = folder.is_done and not options.force
    device = chosen_device(options.device)
    loggers = cell_loggers(options.log, options.quiet or as_json, cell.id)
    how = RunOptions(device, options.force, loggers)
    result = run_cell(cell, folder, how, models=models)
    known = _source_of(cell.record, options.out)
    if as_json:
        source = {} if known is None else {"source": known[1]["mean"]}
        print_json(result | source | {"folder": str(folder.path)})
        return
    if was_done:
        printer().print("already done: nothing was run (use --force to run it again).")
    typer.echo(cell.id)
    printer().print(result_table(result, known and known[1]))
    if known is not None:
        printer().print(_gain_line(folder.path, known[0], result), highlight=False)
    printer().print(model_line(cell.record, result), highlight=False)
    printer().print(updates_line(result), highlight=False)
    printer().print(f"results in {folder.path}", soft_wrap=True, highlight=False)


def _source_of(record: "CellRecord", out: Path) -> "tuple[Path, ResultRecord] | None":
    """Folder and result of a finished run of source under the protocol of a cell, next to it."""
    from ctta_bench.record.folder import RunFolder
    from ctta_bench.record.read import UnusableCellError, read_cell

    if record["method"]["name"] == SOURCE:
        return None
    for folder in sorted(out.glob(f"{SOURCE}-*")):
        try:
            other = read_cell(folder)
        except UnusableCellError:
            continue
        same = all(other[key] == record[key] for key in PROTOCOL)  # type: ignore[literal-required]
        if same and RunFolder(folder).is_done:
            return folder, RunFolder(folder).result()
    return None


def _gain_line(ours: Path, theirs: Path, result: "ResultRecord") -> str:
    """The gain over source in points, with its interval over the images."""
    from ctta_bench.analysis.read.measure import metric_named
    from ctta_bench.analysis.read.statistics import paired_difference
    from ctta_bench.analysis.table.notes import holds_for
    from ctta_bench.analysis.table.table import signed

    metric = metric_named(result["metric"])
    same_images = result.get("same_images", True)
    found = paired_difference([ours], [theirs], metric=metric.name, same_images=same_images)
    gain = found.scaled(-metric.ascending)
    return (
        f"gain over Source: {signed(gain.mean)} points, 95 % interval [{signed(gain.low)}, "
        f"{signed(gain.high)}] {holds_for(1)}; Source: {theirs.name}"
    )


def cell_loggers(
    names: list[str] | None,
    quiet: bool,
    cell: str,
    out_of: str = "",
    noted: list[str] | None = None,
) -> list[Any]:
    """The loggers of one cell: those with these names, and the progress bar on stderr."""
    from ctta_bench.cli.terminal.progress import ConsoleProgress
    from ctta_bench.run.loggers import make_loggers

    console = Console(stderr=True, quiet=quiet)
    return [*make_loggers(tuple(names or ())), ConsoleProgress(console, cell, out_of, noted)]
