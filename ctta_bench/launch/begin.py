"""Starting a grid: check its data, select the steps to run, run or submit them, record outcomes."""

import contextlib
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from ctta_bench.config.cell import Cell
from ctta_bench.errors import CttaBenchError, RunError, counted
from ctta_bench.launch.local import Pool, Share
from ctta_bench.launch.plan import FOLDER, Launch, launches
from ctta_bench.launch.profiles import Profile
from ctta_bench.launch.running import check_done
from ctta_bench.launch.shell import emit
from ctta_bench.launch.slurm import submit
from ctta_bench.launch.snapshot import Snapshot, take_snapshot
from ctta_bench.launch.states import UNDER_WAY
from ctta_bench.launch.status import CellStatus, folder_status
from ctta_bench.launch.steps import Outcome, Step, in_order, pack, wave_of, write_planned
from ctta_bench.record.folder import RunFolder, check_writable
from ctta_bench.record.schema import FAILURE_FILE
from ctta_bench.registry import BENCHMARKS, METHODS
from ctta_bench.run.checkpoint import DEFAULT_INTERVAL
from ctta_bench.run.open import open_cell, source_images
from ctta_bench.run.provenance import Known
from ctta_bench.source_models.shared import UNKNOWN, Models

# Errors that another attempt may not meet: of a disk, memory, a device, a killed process.
PASSING = ("RunError", "OSError", "MemoryError", "OutOfMemoryError", "AcceleratorError")
_DEVICE = re.compile(r"CUDA|cuDNN|CUBLAS|NCCL|out of memory|allocate memory|DataLoader worker")
WOULD_REPEAT = "would fail again; after a change, --force-retry runs it"


def repeats(folder: RunFolder) -> bool:
    """Whether the failure of a cell is deterministic: an error of its code, settings or data."""
    try:
        failure = json.loads(folder.file(FAILURE_FILE).read_text("utf-8"))
        kind, reason = str(failure["type"]), str(failure["reason"])
    except (OSError, ValueError, KeyError, TypeError):
        return False  # its job ended before it began
    return kind not in PASSING and _DEVICE.search(reason) is None


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


def incompatible(cells: Sequence[Cell], models: Models) -> list[str]:
    """Methods that refuse their model, each once; [] if none. Every method is made, on the CPU.

    Cells whose weights are not on this machine are left out. Their data must be there.
    """
    problems: dict[str, None] = {}
    checked: set[str] = set()
    # By model: only the last one is in memory.
    for cell in sorted(cells, key=lambda cell: str(cell.record["model"])):
        record, request = cell.record, cell.request
        asked = [record["method"], record["model"], record["preprocessing"], request.adapt]
        key = json.dumps([asked, record["benchmark"]["name"]], default=str, sort_keys=True)
        if key in checked or record["model"]["sha256"] == UNKNOWN:
            continue
        checked.add(key)
        try:
            open_cell(cell, models=models).method()
        except CttaBenchError as error:
            problems[f"{request.method} on {record['model']['name']}: {error}"] = None
        except Exception:  # no refusal: the cell itself reports it, with its traceback
            continue
    return list(problems)


@dataclass
class Selection:
    """The steps of a grid that are to be run, and the status of the others."""

    todo: list[Step] = field(default_factory=list)
    outcome: Outcome = field(default_factory=Outcome)
    queued: dict[str, str] = field(default_factory=dict)  # step -> its job in the scheduler
    again: dict[str, str] = field(default_factory=dict)  # failed before and selected -> reason


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
    steps: Sequence[Step],
    directory: Path,
    *,
    force: bool = False,
    failed_alone: bool = False,
    force_retry: bool = False,
) -> Selection:
    """Select the steps to run: those that are neither finished nor in a job of a scheduler.

    failed_alone: only steps whose last attempt failed, and the warm-ups that they start from;
    without `force_retry` not those that would fail again.
    """
    before = _earlier(directory)
    chosen = Selection(queued=_queued(before))
    known: Known = {}
    wanted = _failed(steps, before) if failed_alone else {step.id for step in steps}
    for step in steps:
        folder = RunFolder(directory / step.id)
        if step.id not in wanted:
            continue
        if step.id in chosen.queued:
            continue
        failure = _failure(step, before)
        if failed_alone and failure and not force_retry and repeats(folder):
            chosen.outcome.record(step, "failed", f"{failure} ({WOULD_REPEAT})")
            continue
        if failure:
            chosen.again[step.id] = failure
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


