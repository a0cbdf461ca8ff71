"""Grids: many cells, in this process, in a pool on this machine, or on Slurm."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from ctta_bench.cli.command import (
    Device,
    Force,
    Log,
    OptionsOf,
    Plugin,
    Quiet,
    Throughput,
    command,
    follow_up,
    load_plugins,
    option,
    print_error,
)
from ctta_bench.cli.completion import benchmarks, completion, experiments, one_of
from ctta_bench.cli.listing import count_text, print_plan
from ctta_bench.cli.running import cell_loggers
from ctta_bench.config.options import HOW, OUTPUT, WHAT
from ctta_bench.errors import ConfigError, counted
from ctta_bench.record.schema import EXPERIMENT_FILE, RESULT_FILE

if TYPE_CHECKING:
    from ctta_bench.launch.begin import Options, Selection
    from ctta_bench.launch.local import Share
    from ctta_bench.launch.profiles import Profile
    from ctta_bench.launch.steps import Step
    from ctta_bench.source_models.shared import Models

EXECUTORS = ("local", "slurm", "debug")
FEW = 5  # cells that a message names, one in each line


@dataclass(frozen=True)
class GridOptions:
    """Options of `grid` next to those of its cells."""

    benchmark: Annotated[
        list[str] | None,
        option(
            panel=WHAT,
            unset="those of the file",
            help="A benchmark, instead of those of the file; repeatable.",
            autocompletion=completion(benchmarks),
        ),
    ] = None
    seeds: Annotated[
        str,
        option(
            panel=WHAT,
            unset="those of the file",
            help="Seeds, instead of those of the file, e.g. 0,1,2.",
        ),
    ] = ""
    out: Annotated[
        Path | None,
        option(panel=OUTPUT, unset="runs/EXPERIMENT", help="Folder of the runs."),
    ] = None
    executor: Annotated[
        str | None,
        option(
            panel=HOW,
            metavar="|".join(EXECUTORS),
            unset="slurm with --profile, else local",
            help="local: on this machine; slurm: as jobs of a cluster; debug: one after another in "
            "this process.",
            autocompletion=one_of(*EXECUTORS),
        ),
    ] = None
    jobs: Annotated[
        int | None,
        option(
            "--jobs",
            "-j",
            panel=HOW,
            unset="local: one per accelerator, or 1; slurm: all",
            help="How many cells run at the same time.",
        ),
    ] = None
    cells_per_gpu: Annotated[
        int,
        option(panel=HOW, help="Local: how many cells run on one accelerator at the same time."),
    ] = 1
    profile: Annotated[
        str | None, option(panel=HOW, help="Slurm, --emit: name of a profile, or its YAML file.")
    ] = None
    emit: Annotated[
        str | None,
        option(
            panel=HOW,
            metavar="shell",
            help="Run nothing; write one shell command per job, and templates for PBS, LSF, SGE, "
            "Kubernetes, GNU parallel and xargs.",
            autocompletion=one_of("shell"),
        ),
    ] = None
    device: Device = None
    plugin: Plugin = None
    log: Log = None
    retry: Annotated[
        str | None,
        option(
            panel=HOW,
            metavar="failed",
            help="Run only the cells whose last attempt failed and that may not fail again.",
            autocompletion=one_of("failed"),
        ),
    ] = None
    force_retry: Annotated[
        bool,
        option(
            "--force-retry",
            panel=HOW,
            help="With --retry failed: also run those that failed with an error of their code, "
            "settings or data.",
        ),
    ] = False
    checkpoint: Annotated[
        str,
        option(
            panel=HOW,
            metavar="INTERVAL",
            help="Interval between checkpoints, in batches (e.g. 100) or seconds (e.g. 20s).",
        ),
    ] = "20s"
    snapshot: Annotated[
        bool,
        option(
            "--snapshot",
            panel=HOW,
            help="Copy plug-ins, preset files and the experiment file; jobs use the copies, so "
            "that later edits change nothing.",
        ),
    ] = False
    dry_run: Annotated[
        bool,
        option(
            "--dry-run",
            panel=HOW,
            help="List cells, jobs, passes, expected hours, memory and disk; run nothing. Needs "
            "neither weights nor data.",
        ),
    ] = False
    throughput: Throughput = None
    opened: Annotated[
        bool,
        option("--open", panel=HOW, help="Write the report at the end, and open its page."),
    ] = False
    force: Force = False
    quiet: Quiet = False

    def chosen_executor(self) -> str:
        """The executor, by default slurm with a profile. Raises ConfigError for an unknown one."""
        if self.emit is not None:
            if self.emit != "shell":
                raise ConfigError(f"--emit {self.emit!r}: choose shell.")
            if self.executor is not None:
                raise ConfigError("--emit and --executor: give one of them.")
            return "shell"
        executor = self.executor or ("slurm" if self.profile else "local")
        if executor not in EXECUTORS:
            raise ConfigError(f"--executor {executor!r}: choose local, slurm or debug.")
        if self.profile is not None and executor != "slurm":
            raise ConfigError(f"--profile is for --executor slurm, not {executor}.")
        if self.opened and executor == "slurm":
            raise ConfigError("--open is for --executor local and debug, not slurm.")
        if self.snapshot and executor == "debug":
            raise ConfigError("--snapshot is for --executor local and slurm, not debug.")
        return executor


@command
def grid(
    experiment: Annotated[
        str,
        typer.Argument(
            help="An experiment (`ctta-bench list experiments`), or a YAML file.",
            autocompletion=completion(experiments),
        ),
    ],
    given: Annotated[dict[str, Any], OptionsOf("grid")],
    options: GridOptions,
) -> None:
    """Run all cells of an experiment. Finished cells are skipped, interrupted ones resume.

    Options override the keys of the file.

    Example: `ctta-bench grid quickstart --seeds 0,1,2`
    """
    executor = options.chosen_executor()
    if options.throughput and not options.dry_run:
        raise ConfigError("--throughput is for --dry-run.")
    if options.retry not in (None, "failed"):
        raise ConfigError(f"--retry {options.retry!r}: choose failed.")
    if options.force_retry and options.retry is None:
        raise ConfigError("--force-retry is for --retry failed.")
    from ctta_bench.config.experiment import expand_checked, load_experiment, problems_error
    from ctta_bench.record.folder import check_writable, write_json
    from ctta_bench.run.checkpoint import parse_interval

    parse_interval(options.checkpoint)
    load_plugins(options.plugin)
    described = load_experiment(experiment)
    directory = options.out or Path("runs") / described.name
    if not options.dry_run:
        check_writable(directory)
    profile = _profile(executor, options)
    if profile is None and options.device is not None:
        from ctta_bench.run.environment import chosen_device

        chosen_device(options.device)  # a device that is missing is refused before any work
    from ctta_bench.source_models.shared import Models

    models = Models(several=True, planning=options.dry_run)
    cells, problems = expand_checked(
        described,
        benchmarks=tuple(options.benchmark or ()),
        seeds=seeds_of(options.seeds),
        overrides=given.pop("set"),
        models=models,
        **given,
    )
    from ctta_bench.launch.begin import Options, incompatible, missing_data, select
    from ctta_bench.launch.steps import schedule
    from ctta_bench.measuring.plan import longest_first
    from ctta_bench.run.loggers import make_loggers

    log = tuple(options.log or ())
    make_loggers(log)  # an unknown logger is refused before any cell starts
    steps, missing = schedule(cells), missing_data(cells)
    if not problems and not missing:
        left = [step for step in steps if not (directory / step.id / RESULT_FILE).is_file()]
        problems = incompatible([step.cell for step in left], models)
        problems += _shortages(left, directory, profile, options, models)
    if problems or (missing and not options.dry_run):
        raise problems_error(described, problems + missing)
    if options.dry_run:
        print_plan(
            steps,
            directory,
            profile,
            options.throughput or [],
            models,
            ask_slurm=executor == "slurm",
        )
        for problem in (*models.missing, *missing):
            print_error(problem, "missing")
        return
    facts = {"name": described.name, "title": described.title, "file": experiment}
    write_json(directory / EXPERIMENT_FILE, facts)
    chosen = select(
        steps,
        directory,
        force=options.force,
        failed_alone=options.retry == "failed",
        force_retry=options.force_retry,
    )
    if options.retry == "failed" and not chosen.todo and not chosen.outcome.failed:
        typer.echo(f"{directory}: no cell has failed.")
        return
    again = [f"{step}: {reason}" for step, reason in chosen.again.items()]
    _print_few(again, "failed before, runs again")
    launch = Options(
        options.device,
        options.force,
        options.checkpoint,
        log,
        tuple(options.plugin or ()),
        options.snapshot,
        experiment,
    )
    if profile is not None:
        chosen.todo = longest_first(chosen.todo)
    if executor == "shell" and profile is not None:
        _emit(chosen, directory, profile, launch)
    elif profile is not None:
        _submit(chosen, directory, profile, launch)
    else:
        share = _share(
            executor, options.jobs, options.cells_per_gpu, options.device, len(chosen.todo)
        )
        if share.jobs > 1:  # no worker is left alone with a long cell
            chosen.todo = longest_first(chosen.todo)
        if share.warning and chosen.todo and not options.quiet:
            print_error(share.warning, "note")
        _run_here(chosen, directory, share, launch, options.quiet, models)
    from ctta_bench.cli.terminal.progress import print_outcome, print_results

    if profile is None and (chosen.outcome.done or chosen.outcome.kept):
        print_results(directory)
        if options.opened:
            from ctta_bench.cli.reporting import write_and_open

            write_and_open(directory)
    print_outcome(chosen.outcome, directory, submitted=profile is not None)


def _shortages(
    steps: "Sequence[Step]",
    directory: Path,
    profile: "Profile | None",
    options: GridOptions,
    models: "Models",
) -> list[str]:
    """What the steps need more of than there is: free disk, GPU memory."""
    from ctta_bench.launch.local import gpu_memory
    from ctta_bench.measuring.estimate import earlier_runs
    from ctta_bench.measuring.plan import disk_shortage, memory_shortages

    records = [step.record for step in steps]
    kept = [step.cell.request.keep_models for step in steps]
    found = disk_shortage(directory, records, kept, models.parameters)
    if profile is None:
        shared, memory = options.cells_per_gpu, gpu_memory(options.device)
    else:
        shared, memory = profile.cells_per_gpu, int((profile.gpu_memory_gb or 0) * 1e9)
    if memory:
        speeds = earlier_runs(directory)
        found += memory_shortages(records, speeds, models.parameters, memory // shared)
    return found


def seeds_of(text: str) -> tuple[int, ...]:
    """The numbers of an option like `0,1,2`."""
    try:
        return tuple(int(part) for part in text.split(",") if part.strip())
    except ValueError:
        raise ConfigError(f"--seeds {text!r}: write numbers with commas, e.g. 0,1,2.") from None


def _profile(executor: str, options: GridOptions) -> "Profile | None":
    if executor not in ("slurm", "shell"):
        return None
    from ctta_bench.launch.local import check_shared_device
    from ctta_bench.launch.profiles import Profile, load_profile

    jobs = options.jobs
    if jobs is not None and jobs < 1:
        raise ConfigError(f"--jobs {jobs}: give 1 or more.")
    profile = load_profile(options.profile) if options.profile else Profile()
    check_shared_device(options.device, profile.workers)
    return profile if jobs is None else profile.model_copy(update={"parallel": jobs})


def _submit(chosen: "Selection", directory: Path, profile: "Profile", options: "Options") -> None:
    from ctta_bench.launch.begin import submit_slurm

    _print_queued(chosen)
    if not chosen.todo:
        return
    arrays: list[str] = []
    numbers: list[int] = []

    def note_array(job: str, count: int) -> None:
        arrays.append(job)
        numbers.append(count)

    submit_slurm(
        chosen.todo,
        directory,
        profile,
        options,
        note_array,
        on_wait=lambda reason: print_error(reason, "waiting"),
    )
    typer.echo(
        f"{count_text(chosen.todo)} submitted, in {counted(sum(numbers), 'job')} "
        f"({', '.join(arrays)}); status: {follow_up('status', directory, '--watch')}"
    )


def _emit(chosen: "Selection", directory: Path, profile: "Profile", options: "Options") -> None:
    from ctta_bench.launch.begin import emit_shell

    _print_queued(chosen)
    if chosen.todo:
        file, jobs = emit_shell(chosen.todo, directory, profile, options)
        typer.echo(f"{count_text(chosen.todo)} in {jobs} commands, one per line: {file}")
        typer.echo(f"templates for schedulers: {file.parent}")


def _print_queued(chosen: "Selection") -> None:
    queued = [f"{step} is in job {job}" for step, job in chosen.queued.items()]
    _print_few(queued, "not submitted again")


def _print_few(cells: "Sequence[str]", label: str) -> None:
    """Print the first few lines about cells, and the number of the others."""
    for line in cells[:FEW]:
        print_error(line, label)
    if len(cells) > FEW:
        print_error(f"{len(cells) - FEW} more cells", label)


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
    from ctta_bench.cli.terminal.progress import state_printer
    from ctta_bench.launch.begin import run_here, run_local
    from ctta_bench.launch.running import run_steps

    _print_queued(chosen)
    total = len(chosen.todo)
    print_state = state_printer(Console(stderr=True, quiet=quiet), total, directory)
    if not total:
        return
    if share.jobs > 1 or options.snapshot:
        place = {step.id: (n, step) for n, step in enumerate(chosen.todo)}
        models.drop()  # each worker reads its own
        run_local(
            chosen.todo,
            directory,
            share,
            options,
            chosen.outcome,
            lambda step, state: print_state(*place[step], state),
        )
        return
    if share.devices and share.devices[0] is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = share.devices[0]
    from ctta_bench.run.environment import chosen_device
    from ctta_bench.run.options import RunOptions

    noted: list[str] = []  # over all cells
    out_of = {step.id: f"{n + 1}/{total} " for n, step in enumerate(chosen.todo)}

    def loggers(step: "Step") -> Sequence[Any]:
        return cell_loggers(list(options.log), quiet, step.id, out_of[step.id], noted)

    with run_here(chosen.todo, directory, options) as note:

        def on_step(number: int, step: "Step", state: str) -> None:
            note(step, state)
            print_state(number, step, state)

        run_steps(
            chosen.todo,
            directory,
            RunOptions(chosen_device(options.device), options.force, checkpoint=options.checkpoint),
            make_loggers=loggers,
            on_step=on_step,
            outcome=chosen.outcome,
            models=models,
        )
