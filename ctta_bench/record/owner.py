"""The owner of a cell: the one process that writes it. It renews a file as long as it lives.

A lock of the system is released when its process ends, but on network file systems it may work
within one host only, or not at all. So a file next to the lock names the owner, with a heartbeat.
An owner counts as dead if its host confirms it, or if the file has not changed for a long time.
That time is measured by the clock of the file system, which both sides share, and by watching the
file, so that a clock that jumps does not end a living run.
"""

import contextlib
import json
import os
import socket
import tempfile
import threading
import time
import uuid
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from ctta_bench.errors import RunError
from ctta_bench.record.schema import OWNER_FILE, OwnerRecord, ProcessRecord

HEARTBEAT_SECONDS = 10.0
STALE_SECONDS = 60.0  # six heartbeats missed
WATCH_SECONDS = 15.0  # how long a stale file is watched before its owner counts as dead


class BusyError(RunError):
    """Another process runs the cell; nothing failed."""


def this_process() -> ProcessRecord:
    """What identifies this process, also after its end: host, pid, start time, job."""
    job = os.environ.get("SLURM_ARRAY_JOB_ID")
    job = (
        f"{job}_{os.environ.get('SLURM_ARRAY_TASK_ID')}" if job else os.environ.get("SLURM_JOB_ID")
    )
    return {
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "born": start_ticks(os.getpid()),
        "processes": _process_table(),
        "job": job,
    }


def start_ticks(pid: int) -> str | None:
    """When a process of this host started, in ticks of the kernel; None without process or /proc.

    Pids are reused; pid and start time together identify a process.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else fields[19]


def _process_table() -> str:
    """The pid namespace: containers with the same host name have different ones."""
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return ""


def is_dead(owner: Mapping[str, Any]) -> bool | None:
    """Whether a process has ended; None if this host cannot find out."""
    if owner.get("host") != socket.gethostname() or not isinstance(owner.get("pid"), int):
        return None
    if owner.get("processes") != _process_table():
        return None
    try:
        os.kill(owner["pid"], 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        pass
    born = start_ticks(owner["pid"])
    return born != owner["born"] if owner.get("born") else None


def identified(process: Mapping[str, Any]) -> dict[str, Any]:
    """Host, pid and job of a process; None for unknown values."""
    return {key: process.get(key) for key in ("host", "pid", "job")}


def describe(owner: Mapping[str, Any]) -> str:
    """`process 12 on node1 (job 7_0)`, or less if not all is known."""
    if "pid" not in owner:
        return "another process"
    job = f" (job {owner['job']})" if owner.get("job") else ""
    return f"process {owner['pid']} on {owner.get('host', 'an unknown host')}{job}"


def read_owner(file: Path) -> dict[str, Any] | None:
    """The content of an owner's file; {} if it cannot be read, None if it does not exist."""
    try:
        owner = json.loads(file.read_text("utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError):
        return {}
    return owner if isinstance(owner, dict) else {}


class FileClock:
    """The clock of a folder's file system, read at most once; the host's if we cannot write there.

    Heartbeats are compared with this clock only, because the clocks of hosts differ.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @cached_property
    def _ahead(self) -> float:
        """Seconds that the file system's clock is ahead of the monotonic clock."""
        try:
            with tempfile.NamedTemporaryFile(dir=self.folder, prefix=".clock") as file:
                file.write(b".")
                file.flush()
                return os.fstat(file.fileno()).st_mtime - time.monotonic()
        except OSError:
            return time.time() - time.monotonic()

    @property
    def now(self) -> float:
        """Seconds since 1970."""
        return self._ahead + time.monotonic()

    def age_of(self, file: Path) -> float:
        """Seconds since a file was written; 0 if it does not exist."""
        try:
            return self.now - file.stat().st_mtime
        except FileNotFoundError:
            return 0.0


def is_stale(file: Path, clock: FileClock) -> bool | None:
    """Whether an owner's file was not renewed for `STALE_SECONDS`; None if its time is unusable.

    The time of a file is unusable if it lies in the future, as after a clock that jumped.
    """
    age = clock.age_of(file)
    return None if age <= -STALE_SECONDS else age >= STALE_SECONDS


def seems_owned(cell: Path, clock: FileClock) -> bool:
    """Whether a living process runs the cell of a folder, by one look, as `status` needs it.

    It differs from `is_owned` only on a file system whose clock jumps: `is_owned` watches the file.
    """
    file = cell / OWNER_FILE
    owner = read_owner(file)
    dead = None if owner is None else is_dead(owner)
    return owner is not None and not (is_stale(file, clock) if dead is None else dead)


def is_abandoned(file: Path, owner: Mapping[str, Any]) -> bool:
    """Whether the owner of a file is dead; watches the file if it looks old."""
    dead = is_dead(owner)
    if dead is not None:
        return dead
    stale = is_stale(file, FileClock(file.parent))
    # A file from the future must stay unchanged as long as it takes to become stale.
    return stale is not False and _stays_unchanged(file, WATCH_SECONDS if stale else STALE_SECONDS)


def is_owned(cell: Path) -> bool:
    """Whether a living process runs the cell of a folder."""
    owner = read_owner(cell / OWNER_FILE)
    return owner is not None and not is_abandoned(cell / OWNER_FILE, owner)


def _stays_unchanged(file: Path, seconds: float) -> bool:
    """Whether a file stays unchanged for some time."""
    before, end = _stamp(file), time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(min(0.5, seconds))
        if _stamp(file) != before:
            return False
    return True


def _stamp(file: Path) -> tuple[int, int] | None:
    try:
        stat = file.stat()
    except OSError:
        return None
    return stat.st_mtime_ns, stat.st_ino


class Heartbeat:
    """Shows other processes that the owner of a cell lives: a thread renews the owner's file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.started = time.time()
        self._token = uuid.uuid4().hex
        self._lost = False
        self._checked = 0.0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._renew_until_stopped, daemon=True)

    def start(self) -> None:
        """Create the file and start to renew it. Raises FileExistsError if it exists."""
        with self.path.open("x", encoding="utf-8") as file:
            json.dump(self._owner(), file)
        self._thread.start()

    def stop(self) -> None:
        """Stop renewing, and remove the file if it is still ours."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()
        if self._is_ours():
            self.path.unlink(missing_ok=True)

    def beat(self) -> None:
        """Raise BusyError if another process has taken the cell over, because this one hung."""
        if not self._lost and time.monotonic() - self._checked > 3 * HEARTBEAT_SECONDS:
            self._renew()  # the whole process was suspended, and the thread with it
        if self._lost:
            raise BusyError(
                f"{self.path.parent}: {describe(read_owner(self.path) or {})} took this cell over "
                "while this process hung."
            )

    def _renew_until_stopped(self) -> None:
        while not self._stop.wait(HEARTBEAT_SECONDS):
            self._renew()

    def _renew(self) -> None:
        self._checked = time.monotonic()
        if not self._is_ours():
            self._lost = self._lost or self.path.exists()
            return
        temporary = self.path.with_name(f".{self.path.name}.{self._token}.tmp")
        # A full disk stops the run when it writes results; here it only delays a heartbeat.
        with contextlib.suppress(OSError):
            temporary.write_text(json.dumps(self._owner()), encoding="utf-8")
            temporary.replace(self.path)
        temporary.unlink(missing_ok=True)

    def _is_ours(self) -> bool:
        return (read_owner(self.path) or {}).get("token") == self._token

    def _owner(self) -> OwnerRecord:
        return {
            **this_process(),
            "token": self._token,
            "started": self.started,
            "heartbeat": time.time(),
        }
