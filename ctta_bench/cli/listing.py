"""`ctta-bench list`: methods, benchmarks, settings, source models and experiments."""

import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from ctta_bench import registry
from ctta_bench.api.discover import Row, entry_rows
from ctta_bench.cli.command import (
    Format,
    Plugin,
    Throughput,
    check_format,
    command,
    load_plugins,
    print_json,
    printer,
)
from ctta_bench.cli.completion import completion, models, one_of
from ctta_bench.errors import ConfigError, counted, did_you_mean
from ctta_bench.record.schema import RESULT_FILE

if TYPE_CHECKING:
    from ctta_bench.launch.profiles import Profile
    from ctta_bench.launch.steps import Step
    from ctta_bench.source_models.shared import Models

RUNS = Path("runs")
HOW_COST_IS_COUNTED = (
    "passes: images x (forward + backward) in millions, as methods declare them, of cells + of "
    f"warm-ups; time: of cells on one worker, by earlier runs in {RUNS}/, or as --throughput says."
)
HOW_TO_GET_EXTRAS = "[seg]: needs mmsegmentation; pip install 'ctta-bench[seg]'."

# What each list shows: in a terminal a heading and how a row fills it, in a pipe the keys of a row.
TERMINAL: dict[str, dict[str, Callable[[Row], str]]] = {
    "methods": {
        "name": lambda row: row["name"],
        "method": lambda row: _with_paper(row),
        "task": lambda row: str(
            {"classification": "classify", "segmentation": "segment"}.get(row["task"], row["task"])
        ),
        "adapts": lambda row: row.get("adapts_layers", ""),
        "source data": lambda row: row["source_data"],
        "needs\nBatchNorm": lambda row: row["needs_batch_norm"],
    },
    "benchmarks": {
        "name": lambda row: row["name"],
        "benchmark": lambda row: _with_paper(row),
        "description": lambda row: row["description"],
    },
    "models": {
        "name": lambda row: row["name"],
        "source model": lambda row: _with_paper(row),
        "description": lambda row: row["description"],
    },
    "settings": {
        "name": lambda row: row["name"],
        "setting": lambda row: row["display_name"],
        "parameters": lambda row: row["parameters"] or "none",
        "order of the images": lambda row: row["description"],
    },
    "experiments": {
        "name": lambda row: row["name"],
        "cells": lambda row: str(row["cells"]),
        "passes": lambda row: str(row["passes"]),
        "time": lambda row: str(row["time"]),
        "reproduces": lambda row: str(row["remakes"]),
        "description": lambda row: row["description"],
    },
}
PIPE: dict[str, tuple[str, ...]] = {
    "methods": (
        "name", "display_name", "reference", "task", "adapts_layers", "source_data",
        "needs_batch_norm", "extra", "description",
    ),
    "benchmarks": ("name", "display_name", "reference", "extra", "description"),
    "models": ("name", "display_name", "extra", "description"),
    "settings": ("name", "display_name", "reference", "parameters", "description", "source"),
    "experiments": ("name", "cells", "passes", "time", "remakes", "description"),
}  # fmt: skip


@command
def list_entries(
    what: Annotated[
        str,
        typer.Argument(
            help="methods, benchmarks, settings, models or experiments.",
            autocompletion=one_of(*TERMINAL),
        ),
    ],
    plugin: Plugin = None,
    throughput: Throughput = None,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Hyper-parameters and presets of methods.")
    ] = False,
    model: Annotated[
        str | None,
        typer.Option(
            help="With methods: what each would update in this model.",
            autocompletion=completion(models),
        ),
    ] = None,
    format: Format = "text",
) -> None:
    """List methods, benchmarks, settings, models or experiments.

    In a pipe: one line per entry with tab-separated fields, after a line of their names.

    Example: `ctta-bench list methods --model timm:resnet50`
    """
    as_json = check_format(format)
    load_plugins(plugin)
    if throughput and what != "experiments":
        raise ConfigError(f"list {what}: --throughput goes with experiments only.")
    if model is not None:
        if what != "methods":
            raise ConfigError(f"list {what} --model {model}: --model goes with methods only.")
        return list_compatibility(model, verbose, as_json)
    if what not in TERMINAL:
        hint = did_you_mean(what, TERMINAL)
        raise ConfigError(f"list {what!r}: choose one of {', '.join(TERMINAL)}{hint or '.'}")
    rows = rows_of(what, throughput or ())
    described = {}
    if verbose and what == "methods":
        from ctta_bench.config.presets import describe

        described = {row["name"]: describe(row["name"]) for row in rows}
        rows = [row | described[row["name"]] for row in rows]
    if as_json:
        print_json(rows)
        return
    if sys.stdout.isatty():
        from ctta_bench.cli.terminal.console import list_table

        columns = TERMINAL[what]
        cells = [[fill(row) for fill in columns.values()] for row in rows]
        printer().print(list_table(list(columns), cells))
        if any(row.get("extra") for row in rows):
            typer.echo(HOW_TO_GET_EXTRAS)
        if what == "experiments":
            typer.echo(HOW_COST_IS_COUNTED)
    else:
        print_fields(PIPE[what], ([row.get(key, "") for key in PIPE[what]] for row in rows))
    if described:
        from ctta_bench.cli.terminal.console import hyperparameter_tables

        for name, description in described.items():
            for table in hyperparameter_tables(name, description):
                printer().print(table)


