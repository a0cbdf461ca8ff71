"""The command `ctta-bench`. No logic here: each command builds, calls and prints."""

import functools
import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from rich.console import Console

from ctta_bench import __version__, registry
from ctta_bench.errors import ConfigError, CttaBenchError, DataError

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    help="Continual test-time adaptation: every method, every benchmark, one protocol.",
)
new_app = typer.Typer(no_args_is_help=True, help="Skeletons to start from.")
data_app = typer.Typer(no_args_is_help=True, help="The data of a benchmark.")
app.add_typer(data_app, name="data")
app.add_typer(new_app, name="new")

Command = TypeVar("Command", bound=Callable[..., Any])
INTERRUPTED = 130

Plugin = Annotated[
    list[str] | None,
    typer.Option("--plugin", help="Python file or module that registers methods; repeatable."),
]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override a value, e.g. lr=1e-3; repeatable."),
]
Format = Annotated[str, typer.Option("--format", help="text or json.", metavar="FORMAT")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print results and errors alone.")]
DataRoot = Annotated[
    Path | None,
    typer.Option("--data-root", envvar="CTTA_BENCH_DATA", help="Folder of data sets and caches."),
]
Device = Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1; default: what there is.")]
Force = Annotated[bool, typer.Option("--force", help="Run again what is done.")]
Log = Annotated[list[str] | None, typer.Option("--log", help="Further logger: tensorboard.")]


class _State:
    debug = False


def kind(command: Command) -> Command:
    """Turn a user's mistake into one sentence and exit code 2, Ctrl-C into 130."""

    @functools.wraps(command)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        try:
            return command(*args, **kwargs)
        except CttaBenchError as error:
            if _State.debug:
                raise
            _errors().print(f"error: {error}", markup=False, highlight=False, soft_wrap=True)
            raise typer.Exit(2) from None
        except KeyboardInterrupt:
            _errors().print("interrupted: the same command goes on from here.", highlight=False)
            raise typer.Exit(INTERRUPTED) from None

    return wrapped  # type: ignore[return-value]


def _errors() -> Console:
    return Console(stderr=True)


def _out() -> Console:
    return Console(width=None if Console().is_terminal else 160)


def _check_format(value: str) -> bool:
    if value not in ("text", "json"):
        raise ConfigError(f"--format {value!r}: choose text or json.")
    return value == "json"


def _load_plugins(plugins: list[str] | None) -> None:
    for plugin in plugins or ():
        registry.load_plugin(plugin)


def _print_json(value: Any) -> None:
    typer.echo(json.dumps(value, indent=2, default=str))


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"ctta-bench {__version__}")
        raise typer.Exit


@app.callback()
def common(
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print and exit.")
    ] = False,
) -> None:
    """Options before the command."""
    _State.debug = debug


@app.command("list")
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
    as_json = _check_format(format)
    _load_plugins(plugin)
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
        _print_json(rows)
        return
    from ctta_bench.console import hyperparameter_tables, plain_table

    columns = (
        ["name", "source_access", "description"] if what == "methods" else ["name", "description"]
    )
    cells = [[str(row.get(c, "none")) for c in columns] for row in rows]
    _out().print(plain_table([c.replace("_", " ") for c in columns], cells))
    for name, description in described.items():
        for table in hyperparameter_tables(name, description):
            _out().print(table)


@app.command()
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
    precision: Annotated[
        str, typer.Option(help="float32, bfloat16, float16, float64.")
    ] = "float32",
    rounds: Annotated[int | None, typer.Option(help="Times the sequence is seen.")] = None,
    window: Annotated[int, typer.Option(help="Images a window of single-sample streams.")] = 0,
    seed: Annotated[int, typer.Option(help="Seed of order, method and source sample.")] = 0,
    out: Annotated[Path, typer.Option(help="Folder that takes the run's folder.")] = Path(
        "runs/single"
    ),
    data_root: DataRoot = None,
    device: Device = None,
    plugin: Plugin = None,
    log: Log = None,
    force: Force = False,
    quiet: Quiet = False,
    format: Format = "text",
) -> None:
    """Run one method on one benchmark.

    Example: `ctta-bench run tent fashion_c --set lr=1e-3 --set examples=100 --seed 1`
    """
    as_json = _check_format(format)
    from ctta_bench.config import CellRequest, parse_assignments, resolve, validate
    from ctta_bench.record import RunFolder, check_writable

    check_writable(out)
    _load_plugins(plugin)
    overrides = parse_assignments(set or ())
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
        "precision": precision,
        "window": window,
        "seed": seed,
        "data_root": data_root,
        "experiment": out.resolve().name,
    }
    cell = resolve(validate(CellRequest, values, "run"))
    folder = RunFolder(out / cell.id)
    from ctta_bench.console import result_table
    from ctta_bench.engine import run_cell
    from ctta_bench.environment import default_device

    was_done = folder.is_done and not force
    result = run_cell(
        cell,
        folder,
        device=device or default_device(),
        force=force,
        loggers=_loggers(log, quiet or as_json, cell.id),
    )
    if as_json:
        _print_json(result | {"folder": str(folder.path)})
        return
    if was_done:
        _out().print("already done: nothing was run (use --force to run it again).")
    typer.echo(cell.id)
    _out().print(result_table(result))
    _out().print(f"results in {folder.path}", soft_wrap=True, highlight=False)


