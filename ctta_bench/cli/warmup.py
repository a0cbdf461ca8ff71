"""Warm-ups from published files."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ctta_bench.cli.command import OptionsOf, check_format, command, load_plugins, print_json
from ctta_bench.cli.running import CommandOptions

if TYPE_CHECKING:
    from ctta_bench.config.request import CellRequest


@command
def warmup_import(
    file: Annotated[Path, typer.Argument(help="Checkpoint of PAID's or ViDA's code.")],
    request: Annotated["CellRequest", OptionsOf("run")],
    options: CommandOptions,
) -> None:
    """Take the adapters of a published checkpoint as the warm-up of a method.

    The tensors are recognised by their names. Every name and shape must fit, and what a warm-up
    does not change must be equal to the source model. Cells in the folder --out start from it.

    Example: `ctta-bench warmup import cifar10_warmup.pth paid cifar10_c --preset code`
    """
    as_json = check_format(options.format)
    from ctta_bench.config.cell import resolve
    from ctta_bench.record.folder import check_writable
    from ctta_bench.run.imported import import_warmup
    from ctta_bench.source_models.shared import Models

    check_writable(options.out)
    load_plugins(options.plugin)
    models = Models()
    cell = resolve(options.complete(request), models)
    result = import_warmup(cell, file, options.out, force=options.force, models=models)
    if as_json:
        print_json(dict(result))
        return
    typer.echo(f"{result['cell']}: {result['trained_parameters']:,} learnt values of {file.name}")
    before, after = (result["source_accuracy"][key] for key in ("before", "after"))
    if before is not None and after is not None:
        typer.echo(f"accuracy on source images: {before:.1f} %, after the warm-up {after:.1f} %")
    else:
        typer.echo("accuracy on source images: unknown, there are none below the data root")
    typer.echo(f"warm-up in {options.out / result['cell']}")
