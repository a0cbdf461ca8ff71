"""Copies of the user's files in a launch, so that later edits change nothing in its jobs.

DIR/.launch/ID/snapshot/plugins/N/     the files that `--plugin` names, and presets next to them
DIR/.launch/ID/snapshot/modules/       what they import, and plug-ins that are modules; on sys.path
DIR/.launch/ID/snapshot/presets/N/     preset files of the cells
DIR/.launch/ID/snapshot/experiment/    the experiment file
"""

import hashlib
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ctta_bench.errors import ConfigError, RunError
from ctta_bench.launch.steps import Step
from ctta_bench.registry import PluginFile, plugin_files

FOLDER = "snapshot"
MODULES = "modules"
_SUFFIXES = (".yaml", ".yml")
_UNWANTED = shutil.ignore_patterns("__pycache__", ".*")


@dataclass(frozen=True)
class Snapshot:
    """What a launch copied. plugins: as its workers load them. presets: copy by original."""

    plugins: list[str]
    presets: dict[str, str] = field(default_factory=dict)
    files: list[str] = field(default_factory=list)  # below the snapshot's folder


def take_snapshot(
    folder: Path, *, plugins: Sequence[str], experiment: str, steps: Sequence[Step]
) -> Snapshot:
    """Copy plug-ins, preset files and the experiment file to `folder`.

    Files that a plug-in reads by their path are not copied. Raises ConfigError if a plug-in has
    changed since this process loaded it, RunError if a file cannot be copied.
    """
    chosen = dict.fromkeys(step.cell.asked.preset for step in steps if step.cell.asked)
    presets = {
        preset: str(folder / "presets" / str(number) / Path(preset).name)
        for number, preset in enumerate(p for p in chosen if p.endswith(_SUFFIXES))
    }
    try:
        (folder / MODULES).mkdir(parents=True)
        named = [
            _copy_plugin(folder / "plugins" / str(n), plugin) for n, plugin in enumerate(plugins)
        ]
        _copy_modules(folder / MODULES, {Path(p).resolve() for p in plugins if p.endswith(".py")})
        for original, copy in presets.items():
            _copy(Path(original), Path(copy))
        if experiment.endswith(_SUFFIXES):
            _copy(Path(experiment), folder / "experiment" / Path(experiment).name)
    except OSError as error:
        raise RunError(f"{folder}: files cannot be copied to it ({error}).") from error
    files = sorted(f.relative_to(folder).as_posix() for f in folder.rglob("*") if f.is_file())
    return Snapshot(named, presets, files)


def _copy_plugin(folder: Path, plugin: str) -> str:
    """Copy a plug-in that is a file, and its presets; returns the copy, or a module's name."""
    if not plugin.endswith(".py"):
        return plugin
    given = Path(plugin).absolute()
    for file in given.parent.glob("presets/**/*.yaml"):
        _copy(file, folder / file.relative_to(given.parent))
    for code in plugin_files().values():
        if code.path == given.resolve():
            return str(_copy_code(code, folder / given.name))
    raise ConfigError(f"plug-in {plugin!r}: is not loaded.")


def _copy_modules(folder: Path, named: set[Path]) -> None:
    """Copy what plug-ins import; packages as a whole, since they may load more of themselves."""
    for name, file in plugin_files().items():
        top, _, inside = name.partition("/")
        if inside == "__init__.py":
            shutil.copytree(file.path.parent, folder / top, ignore=_UNWANTED, dirs_exist_ok=True)
        if file.path not in named:
            _copy_code(file, folder / name)


def _copy_code(file: PluginFile, target: Path) -> Path:
    _copy(file.path, target)
    if hashlib.sha256(target.read_bytes()).hexdigest() != file.sha256:
        raise ConfigError(f"{file.path}: was edited while the grid was planned; start it again.")
    return target


def _copy(file: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy2(file, target)
