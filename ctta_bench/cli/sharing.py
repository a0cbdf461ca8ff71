"""Results for others: bundles, and their verification."""

import sys
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from ctta_bench.cli.command import (
    DataRoot,
    Device,
    Format,
    Plugin,
    check_format,
    command,
    load_plugins,
    print_error,
    print_json,
)
from ctta_bench.cli.completion import one_of
from ctta_bench.errors import ConfigError, counted
from ctta_bench.record.schema import DEPTHS, VERIFIED


@command
def bundle(
    directory: Annotated[Path, typer.Argument(metavar="RUNS", help="Folder of runs.")],
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="NAME.zip", help="The file to write.")
    ],
    scores: Annotated[
        bool,
        typer.Option(
            "--scores",
            help="Store confidences and other scores of each image, losses and times, too.",
        ),
    ] = False,
    no_code: Annotated[
        bool, typer.Option("--no-code", help="Of plug-ins, store the hashes only.")
    ] = False,
    title: Annotated[str, typer.Option(help="What the runs are, in a few words.")] = "",
    contact: Annotated[str, typer.Option(help="Whom to ask about the runs.")] = "",
    licence: Annotated[str, typer.Option(help="Licence of the bundle, e.g. CC-BY-4.0.")] = "",
    citation: Annotated[
        str, typer.Option(metavar="TEXT|FILE", help="How to cite the runs: a text or a .bib file.")
    ] = "",
    force: Annotated[bool, typer.Option("--force", help="Replace the file.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be written, and write nothing.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Write it without a question.")] = False,
    plugin: Plugin = None,
    format: Format = "text",
) -> None:
    """Write one small file with cells and predictions, which others can check and rank.

    It has no weights, images, paths, hosts or names of users. What it has is shown before it is
    written.

    Example: `ctta-bench bundle runs/quickstart -o quickstart.zip`
    """
    as_json = check_format(format)
    load_plugins(plugin)
    from ctta_bench.analysis.sharing.bundle import draft_bundle
    from ctta_bench.record.bundle import write_bundle

    if out.exists() and not force and not dry_run:
        raise ConfigError(f"{out}: exists; give another name, or --force to replace it.")
    cited = Path(citation).read_text("utf-8") if citation.endswith(".bib") else citation
    about = {"title": title, "contact": contact, "licence": licence, "citation": cited.strip()}
    draft = draft_bundle(directory, scores=scores, code=not no_code, about=about)
    if not as_json:
        for line in draft.lines():
            typer.echo(line)
    for folder, reason in draft.left_out:
        print_error(f"{folder}: {reason}", "left out")
    asks = not (yes or as_json or dry_run) and sys.stdin.isatty()
    if dry_run or (asks and not typer.confirm(f"Write {out}?", default=True)):
        return
    manifest = write_bundle(out, draft.contents, draft.about)
    if as_json:
        print_json(_facts(out, manifest))
    else:
        typer.echo(f"bundle: {out.resolve()} ({out.stat().st_size / 1e6:.2f} MB)")


def _facts(out: Path, manifest: dict[str, Any]) -> dict[str, Any]:
    return {
        "file": out,
        "bytes": out.stat().st_size,
        **{key: value for key, value in manifest.items() if key != "members"},
    }


@command
def verify(
    file: Annotated[Path, typer.Argument(metavar="NAME.zip", help="A bundle.")],
    depth: Annotated[
        str,
        typer.Option(
            metavar="recount|replay|full",
            help="recount: every number, hash, label and order; replay: also the first batches of "
            "some cells, run again; full: all cells as a whole, run again.",
            autocompletion=one_of(*DEPTHS),
        ),
    ] = "recount",
    cell: Annotated[
        list[str] | None,
        typer.Option(
            help="Name of a cell to run again, or its beginning; repeatable.",
            show_default="three, spread by a hash",
        ),
    ] = None,
    batches: Annotated[
        int, typer.Option(min=1, help="Batches of each cell that `replay` runs.")
    ] = 10,
    tolerance: Annotated[
        float,
        typer.Option(
            min=0.0,
            help="Points that the metric may differ if device, threads or versions are others.",
        ),
    ] = 0.5,
    run_code: Annotated[
        bool, typer.Option("--run-code", help="Import the plug-ins in the bundle: code of others.")
    ] = False,
    save: Annotated[
        bool, typer.Option("--save", help="Write NAME.verified.json, which `leaderboard` reads.")
    ] = False,
    device: Device = None,
    data_root: DataRoot = None,
    plugin: Plugin = None,
    format: Format = "text",
) -> None:
    """Check a bundle of others: recount its numbers, or also run its cells again.

    Nothing of the bundle is executed without --run-code. The exit code is 1 if anything does not
    hold.

    Example: `ctta-bench verify quickstart.zip --depth replay --batches 20`
    """
    as_json = check_format(format)
    load_plugins(plugin)
    from ctta_bench.api.verifying import verify as verify_bundle
    from ctta_bench.record.folder import write_json

    found = verify_bundle(
        file,
        cast(Any, depth),
        cells=cell or (),
        batches=batches,
        run_code=run_code,
        tolerance=tolerance,
        device=device,
        data_root=data_root,
    )
    if save:
        write_json(file.with_suffix(VERIFIED), found.record())
    if as_json:
        print_json(found.record())
    else:
        for name, (kind, text) in found.findings:
            typer.echo(f"{kind}: {name + ': ' if name else ''}{text}")
        for note in dict.fromkeys(found.notes):
            print_error(note, "note")
        for done in found.replayed:
            how = "bit by bit" if done.exact else "within the tolerance"
            typer.echo(
                f"run again: {done.cell}: {done.batches} batches, {done.images:,} images, "
                f"{100 * done.same:.2f} % equal predictions (compared {how})"
            )
        result = f"{len(found.findings)} do not hold" if found.findings else "all hold"
        typer.echo(
            f"{counted(found.cells, 'cell')}, {counted(found.numbers, 'number')}, "
            f"verified at depth {depth}: {result}"
        )
    if found.findings:
        raise typer.Exit(1)


