"""Grids: many cells, in this process, in a pool on this machine, or on Slurm."""

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from ctta_bench import registry
from ctta_bench.cli.command import (
    Device,
    Force,
    Log,
    OptionsOf,
    Plugin,
    Quiet,
    command,
    completion,
    error_printer,
    load_plugins,
)
from ctta_bench.cli.running import cell_loggers
from ctta_bench.errors import ConfigError
from ctta_bench.record.schema import RESULT_FILE

if TYPE_CHECKING:
    from ctta_bench.launch.begin import Options, Selection
    from ctta_bench.launch.local import Share
    from ctta_bench.launch.profiles import Profile
    from ctta_bench.launch.steps import Outcome, Step
    from ctta_bench.source_models.shared import Models

EXECUTORS = ("local", "slurm", "debug")


@dataclass(frozen=True)
class GridOptions:
    """What `grid` is asked beside the options of its cells."""

    benchmark: Annotated[
        list[str] | None,
        typer.Option(
            help="Instead of the file's; repeatable.",
            autocompletion=completion(registry.BENCHMARKS.names),
        ),
    ] = None
    seeds: Annotated[str, typer.Option(help="Instead of the file's, e.g. 0,1,2.")] = ""
    out: Annotated[Path | None, typer.Option(help="Folder of the runs; runs/EXPERIMENT.")] = None
    executor: Annotated[
        str | None,
        typer.Option(
            metavar="|".join(EXECUTORS),
            help="local: on this machine; slurm: jobs of a cluster; debug: one after another in "
            "this process. Default: slurm with --profile, else local.",
            autocompletion=completion(lambda: EXECUTORS),
        ),
    ] = None
    jobs: Annotated[
        int | None,
        typer.Option(
            "--jobs", "-j", help="Cells at once; local: one for each accelerator, or 1; slurm: all."
        ),
    ] = None
    cells_per_gpu: Annotated[int, typer.Option(help="Local: cells that share an accelerator.")] = 1
    profile: Annotated[
        str | None, typer.Option(help="Slurm: a profile's name, or a YAML file.")
    ] = None
    device: Device = None
    plugin: Plugin = None
    log: Log = None
    retry: Annotated[
        str | None, typer.Option(help="failed: run the cells alone whose last attempt failed.")
    ] = None
    checkpoint: Annotated[
        str, typer.Option(metavar="INTERVAL", help="Write one every N batches, or seconds as 20s.")
    ] = "20s"
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="List cells, jobs and hours, and stop.")
    ] = False
    force: Force = False
    quiet: Quiet = False

    def chosen_executor(self) -> str:
        """The executor, by default as the profile says. Raises ConfigError if there is none."""
        executor = self.executor or ("slurm" if self.profile else "local")
        if executor not in EXECUTORS:
            raise ConfigError(f"--executor {executor!r}: choose local, slurm or debug.")
        if self.profile is not None and executor != "slurm":
            raise ConfigError(f"--profile is for --executor slurm, not {executor}.")
        return executor


def _experiments() -> Iterable[str]:
    from ctta_bench.config.experiment import experiment_files

    return experiment_files()


@command
def grid(
    experiment: Annotated[
        str,
        typer.Argument(
            help="An experiment's name or a YAML file.", autocompletion=completion(_experiments)
        ),
    ],
    given: Annotated[dict[str, Any], OptionsOf("grid")],
    options: GridOptions,
) -> None:
    """Run every cell of an experiment; what is done is kept, what was interrupted goes on.

    Options stand over the keys of the file.

    Example: `ctta-bench grid quickstart --seeds 0,1,2`
    """
    executor = options.chosen_executor()
    if options.retry not in (None, "failed"):
        raise ConfigError(f"--retry {options.retry!r}: choose failed.")
    from ctta_bench.config.experiment import expand_checked, load_experiment, problems_error
    from ctta_bench.record.folder import check_writable
    from ctta_bench.run.checkpoint import parse_interval

    parse_interval(options.checkpoint)
    load_plugins(options.plugin)
    described = load_experiment(experiment)
    directory = options.out or Path("runs") / described.name
    if not options.dry_run:
        check_writable(directory)
    profile = _profile(executor, options.profile, options.jobs)
    from ctta_bench.source_models.shared import Models

    models = Models(several=True)
    cells, problems = expand_checked(
        described,
        benchmarks=tuple(options.benchmark or ()),
        seeds=seeds_of(options.seeds),
        overrides=given.pop("set"),
        models=models,
        **given,
    )
    from ctta_bench.launch.begin import Options, missing_data, select
    from ctta_bench.launch.steps import schedule
    from ctta_bench.run.loggers import make_loggers

    log = tuple(options.log or ())
    make_loggers(log)  # an unknown one is refused before anything begins
    steps, missing = schedule(cells), missing_data(cells)
    if problems or (missing and not options.dry_run):
        raise problems_error(described, problems + missing)
    if options.dry_run:
        _print_plan(steps, directory, profile, missing)
        return
    chosen = select(steps, directory, force=options.force, failed_alone=options.retry == "failed")
    launch = Options(
        options.device, options.force, options.checkpoint, log, tuple(options.plugin or ())
    )
    if profile is not None:
        _submit(chosen, directory, profile, launch)
    else:
        share = _share(
            executor, options.jobs, options.cells_per_gpu, options.device, len(chosen.todo)
        )
        _run_here(chosen, directory, share, launch, options.quiet, models)
    _print_outcome(chosen.outcome, directory, submitted=profile is not None)


def seeds_of(text: str) -> tuple[int, ...]:
    """The numbers of an option like `0,1,2`."""
    try:
        return tuple(int(part) for part in text.split(",") if part.strip())
    except ValueError:
        raise ConfigError(f"--seeds {text!r}: write numbers with commas, e.g. 0,1,2.") from None


