"""Experiments of the package: their files and titles, and the command that runs one."""

import shlex
from importlib import resources
from pathlib import Path

import yaml


def packaged(experiment: str) -> Path | None:
    """The file of an experiment of the package, None for a user's own."""
    folder = Path(str(resources.files("ctta_bench.experiments")))
    return next(iter(sorted(folder.rglob(f"{experiment}.yaml"))), None)


def title(experiment: str) -> str:
    """The title in the file of a packaged experiment; for a user's own, its name."""
    file = packaged(experiment)
    found = yaml.safe_load(file.read_text("utf-8")) if file else {}
    return str(found.get("title") or experiment)


def command(experiment: str) -> str:
    """The command that runs an experiment of the package, or one from the user's own file."""
    name = experiment if packaged(experiment) else f"{experiment}.yaml"
    return shlex.join(["ctta-bench", "grid", name])
