"""What there is: methods, benchmarks, models, experiments."""

from pathlib import Path
from typing import Annotated, Any

import typer

from ctta_bench import registry
from ctta_bench.cli.command import (
    Format,
    Plugin,
    check_format,
    command,
    load_plugins,
    print_json,
    printer,
)
from ctta_bench.errors import ConfigError

RUNS = Path("runs")
HOW_COST_IS_COUNTED = (
    "passes: images x (forward + backward) in millions, as methods declare them, without warm-ups; "
    f"time: on one worker, by earlier runs of method, benchmark and model in {RUNS}/."
)


@command
def list_entries(
    what: Annotated[
        str, typer.Argument(help="methods, benchmarks, settings, models or experiments.")
    ],
    plugin: Plugin = None,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Hyper-parameters and presets of methods.")
    ] = False,
    model: Annotated[
        str | None, typer.Option(help="With methods: what each would update in this model.")
    ] = None,
    format: Format = "text",
) -> None:
    """Show what there is.

    Example: `ctta-bench list methods --model timm:resnet50`
    """
    as_json = check_format(format)
    load_plugins(plugin)
    if model is not None:
        if what != "methods":
            raise ConfigError(f"list {what} --model {model}: only methods go with a model.")
        return list_pairs(model, verbose, as_json)
    rows: list[dict[str, Any]]
    if what == "experiments":
        from ctta_bench.config.experiment import experiment_files, load_experiment
        from ctta_bench.measuring.estimate import rows as experiment_rows

        found = {name: load_experiment(name) for name in experiment_files()}
        rows = list(experiment_rows(found, RUNS))
    elif what == "settings":
        rows = setting_rows()
    else:
        kinds = {"methods": registry.METHODS, "benchmarks": registry.BENCHMARKS}
        kinds["models"] = registry.MODELS
        if what not in kinds:
            raise ConfigError(f"list {what!r}: choose {', '.join(kinds)}, settings or experiments.")
        rows = [
            {"name": e.name, "description": e.description, "module": e.module, **e.attributes}
            for e in kinds[what].entries().values()
        ]
    described = {}
    if verbose and what == "methods":
        from ctta_bench.config.presets import describe

        described = {row["name"]: describe(row["name"]) for row in rows}
        rows = [row | described[row["name"]] for row in rows]
    if as_json:
        print_json(rows)
        return
    from ctta_bench.cli.console import hyperparameter_tables, plain_table

    more = {
        "methods": ["source_access", "warmup_access"],
        "settings": ["parameters"],
        "experiments": ["cells", "passes", "time", "remakes"],
    }
    columns = ["name", *more.get(what, []), "description"]
    cells = [[str(row.get(c, "none")) for c in columns] for row in rows]
    printer().print(plain_table([c.replace("_", " ") for c in columns], cells))
    if what == "experiments":
        typer.echo(HOW_COST_IS_COUNTED)
    for name, description in described.items():
        for table in hyperparameter_tables(name, description):
            printer().print(table)


def setting_rows() -> list[dict[str, Any]]:
    """The protocols a stream may follow, with their parameters' defaults and sources."""
    from ctta_bench.stream.settings import SETTINGS

    return [
        {
            "name": name,
            "parameters": " ".join(
                k if v is None else f"{k}={v:g}" for k, v in setting.parameters.items()
            ),
            "description": setting.definition,
            "source": setting.source,
        }
        for name, setting in SETTINGS.items()
    ]


def list_pairs(model: str, verbose: bool, as_json: bool) -> None:
    """What every method would update in a model, or why it cannot serve it."""
    from dataclasses import asdict

    from ctta_bench.authoring.compatibility import compatibilities

    found = list(compatibilities(model, registry.METHODS.names()))
    if as_json:
        print_json([asdict(pair) | {"parameters": pair.parameters} for pair in found])
        return
    from ctta_bench.cli.console import pair_table

    printer().print(pair_table(found))
    for pair in found:
        if verbose and pair.trainable:
            typer.echo(f"\n{pair.method}: {', '.join(pair.trainable)}")
