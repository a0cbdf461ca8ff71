"""Figures of the report as objects that a notebook shows."""

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ctta_bench.errors import ConfigError
from ctta_bench.registry import FIGURES

if TYPE_CHECKING:
    from ctta_bench.analysis.read.collect import Runs


@dataclass(frozen=True)
class Picture:
    """A figure: `files` are its PNG, PDF and CSV by suffix (".png", ...).

    Example: `result.plot().save("stream.pdf")`
    """

    name: str
    files: dict[str, bytes]

    def save(self, file: Path | str) -> Path:
        """Write the picture, or its numbers (.csv); the suffix chooses the format."""
        path = Path(file).expanduser()
        if path.suffix not in self.files:
            raise ConfigError(f"{path}: choose one of {', '.join(sorted(self.files))}.")
        path.write_bytes(self.files[path.suffix])
        return path

    def __repr__(self) -> str:
        return f"<Picture {self.name}: .save(FILE) with {', '.join(sorted(self.files))}>"

    def _repr_png_(self) -> bytes:
        return self.files[".png"]


def picture(runs: "Runs", name: str) -> Picture:
    """The figure of this name of runs of one group. Raises ConfigError if they have none."""
    from ctta_bench.analysis.figure.canvas import SCREEN

    entry, draw = FIGURES.find(name), FIGURES.get(name)
    group = runs if entry.attributes.get("of") == "all" else runs.groups()[0]
    with tempfile.TemporaryDirectory() as folder:
        stem = Path(folder) / name
        made = draw(group, stem, SCREEN)
        files = made if "text" in entry.attributes else [f for _, part in made[:1] for f in part]
        if not files:
            raise ConfigError(f"figure {name!r}: these results have no such figure.")
        return Picture(name, {file.suffix: file.read_bytes() for file in files})
