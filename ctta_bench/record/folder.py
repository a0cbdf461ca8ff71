"""The folder of one cell, and atomic writes: no half-written file has a final name.

schema.py declares the names and contents of its files; owner.py, which process writes it.
"""

import contextlib
import json
import os
import time
import traceback
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from filelock import FileLock, Timeout

from ctta_bench.errors import CttaBenchError, RunError
from ctta_bench.record.owner import (
    BusyError,
    Heartbeat,
    describe,
    identified,
    is_abandoned,
    read_owner,
    this_process,
)
from ctta_bench.record.read import read_record
from ctta_bench.record.schema import (
    ATTEMPTS_FILE,
    BATCHES_FILE,
    CELL_FILE,
    FAILURE_FILE,
    LOCK_FILE,
    LOG_FILE,
    MODELS_FOLDER,
    OWNER_FILE,
    OWNER_FILES,
    RESULT_FILE,
    SCHEMA_VERSION,
    AttemptRecord,
    CellRecord,
    FailureRecord,
    ResultRecord,
    differing_key,
)

_SAFE_DUMPER: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


@contextlib.contextmanager
def atomic(path: Path, *, fsync: bool = True) -> Iterator[Path]:
    """A temporary path next to `path`; it is renamed to `path` if the block raises nothing.

    fsync: whether to flush the content to the disk before that. Raises RunError if the disk is full
    or the folder is not writable.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        if fsync:
            with temporary.open("rb+") as file:
                os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        raise RunError(f"{path}: cannot be written ({error.strerror or error}).") from error
    finally:
        temporary.unlink(missing_ok=True)


def write_json(path: Path, value: Any) -> None:
    """Write `value` as indented JSON, atomically."""
    with atomic(path) as temporary:
        temporary.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def write_yaml(path: Path, value: Any, *, fsync: bool = True) -> None:
    """Write `value` as YAML in the given key order, atomically."""
    with atomic(path, fsync=fsync) as temporary:
        text = yaml.dump(value, Dumper=_SAFE_DUMPER, sort_keys=False, allow_unicode=True)
        temporary.write_text(text, encoding="utf-8")


def check_writable(directory: Path) -> None:
    """Create `directory` and write a test file in it. Raises RunError if that fails."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with atomic(directory / "write-test") as temporary:
            temporary.write_bytes(b".")  # an empty file fits on a full disk
        (directory / "write-test").unlink()
    except (FileExistsError, NotADirectoryError):
        raise RunError(f"{directory}: is a file, not a folder; choose another --out.") from None
    except OSError as error:
        raise RunError(
            f"{directory}: cannot be written ({error.strerror}); choose another --out."
        ) from error