def _earlier(directory: Path) -> dict[str, CellStatus]:
    """The status of cells that earlier launches have left, by cell.

    Raises RunError if the scheduler does not answer whether it still has some of them.
    """
    if not (directory / FOLDER).is_dir():
        return {}
    found = folder_status(directory)
    unknown = [cell for cell in found.cells if cell.state == "unknown"]
    if unknown:
        raise RunError(
            f"{counted(len(unknown), 'cell')} may be in jobs of Slurm, which does not answer "
            f"({'; '.join(found.problems)}); run the same command again when it does."
        )
    return {cell.cell: cell for cell in found.cells}


def _queued(before: dict[str, CellStatus]) -> dict[str, str]:
    """Cells in jobs of a scheduler, waiting or running: cell -> job. Cancelled ones are free."""
    return {
        name: cell.job
        for name, cell in before.items()
        if cell.job is not None and cell.state in UNDER_WAY and not cell.cancelled
    }


def _failure(step: Step, before: dict[str, CellStatus]) -> str:
    """Why the last attempt at a step failed; "" if it did not."""
    last = before.get(step.id)
    return last.reason if last is not None and last.state == "failed" else ""


def _failed(steps: Sequence[Step], before: dict[str, CellStatus]) -> set[str]:
    failed = [step for step in steps if _failure(step, before)]
    return {step.id for step in failed} | {step.needs for step in failed if step.needs}


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
        copies=options.copies(ordered),
        **options.facts(),
    )
    first = 0
    for count in counts:
        devices = share.devices and share.devices[:count]
        pool = Pool(launch, range(first, first + count), devices)
        pool.run(lambda event: on_step(event["step"], event["state"]))
        first += count
    _record_outcome(launch, ordered, outcome)
    return launch


@contextlib.contextmanager
def run_here(
    steps: Sequence[Step], directory: Path, options: Options
) -> Iterator[Callable[[Step, str], None]]:
    """Plan steps that this process runs one after another: `status` shows them as queued.

    Yields the function to call with the states of a step.
    """
    write_planned(steps, directory)
    launch = Launch.create(
        directory,
        steps,
        [(0, len(steps))],
        executor="debug",
        shared=False,
        environment={},
        threads=None,
        **options.facts(),
    )

    def note(step: Step, state: str) -> None:
        with contextlib.suppress(OSError):  # a full disk stops the cell itself
            launch.journal(0).write(step=step.id, state=state)

    try:
        yield note
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
    workers = range(len(launch.facts["packs"]))
    broken = [reason for n in workers if (reason := launch.journal(n).broken())]
    return broken[0] if broken else f"did not run to its end; see {launch.folder / 'workers'}"


def submit_slurm(
    steps: Sequence[Step],
    directory: Path,
    profile: Profile,
    options: Options,
    on_submit: Callable[[str, int], None] = lambda job, jobs: None,
    on_wait: Callable[[str], None] = lambda reason: None,
) -> None:
    """Submit steps to Slurm; `on_submit` and `on_wait` as for `submit`.

    Raises RunError if Slurm refuses them.
    """
    for attempt, group in by_attempt(steps, directory).items():
        grown = profile.at(attempt)
        launch, waves = _planned("slurm", group, directory, grown, options)
        submit(launch, grown, waves, on_submit, on_wait)


def by_attempt(steps: Sequence[Step], directory: Path) -> dict[int, list[Step]]:
    """Steps by the number of earlier launches that have begun them and did not cancel them."""
    begun = Counter(
        step
        for launch in launches(directory)
        if not launch.is_cancelled
        for step in {str(event["step"]) for _, event in launch.events() if "step" in event}
        - launch.cancelled_steps()
    )
    found: dict[int, list[Step]] = {}
    for step in steps:
        found.setdefault(begun[step.id], []).append(step)
    return dict(sorted(found.items()))


def emit_shell(
    steps: Sequence[Step], directory: Path, profile: Profile, options: Options
) -> tuple[Path, int]:
    """Write one shell command per job; returns the file of the commands, and their number.

    All have the resources of the step with the most attempts.
    """
    grown = profile.at(max(by_attempt(steps, directory)))
    launch, _ = _planned("shell", steps, directory, grown, options)
    launch.end()
    return emit(launch, grown), launch.number_of_jobs


def _planned(
    executor: str, steps: Sequence[Step], directory: Path, profile: Profile, options: Options
) -> tuple[Launch, list[int]]:
    """A launch of jobs with the packs of a profile, and the wave of each pack."""
    ordered = in_order(steps)
    write_planned(ordered, directory)
    packs = pack(ordered, profile.cells)
    launch = Launch.create(
        directory,
        ordered,
        [each for each in packs for _ in range(profile.workers)],
        executor=executor,
        shared=profile.workers > 1,
        workers_per_job=profile.workers,
        environment=dict(profile.environment),
        threads=max(1, profile.cpus // profile.workers),
        requeue=profile.requeue,
        copies=options.copies(ordered),
        **options.facts(),
    )
    return launch, [wave_of(ordered[start]) for start, _ in packs]