def _loggers(names: list[str] | None, quiet: bool, cell: str, out_of: str = "") -> list[Any]:
    from ctta_bench.console import ConsoleProgress
    from ctta_bench.loggers import make_loggers

    console = Console(stderr=True, quiet=quiet)
    return [*make_loggers(tuple(names or ())), ConsoleProgress(console, cell, out_of)]


@app.command()
@kind
def grid(
    experiment: Annotated[str, typer.Argument(help="An experiment's name or a YAML file.")],
    benchmark: Annotated[
        list[str] | None, typer.Option(help="Instead of the file's; repeatable.")
    ] = None,
    seeds: Annotated[str, typer.Option(help="Instead of the file's, e.g. 0,1,2.")] = "",
    set: Set = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the runs; runs/EXPERIMENT.")] = None,
    data_root: DataRoot = None,
    executor: Annotated[
        str, typer.Option(help="local: one after another, in this process.")
    ] = "local",
    device: Device = None,
    plugin: Plugin = None,
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
    _load_plugins(plugin)
    described = load_experiment(experiment)
    directory = out or Path("runs") / described.name
    if not dry_run:
        check_writable(directory)
    cells = expand(
        described,
        benchmarks=tuple(benchmark or ()),
        seeds=_seeds(seeds),
        overrides=parse_assignments(set or ()),
        data_root=data_root,
    )
    if dry_run:
        for cell in cells:
            typer.echo(cell.id)
        return
    from ctta_bench.environment import default_device
    from ctta_bench.launch import run_grid

    console = Console(stderr=True, quiet=quiet)
    tell, number = count_lines(console, len(cells)), {c.id: i for i, c in enumerate(cells)}
    outcome = run_grid(
        cells,
        directory,
        device=device or default_device(),
        force=force,
        make_loggers=lambda c: _loggers(log, quiet, c.id, f"{number[c.id] + 1}/{len(cells)} "),
        on_cell=lambda i, c, state: tell(i, c.id, state),
    )
    typer.echo(
        f"{len(outcome.done)} cells run, {len(outcome.kept)} were done before, "
        f"{len(outcome.failed)} failed; tables and figures: ctta-bench report {directory}"
    )
    for cell_id, reason in outcome.failed.items():
        _errors().print(f"failed: {cell_id}: {reason}", markup=False, soft_wrap=True)
    if outcome.failed:
        raise typer.Exit(1)


def _seeds(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(",") if part.strip())
    except ValueError:
        raise ConfigError(f"--seeds {text!r}: write numbers with commas, e.g. 0,1,2.") from None


@app.command()
@kind
def status(
    directory: Annotated[Path, typer.Argument(help="A folder of runs.")],
    format: Format = "text",
) -> None:
    """Show which cells are done, running, unfinished or failed, and why.

    Example: `ctta-bench status runs/quickstart`
    """
    as_json = _check_format(format)
    from dataclasses import asdict

    from ctta_bench.analysis.status import status as read_status

    rows = [asdict(row) for row in read_status(directory)]
    if as_json:
        _print_json(rows)
        return
    from ctta_bench.console import plain_table

    cells = [
        [r["cell"], r["state"], f"{r['done']}/{r['total'] or '?'}", r["reason"] or ""] for r in rows
    ]
    _out().print(plain_table(["cell", "state", "batches", "reason"], cells))
    states = [r["state"] for r in rows]
    typer.echo(", ".join(f"{states.count(s)} {s}" for s in dict.fromkeys(states)))


@app.command()
@kind
def report(
    directory: Annotated[Path, typer.Argument(help="A folder of runs.")],
    out: Annotated[Path | None, typer.Option(help="Instead of DIRECTORY/report.")] = None,
    format: Format = "text",
) -> None:
    """Write tables, figures and one HTML page from finished runs, and print the tables.

    Example: `ctta-bench report runs/quickstart`
    """
    as_json = _check_format(format)
    from ctta_bench.analysis.report import write_report

    files = write_report(directory, out)
    if as_json:
        tables = [
            {"caption": t.caption, "rows": t.frame.reset_index().to_dict("records")}
            for t in files.tables
        ]
        _print_json({"page": files.page, "results": files.results, "tables": tables})
        return
    from ctta_bench.console import comparison_table

    for table in files.tables:
        _out().print(comparison_table(table.header, table.lines))
        _out().print(table.caption, style="dim", highlight=False)
        for note in table.footnotes:
            _out().print(f"- {note}", style="dim", highlight=False, markup=False)
    for folder, reason in files.left_out:
        _errors().print(f"left out: {folder}: {reason}", markup=False, soft_wrap=True)
    typer.echo(f"page: {files.page.resolve()}")


@app.command()
@kind
def check(
    method: Annotated[str | None, typer.Argument(help="A method, or --all.")] = None,
    all_methods: Annotated[bool, typer.Option("--all", help="Every method.")] = False,
    plugin: Plugin = None,
    format: Format = "text",
) -> None:
    """Hold a method against what every method owes, on a tiny model, in seconds.

    Example: `ctta-bench check confident --plugin my_method.py`
    """
    as_json = _check_format(format)
    _load_plugins(plugin)
    if (method is None) != all_methods:
        raise ConfigError("check: name one method, or give --all.")
    names = registry.METHODS.names() if all_methods else [registry.METHODS.find(method or "").name]
    from dataclasses import asdict

    from ctta_bench.testing import check_method

    outcomes = [outcome for name in names for outcome in check_method(name)]
    if as_json:
        _print_json([asdict(outcome) for outcome in outcomes])
    else:
        from ctta_bench.console import plain_table

        rows = [[o.method, o.check.replace("_", " "), o.state, o.detail] for o in outcomes]
        _out().print(plain_table(["method", "check", "state", "detail"], rows))
    failed = sum(not outcome.passed for outcome in outcomes)
    if failed:
        _errors().print(f"{failed} of {len(outcomes)} checks failed", highlight=False)
        raise typer.Exit(1)


@app.command()
@kind
def parity(
    method: Annotated[str | None, typer.Argument(help="Cases of this method alone.")] = None,
    cases: Annotated[Path | None, typer.Option(help="Folder of cases; the repository's.")] = None,
    plugin: Plugin = None,
    format: Format = "text",
) -> None:
    """Hold methods against golden figures of the official implementations.

    Example: `ctta-bench parity tent`
    """
    as_json = _check_format(format)
    _load_plugins(plugin)
    from dataclasses import asdict

    from ctta_bench.parity import collect, repository_cases, verdict

    wanted = registry.METHODS.find(method).name if method else None
    verdicts = [verdict(f) for f in collect([cases or repository_cases()], wanted).values()]
    if as_json:
        _print_json([asdict(v) for v in verdicts])
    else:
        from ctta_bench.console import parity_table

        _out().print(parity_table(verdicts))
    if any(v.agrees is False for v in verdicts):
        raise typer.Exit(1)


@new_app.command("method")
@kind
def new_method(
    name: Annotated[str, typer.Argument(help="The name that users will type.")],
    out: Annotated[Path, typer.Option(help="Folder that takes the two files.")] = Path(),
) -> None:
    """Write a method that runs as it is, and its test.

    Example: `ctta-bench new method my_method`
    """
    from ctta_bench.scaffold import new_method as write

    method, test = write(name, out)
    typer.echo(f"{method}\n{test}\nnext: ctta-bench check {method.stem} --plugin {method}")


@data_app.command("check")
@kind
def data_check(
    benchmark: Annotated[str, typer.Argument(help="A benchmark.")],
    data_root: DataRoot = None,
    format: Format = "text",
) -> None:
    """Tell whether a benchmark's data is there and whole.

    Example: `ctta-bench data check image_folder --data-root ~/photos`
    """
    as_json = _check_format(format)
    entry = registry.BENCHMARKS.get(benchmark)
    checked = entry(None, data_root)
    problems = checked.problems()
    domains = [] if problems else list(checked.domain_names())
    if as_json:
        _print_json({"benchmark": checked.name, "problems": problems, "domains": domains})
    elif not problems:
        typer.echo(f"{checked.name}: all there; {len(domains)} domains: {', '.join(domains)}")
    if problems:
        raise DataError(f"{checked.name}: " + "\n  ".join(problems))


def main() -> None:
    """Entry point of the console script."""
    # A scheduler's or a user's polite kill is answered like Ctrl-C: checkpoint, then leave.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    app()