class RunFolder:
    """The folder of one cell."""

    def __init__(self, path: Path) -> None:
        self.path = Path(path)

    def file(self, name: str) -> Path:
        """A file of the folder by its name."""
        return self.path / name

    @property
    def is_done(self) -> bool:
        """Whether the cell has its result."""
        return self.file(RESULT_FILE).is_file()

    def result(self) -> ResultRecord:
        """The content of result.json. Raises RunError if it is damaged or of a newer schema."""
        try:
            result: ResultRecord = json.loads(self.file(RESULT_FILE).read_text("utf-8"))
            version = int(result["schema_version"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise RunError(
                f"{self.file(RESULT_FILE)}: is damaged ({error}); delete the folder or rerun the "
                "cell with --force."
            ) from error
        if version > SCHEMA_VERSION:
            raise RunError(
                f"{self.path}: was written by a newer version (schema {version}, this one reads "
                f"{SCHEMA_VERSION}); update ctta-bench."
            )
        return result

    def check_configuration(self, record: CellRecord) -> None:
        """Raise RunError if the folder has another configuration or a newer schema."""
        file = self.file(CELL_FILE)
        if not file.exists():
            return
        try:
            stored = read_record(self.path)
            version = stored["schema_version"]
        except (yaml.YAMLError, UnicodeDecodeError, KeyError, TypeError) as error:
            raise RunError(f"{file}: is damaged; delete the folder or use --force.") from error
        if version > SCHEMA_VERSION:
            raise RunError(
                f"{file}: was written by a newer version (schema {version}, this one reads "
                f"{SCHEMA_VERSION}); update ctta-bench or choose another --out."
            )
        if key := differing_key(stored, record):
            raise RunError(
                f"{file}: this folder belongs to another configuration ({key} differs); choose "
                "another --out or use --force."
            )

    def plan(self, record: CellRecord) -> None:
        """Write cell.yaml of a planned cell, so that `status` and `report` list it."""
        file = self.file(CELL_FILE)
        if not file.exists() or not file.stat().st_size:
            self.path.mkdir(parents=True, exist_ok=True)
            # A grid writes thousands at once; the run itself writes the file again, with fsync.
            write_yaml(file, record, fsync=False)

    def clear(self) -> None:
        """Delete all files of earlier runs, so that the cell starts from the beginning."""
        for file in [*self.path.glob("*"), *self.path.glob(f"{MODELS_FOLDER}/*")]:
            if file.is_file() and file.name not in OWNER_FILES:
                file.unlink()

    def append_log(self, text: str) -> None:
        """Add a line with the time to log.txt."""
        with self.file(LOG_FILE).open("a", encoding="utf-8") as log:
            log.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')}  {text}\n")

    @contextlib.contextmanager
    def recording_failure(self) -> Iterator[None]:
        """Record why the block failed or was interrupted, so that `status` can show it.

        The error is raised again; an OSError and a `sys.exit` become a RunError.
        """
        started = timestamp()
        try:
            yield
        except BusyError:
            raise  # another process runs the cell or its warm-up: nothing failed
        except KeyboardInterrupt as error:
            self._record_attempt(started, "interrupted", signal=str(error) or "SIGINT")
            raise
        except SystemExit as error:
            failure = RunError(f"{self.path}: the code called sys.exit({error.code!r}).")
            self._record_failure(started, failure)
            raise failure from error
        except Exception as error:
            self._record_failure(started, error)
            if isinstance(error, OSError):
                raise RunError(f"{self.path}: {error.strerror or error}.") from error
            raise

    def _record_failure(self, started: str, error: BaseException) -> None:
        with contextlib.suppress(OSError, RunError):
            expected = isinstance(error, (CttaBenchError, OSError))
            text = str(error) if expected else "".join(traceback.format_exception(error)).rstrip()
            self.append_log(f"failed: {text}")
            self.write_failure(error)
        self._record_attempt(started, "failed", reason=_first_line(error))

    def _record_attempt(self, started: str, outcome: str, **facts: str) -> None:
        times = {"began": started, "ended": timestamp()}
        self.add_attempt({"outcome": outcome, **facts, **times, **identified(this_process())})

    def attempts(self) -> list[AttemptRecord]:
        """The failed, interrupted and lost attempts, oldest first; [] if none can be read."""
        try:
            attempts = json.loads(self.file(ATTEMPTS_FILE).read_text("utf-8"))
        except (OSError, ValueError):
            return []
        return attempts if isinstance(attempts, list) else []

    def add_attempt(self, attempt: Mapping[str, Any]) -> None:
        """Add an attempt to attempts.json, with its number of batches; a full disk is no error."""
        with contextlib.suppress(OSError, RunError):
            lines = self.file(BATCHES_FILE)
            done = lines.read_bytes().count(b"\n") if lines.exists() else 0
            write_json(self.file(ATTEMPTS_FILE), [*self.attempts(), {**attempt, "batches": done}])

    def write_failure(self, error: BaseException) -> None:
        """Write failed.json: why this attempt failed."""
        failure: FailureRecord = {
            "reason": _first_line(error),
            "type": type(error).__name__,
            "time": timestamp(),
        }
        write_json(self.file(FAILURE_FILE), failure)

    def write_arrays(self, name: str, arrays: dict[str, np.ndarray]) -> None:
        """Write arrays to a .npz, atomically; the same arrays give the same bytes."""
        with (
            atomic(self.file(name)) as temporary,
            zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED) as archive,
        ):
            for key, values in arrays.items():
                # A fixed date: numpy's savez would store the time of writing.
                info = zipfile.ZipInfo(f"{key}.npy", date_time=(1980, 1, 1, 0, 0, 0))
                info.compress_type = zipfile.ZIP_DEFLATED
                with archive.open(info, "w") as entry:
                    np.lib.format.write_array(entry, values, allow_pickle=False)

    @contextlib.contextmanager
    def work(self, record: CellRecord, *, force: bool = False) -> Iterator[Heartbeat | None]:
        """Lock the folder for an attempt at the cell or warm-up of `record`; None if it is done.

        force: delete earlier results first. A failure of the block is recorded. Raises RunError if
        the folder belongs to another configuration or cannot be written, BusyError if another
        process runs the cell.
        """
        check_writable(self.path)
        with self.locked() as heartbeat:
            if force:
                self.clear()
            self.check_configuration(record)
            if self.is_done:
                yield None
                return
            self.file(FAILURE_FILE).unlink(missing_ok=True)
            write_yaml(self.file(CELL_FILE), record)
            with self.recording_failure():
                yield heartbeat

    @contextlib.contextmanager
    def locked(self) -> Iterator[Heartbeat]:
        """Lock the cell for this process. Raises BusyError if another process runs it.

        If its owner is dead, this process takes the cell over and records that in log.txt and
        attempts.json.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        # The empty lock file stays: after a deletion two processes could lock two different files.
        lock = FileLock(self.file(LOCK_FILE))
        try:
            lock.acquire(timeout=0)
        except Timeout:
            raise BusyError(f"{self.path}: {self._owner()} is running this cell.") from None
        except NotImplementedError:
            pass  # a file system without locks: only the owner's file protects the cell
        except OSError as error:
            raise RunError(f"{self.path}: cannot be locked ({error.strerror}).") from error
        heartbeat = Heartbeat(self.file(OWNER_FILE))
        try:
            self._own(heartbeat)
            yield heartbeat
        finally:
            heartbeat.stop()
            lock.release()

    def _own(self, heartbeat: Heartbeat) -> None:
        owner = read_owner(heartbeat.path)
        if owner is not None:
            if not is_abandoned(heartbeat.path, owner):
                raise BusyError(f"{self.path}: {describe(owner)} is running this cell.")
            self.append_log(f"taken over from {describe(owner)}, which no longer runs")
            self.add_attempt({"outcome": "lost", "ended": timestamp(), **identified(owner)})
            heartbeat.path.unlink(missing_ok=True)
        try:
            heartbeat.start()
        except FileExistsError:
            raise BusyError(f"{self.path}: {self._owner()} is running this cell.") from None
        except OSError as error:
            raise RunError(
                f"{heartbeat.path}: cannot be written ({error.strerror or error})."
            ) from error

    def _owner(self) -> str:
        return describe(read_owner(self.file(OWNER_FILE)) or {})


def _first_line(error: BaseException) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else repr(error)


def timestamp() -> str:
    """The current time, ISO 8601 in UTC."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
