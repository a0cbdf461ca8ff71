"""Worker programs: modules run as `python -m MODULE` with a list of tasks, on all cores.

Not `multiprocessing`: making data must not depend on how the caller's own program was started, and
a worker loads what its module imports, neither torch nor a model.
"""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ctta_bench.errors import CttaBenchError, DataError

Report = Callable[[int, int], None]


def run_workers(
    module: str,
    job: Mapping[str, Any],
    tasks: Sequence[Any],
    *,
    workers: int,
    done: Callable[[], int],
    report: Report | None = None,
    environment: Mapping[str, str] | None = None,
) -> None:
    """Hand each of `workers` programs the job and its share of the tasks; wait for all of them.

    job and tasks: what JSON holds. `done()` counts finished tasks, for `report(done, total)`.
    Raises DataError with what the first failed worker said last. Interrupted, it ends the workers.
    """
    variables = os.environ | {"OMP_NUM_THREADS": "1", "OPENCV_NUM_THREADS": "1"}
    variables |= dict(environment or {})
    workers = max(1, min(workers, len(tasks)))
    running = [
        _start(module, {**job, "tasks": tasks[first::workers]}, variables)
        for first in range(workers)
    ]
    try:
        while any(process.poll() is None for process, _ in running):
            if any(process.poll() for process, _ in running):
                break  # one has failed: the others' work is not waited for
            if report is not None:
                report(done(), len(tasks))
            time.sleep(0.05)
    finally:
        for process, reader in running:
            process.terminate()
            process.wait()
            reader.join()
    failed = [(process.returncode, reader.text) for process, reader in running]
    for code, complaint in sorted(failed, key=lambda pair: not pair[1]):
        if code > 0:
            raise DataError((complaint.strip().splitlines() or [f"exit code {code}."])[-1])
    if any(code for code, _ in failed):
        raise DataError("a worker was killed, perhaps for want of memory: try fewer --workers.")
    if report is not None:
        report(len(tasks), len(tasks))


class _Reader(threading.Thread):
    """Reads a worker's complaints while it runs, so that a full pipe never holds it up."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        super().__init__(daemon=True)
        self.process, self.text = process, ""
        self.start()

    def run(self) -> None:
        assert self.process.stderr is not None
        with self.process.stderr as stream:
            self.text = stream.read()


def _start(
    module: str, job: dict[str, Any], environment: dict[str, str]
) -> tuple["subprocess.Popen[str]", _Reader]:
    process = subprocess.Popen(
        [sys.executable, "-m", module],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )
    reader = _Reader(process)
    assert process.stdin is not None
    try:
        process.stdin.write(json.dumps(job))
        process.stdin.close()
    except BrokenPipeError:
        pass  # it ended before it read: its complaint and its code tell why
    return process, reader


def as_worker(work: Callable[[dict[str, Any]], None]) -> None:
    """What a worker module does when it is run: do the job of standard input, or say why not."""
    try:
        work(json.load(sys.stdin))
    except CttaBenchError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
