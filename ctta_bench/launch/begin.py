"""Starting a grid: check its data, select the steps to run, run or submit them, record outcomes."""

import contextlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from ctta_bench.config.cell import Cell
from ctta_bench.errors import CttaBenchError, RunError
from ctta_bench.launch.local import Share, run_pool
from ctta_bench.launch.plan import Launch, launches
from ctta_bench.launch.profiles import Profile
from ctta_bench.launch.running import check_done
from ctta_bench.launch.scheduler import job_states
from ctta_bench.launch.slurm import submit
from ctta_bench.launch.snapshot import Snapshot, take_snapshot
from ctta_bench.launch.steps import Outcome, Step, in_order, pack, wave_of, write_planned
from ctta_bench.record.folder import RunFolder, check_writable
from ctta_bench.record.schema import FAILURE_FILE
from ctta_bench.registry import BENCHMARKS, METHODS
from ctta_bench.run.checkpoint import DEFAULT_INTERVAL
from ctta_bench.run.open import source_images
from ctta_bench.run.provenance import Known

ACTIVE = ("PENDING", "RUNNING", "COMPLETING", "CONFIGURING", "SUSPENDED", "REQUEUED", "RESIZING")


def missing_data(cells: Sequence[Cell]) -> list[str]:
    """Data that benchmarks of the cells lack on this machine, each problem once; [] if none."""
    problems: dict[str, None] = {}
    checked: set[tuple[str, str]] = set()
    for cell in cells:
        access = METHODS.get(cell.request.method).source_access
        settings = {k: v for k, v in cell.record["benchmark"].items() if k != "batch_size"}
        key = (json.dumps([settings, str(cell.request.data_root)], default=str), access)
        if key not in checked:
            checked.add(key)
            problems |= dict.fromkeys(_problems(cell))
    return list(problems)


def _problems(cell: Cell) -> list[str]:
    benchmark = BENCHMARKS.get(cell.request.benchmark)(cell.settings, cell.request.data_root)
    try:
        found = [f"{benchmark.name}: {problem}" for problem in benchmark.problems()]
        if not found:
            method = METHODS.get(cell.request.method)
            source_images(benchmark, method.source_access, method.__name__)
    except CttaBenchError as error:
        return [str(error)]
    return found


@dataclass
class Selection:
    """The steps of a grid that are to be run, and the status of the others."""

    todo: list[Step] = field(default_factory=list)
    outcome: Outcome = field(default_factory=Outcome)
    queued: dict[str, str] = field(default_factory=dict)  # step -> its job in the scheduler


@dataclass(frozen=True)
class Options:
    """Options that apply to all steps of a launch.

    snapshot: workers use copies of plug-ins, preset files and `experiment`, a name or a file.
    """

    device: str | None = None
    force: bool = False
    checkpoint: str = DEFAULT_INTERVAL
    log: Sequence[str] = ()
    plugins: Sequence[str] = ()
    snapshot: bool = False
    experiment: str = ""

    def copies(self, steps: Sequence[Step]) -> Callable[[Path], Snapshot] | None:
        """The function that takes the snapshot; None without one."""
        if not self.snapshot:
            return None
        return partial(take_snapshot, plugins=self.plugins, experiment=self.experiment, steps=steps)

    def facts(self) -> dict[str, Any]:
        """The options as stored in launch.json."""
        # Absolute paths of plug-in files: a job may start in another folder.
        plugins = [str(Path(p).resolve()) if p.endswith(".py") else p for p in self.plugins]
        return {
            "device": self.device,
            "force": self.force,
            "checkpoint": self.checkpoint,
            "log": list(self.log),
            "plugins": plugins,
        }


def select(
    steps: Sequence[Step], directory: Path, *, force: bool = False, failed_alone: bool = False
) -> Selection:
    """Select the steps to run: those that are neither finished nor in a job of a scheduler.

    failed_alone: only steps whose last attempt failed, and the warm-ups that they start from.
    """
    chosen = Selection(queued=queued_steps(directory))
    known: Known = {}
    wanted = _failed(steps, directory) if failed_alone else {step.id for step in steps}
    for step in steps:
        folder = RunFolder(directory / step.id)
        if step.id not in wanted:
            continue
        if step.id in chosen.queued:
            continue
        if folder.is_done and not force:
            try:
                check_done(step, folder, known)
                chosen.outcome.record(step, "kept")
            except CttaBenchError as error:
                chosen.outcome.record(step, "failed", str(error))
            continue
        chosen.todo.append(step)
    chosen.queued = {step.id: chosen.queued[step.id] for step in steps if step.id in chosen.queued}
    return chosen


