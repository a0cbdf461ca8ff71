"""What tests of launches share: grids of slow cells, waiting for what happens, and comparing."""

import hashlib
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from typer.testing import CliRunner, Result

from ctta_bench.cli import app
from tests.conftest import TOY

SLOW = Path(__file__).parent / "slow.py"
PLUGINS = ("--plugin", str(TOY), "--plugin", str(SLOW))
BATCHES = 15  # three domains of 40 images in batches of 8
Found = TypeVar("Found")


def call(*arguments: object) -> Result:
    """`ctta-bench` in this process."""
    return CliRunner().invoke(app, [str(a) for a in arguments])


def start(*arguments: object, **kwargs: Any) -> "subprocess.Popen[str]":
    """`ctta-bench` in a process of its own, as a terminal starts it.

    What a shell runs in the background passes over Ctrl-C, and hands that on to its children.
    """
    words = [sys.executable, "-m", "ctta_bench", *map(str, arguments)]
    pipe = subprocess.PIPE
    return subprocess.Popen(
        words, stdout=pipe, stderr=pipe, text=True, preexec_fn=_heed_interrupts, **kwargs
    )


def _heed_interrupts() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def grid(file: Path, *arguments: object) -> Result:
    """`ctta-bench grid` of a file with the plug-ins of the tests, on the CPU."""
    return call("grid", file, *PLUGINS, "--device", "cpu", *arguments)


def write_grid(folder: Path, *entries: str, name: str = "trial", more: str = "") -> Path:
    """An experiment file on the toy benchmark; entries: methods, as YAML."""
    file = folder / f"{name}.yaml"
    file.write_text(f"methods: [{', '.join(entries)}]\nbenchmarks: [toy]\n{more}\n")
    return file


def slow(pause: float, **values: object) -> str:
    """An entry of a slow method, as YAML."""
    words = ", ".join(f"{key}: {value}" for key, value in {"pause": pause, **values}.items())
    return f"{{name: slow, set: {{{words}}}}}"


def rows(directory: Path) -> dict[str, dict[str, Any]]:
    """The status of a folder's cells, by cell."""
    result = call("status", directory, "--format", "json")
    return {row["cell"]: row for row in json.loads(result.stdout)}


def states(directory: Path) -> list[str]:
    """The states of all cells, sorted."""
    return sorted(row["state"] for row in rows(directory).values())


def until(ask: Callable[[], Found], seconds: float = 240, what: str = "") -> Found:
    """Ask again and again until the answer is true; returns it."""
    end = time.monotonic() + seconds
    while not (answer := ask()):
        if time.monotonic() > end:
            raise TimeoutError(f"waited {seconds} s for {what or ask}")
        time.sleep(0.2)
    return answer


def batches(folder: Path) -> int:
    """Lines in a cell's batches.jsonl; 0 if there is none."""
    file = folder / "batches.jsonl"
    return file.read_bytes().count(b"\n") if file.exists() else 0


def without_times(folder: Path) -> dict[str, Any]:
    """The contents of a finished run apart from times and the pause of the slow method."""
    found = recorded(folder)
    del found["result"]["cell"]
    return found


def recorded(folder: Path) -> dict[str, Any]:
    """The contents of a finished run apart from times."""
    lines = [json.loads(line) for line in (folder / "batches.jsonl").read_text().splitlines()]
    result = json.loads((folder / "result.json").read_text())
    for line in lines:
        del line["ms"]
    for key in ("seconds", "images_per_second", "peak_memory_mb"):
        del result["cost"][key]
    predictions = hashlib.sha256((folder / "predictions.npz").read_bytes()).hexdigest()
    return {"lines": lines, "result": result, "predictions": predictions}
