"""Experiments: their files and titles, and the command that runs one."""

import json
import shlex
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from ctta_bench.record.schema import EXPERIMENT_FILE


def packaged(experiment: str) -> Path | None:
    """The file of an experiment of the package, None for a user's own."""
    folder = Path(str(resources.files("ctta_bench.experiments")))
    return next(iter(sorted(folder.rglob(f"{experiment}.yaml"))), None)


def title(experiment: str, folder: Path) -> str:
    """The title that `grid` recorded in a folder of runs, or of a packaged experiment; its name."""
    file = packaged(experiment)
    found = yaml.safe_load(file.read_text("utf-8")) if file else {}
    return str(_recorded(experiment, folder).get("title") or found.get("title") or experiment)


def command(experiment: str, folder: Path) -> str:
    """The command that runs an experiment of the package, or one from the user's own file."""
    recorded = _recorded(experiment, folder).get("file")
    name = experiment if packaged(experiment) else f"{experiment}.yaml"
    return shlex.join(["ctta-bench", "grid", str(recorded or name)])


def _recorded(experiment: str, folder: Path) -> dict[str, Any]:
    """What `grid` recorded of an experiment; {} where the folder has other runs or no record."""
    try:
        found = json.loads((folder / EXPERIMENT_FILE).read_text("utf-8"))
        return found if found["name"] == experiment else {}
    except (OSError, ValueError, TypeError, KeyError):
        return {}
