"""What a run leaves on disk, and how: nothing half-written ever stands under a final name.

cell.yaml        the resolved configuration
batches.jsonl    a line a batch, appended
predictions.npz  per image, in stream order
result.json      written last; its presence means done
env.json         versions, device, time
state.pt         newest checkpoint; state.previous.pt the one before; both removed when done
models/          adapted networks, if they are asked for (export.py)
failed.json      why the last attempt failed
log.txt          what was said
"""

import contextlib
import json
import os
import socket
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from filelock import FileLock, Timeout

from ctta_bench.errors import RunError

SCHEMA_VERSION = 1
HEARTBEAT_SECONDS = 10.0


@contextlib.contextmanager
def atomic(path: Path) -> Iterator[Path]:
    """A temporary path beside `path` that takes its name when the block ends well.

    Raises RunError if the disk is full or the folder is not writable.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
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


def write_yaml(path: Path, value: Any) -> None:
    """Write `value` as YAML in the given key order, atomically."""
    with atomic(path) as temporary:
        text = yaml.safe_dump(value, sort_keys=False, allow_unicode=True)
        temporary.write_text(text, encoding="utf-8")


def check_writable(directory: Path) -> None:
    """Make `directory` and try a file in it. Raises RunError if that fails."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with atomic(directory / "write-test") as temporary:
            temporary.write_bytes(b"")
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
        return self.file("result.json").is_file()

    def result(self) -> dict[str, Any]:
        """The stored result. Raises RunError if it is damaged or of a newer schema."""
        try:
            result: dict[str, Any] = json.loads(self.file("result.json").read_text("utf-8"))
            version = int(result["schema_version"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise RunError(
                f"{self.file('result.json')}: is damaged ({error}); delete the folder or run the "
                "cell again with --force."
            ) from error
        if version > SCHEMA_VERSION:
            raise RunError(
                f"{self.path}: was written by a newer version (schema {version}, this one reads "
                f"{SCHEMA_VERSION}); update ctta-bench."
            )
        return result

    def check_configuration(self, record: dict[str, Any]) -> None:
        """Raise RunError if the folder was written by another configuration or a newer schema."""
        file = self.file("cell.yaml")
        if not file.exists():
            return
        try:
            stored = yaml.safe_load(file.read_text("utf-8"))
            version = stored["schema_version"]
        except (yaml.YAMLError, UnicodeDecodeError, KeyError, TypeError) as error:
            raise RunError(f"{file}: is damaged; delete the folder or use --force.") from error
        if version > SCHEMA_VERSION:
            raise RunError(
                f"{file}: was written by a newer version (schema {version}, this one reads "
                f"{SCHEMA_VERSION}); update ctta-bench or choose another --out."
            )
        for key in record:
            if key not in ("experiment", "preset") and stored.get(key) != record[key]:
                raise RunError(
                    f"{file}: this folder was written by another configuration ({key} differs); "
                    "choose another --out or use --force."
                )

    def plan(self, record: dict[str, Any]) -> None:
        """Lay down cell.yaml of a cell yet to run, so that `status` and `report` know it."""
        if not self.file("cell.yaml").exists():
            self.path.mkdir(parents=True, exist_ok=True)
            write_yaml(self.file("cell.yaml"), record)

    def clear(self) -> None:
        """Delete every file that a run leaves, so that it starts anew."""
        for file in [*self.path.glob("*"), *self.path.glob("models/*")]:
            if file.is_file() and file.name not in (".lock", "cell.lock.json"):
                file.unlink()

    def append_log(self, text: str) -> None:
        """Add a line with the time to log.txt."""
        with self.file("log.txt").open("a", encoding="utf-8") as log:
            log.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')}  {text}\n")

    @contextlib.contextmanager
    def noting_failure(self) -> Iterator[None]:
        """Keep why the block failed, so that `status` can tell; the caller still sees the error.

        An OSError becomes a RunError.
        """
        try:
            yield
        except Exception as error:
            with contextlib.suppress(OSError, RunError):
                self.append_log(f"failed: {error}")
                self.write_failure(error)
            if isinstance(error, OSError):
                raise RunError(f"{self.path}: {error.strerror or error}.") from error
            raise

    def write_failure(self, error: BaseException) -> None:
        """Keep why this attempt failed."""
        reason = str(error).strip().splitlines()[0] if str(error).strip() else repr(error)
        write_json(
            self.file("failed.json"),
            {"reason": reason, "type": type(error).__name__, "time": timestamp()},
        )

    def write_predictions(self, arrays: dict[str, np.ndarray]) -> None:
        """Write predictions.npz, atomically and to the same bytes for the same arrays."""
        with (
            atomic(self.file("predictions.npz")) as temporary,
            zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED) as archive,
        ):
            for name, values in arrays.items():
                # A fixed date: numpy's own savez would stamp the time of writing.
                info = zipfile.ZipInfo(f"{name}.npy", date_time=(1980, 1, 1, 0, 0, 0))
                info.compress_type = zipfile.ZIP_DEFLATED
                with archive.open(info, "w") as entry:
                    np.lib.format.write_array(entry, values, allow_pickle=False)

    @contextlib.contextmanager
    def locked(self) -> Iterator["Heartbeat"]:
        """Hold the cell; only one process writes it. Raises RunError if another one has it."""
        self.path.mkdir(parents=True, exist_ok=True)
        # The empty lock file stays: deleting it would let two processes hold two files of its name.
        lock = FileLock(self.file(".lock"))
        try:
            lock.acquire(timeout=0)
        except Timeout:
            raise RunError(f"{self.path}: {self._owner()} is running this cell.") from None
        except OSError as error:
            raise RunError(f"{self.path}: cannot be locked ({error.strerror}).") from error
        owner = self.file("cell.lock.json")
        try:
            heartbeat = Heartbeat(owner)
            heartbeat.beat()
            yield heartbeat
        finally:
            owner.unlink(missing_ok=True)
            lock.release()

    def _owner(self) -> str:
        try:
            owner = json.loads(self.file("cell.lock.json").read_text("utf-8"))
            return f"process {owner['pid']} on {owner['host']}"
        except (OSError, ValueError, KeyError):
            return "another process"


class Heartbeat:
    """Tells others that the owner of a cell lives: the lock's file is renewed now and then."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._last = -HEARTBEAT_SECONDS

    def beat(self) -> None:
        """Renew the file if the last time was long enough ago."""
        now = time.monotonic()
        if now - self._last >= HEARTBEAT_SECONDS:
            self._last = now
            owner = {"host": socket.gethostname(), "pid": os.getpid(), "heartbeat": time.time()}
            write_json(self.path, owner)


def timestamp() -> str:
    """The time now, ISO 8601 in UTC."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