def _failed(steps: Sequence[Step], directory: Path) -> set[str]:
    failed = [s for s in steps if (directory / s.id / FAILURE_FILE).is_file()]
    return {step.id for step in failed} | {step.needs for step in failed if step.needs}


def queued_steps(directory: Path) -> dict[str, str]:
    """Steps in active jobs of earlier launches, according to the scheduler: step -> job."""
    of_job: dict[str, list[str]] = {}
    for launch in launches(directory):
        ids = launch.ids() if launch.jobs() else []
        for job, number in launch.jobs().items():
            start, stop = launch.facts["packs"][number]
            of_job[job] = ids[start:stop]
    if not of_job:
        return {}
    states, _ = job_states(of_job)
    active = [job for job, state in states.items() if state.state in ACTIVE]
    return {step: job for job in active for step in of_job[job]}


def run_local(
    steps: Sequence[Step],
    directory: Path,
    share: Share,
    options: Options,
    outcome: Outcome,
    on_step: Callable[[str, str], None] = lambda step, state: None,
) -> Launch:
    """Run steps in a pool of workers on this machine, and record their final states in `outcome`.

    Cells that start from a warm-up run after all warm-ups have ended.
    """
    ordered = in_order(steps)
    write_planned(ordered, directory)
    late = sum(wave_of(step) == 2 for step in ordered)
    queues = [
        q for q in ((0, len(ordered) - late), (len(ordered) - late, len(ordered))) if q[0] < q[1]
    ]
    counts = [min(share.jobs, stop - start) for start, stop in queues]
    launch = Launch.create(
        directory,
        ordered,
        [queue for queue, count in zip(queues, counts, strict=True) for _ in range(count)],
        executor="local",
        shared=True,
        environment={},
        threads=share.threads,
        devices=share.devices and [d for count in counts for d in share.devices[:count]],
        copies=options.copies(ordered),
        **options.facts(),
    )
    first = 0
    for count in counts:
        workers = range(first, first + count)
        run_pool(launch, workers, lambda event: on_step(event["step"], event["state"]))
        first += count
    _record_outcome(launch, ordered, outcome)
    return launch


@contextlib.contextmanager
def run_here(steps: Sequence[Step], directory: Path, options: Options) -> Iterator[None]:
    """Plan steps that this process runs one after another: `status` shows them as queued."""
    write_planned(steps, directory)
    launch = Launch.create(
        directory,
        steps,
        [(0, len(steps))],
        executor="debug",
        shared=False,
        environment={},
        threads=None,
        devices=None,
        **options.facts(),
    )
    try:
        yield
    finally:
        launch.end()


def _record_outcome(launch: Launch, steps: Sequence[Step], outcome: Outcome) -> None:
    ends = {e["step"]: e for _, e in launch.events() if "step" in e and e["state"] != "waiting"}
    for step in steps:
        end = ends.get(step.id, {"state": "none"})
        if end["state"] in ("done", "kept", "failed", "elsewhere"):
            outcome.record(step, end["state"], end.get("reason", ""))
        elif RunFolder(launch.directory / step.id).is_done:
            outcome.record(step, "done")
        else:
            outcome.record(step, "failed", _why_not(launch))


def _why_not(launch: Launch) -> str:
    """The reason why a step has no final state."""
    try:
        check_writable(launch.directory)
    except RunError as error:
        return str(error)
    return f"did not run to its end; see the logs in {launch.folder / 'workers'}"


def submit_slurm(
    steps: Sequence[Step],
    directory: Path,
    profile: Profile,
    options: Options,
    on_submit: Callable[[str, int], None] = lambda job, jobs: None,
) -> Launch:
    """Submit steps to Slurm; `on_submit(array, jobs)` is called for each array of jobs.

    Raises RunError if Slurm refuses them.
    """
    ordered = in_order(steps)
    write_planned(ordered, directory)
    packs = pack(ordered, profile.cells_per_job)
    launch = Launch.create(
        directory,
        ordered,
        packs,
        executor="slurm",
        shared=False,
        environment=dict(profile.environment),
        threads=profile.cpus,
        devices=None,
        requeue=profile.requeue,
        copies=options.copies(ordered),
        **options.facts(),
    )
    try:
        submit(launch, profile, [wave_of(ordered[start]) for start, _ in packs], on_submit)
    except RunError:
        if not launch.jobs():
            launch.cancel()  # none of its steps will ever run
        raise
    return launch
