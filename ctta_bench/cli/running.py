"""One cell."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from ctta_bench.cli.shared import (
    CacheDecoded,
    DataRoot,
    Device,
    Force,
    Format,
    KeepModels,
    Log,
    Plugin,
    Probe,
    Quiet,
    Set,
    Workers,
    check_format,
    kind,
    load_plugins,
    print_json,
    printer,
)


@kind
def run(
    method: Annotated[str, typer.Argument(help="A method (`ctta-bench list methods`).")],
    benchmark: Annotated[str, typer.Argument(help="A benchmark (`ctta-bench list benchmarks`).")],
    preset: Annotated[
        str, typer.Option(help="Hyper-parameters: default, paper or code.")
    ] = "default",
    set: Set = None,
    model: Annotated[str | None, typer.Option(help="A model, or timm:NAME.TAG.")] = None,
    weights: Annotated[Path | None, typer.Option(help="File of weights for the model.")] = None,
    preprocessing: Annotated[str, typer.Option(help="true or lineage (raw [0,1]).")] = "true",
    input_size: Annotated[
        str | None, typer.Option(help="The network's input, PIXELS or HEIGHTxWIDTH; as recorded.")
    ] = None,
    precision: Annotated[
        str, typer.Option(help="float32, bfloat16, float16, float64.")
    ] = "float32",
    setting: Annotated[
        str | None, typer.Option(help="The stream's protocol (`ctta-bench list settings`).")
    ] = None,
    rounds: Annotated[int | None, typer.Option(help="Times the sequence is seen.")] = None,
    window: Annotated[int, typer.Option(help="Images a window of single-sample streams.")] = 0,
    adapt: Annotated[
        bool, typer.Option(help="Or score the model as it is before the stream, after a warm-up.")
    ] = True,
    seed: Annotated[int, typer.Option(help="Seed of order, method and source sample.")] = 0,
    out: Annotated[Path, typer.Option(help="Folder that takes the run's folder.")] = Path(
        "runs/single"
    ),
    data_root: DataRoot = None,
    workers: Workers = None,
    cache_decoded: CacheDecoded = None,
    device: Device = None,
    plugin: Plugin = None,
    keep_models: KeepModels = None,
    probe: Probe = None,
    log: Log = None,
    force: Force = False,
    quiet: Quiet = False,
    format: Format = "text",
) -> None:
    """Run one method on one benchmark.

    Example: `ctta-bench run tent fashion_c --set lr=1e-3 --set examples=100 --seed 1`
    """
    as_json = check_format(format)
    from ctta_bench.config.cell import CellRequest, resolve
    from ctta_bench.config.validation import parse_assignments, validate
    from ctta_bench.record.folder import RunFolder, check_writable

    check_writable(out)
    load_plugins(plugin)
    overrides = parse_assignments(set or ())
    if setting is not None:
        overrides["benchmark.setting"] = setting
    if rounds is not None:
        overrides["benchmark.rounds"] = rounds
    values = {
        "method": method,
        "benchmark": benchmark,
        "preset": preset,
        "set": overrides,
        "model": model,
        "weights": weights,
        "preprocessing": preprocessing,
        "input_size": input_size,
        "precision": precision,
        "window": window,
        "adapt": adapt,
        "seed": seed,
        "data_root": data_root,
        "workers": workers,
        "cache_decoded": cache_decoded,
        "experiment": out.resolve().name,
        "keep_models": keep_models or "none",
        "probe": probe or "none",
    }
    cell = resolve(validate(CellRequest, values, "run"))
    folder = RunFolder(out / cell.id)
    from ctta_bench.cli.console import model_line, result_table, updates_line
    from ctta_bench.run.engine import run_cell
    from ctta_bench.run.environment import default_device

    was_done = folder.is_done and not force
    result = run_cell(
        cell,
        folder,
        device=device or default_device(),
        force=force,
        loggers=cell_loggers(log, quiet or as_json, cell.id),
    )
    if as_json:
        print_json(result | {"folder": str(folder.path)})
        return
    if was_done:
        printer().print("already done: nothing was run (use --force to run it again).")
    typer.echo(cell.id)
    printer().print(result_table(result))
    printer().print(model_line(cell.record, result), highlight=False)
    printer().print(updates_line(result), highlight=False)
    printer().print(f"results in {folder.path}", soft_wrap=True, highlight=False)


def cell_loggers(
    names: list[str] | None,
    quiet: bool,
    cell: str,
    out_of: str = "",
    noted: list[str] | None = None,
) -> list[Any]:
    """The loggers of one cell: those asked for, and the progress line on stderr."""
    from ctta_bench.cli.console import ConsoleProgress
    from ctta_bench.run.loggers import make_loggers

    console = Console(stderr=True, quiet=quiet)
    return [*make_loggers(tuple(names or ())), ConsoleProgress(console, cell, out_of, noted)]
