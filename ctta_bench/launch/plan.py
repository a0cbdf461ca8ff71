"""A launch on disk: its steps, the share of each worker, and the workers' events.

DIR/.launch/ID/launch.json      time, launcher, options, and the packs of steps
DIR/.launch/ID/steps.jsonl      one step per line: the request from which a worker makes the cell
DIR/.launch/ID/workers/N.jsonl  journal of worker N, one event per line; N.log: its output
DIR/.launch/ID/submissions.jsonl  Slurm only: each array, before and after its submission
DIR/.launch/ID/cancelled        exists if the launch was cancelled; cancelled.jsonl: of some steps
DIR/.launch/ID/ended            exists if its launcher ran the steps itself, and has ended with them
DIR/.launch/ID/snapshot/        with --snapshot: copies of the user's files, which the workers use
DIR/.launch/ID/submitit/        files of submitit; they are not read for results
"""

import contextlib
import itertools
import json
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ctta_bench.config.cell import CellRequest, resolve
from ctta_bench.config.validation import validate
from ctta_bench.errors import ConfigError, RunError
from ctta_bench.launch.snapshot import FOLDER as SNAPSHOT
from ctta_bench.launch.snapshot import Snapshot
from ctta_bench.launch.steps import Step
from ctta_bench.record.folder import atomic, timestamp, write_json
from ctta_bench.record.owner import this_process

if TYPE_CHECKING:
    from ctta_bench.source_models.shared import Models  # at run time it would load torch

FOLDER = ".launch"
INTERRUPTED = 75  # exit code of a worker after a checkpoint (EX_TEMPFAIL)


