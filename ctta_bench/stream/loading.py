"""Loading ahead: worker processes read and decode the next batches while the device computes.

Order and content do not depend on the number of workers: a worker gets the number of a batch, draws
no random numbers, and batches are returned in order.
"""

import contextlib
import pickle
import signal
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Generic, Protocol, TypeVar

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from ctta_bench.errors import CttaBenchError, DataError

T = TypeVar("T")
AHEAD = 2  # results that each worker prepares in advance
CHUNK = 64  # images that a worker checks at a time
LINGER_SECONDS = 60
MOST_WORKERS = 16  # enough for one accelerator; shared memory holds AHEAD batches per worker


@dataclass(frozen=True)
class _Failure:
    """An error in a worker; torch itself would return it as a page of traceback."""

    error: CttaBenchError


class _Numbered(Dataset[T | _Failure], Generic[T]):
    """`load(number)` as a dataset for torch's DataLoader."""

    def __init__(self, load: Callable[[int], T]) -> None:
        self.load = load

    def __getitem__(self, number: int) -> T | _Failure:
        try:
            return self.load(number)
        except CttaBenchError as error:
            return _Failure(type(error)(str(error)))


def load_ahead(
    load: Callable[[int], T],
    numbers: Sequence[int],
    workers: int = 0,
    *,
    pin: bool = False,
    start_method: str | None = None,
) -> Iterator[T]:
    """`load(number)` for each number, in order, by `workers` processes; 0: in this process.

    `load` and its results must be picklable. `pin` puts tensors into page-locked memory, from which
    an accelerator copies while it computes. Errors that `load` raises are raised here; a worker
    that dies raises RuntimeError, which `named_failures` turns into a clear DataError.
    """
    if workers == 0 or not numbers:
        yield from map(load, numbers)
        return
    loader = DataLoader(
        _Numbered(load),
        batch_size=None,
        sampler=numbers,
        num_workers=min(workers, len(numbers)),
        prefetch_factor=AHEAD,
        pin_memory=pin,
        collate_fn=_as_it_is,
        worker_init_fn=_leave_signals,
        multiprocessing_context=start_method,
        generator=torch.Generator(),  # the loader must not draw from the global generator
    )
    with warnings.catch_warnings():
        # Python 3.12 warns of every fork in a process with threads; the workers use none of them.
        warnings.filterwarnings("ignore", message=".*fork", category=DeprecationWarning)
        batches = iter(loader)
    for batch in batches:
        if isinstance(batch, _Failure):
            raise batch.error
        yield batch


class Loadable(Protocol):
    """The attributes of an image set that `find_damaged` needs."""

    @property
    def labels(self) -> np.ndarray:
        """One label per image."""
        ...

    def load(self, index: np.ndarray) -> torch.Tensor:
        """The images with these numbers."""
        ...


def find_damaged(
    images: Loadable,
    report: Callable[[int, int], None],
    workers: int,
    *,
    wanted: int | None = None,
) -> dict[int, str]:
    """The numbers of images that cannot be loaded, with the reasons.

    Stops after `wanted` intact images. `report(images tried, total)` is called after each chunk.
    """
    total = len(images.labels)
    starts = range(0, total, CHUNK)
    bad: dict[int, str] = {}
    for done, found in enumerate(load_ahead(partial(_try_chunk, images), starts, workers), 1):
        bad |= found
        tried = min(done * CHUNK, total)
        report(tried, total)
        if wanted is not None and tried - len(bad) >= wanted:
            break
    return bad


def _try_chunk(images: Loadable, start: int) -> dict[int, str]:
    bad = {}
    for number in range(start, min(start + CHUNK, len(images.labels))):
        try:
            images.load(np.array([number]))
        except DataError as error:
            bad[number] = str(error)
    return bad


def _as_it_is(item: T) -> T:
    return item


def _leave_signals(_: int) -> None:
    """Ignore signals that terminals and schedulers send to all processes.

    The parent process first saves its state and then ends the workers. On SIGTERM a worker ends
    after a minute, if the parent has not ended it before.
    """
    for number in (signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda number, frame: signal.alarm(LINGER_SECONDS))


def default_workers(decodes: bool, cores: int) -> int:
    """Number of loading processes: 0 for arrays, else one less than the number of cores."""
    return max(0, min(MOST_WORKERS, cores - 1)) if decodes else 0


@contextlib.contextmanager
def named_failures(workers: int) -> Iterator[None]:
    """Raise DataError that states why workers failed; torch's own messages name no cause.

    A killed worker raises an error at any point of the main thread, so this context must enclose
    everything that happens while workers run.
    """
    fewer = f"try --workers {workers // 2}" + ("" if workers < 2 else " or 0")
    try:
        yield
    except RuntimeError as error:
        text = str(error)
        if "shared memory" in text or "shm" in text or "Bus error" in text:
            raise DataError(
                "loading workers ran out of shared memory (/dev/shm; in a container it is set by "
                f"--shm-size or --ipc=host): enlarge it, or {fewer}."
            ) from error
        if "DataLoader worker" in text:
            raise DataError(
                "a loading worker was killed, for lack of memory or from outside: free memory, or "
                f"{fewer}."
            ) from error
        raise
    except pickle.PicklingError as error:
        raise DataError(
            f"this benchmark cannot be sent to loading processes ({error}); use --workers 0."
        ) from error