@command
def diff(
    a: Annotated[Path, typer.Argument(metavar="A", help="A bundle, or a folder of runs.")],
    b: Annotated[Path, typer.Argument(metavar="B", help="Another one.")],
    plugin: Plugin = None,
    format: Format = "text",
) -> None:
    """Compare two bundles cell by cell: what differs, by how much, and most likely why.

    The exit code is 1 if predictions differ, or if a cell is in one of them only.

    Example: `ctta-bench diff mine.zip theirs.zip`
    """
    as_json = check_format(format)
    load_plugins(plugin)
    from ctta_bench.analysis.sharing.diff import diff as compare_bundles

    found = compare_bundles(a, b)
    if as_json:
        print_json([{**vars(one), "verdict": one.verdict} for one in found])
    else:
        for one in found:
            typer.echo(f"{one.cell or one.other}: {one.verdict}")
            if one.equal != 1 and one.cell and one.other:
                half = (
                    f" ± {one.half_interval:.2f}" if one.half_interval == one.half_interval else ""
                )
                equal = f"{100 * one.equal:.2f} %" if one.equal == one.equal else "not comparable"
                typer.echo(
                    f"  {one.a:.2f} in A, {one.b:.2f} in B: {one.difference:+.2f}{half} points; "
                    f"equal predictions: {equal}"
                )
            for reason in one.reasons if one.equal != 1 else ():
                typer.echo(f"  {reason}")
        same = sum(one.equal == 1 for one in found)
        typer.echo(f"{counted(len(found), 'cell')}, {same} with the same predictions")
    if any(one.equal != 1 for one in found):
        raise typer.Exit(1)


@command
def protocol_check(
    directory: Annotated[Path, typer.Argument(metavar="RUNS", help="Folder of runs, or a bundle.")],
    protocol: Annotated[
        str,
        typer.Argument(
            metavar="FILE",
            help="A protocol file, or the name of a shipped one: fair-v1, lineage-v1.",
            autocompletion=one_of("fair-v1", "lineage-v1"),
        ),
    ],
    plugin: Plugin = None,
    format: Format = "text",
) -> None:
    """Show which rows keep the rules of a protocol, and why others do not.

    The exit code is 1 if no row qualifies.

    Example: `ctta-bench protocol check runs/scenes fair-v1`
    """
    as_json = check_format(format)
    load_plugins(plugin)
    from ctta_bench.analysis.sharing.protocol import check_protocol, read_protocol

    rules = read_protocol(protocol)
    found = check_protocol(directory, rules)
    name = f"{rules.name}-v{rules.version}"
    if as_json:
        rows = [{**vars(row), "qualifies": row.qualifies} for row in found]
        print_json({"protocol": name, "sha256": rules.sha256, "rows": rows})
    else:
        for row in found:
            told = "qualifies" if row.qualifies else f"does not qualify: {'; '.join(row.reasons)}"
            typer.echo(f"{row.method} on {row.benchmark} ({counted(row.cells, 'cell')}): {told}")
        count = sum(row.qualifies for row in found)
        typer.echo(f"{count} of {len(found)} rows qualify for {name} ({rules.sha256[:12]})")
    if not any(row.qualifies for row in found):
        raise typer.Exit(1)


@command
def leaderboard(
    bundles: Annotated[list[Path], typer.Argument(metavar="BUNDLES...", help="Bundles to rank.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder of the pages.")] = Path("site"),
    plugin: Plugin = None,
    format: Format = "text",
) -> None:
    """Rank bundles as static pages: one table for each protocol, a page for each method and entry.

    Every number is computed again; a bundle in which something does not hold is refused. The result
    of `ctta-bench verify --save` next to a bundle is shown with its entries.

    Example: `ctta-bench leaderboard mine.zip theirs.zip -o site`
    """
    as_json = check_format(format)
    load_plugins(plugin)
    from ctta_bench.analysis.sharing.site import write_site
    from ctta_bench.record.schema import PAGE_FILE

    found = write_site(bundles, out)
    if as_json:
        protocols = [{"title": b.title, "key": b.key, "entries": len(b.entries)} for b in found]
        print_json({"page": out / PAGE_FILE, "protocols": protocols})
        return
    for board in found:
        typer.echo(f"{board.title}: {len(board.entries)} entries")
    typer.echo(f"page: {(out / PAGE_FILE).resolve()}")