@dataclass(frozen=True)
class Launch:
    """A launch on disk. `facts` is the content of launch.json."""

    folder: Path
    facts: dict[str, Any]

    @classmethod
    def create(
        cls,
        directory: Path,
        steps: Sequence[Step],
        packs: Sequence[tuple[int, int]],
        *,
        copies: Callable[[Path], Snapshot] | None = None,
        **facts: Any,
    ) -> "Launch":
        """Write a new launch. packs: first step and end of each worker's share, in order.

        copies: makes a snapshot in a folder, whose files the workers then use.
        """
        folder = directory.resolve() / FOLDER
        folder /= _next_name([place.name for place in folder.glob("*-*")])
        (folder / "workers").mkdir(parents=True)
        facts |= {"made": timestamp(), "launcher": this_process(), "packs": packs}
        presets: dict[str, str] = {}
        if copies is not None:
            snapshot = copies(folder / SNAPSHOT)
            presets = snapshot.presets
            facts |= {"plugins": snapshot.plugins, "snapshot": snapshot.files}
        with atomic(folder / "steps.jsonl") as temporary:
            text = "".join(_line(step, presets) for step in steps)
            temporary.write_text(text, encoding="utf-8")
        write_json(folder / "launch.json", {"schema_version": 1, **facts})
        # Options may contain private values.
        (folder / "launch.json").chmod(0o600)
        return cls(folder, facts)

    @classmethod
    def open(cls, folder: Path) -> "Launch":
        """Read a launch. Raises RunError if it is damaged."""
        try:
            facts = json.loads((folder / "launch.json").read_text("utf-8"))
            return cls(folder, dict(facts))
        except (OSError, ValueError, TypeError) as error:
            raise RunError(f"{folder / 'launch.json'}: cannot be read ({error}).") from error

    @property
    def directory(self) -> Path:
        """The folder of runs."""
        return self.folder.parent.parent

    def ids(self) -> list[str]:
        """The ids of all steps, in order."""
        return [json.loads(line)["id"] for line in self._lines()]

    def lines(self, start: int, stop: int) -> list[dict[str, Any]]:
        """The lines of steps.jsonl for the steps of one pack."""
        return [json.loads(line) for line in self._lines()[start:stop]]

    def _lines(self) -> list[str]:
        return (self.folder / "steps.jsonl").read_text("utf-8").splitlines()

    # -- jobs and their workers

    def workers_of(self, job: int) -> range:
        """The numbers of the workers of a job; they share its list of steps."""
        each = self.workers_per_job
        return range(job * each, (job + 1) * each)

    @property
    def workers_per_job(self) -> int:
        """Workers of each job of a scheduler; in release 0.2 one."""
        return int(self.facts.get("workers_per_job", 1))

    @property
    def number_of_jobs(self) -> int:
        """Jobs of this launch, each with a pack of steps of its own."""
        return len(self.facts["packs"]) // self.workers_per_job

    def unfinished(self, job: int) -> bool:
        """Whether a step of a job has no final state in the journals of its workers."""
        start, stop = self.facts["packs"][self.workers_of(job)[0]]
        ended: set[str] = self.cancelled_steps()
        for worker in self.workers_of(job):
            ended |= self.journal(worker).ended()
        return not ended.issuperset(self.ids()[start:stop])

    # -- journals of the workers

    def journal(self, worker: int) -> "Journal":
        """The journal of one worker."""
        return Journal(self.folder / "workers" / f"{worker}.jsonl")

    def log(self, worker: int) -> Path:
        """The file with the output of one worker."""
        return self.folder / "workers" / f"{worker}.log"

    def events(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """All events as pairs (worker, event); those of one worker in order."""
        for file in sorted((self.folder / "workers").glob("*.jsonl"), key=lambda f: int(f.stem)):
            for event in Journal(file).read():
                yield int(file.stem), event

    def failures(self) -> dict[str, str]:
        """The failed steps of this launch, with the reason."""
        return {
            event["step"]: event["reason"]
            for _, event in self.events()
            if event.get("state") == "failed"
        }

    # -- cancelling

    @property
    def is_cancelled(self) -> bool:
        """Whether a user has cancelled the launch; none of its steps is started again."""
        return (self.folder / "cancelled").exists()

    def cancel(self, steps: Iterable[str] | None = None) -> None:
        """Mark the launch as cancelled, or some of its steps."""
        if steps is None:
            (self.folder / "cancelled").touch()
        else:
            self._cancelled_steps.write(steps=sorted(steps))

    def cancelled_steps(self) -> set[str]:
        """The steps that were cancelled one by one."""
        return {step for event in self._cancelled_steps.read() for step in event["steps"]}

    @property
    def _cancelled_steps(self) -> "Journal":
        return Journal(self.folder / "cancelled.jsonl")

    # -- a launcher that runs the steps itself

    @property
    def has_ended(self) -> bool:
        """Whether its launcher, although it may live, runs no further step."""
        return (self.folder / "ended").exists()

    def end(self) -> None:
        """Record that its launcher runs no further step, if the folder can still be written."""
        with contextlib.suppress(OSError):
            (self.folder / "ended").touch()

    # -- jobs of a scheduler

    @property
    def submissions(self) -> "Journal":
        """The journal of submissions; its events have the number of the array.

        An intent (`intended`: first and last job, mark) is written before an array is submitted,
        then `submitted` with the scheduler's number, or `refused` with the reason.
        """
        return Journal(self.folder / "submissions.jsonl")

    def mark(self, array: int) -> str:
        """What the comment of an array's jobs ends with: they are found without a number."""
        return f"ctta-bench:{self.folder.name}:{array}"

    def arrays(self) -> dict[int, dict[str, Any]]:
        """Number of each array -> what is known of it: the values of its events, the last first."""
        found: dict[int, dict[str, Any]] = {}
        for event in self.submissions.read():
            found[event["array"]] = found.get(event["array"], {}) | event
        return found

    def jobs(self, marked: Mapping[str, str] | None = None) -> dict[str, int]:
        """Job of the scheduler -> its number in this launch; {} before any was submitted.

        marked: mark -> number of an array in the scheduler, for arrays of which only the intent is
        known.
        """
        found = self._jobs_of_old_launches()
        for number, array in self.arrays().items():
            root = array.get("job") or (marked or {}).get(self.mark(number))
            if root is not None and array["state"] != "refused":
                jobs = range(array["first"], array["stop"])
                alone = len(jobs) == 1
                found |= {root if alone else f"{root}_{n}": job for n, job in enumerate(jobs)}
        return found

    def _jobs_of_old_launches(self) -> dict[str, int]:
        """The jobs of a launch of release 0.2, from its jobs.json."""
        file = self.folder / "jobs.json"
        try:
            return {str(k): int(v) for k, v in json.loads(file.read_text("utf-8")).items()}
        except FileNotFoundError:
            return {}
        except (ValueError, AttributeError, TypeError) as error:
            raise RunError(f"{file}: is damaged ({error}).") from error


@dataclass(frozen=True)
class Journal:
    """A file of events, written by one process and read by others."""

    file: Path

    def write(self, **event: Any) -> None:
        """Append an event, with the time."""
        with self.file.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"time": timestamp(), **event}) + "\n")

    def read(self) -> list[dict[str, Any]]:
        """All complete events."""
        try:
            lines = self.file.read_bytes().split(b"\n")[:-1]
        except FileNotFoundError:
            return []
        return list(_whole(lines))

    def ended(self) -> set[str]:
        """The steps with a final state."""
        final = ("done", "kept", "failed", "elsewhere")
        return {event["step"] for event in self.read() if event.get("state") in final}

    def durations(self) -> dict[str, float]:
        """Seconds that each step with a final state ran, without the pauses between attempts."""
        began: dict[str, float] = {}
        took: dict[str, float] = {}
        for event in self.read():
            step, state = event.get("step"), event.get("state")
            if step is None or "time" not in event:
                continue
            time = datetime.fromisoformat(event["time"].replace("Z", "+00:00")).timestamp()
            if state == "running":
                began[step] = time
            elif step in began:
                took[step] = took.get(step, 0.0) + time - began.pop(step)
        return {step: took[step] for step in self.ended() if step in took}

    def idle_attempts(self) -> int:
        """How many of the last interruptions in a row left the same progress."""
        counts = [event["progress"] for event in self.read() if "progress" in event]
        same = itertools.takewhile(lambda count: count == counts[-1], reversed(counts))
        return len(list(same))

    def broken(self) -> str:
        """Why the worker could not begin any step; "" if it could."""
        events = [event for event in self.read() if event.get("state") in ("started", "broken")]
        return str(events[-1].get("reason", "")) if events else ""

    def open_step(self) -> str | None:
        """The step that was started and has no final state; of a dead worker, where it died."""
        return self.last_step("running")

    def last_step(self, state: str) -> str | None:
        """The step of the last event of any step, if that event has the state `state`."""
        events = [event for event in self.read() if "step" in event]
        return str(events[-1]["step"]) if events and events[-1]["state"] == state else None


