"""Worker processes for making data: the standard library's process pool, on all cores.

Workers are spawned: they share no threads with the caller and import only what their work needs,
neither torch nor a model. A script that makes data needs no `if __name__ == "__main__"`.
"""

import contextlib
import multiprocessing
import os
import pickle
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from functools import cache, partial
from multiprocessing.connection import Connection
from types import ModuleType
from typing import Any, TypeVar

from ctta_bench.errors import CttaBenchError, DataError

Task = TypeVar("Task")
Report = Callable[[int, int], None]
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENCV_FOR_THREADS_NUM": "1"}


def run_workers(
    work: Callable[[Task], None],
    tasks: Sequence[Task],
    *,
    workers: int,
    report: Report | None = None,
    environment: Mapping[str, str] | None = None,
) -> None:
    """Call `work(task)` for each task in `workers` processes; both must be picklable.

    `report(done, total)` is called as tasks end. `environment`: environment variables for the work.
    Raises DataError with the message of the first failed task. After a failure or an interruption
    the workers end at once.
    """
    variables = dict(environment or {})
    report = report or (lambda done, total: None)
    report(0, len(tasks))
    if multiprocessing.current_process().daemon:  # it may not start processes
        with _variables(variables):
            return _wait((partial(work, task) for task in tasks), len(tasks), report)
    spawn = multiprocessing.get_context("spawn")
    theirs, ours = spawn.Pipe(duplex=False)
    with (
        theirs,
        ours,
        ProcessPoolExecutor(
            max(1, min(workers, len(tasks))), spawn, _begin, (theirs, pickle.dumps(work))
        ) as pool,
    ):
        try:
            with _spawning(), _variables(ONE_THREAD | variables):
                running = [pool.submit(_do, task) for task in tasks]
            _wait((future.result for future in as_completed(running)), len(tasks), report)
        except BaseException:
            ours.close()
            raise


def _wait(ends: Iterable[Callable[[], None]], total: int, report: Report) -> None:
    """Wait until all tasks have ended; raise the first error as DataError."""
    for done, end in enumerate(ends, 1):
        try:
            end()
        except BrokenProcessPool as error:
            raise DataError(
                "a worker was killed, perhaps for lack of memory: try fewer --workers."
            ) from error
        except CttaBenchError as error:
            raise DataError(str(error)) from error
        except Exception as error:
            raise DataError(f"{type(error).__name__}: {error}") from error
        report(done, total)


@contextlib.contextmanager
def _variables(values: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables within the block; processes started in it inherit them."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


@contextlib.contextmanager
def _spawning() -> Iterator[None]:
    """Processes started in the block do not import the main module and ignore Ctrl-C.

    By default a spawned process runs the caller's script again to find objects defined there; our
    work needs none of them. Workers inherit the blocked signals, and the caller ends them.
    """
    main = sys.modules["__main__"]
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


# -- in a worker -----------------------------------------------------------------------------------

_given: list[bytes] = []


def _begin(alive: Connection, work: bytes) -> None:
    """Store the work, and end when the caller ends: it holds the other end of `alive`."""
    _given.append(work)
    threading.Thread(target=_end_with, args=(alive,), daemon=True).start()


def _end_with(alive: Connection) -> None:
    alive.poll(None)  # until it is closed
    os._exit(1)


@cache
def _work() -> Callable[[Any], None]:
    work: Callable[[Any], None] = pickle.loads(_given[0])
    return work


def _do(task: Any) -> None:
    _work()(task)
