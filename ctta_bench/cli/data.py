"""Get the data of a benchmark: list, download, make and verify it."""

import os
from pathlib import Path
from typing import Annotated

import typer

from ctta_bench.cli.command import (
    DataRoot,
    Format,
    Quiet,
    check_format,
    command,
    print_json,
    printer,
)
from ctta_bench.cli.completion import benchmarks, completion
from ctta_bench.errors import ConfigError, DataError


@command
def data_list(data_root: DataRoot = None, format: Format = "text") -> None:
    """List the known data sets, how to get each one, and which are on disk.

    Example: `ctta-bench data list --data-root /data`
    """
    as_json = check_format(format)
    from ctta_bench.cli.terminal.console import plain_table
    from ctta_bench.datasets.fetching.known import known_data
    from ctta_bench.datasets.io.roots import data_root as resolve

    root = resolve(data_root)
    rows = known_data(root)
    if as_json:
        print_json(rows)
        return
    columns = ["name", "how", "there", "title"]
    table = plain_table(columns, [[str(row[c]) for c in columns] for row in rows])
    printer().print(table)
    typer.echo(f"data root: {root}")


@command
def data_download(
    benchmark: Annotated[
        str,
        typer.Argument(
            help="A data set (`ctta-bench data list`).", autocompletion=completion(benchmarks)
        ),
    ],
    part: Annotated[
        list[str] | None,
        typer.Option(help="One archive of several, e.g. noise or source; repeatable."),
    ] = None,
    data_root: DataRoot = None,
    mirror: Annotated[
        str | None, typer.Option(metavar="URL|DIR", help="Download the archives from here instead.")
    ] = None,
    keep_archives: Annotated[
        bool, typer.Option("--keep-archives", help="Keep the archives in ROOT/downloads.")
    ] = False,
    quiet: Quiet = False,
) -> None:
    """Download a benchmark's data, check it and unpack it. The same command resumes.

    Example: `ctta-bench data download cifar10_c --data-root /data`
    """
    from ctta_bench.cli.terminal.progress import StepBar
    from ctta_bench.datasets.fetching.fetch import Remote
    from ctta_bench.datasets.fetching.known import embedded_or_own
    from ctta_bench.datasets.fetching.obtain import obtain
    from ctta_bench.datasets.fetching.origins import by_hand_sentence, find_origin
    from ctta_bench.datasets.io.roots import data_root as resolve

    root = resolve(data_root)
    if (sentence := embedded_or_own(benchmark)) is not None:
        typer.echo(sentence)
        return
    source = find_origin(benchmark)
    if source.by_hand is not None:
        raise DataError(by_hand_sentence(benchmark, root))
    for archive in source.chosen(tuple(part or ())):
        place = ", ".join(str(root / archive.into / name) for name in archive.provides)
        if not quiet:
            where = mirror or Remote(archive.url).host
            typer.echo(f"{archive.file} from {where}: {archive.what_is_checked}")
        with StepBar(quiet=quiet) as bar:
            was_done = obtain(
                archive, root, mirror=mirror, keep_archive=keep_archives, report=bar.bytes
            )
        if not quiet:
            typer.echo(f"{'unpacked' if was_done else 'already there'}: {place}")