def _next_name(there: Sequence[str]) -> str:
    """A name that sorts after the existing ones, even if the clock was set back."""
    now = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
    latest = max([now, *(name[: len(now)] for name in there)])
    return f"{latest}-{len(there):04d}-{uuid.uuid4().hex[:6]}"


def _whole(lines: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    for line in lines:
        try:
            event = json.loads(line)
        except ValueError:
            continue  # incomplete after a crash
        if isinstance(event, dict):
            yield event


def launches(directory: Path) -> list[Launch]:
    """The launches of a folder of runs, oldest first; half-written ones are skipped."""
    files = sorted((directory / FOLDER).glob("*/launch.json"))
    return [Launch.open(file.parent) for file in files]


def _line(step: Step, presets: Mapping[str, str]) -> str:
    asked = step.cell.asked
    assert asked is not None
    fields = {"id": step.id, "warms_up": step.warms_up, "needs": step.needs}
    request = asked.model_dump(mode="json")
    if (copy := presets.get(request.get("preset", ""))) is not None:
        request["preset"] = copy
    return json.dumps(fields | {"request": request}) + "\n"


def read_step(line: dict[str, Any], models: "Models | None" = None) -> Step:
    """The step of a line of steps.jsonl; `models` as for `resolve`.

    Raises ConfigError if its id is different now, because code, data or weights have changed.
    """
    request = dict(line["request"])
    if request["input_size"] is not None:
        request["input_size"] = tuple(request["input_size"])
    cell = resolve(validate(CellRequest, request, "cell"), models)
    step = Step(cell, bool(line["warms_up"]))
    if step.id != line["id"]:
        raise ConfigError(
            f"{line['id']}: is now {step.id}, because code, weights or presets have changed since "
            "it was planned; run the same `ctta-bench grid` again."
        )
    return step
