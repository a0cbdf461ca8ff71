"""Looking into adapted models: the geometry of their weights, and what they attend to."""

from pathlib import Path
from typing import Annotated

import typer

from ctta_bench.cli.command import (
    DataRoot,
    Format,
    Plugin,
    check_format,
    command,
    error_printer,
    load_plugins,
    print_json,
    printer,
)

Runs = Annotated[Path, typer.Argument(help="A folder of runs that kept their models.")]
Out = Annotated[Path | None, typer.Option(help="Instead of DIRECTORY/looking.")]


@command
def geometry(
    directory: Runs,
    out: Out = None,
    weights: Annotated[
        Path | None, typer.Option(help="Source weights, where no `source` cell kept them.")
    ] = None,
    plugin: Plugin = None,
    format: Format = "text",
) -> None:
    """Measure how adaptation moved the neurons: lengths, angles, and angles between them.

    Example: `ctta-bench geometry runs/geometry`
    """
    as_json = check_format(format)
    load_plugins(plugin)
    from ctta_bench.analysis.figures.geometry import write_geometry
    from ctta_bench.analysis.kept_models.geometry_runs import read_geometry
    from ctta_bench.measuring.attention_maps import looking_folder, source_layers

    folder = looking_folder(directory, out)
    found, left_out = read_geometry(directory, lambda m, sha: source_layers(m, sha, weights))
    written = [write_geometry(g, folder, folder) for g in found]
    for reason in left_out:
        error_printer().print(f"left out: {reason}", markup=False, soft_wrap=True)
    files = [file for _, figures in written for _, _, paths in figures for file in paths]
    if as_json:
        tables = [
            {"caption": t.caption, "rows": t.frame.reset_index().to_dict("records")}
            for t, _ in written
        ]
        print_json({"folder": folder, "figures": files, "tables": tables, "left_out": left_out})
        return
    from ctta_bench.cli.console import plain_table

    for table, _ in written:
        rows = [[label, *(entry.text for entry in entries)] for label, entries in table.lines]
        printer().print(plain_table(list(table.header), rows))
        printer().print(table.caption, style="dim", highlight=False, markup=False)
        for note in table.footnotes:
            printer().print(f"- {note}", style="dim", highlight=False, markup=False)
    typer.echo(f"tables and figures: {folder.resolve()}")


@command
def attention(
    directory: Runs,
    domain: Annotated[
        list[str] | None, typer.Option(help="Domain of the pictures; repeatable. The first one.")
    ] = None,
    image: Annotated[
        list[int] | None, typer.Option(help="Number of an image; repeatable. 0 to 3.")
    ] = None,
    fusion: Annotated[str, typer.Option(help="Heads become one by mean, max or min.")] = "mean",
    discard: Annotated[float, typer.Option(help="Share of the smallest values set to 0.")] = 0.8,
    residual: Annotated[float, typer.Option(help="Share of the residual path.")] = 0.5,
    seed: Annotated[int | None, typer.Option(help="The cells of this seed; the lowest.")] = None,
    out: Out = None,
    data_root: DataRoot = None,
    plugin: Plugin = None,
    format: Format = "text",
) -> None:
    """Draw what kept models attend to, side by side: attention rollout on the same pictures.

    Example: `ctta-bench attention runs/attention --domain fog --image 0 --image 5`
    """
    as_json = check_format(format)
    load_plugins(plugin)
    from ctta_bench.analysis.figures.attention import attention_figure, summary
    from ctta_bench.analysis.kept_models.attention import RolloutSettings
    from ctta_bench.measuring.attention_maps import (
        DEFAULT_PICTURES,
        attention_grids,
        looking_folder,
    )

    folder = looking_folder(directory, out)
    grids = attention_grids(
        directory,
        domains=domain or (),
        pictures=image or DEFAULT_PICTURES,
        settings=RolloutSettings(fusion, discard, residual),
        seed=seed,
        data_root=data_root,
    )
    files = [attention_figure(grid, folder / grid.name) for grid in grids]
    if as_json:
        rows = [summary(grid).to_dict("records") for grid in grids]
        print_json({"folder": folder, "files": files, "rows": rows})
        return
    for grid, paths in zip(grids, files, strict=True):
        printer().print(f"{grid.title}: {grid.how}", highlight=False, markup=False)
        if grid.warning():
            printer().print(grid.warning(), style="dim", highlight=False, markup=False)
        typer.echo("\n".join(str(path) for path in paths))
