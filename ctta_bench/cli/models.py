"""Adapted models out of runs."""

from pathlib import Path
from typing import Annotated

import typer

from ctta_bench.cli.command import command


@command
def export(
    cell: Annotated[Path, typer.Argument(help="A run folder whose run kept its models.")],
    out: Annotated[Path, typer.Argument(help="The file to write, OUT.safetensors.")],
    domain: Annotated[
        str | None, typer.Option(help="At the end of this domain; default: of the stream.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a file in the way.")] = False,
) -> None:
    """Write an adapted model as a plain network, adapters merged, that timm (or mmseg) loads.

    Example: `ctta-bench export runs/single/paid-fashion_c-... adapted.safetensors`
    """
    from ctta_bench.run.export import export as write

    source = write(cell, out, domain=domain, force=force)
    typer.echo(f"{out} (from {source})")
