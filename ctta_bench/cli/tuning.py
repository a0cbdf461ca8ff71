"""Search hyper-parameters on hold-out domains."""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ctta_bench import registry
from ctta_bench.cli.command import (
    DataRoot,
    Device,
    Format,
    Model,
    Plugin,
    Quiet,
    Set,
    Workers,
    check_format,
    command,
    follow_up,
    load_plugins,
    option,
    print_error,
    print_json,
    printer,
)
from ctta_bench.cli.completion import benchmarks, completion, one_of, presets
from ctta_bench.cli.completion import methods as names_of_methods
from ctta_bench.config.options import HOW, OUTPUT, WHAT
from ctta_bench.errors import ConfigError, RunError

if TYPE_CHECKING:
    from ctta_bench.analysis.table.table import Table
    from ctta_bench.launch.steps import Outcome
    from ctta_bench.source_models.shared import Models
    from ctta_bench.tuning.choice import Tuned
    from ctta_bench.tuning.plan import Plan
    from ctta_bench.tuning.trials import Trial

COLUMNS = ["method", "trials", "published", "best", "which", "values"]


@command
def tune(
    methods: Annotated[
        list[str],
        typer.Argument(help="Methods.", autocompletion=completion(names_of_methods)),
    ],
    benchmark: Annotated[
        str,
        option(
            panel=WHAT,
            help="A benchmark; its hold-out domains score the trials.",
            autocompletion=completion(benchmarks),
        ),
    ],
    budget: Annotated[
        int,
        option(panel=WHAT, help="Trials per method; the first uses the published values."),
    ] = 10,
    seed: Annotated[int, option(panel=WHAT, help="Seed of the random draws.")] = 0,
    search: Annotated[
        str,
        option(
            panel=WHAT,
            metavar="random|grid",
            help="How values are drawn.",
            autocompletion=one_of("random", "grid"),
        ),
    ] = "random",
    earlier: Annotated[
        Path | None,
        option(
            panel=WHAT,
            help="File of an earlier search (tuned.yaml), whose best trials run on this stream.",
        ),
    ] = None,
    finalists: Annotated[
        int,
        option(panel=WHAT, help="With --earlier: trials per method, with the published values."),
    ] = 4,
    seeds: Annotated[str, option(panel=WHAT, help="Seeds of each trial, e.g. 0,1.")] = "0",
    model: Model = None,
    preset: Annotated[
        str,
        option(
            panel=WHAT,
            help="Preset of the first trial, and of the values that are not searched.",
            autocompletion=completion(presets),
        ),
    ] = "default",
    set: Set = None,
    out: Annotated[
        Path | None,
        option(panel=OUTPUT, unset="runs/tune_BENCHMARK", help="Folder of the trials."),
    ] = None,
    data_root: DataRoot = None,
    workers: Workers = None,
    device: Device = None,
    plugin: Plugin = None,
    dry_run: Annotated[
        bool,
        option("--dry-run", panel=HOW, help="Write the trials as an experiment; run nothing."),
    ] = False,
    quiet: Quiet = False,
    format: Format = "text",
) -> None:
    """Search hyper-parameters on hold-out domains and write the best as a preset.

    Every method gets the same number of trials.

    A short stream likes rates that fail on a long one. So search on a short one, then run the best
    trials again on a longer one: `--earlier runs/tune_BENCHMARK/tuned.yaml`.

    Example: `ctta-bench tune tent roid --benchmark fashion_c --budget 8 --set examples=100`
    """
    as_json = check_format(format)
    from ctta_bench.cli.launching import seeds_of
    from ctta_bench.config.experiment import expand
    from ctta_bench.config.validation import parse_assignments, validate
    from ctta_bench.launch.begin import missing_data
    from ctta_bench.record.folder import check_writable, write_yaml
    from ctta_bench.record.schema import SCORED
    from ctta_bench.source_models.shared import Models
    from ctta_bench.tuning.choice import write
    from ctta_bench.tuning.plan import Plan, hold_out
    from ctta_bench.tuning.trials import best_trials, experiment, trials

    load_plugins(plugin)
    plan = validate(
        Plan,
        {
            "benchmark": registry.BENCHMARKS.find(benchmark).name,
            "model": model,
            "preset": preset,
            "search": search,
            "budget": budget,
            "seed": seed,
            "seeds": seeds_of(seeds),
            "earlier": earlier,
            "finalists": finalists,
            "plugins": tuple(plugin or ()),
            "set": parse_assignments(set or ()),
        },
        "tune",
    )
    names = list(dict.fromkeys(registry.METHODS.find(name).name for name in methods))
    domains = hold_out(plan, data_root)
    planned = {name: (best_trials if earlier else trials)(name, plan) for name in names}
    described = experiment(planned, plan, domains)
    models = Models(several=True)
    cells = expand(described, data_root=data_root, workers=workers, models=models)
    if missing := missing_data(cells):
        raise ConfigError(f"tune {plan.benchmark}: " + "\n  ".join(missing))
    directory = out or Path("runs") / plan.name
    check_writable(directory)
    if _images(plan) == SCORED and not quiet:
        print_error(
            f"the hold-out domains of {plan.benchmark} show the photographs of its test domains; "
            "--set part=tuning here and --set part=scoring for what you compare keep them apart.",
            "note",
        )
    file = directory / "trials.yaml"
    write_yaml(file, described.model_dump(mode="json", exclude_defaults=True))
    if dry_run:
        typer.echo(
            f"{sum(map(len, planned.values()))} trials in {file}; "
            f"`{follow_up('grid', file, '--out', directory)}` runs them on any machine; then this "
            "command without --dry-run chooses the best"
        )
        return
    elsewhere = _run(cells, directory, device, quiet or as_json, models).elsewhere
    if elsewhere:
        raise RunError(
            f"another process is running {len(elsewhere)} trials ({elsewhere[0]}, ...): when they "
            "are done, the same command chooses the best."
        )
    folders = [directory / cell.id for cell in cells]
    found, problems = _choose(planned, folders, plan, domains)
    presets = directory / "tuned.yaml"
    write(presets, found, plan)
    _table(found, plan, domains).write(directory)
    _print_result(found, presets, as_json)
    for problem in problems:
        print_error(problem)
    if problems:
        raise typer.Exit(1)