def print_fields(names: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Write one line per row to stdout, fields separated by tabs, after a line of their names."""
    for fields in (names, *rows):
        typer.echo("\t".join(" ".join(str(field).split()) for field in fields))


def print_table(names: list[str], rows: list[list[str]]) -> None:
    """A list in a terminal; in a pipe `print_fields`."""
    if not sys.stdout.isatty():
        return print_fields(names, rows)
    from ctta_bench.cli.terminal.console import list_table

    printer().print(list_table(names, rows))


def rows_of(what: str, throughput: Sequence[Path] = ()) -> list[Row]:
    """The entries of a list as plain values, experiments with their cost."""
    if what != "experiments":
        return entry_rows(what)
    from ctta_bench.config.experiment import experiment_files, load_experiment
    from ctta_bench.measuring.estimate import read_throughput
    from ctta_bench.measuring.estimate import rows as experiment_rows

    found = {name: load_experiment(name) for name in experiment_files()}
    return list(experiment_rows(found, RUNS, read_throughput(throughput) if throughput else None))


def _with_paper(row: Row) -> str:
    paper = f" ({row['reference']})" if row["reference"] else ""
    return f"{row['display_name']}{paper}" + (f" [{row['extra']}]" if row["extra"] else "")


def list_compatibility(model: str, verbose: bool, as_json: bool) -> None:
    """What every method would update in a model, or why it does not support it."""
    from dataclasses import asdict

    from ctta_bench.api.compatibility import compatibilities
    from ctta_bench.cli.terminal.console import (
        COMPATIBILITY_COLUMNS,
        compatibility_rows,
        list_table,
    )

    found = list(compatibilities(model, registry.METHODS.names()))
    if as_json:
        print_json([asdict(pair) | {"parameters": pair.parameters} for pair in found])
        return
    rows = compatibility_rows(found)
    if sys.stdout.isatty():
        printer().print(list_table(COMPATIBILITY_COLUMNS, rows))
    else:
        print_fields(COMPATIBILITY_COLUMNS, rows)
    for pair in found:
        if verbose and pair.trainable:
            typer.echo(f"\n{pair.method}: {', '.join(pair.trainable)}")


def print_plan(
    steps: "Sequence[Step]",
    directory: Path,
    profile: "Profile | None",
    throughput: Sequence[Path],
    models: "Models",
    *,
    ask_slurm: bool,
) -> None:
    """Print the cells, jobs, passes, expected hours, memory and disk of a grid."""
    from ctta_bench.measuring.estimate import earlier_runs, estimate, read_throughput
    from ctta_bench.measuring.plan import disk_bytes, labels, memory_text, passes, size_text, totals
    from ctta_bench.source_models.shared import UNKNOWN

    speeds = read_throughput(throughput) if throughput else earlier_runs(directory)
    records = [step.record for step in steps]
    rows = [
        [
            name,
            "–" if (count := passes(r)) is None else f"{count / 1e6:.3g}",
            "–" if (seconds := speeds.seconds(r)) is None else f"{seconds / 3600:.2g}",
            "–" if r["model"]["sha256"] == UNKNOWN else r["id"],
        ]
        for name, r in zip(labels(records), records, strict=True)
    ]
    console = Console(stderr=True)
    facts = [count_text(steps)]
    left = [step for step in steps if not (directory / step.id / RESULT_FILE).is_file()]
    if len(left) < len(steps):
        facts[0] += f", {len(steps) - len(left)} of them done"
    if profile is not None:
        from ctta_bench.launch.scheduler import array_limit
        from ctta_bench.launch.steps import arrays, in_order, pack, wave_of

        ordered = in_order(left)
        packs = pack(ordered, profile.cells)
        waves = [wave_of(ordered[start]) for start, _ in packs]
        count = len(arrays(waves, profile.max_array or array_limit(), profile.parallel))
        facts.append(f"jobs: {len(packs)}, arrays: {count}")
        if ask_slurm:
            from ctta_bench.launch.slurm import test_only

            facts.append(f"Slurm: {test_only(profile)}")
    print_table(["cell", "passes (M)", "hours", "folder"], rows)
    if left:
        records = [step.record for step in left]
        kept = [step.cell.request.keep_models for step in left]
        size = disk_bytes(records, kept, models.parameters)
        facts += [*totals(records), str(estimate(records, speeds))]
        facts += [memory_text(records, speeds, models.parameters)]
        facts += [f"disk: {size_text(size)} of results (of data: `ctta-bench data list`)"]
    console.print("; ".join(facts), highlight=False, soft_wrap=True)


def count_text(steps: "Sequence[Step]") -> str:
    """`12 cells and 2 warm-ups`."""
    warmups = sum(step.warms_up for step in steps)
    also = f" and {counted(warmups, 'warm-up')}" if warmups else ""
    return counted(len(steps) - warmups, "cell") + also
