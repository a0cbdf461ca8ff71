"""Synthetic run folders and an empty working folder."""

import json
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

LINE = {"batch": 0, "round": 0, "domain": "clean", "n": 8, "errors": 1, "loss": None, "ms": 500.0}
CELL = """\
schema_version: 1
id: {name}
experiment: {experiment}
method:
  name: tent
  preset: default
  hyperparameters:
    lr: 0.001
  window: 0
benchmark:
  name: toy
  version: 1
  domains: [clean]
  rounds: 1
  examples: 80
model:
  name: toy_vit
  sha256: {digest}
preprocessing:
  regime: 'true'
precision: float32
seed: {seed}
num_batches: 10
"""

Make = Callable[..., Path]
Ask = Callable[..., None]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Make a folder of a cell by hand: `done` of its ten batches, and further files as values."""

    def make(
        name: str, done: int = 0, experiment: str = "trial", seed: int = 0, **files: Any
    ) -> Path:
        folder = tmp_path / experiment / name
        folder.mkdir(parents=True)
        text = CELL.format(name=name, experiment=experiment, seed=seed, digest="0" * 64)
        (folder / "cell.yaml").write_text(text)
        lines = [json.dumps(LINE | {"batch": n}) + "\n" for n in range(done)]
        (folder / "batches.jsonl").write_text("".join(lines))
        for key, value in files.items():
            (folder / key.replace("__", ".")).write_text(json.dumps(value))
        return folder

    return make


RESULT = {
    "schema_version": 1,
    "cell": "x",
    "metric": "error",
    "mean": 12.5,
    "rounds": [
        {"round": 0, "mean": 12.5, "domains": [{"domain": "clean", "n": 80, "error": 12.5}]}
    ],
    "cost": {"seconds": 40.0, "images_per_second": 2.0, "peak_memory_mb": 9.0},
}


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ask:
    """Programs of Slurm that print given text."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")

    def say(squeue: str | None = "", sacct: str | None = "") -> None:
        for name, text in (("squeue", squeue), ("sacct", sacct)):
            (folder / f"{name}.txt").write_text(text or "")
            code = "exit 1" if text is None else f"cat '{folder / name}.txt'"
            (folder / name).write_text(f"#!/bin/sh\n{code}\n")
            (folder / name).chmod(stat.S_IRWXU)

    say()
    return say