@command
def data_make(
    benchmark: Annotated[
        str | None, typer.Argument(help="cifar10_c, cifar100_c, imagenet_c or image_folder.")
    ] = None,
    layout: Annotated[
        str | None,
        typer.Option(
            help="Make a rehearsal of this benchmark instead, e.g. imagenet_c, imagenet_r or ccc."
        ),
    ] = None,
    source: Annotated[
        Path | None, typer.Option(help="Clean images: folder CLASS/IMAGE, .npz or .npy.")
    ] = None,
    data_root: DataRoot = None,
    corruption: Annotated[
        list[str] | None,
        typer.Option(help="A corruption; repeatable.", show_default="the fifteen standard ones"),
    ] = None,
    hold_out: Annotated[
        bool, typer.Option("--hold-out", help="Make the four hold-out corruptions, too.")
    ] = False,
    severity: Annotated[
        list[int] | None,
        typer.Option(metavar="<int>", help="A severity; repeatable.", show_default="1 to 5"),
    ] = None,
    parameters: Annotated[
        str | None,
        typer.Option(
            metavar="cifar|imagenet",
            help="Strengths of the corruptions: cifar (for 32 pixels) or imagenet (for 224).",
            show_default="those of the benchmark",
        ),
    ] = None,
    size: Annotated[
        int | None, typer.Option(help="Width and height of the images in pixels.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the corruptions.")] = 0,
    images: Annotated[
        int | None,
        typer.Option(help="Images per corruption of a rehearsal.", show_default="ten"),
    ] = None,
    with_model: Annotated[
        bool,
        typer.Option(
            "--with-model",
            help="Also make weights for the rehearsal: of a ViT-B/16, for streets of SegFormer-B5.",
        ),
    ] = False,
    full_size: Annotated[
        bool,
        typer.Option(
            "--full-size", help="Streets of 1920 x 1080 pixels, not of a fourth of their sides."
        ),
    ] = False,
    workers: Annotated[
        int | None, typer.Option(help="Number of processes.", show_default="all cores")
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Make a corrupted data set from clean images, or a small rehearsal of a benchmark.

    Examples: `ctta-bench data make cifar10_c --source photos --data-root data` and
    `ctta-bench data make --layout imagenet_c --data-root rehearsal`
    """
    from ctta_bench.cli.terminal.progress import StepBar
    from ctta_bench.datasets.io.roots import data_root as resolve
    from ctta_bench.datasets.making.corruptions import CORRUPTIONS, HOLD_OUT
    from ctta_bench.datasets.making.self_made import MakeOptions, make_benchmark
    from ctta_bench.datasets.rehearsal.benchmarks import IMAGES, rehearse
    from ctta_bench.datasets.rehearsal.model import write_rehearsal_model

    if (benchmark is None) == (layout is None):
        raise ConfigError("data make: give either a benchmark or --layout (a rehearsal).")
    if workers is not None and workers < 1:
        raise ConfigError(f"--workers {workers}: give 1 or more.")
    processes = workers or _cores()
    root = resolve(data_root)
    if layout is not None:
        if source or corruption or hold_out or severity or parameters or size or seed:
            raise ConfigError(
                "data make --layout: takes only --data-root, --images, --with-model, --full-size "
                "and --workers; everything else of a rehearsal is as published."
            )
        with StepBar(quiet=quiet) as bar:
            folders = rehearse(
                layout,
                root,
                images=IMAGES if images is None else images,
                workers=processes,
                report=bar.counted("corrupting images"),
                full_size=full_size,
            )
            if with_model:
                bar.named("fitting the last layer of the network, some minutes on a CPU")
                folders.append(write_rehearsal_model(layout, root))
        for folder in folders:
            typer.echo(f"rehearsal: {folder}")
        return
    if images is not None or with_model or full_size:
        raise ConfigError("--images, --with-model, --full-size: only for rehearsals (--layout).")
    assert benchmark is not None
    names = tuple(corruption or CORRUPTIONS) + (HOLD_OUT if hold_out else ())
    options = MakeOptions(source, names, tuple(severity or ()), parameters, size, seed)
    with StepBar(quiet=quiet) as bar:
        folder, made = make_benchmark(
            benchmark, root, options, workers=processes, report=bar.counted("corrupting images")
        )
    what = f"made {len(made)} file(s) or folder(s)" if made else "already complete"
    typer.echo(f"{folder}: {what}")


def _cores() -> int:
    """Number of cores that this process may use, or that the machine has."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


@command
def data_verify(
    benchmark: Annotated[
        str,
        typer.Argument(
            help="A data set (`ctta-bench data list`).", autocompletion=completion(benchmarks)
        ),
    ],
    data_root: DataRoot = None,
    quiet: Quiet = False,
    format: Format = "text",
) -> None:
    """Compare the files on disk with the checksums of their publisher or maker.

    Example: `ctta-bench data verify cifar10_c --data-root /data`
    """
    as_json = check_format(format)
    from dataclasses import asdict

    from ctta_bench.cli.terminal.console import plain_table
    from ctta_bench.cli.terminal.progress import StepBar
    from ctta_bench.datasets.fetching.verify import verify
    from ctta_bench.datasets.io.roots import data_root as resolve

    with StepBar(quiet=quiet or as_json) as bar:
        findings = verify(benchmark, resolve(data_root), report=bar.named)
    bad = [f for f in findings if f.verdict in ("differs", "missing")]
    if as_json:
        print_json([asdict(finding) for finding in findings])
    else:
        rows = [[f.place, f.verdict, f.against] for f in findings]
        printer().print(plain_table(["file or folder", "verdict", "compared with"], rows))
    if bad:
        names = ", ".join(f"{f.place} ({f.verdict})" for f in bad[:5])
        more = f" and {len(bad) - 5} more" if len(bad) > 5 else ""
        raise DataError(
            f"{benchmark}: {len(bad)} of {len(findings)} files differ or are missing: "
            f"{names}{more}; move them away and download or make them again."
        )