def _profile(executor: str, name: str | None, jobs: int | None) -> "Profile | None":
    if executor != "slurm":
        return None
    from ctta_bench.launch.profiles import Profile, load_profile

    if jobs is not None and jobs < 1:
        raise ConfigError(f"--jobs {jobs}: give 1 or more.")
    profile = load_profile(name) if name else Profile()
    return profile if jobs is None else profile.model_copy(update={"parallel": jobs})


def _print_plan(
    steps: "Sequence[Step]", directory: Path, profile: "Profile | None", missing: Sequence[str]
) -> None:
    from ctta_bench.measuring.estimate import estimate

    for step in steps:
        typer.echo(step.id)
    console = Console(stderr=True)
    parts = [_count(steps)]
    left = [step for step in steps if not (directory / step.id / RESULT_FILE).is_file()]
    if len(left) < len(steps):
        parts[0] += f", {len(steps) - len(left)} of them done"
    if profile is not None:
        from ctta_bench.launch.scheduler import array_limit
        from ctta_bench.launch.steps import arrays, in_order, pack, wave_of

        ordered = in_order(left)
        packs = pack(ordered, profile.cells_per_job)
        waves = [wave_of(ordered[start]) for start, _ in packs]
        count = len(arrays(waves, profile.max_array or array_limit(), profile.parallel))
        parts.append(f"jobs: {len(packs)}, arrays: {count}")
    if left:
        parts.append(str(estimate([step.record for step in left], directory)))
    console.print("; ".join(parts), highlight=False, soft_wrap=True)
    for problem in missing:
        console.print(f"missing: {problem}", highlight=False, markup=False, soft_wrap=True)


def _count(steps: "Sequence[Step]") -> str:
    warmups = sum(step.warms_up for step in steps)
    return f"{len(steps) - warmups} cells" + (f" and {warmups} warm-ups" if warmups else "")


def _submit(chosen: "Selection", directory: Path, profile: "Profile", options: "Options") -> None:
    from ctta_bench.launch.begin import submit_slurm

    for step, job in chosen.queued.items():
        error_printer().print(f"left alone: {step}: job {job} has it", highlight=False)
    if not chosen.todo:
        return
    arrays: list[str] = []
    numbers: list[int] = []

    def note_array(job: str, count: int) -> None:
        arrays.append(job)
        numbers.append(count)

    submit_slurm(chosen.todo, directory, profile, options, note_array)
    typer.echo(
        f"{_count(chosen.todo)} submitted, in {sum(numbers)} jobs ({', '.join(arrays)}); how they "
        f"stand: ctta-bench status {directory} --watch"
    )


def _share(
    executor: str, jobs: int | None, cells_per_gpu: int, device: str | None, steps: int
) -> "Share":
    from ctta_bench.launch.local import Share, divide_resources

    if executor == "debug":
        return Share(1, None, None)
    return divide_resources(jobs, cells_per_gpu, device, steps)


def _run_here(
    chosen: "Selection",
    directory: Path,
    share: "Share",
    options: "Options",
    quiet: bool,
    models: "Models",
) -> None:
    from ctta_bench.cli.progress import state_printer
    from ctta_bench.launch.begin import run_local
    from ctta_bench.launch.running import run_steps
    from ctta_bench.launch.steps import write_planned

    for step, job in chosen.queued.items():
        error_printer().print(f"left alone: {step}: job {job} has it", highlight=False)
    total = len(chosen.todo)
    print_state: Callable[[int, str, str], None] = state_printer(
        Console(stderr=True, quiet=quiet), total
    )
    if share.jobs > 1 and total:
        number = {step.id: n for n, step in enumerate(chosen.todo)}
        models.drop()  # workers read their own
        run_local(
            chosen.todo,
            directory,
            share,
            options,
            chosen.outcome,
            lambda step, state: print_state(number[step], step, state),
        )
        return
    if share.devices and share.devices[0] is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = share.devices[0]
    from ctta_bench.run.environment import default_device
    from ctta_bench.run.options import RunOptions

    write_planned(chosen.todo, directory)
    noted: list[str] = []  # over all cells
    place = {step.id: f"{n + 1}/{total} " for n, step in enumerate(chosen.todo)}

    def loggers(step: "Step") -> Sequence[Any]:
        return cell_loggers(list(options.log), quiet, step.id, place[step.id], noted)

    run_steps(
        chosen.todo,
        directory,
        RunOptions(
            options.device or default_device(), options.force, checkpoint=options.checkpoint
        ),
        make_loggers=loggers,
        on_step=lambda n, step, state: print_state(n, step.id, state),
        outcome=chosen.outcome,
        models=models,
    )


def _print_outcome(outcome: "Outcome", directory: Path, *, submitted: bool) -> None:
    warmups = f"{len(outcome.warmups)} warm-ups and " if outcome.warmups else ""
    elsewhere = f", {len(outcome.elsewhere)} run elsewhere" if outcome.elsewhere else ""
    if not submitted:
        typer.echo(
            f"{warmups}{len(outcome.done)} cells run, {len(outcome.kept)} were done before, "
            f"{len(outcome.failed)} failed{elsewhere}; tables and figures: "
            f"ctta-bench report {directory}"
        )
    elif outcome.kept:
        typer.echo(f"{len(outcome.kept)} were done before")
    for cell_id, reason in outcome.failed.items():
        error_printer().print(f"failed: {cell_id}: {reason}", markup=False, soft_wrap=True)
    if outcome.failed or outcome.elsewhere:
        raise typer.Exit(1)
