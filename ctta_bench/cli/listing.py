"""What there is: methods, benchmarks, models, experiments."""

from typing import Annotated

import typer

from ctta_bench import registry
from ctta_bench.cli.shared import (
    Format,
    Plugin,
    check_format,
    kind,
    load_plugins,
    print_json,
    printer,
)
from ctta_bench.errors import ConfigError


@kind
def list_entries(
    what: Annotated[str, typer.Argument(help="methods, benchmarks, models or experiments.")],
    plugin: Plugin = None,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Hyper-parameters and presets of methods.")
    ] = False,
    format: Format = "text",
) -> None:
    """Show what there is.

    Example: `ctta-bench list methods`
    """
    as_json = check_format(format)
    load_plugins(plugin)
    if what == "experiments":
        from ctta_bench.config import read_yaml
        from ctta_bench.experiment import experiment_files

        found = {n: read_yaml(f).get("title", "") for n, f in experiment_files().items()}
        rows = [{"name": n, "description": t} for n, t in found.items()]
    else:
        kinds = {"methods": registry.METHODS, "benchmarks": registry.BENCHMARKS}
        kinds["models"] = registry.MODELS
        if what not in kinds:
            raise ConfigError(f"list {what!r}: choose {', '.join(kinds)} or experiments.")
        rows = [
            {"name": e.name, "description": e.description, "module": e.module, **e.attributes}
            for e in kinds[what].entries().values()
        ]
    described = {}
    if verbose and what == "methods":
        from ctta_bench.config import describe

        described = {row["name"]: describe(row["name"]) for row in rows}
        rows = [row | described[row["name"]] for row in rows]
    if as_json:
        print_json(rows)
        return
    from ctta_bench.console import hyperparameter_tables, plain_table

    columns = (
        ["name", "source_access", "description"] if what == "methods" else ["name", "description"]
    )
    cells = [[str(row.get(c, "none")) for c in columns] for row in rows]
    printer().print(plain_table([c.replace("_", " ") for c in columns], cells))
    for name, description in described.items():
        for table in hyperparameter_tables(name, description):
            printer().print(table)