def _choose(
    planned: "Mapping[str, Sequence[Trial]]",
    folders: list[Path],
    plan: "Plan",
    domains: Sequence[str],
) -> "tuple[list[Tuned], list[str]]":
    """The best trial of each method, and for methods without one the reason.

    `folders` are in the order of trials, and within a trial in the order of seeds.
    """
    from ctta_bench.tuning.choice import outcome

    found, problems = [], []
    each = iter(folders)
    for of_method in planned.values():
        own = [[next(each) for _ in plan.seeds] for _ in of_method]
        try:
            found.append(outcome(of_method, own, plan, domains))
        except RunError as error:
            problems.append(str(error))
    return found, problems


def _run(
    cells: Any, directory: Path, device: str | None, quiet: bool, models: "Models"
) -> "Outcome":
    from rich.console import Console

    from ctta_bench.cli.running import cell_loggers
    from ctta_bench.cli.terminal.progress import state_printer
    from ctta_bench.launch.running import run_grid
    from ctta_bench.launch.steps import schedule
    from ctta_bench.run.environment import chosen_device
    from ctta_bench.run.options import RunOptions

    total = len(schedule(cells))
    print_state = state_printer(Console(stderr=True, quiet=quiet), total, directory)
    noted: list[str] = []
    return run_grid(
        cells,
        directory,
        RunOptions(chosen_device(device)),
        make_loggers=lambda step: cell_loggers(None, quiet, step.id, "", noted),
        on_step=print_state,
        models=models,
    )


def _print_result(found: "list[Tuned]", presets: Path, as_json: bool) -> None:
    if as_json:
        rows = [{"method": t.method, "values": t.values, **t.record} for t in found]
        print_json({"file": presets, "methods": rows})
        return
    from ctta_bench.cli.terminal.console import plain_table

    printer().print(plain_table(COLUMNS, [[tuned.method, *_texts(tuned)] for tuned in found]))
    typer.echo(f"written: {presets}; use it with --preset {shlex.quote(str(presets))}")


def _table(found: "list[Tuned]", plan: "Plan", domains: Sequence[str]) -> "Table":
    """The result of the search for each method: searched.csv, .md and .tex."""
    import pandas as pd

    from ctta_bench.analysis.table.table import Entry, Table

    scores = [(len(t.scores), t.scores[0], t.scores[t.best]) for t in found]
    return Table(
        name="searched",
        caption=(
            f"Search on {plan.benchmark} ({', '.join(domains)}; images: {_images(plan)}): "
            "mean error or mIoU in % with the published values and with those of the best trial."
        ),
        frame=pd.DataFrame(scores, [t.method for t in found], ["trials", "published", "best"]),
        header=tuple(COLUMNS),
        lines=tuple((t.method, tuple(map(Entry, _texts(t)))) for t in found),
    )


def _images(plan: "Plan") -> str:
    from ctta_bench.tuning.choice import images_of_trials

    images = images_of_trials(plan)
    return images if isinstance(images, str) else f"part {images['part']}"


def _texts(tuned: "Tuned") -> list[str]:
    return [
        str(len(tuned.scores)),
        _score(tuned.scores[0]),
        _score(tuned.scores[tuned.best]),
        "published" if tuned.number == 0 else f"trial {tuned.number}",
        ", ".join(f"{key}={tuned.values[key]}" for key in tuned.searched),
    ]


def _score(value: float | None) -> str:
    return "failed" if value is None else f"{value:.2f}"
