"""Measure what methods cost."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from ctta_bench import registry
from ctta_bench.cli.command import (
    DataRoot,
    Device,
    Format,
    InputSize,
    Model,
    Plugin,
    Precision,
    Preset,
    Quiet,
    Set,
    Weights,
    check_format,
    command,
    error_printer,
    load_plugins,
    option,
    print_json,
    printer,
)
from ctta_bench.cli.completion import benchmarks, completion
from ctta_bench.cli.completion import methods as names_of_methods
from ctta_bench.config.options import HOW, OUTPUT, WHAT


@command
def cost(
    methods: Annotated[
        list[str] | None,
        typer.Argument(
            help="Methods.",
            show_default="all that support the task",
            autocompletion=completion(names_of_methods),
        ),
    ] = None,
    benchmark: Annotated[
        str,
        option(
            panel=WHAT,
            help="A benchmark (`ctta-bench list benchmarks`).",
            autocompletion=completion(benchmarks),
        ),
    ] = "fashion_c",
    model: Model = None,
    weights: Weights = None,
    input_size: InputSize = None,
    preset: Preset = "default",
    set: Set = None,
    precision: Precision = "float32",
    repeats: Annotated[
        int, option(panel=HOW, min=1, help="How often each method is measured.")
    ] = 7,
    threads: Annotated[int, option(panel=HOW, min=1, help="Threads on a CPU.")] = 1,
    random: Annotated[
        bool,
        option("--random", panel=WHAT, help="Use random weights and images; read no file."),
    ] = False,
    out: Annotated[Path, option(panel=OUTPUT, help="Folder for the record.")] = Path("runs/cost"),
    data_root: DataRoot = None,
    device: Device = None,
    plugin: Plugin = None,
    quiet: Quiet = False,
    format: Format = "text",
) -> None:
    """Measure what methods cost: parameters, state, passes, time, memory, FLOPs.

    Each method, TENT and the plain model are measured in turns in this process; the result is the
    median of their ratios. `ctta-bench report` shows the record in --out as measured cost.

    Example: `ctta-bench cost source tent paid --set benchmark.batch_size=16`
    """
    as_json = check_format(format)
    load_plugins(plugin)
    from ctta_bench.config.request import CellRequest
    from ctta_bench.config.validation import parse_assignments, validate

    values = {"benchmark": benchmark, "input_size": input_size, "precision": precision}
    request = validate(CellRequest, values | {"method": "source"}, "cost")
    import torch

    from ctta_bench.measuring.costs import record
    from ctta_bench.measuring.workload import (
        Workload,
        benchmark_of,
        methods_for_task,
        overrides_by_owner,
    )
    from ctta_bench.record.folder import check_writable, write_json
    from ctta_bench.run.environment import chosen_device

    check_writable(out)
    torch.set_num_threads(threads)
    known = registry.BENCHMARKS.get(benchmark)
    names = [registry.METHODS.find(name).name for name in methods or methods_for_task(known.task)]
    settings, overrides = overrides_by_owner(parse_assignments(set or ()), names)
    scene = Workload(
        benchmark_of(benchmark, settings, data_root),
        model or known.default_model,
        torch.device(chosen_device(device)),
        request.precision,
        random=random,
        weights=weights,
        input_size=request.input_size,
        preset=preset,
        overrides=overrides,
    )
    found, left_out = _measured(scene, names, repeats, bool(methods), quiet or as_json)
    made = record(scene, found, left_out, repeats)
    file = out / _file_name(made)
    write_json(file, made)
    if as_json:
        print_json(made | {"file": str(file)})
        return
    from ctta_bench.analysis.tables.measured_cost import measured_table
    from ctta_bench.cli.terminal.console import plain_table

    table = measured_table(made)
    lines = [[label, *(entry.text for entry in entries)] for label, entries in table.lines]
    printer().print(plain_table(list(table.header), lines))
    printer().print(table.caption, style="dim", highlight=False)
    for note in table.footnotes:
        printer().print(f"- {note}", style="dim", highlight=False, markup=False)
    typer.echo(f"record: {file}")


def _measured(
    scene: Any, names: list[str], repeats: int, asked: bool, quiet: bool
) -> tuple[list[Any], dict[str, str]]:
    """The measured costs, and why methods were left out; an error if the user named the method."""
    from ctta_bench.errors import MethodError
    from ctta_bench.measuring.costs import MethodCost, measure

    found: list[Any] = []
    left_out: dict[str, str] = {}
    with Console(stderr=True, quiet=quiet).status("measuring") as status:
        for number, outcome in enumerate(measure(scene, names, repeats=repeats)):
            if isinstance(outcome, MethodCost):
                found.append(outcome)
            elif asked:
                raise MethodError(outcome[1])
            else:
                left_out[outcome[0]] = outcome[1]
            status.update(f"measured {number + 1} of {len(names)}: {names[number]}")
    if left_out and not quiet:
        error_printer().print(f"left out: {', '.join(left_out)}", highlight=False)
    return found, left_out


def _file_name(made: dict[str, Any]) -> str:
    """`cost-BENCHMARK-MODEL-DEVICE-PRECISION.json`: the same measurement again replaces it."""
    from ctta_bench.record.schema import slug_of

    device = str(made["environment"]["device"])
    words = [made["benchmark"], made["model"]["name"], f"{made['batch_size']}", device]
    return f"cost-{slug_of(*words, made['precision'])}.json"
