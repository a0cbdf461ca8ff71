"""Cells: one of them, a grid of them, and how they stand."""

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
    Quiet,
    Set,
    Workers,
    check_format,
    error_printer,
    kind,
    load_plugins,
    print_json,
    printer,
)
from ctta_bench.errors import ConfigError


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
    log: Log = None,
    force: Force = False,
    quiet: Quiet = False,
    format: Format = "text",
) -> None:
    """Run one method on one benchmark.

    Example: `ctta-bench run tent fashion_c --set lr=1e-3 --set examples=100 --seed 1`
    """
    as_json = check_format(format)
    from ctta_bench.config import CellRequest, parse_assignments, resolve, validate
    from ctta_bench.record import RunFolder, check_writable

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
    }
    cell = resolve(validate(CellRequest, values, "run"))
    folder = RunFolder(out / cell.id)
    from ctta_bench.console import model_line, result_table, updates_line
    from ctta_bench.engine import run_cell
    from ctta_bench.environment import default_device

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
    from ctta_bench.console import ConsoleProgress
    from ctta_bench.loggers import make_loggers

    console = Console(stderr=True, quiet=quiet)
    return [*make_loggers(tuple(names or ())), ConsoleProgress(console, cell, out_of, noted)]


@kind
def grid(
    experiment: Annotated[str, typer.Argument(help="An experiment's name or a YAML file.")],
    benchmark: Annotated[
        list[str] | None, typer.Option(help="Instead of the file's; repeatable.")
    ] = None,
    seeds: Annotated[str, typer.Option(help="Instead of the file's, e.g. 0,1,2.")] = "",
    preset: Annotated[str | None, typer.Option(help="Instead of the file's presets.")] = None,
    set: Set = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the runs; runs/EXPERIMENT.")] = None,
    data_root: DataRoot = None,
    workers: Workers = None,
    cache_decoded: CacheDecoded = None,
    executor: Annotated[
        str, typer.Option(help="local: one after another, in this process.")
    ] = "local",
    device: Device = None,
    plugin: Plugin = None,
    keep_models: KeepModels = None,
    log: Log = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List the cells and stop.")] = False,
    force: Force = False,
    quiet: Quiet = False,
) -> None:
    """Run every cell of an experiment; what is done is kept, what was interrupted goes on.

    Example: `ctta-bench grid quickstart --seeds 0,1,2`
    """
    from ctta_bench.config import parse_assignments
    from ctta_bench.console import count_lines
    from ctta_bench.experiment import expand, load_experiment
    from ctta_bench.record import check_writable

    if executor not in ("local", "debug"):
        raise ConfigError(f"--executor {executor!r}: choose local or debug.")
    load_plugins(plugin)
    described = load_experiment(experiment)
    directory = out or Path("runs") / described.name
    if not dry_run:
        check_writable(directory)
    cells = expand(
        described,
        benchmarks=tuple(benchmark or ()),
        seeds=_seeds(seeds),
        preset=preset,
        overrides=parse_assignments(set or ()),
        data_root=data_root,
        workers=workers,
        cache_decoded=cache_decoded,
        keep_models=keep_models,
    )
    from ctta_bench.launch import run_grid, schedule

    steps = schedule(cells)
    if dry_run:
        for step in steps:
            typer.echo(step.id)
        return
    from ctta_bench.environment import default_device

    console = Console(stderr=True, quiet=quiet)
    noted: list[str] = []  # over all cells
    tell, number = count_lines(console, len(steps)), {s.id: i for i, s in enumerate(steps)}
    outcome = run_grid(
        cells,
        directory,
        device=device or default_device(),
        force=force,
        make_loggers=lambda s: cell_loggers(
            log, quiet, s.id, f"{number[s.id] + 1}/{len(steps)} ", noted
        ),
        on_step=lambda i, step, state: tell(i, step.id, state),
    )
    warmups = f"{len(outcome.warmups)} warm-ups and " if outcome.warmups else ""
    typer.echo(
        f"{warmups}{len(outcome.done)} cells run, {len(outcome.kept)} were done before, "
        f"{len(outcome.failed)} failed; tables and figures: ctta-bench report {directory}"
    )
    for cell_id, reason in outcome.failed.items():
        error_printer().print(f"failed: {cell_id}: {reason}", markup=False, soft_wrap=True)
    if outcome.failed:
        raise typer.Exit(1)


def _seeds(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(",") if part.strip())
    except ValueError:
        raise ConfigError(f"--seeds {text!r}: write numbers with commas, e.g. 0,1,2.") from None


@kind
def status(
    directory: Annotated[Path, typer.Argument(help="A folder of runs.")],
    format: Format = "text",
) -> None:
    """Show which cells are done, running, unfinished or failed, and why.

    Example: `ctta-bench status runs/quickstart`
    """
    as_json = check_format(format)
    from dataclasses import asdict

    from ctta_bench.analysis.status import status as read_status

    rows = [asdict(row) for row in read_status(directory)]
    if as_json:
        print_json(rows)
        return
    from ctta_bench.console import plain_table

    cells = [
        [r["cell"], r["state"], f"{r['done']}/{r['total'] or '?'}", r["reason"] or ""] for r in rows
    ]
    printer().print(plain_table(["cell", "state", "batches", "reason"], cells))
    states = [r["state"] for r in rows]
    typer.echo(", ".join(f"{states.count(s)} {s}" for s in dict.fromkeys(states)))
