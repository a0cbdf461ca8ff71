"""The shards of a corrupted set, and how workers make them."""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from PIL import Image

from ctta_bench.datasets.io.files import atomic, writing
from ctta_bench.datasets.making.clean import CleanImages
from ctta_bench.datasets.making.corruptions import U8, VERSION, corrupt

JPEG_QUALITY = 85  # of the published ImageNet-C, with optimised tables
Layout = Literal["arrays", "folders", "domains"]
Task = tuple[str, int, int]  # corruption, severity, number of the shard


@dataclass(frozen=True)
class Recipe:
    """What determines the images of a set, apart from the clean images.

    parameters: table "cifar" or "imagenet". frost: another table for frost only, since the frost
    pictures of ImageNet are not in the package. severity: that of layout "domains". folder_names:
    folder by corruption, if it is not the corruption's name.
    """

    layout: Layout
    parameters: str
    seed: int = 0
    frost: str | None = None
    severity: int = 5
    folder_names: dict[str, str] | None = None

    def table(self, corruption: str) -> str:
        """The table of parameters for a corruption."""
        return (self.frost or self.parameters) if corruption == "frost" else self.parameters

    def key(self, clean: CleanImages) -> str:
        """A hash of everything that determines a pixel: sets with equal keys may be combined."""
        facts = [self.layout, self.parameters, self.seed, self.frost, self.severity]
        return hashlib.sha256(json.dumps([*facts, VERSION, clean.sha256()]).encode()).hexdigest()


@dataclass(frozen=True)
class Unit:
    """A file or folder `place` of the set that gets its final name at once."""

    place: str
    corruption: str
    severities: tuple[int, ...]


@dataclass(frozen=True)
class Job:
    """A set that is being made: finished shards of `shard` images are in the folder `work`."""

    clean: CleanImages
    recipe: Recipe
    target: Path
    work: Path
    shard: int

    def tasks(self, unit: Unit) -> list[Task]:
        """The shards of a unit, in the order of their images."""
        shards = range(-(-len(self.clean.labels) // self.shard))
        return [(unit.corruption, s, number) for s in unit.severities for number in shards]

    def mark(self, task: Task) -> Path:
        """The file that marks a shard as made; for arrays it is the shard itself."""
        corruption, severity, number = task
        suffix = "npy" if self.recipe.layout == "arrays" else "done"
        return self.work / f"{corruption}-{severity}-{number:04d}.{suffix}"

    def place(self, corruption: str, severity: int) -> str:
        """Path of a unit's folder or file within the set."""
        name = (self.recipe.folder_names or {}).get(corruption, corruption)
        return {
            "arrays": f"{name}.npy",
            "folders": f"{name}/{severity}",
            "domains": name,
        }[self.recipe.layout]

    def write_shard(self, task: Task) -> None:
        """Make one shard and mark it."""
        corruption, severity, number = task
        numbers = range(len(self.clean.labels))[number * self.shard : (number + 1) * self.shard]
        if self.recipe.layout == "arrays":
            images = np.stack([self.image(corruption, severity, i) for i in numbers])
            with atomic(self.mark(task)) as temporary, temporary.open("wb") as stream:
                np.save(stream, images)
            return
        folder = self.work / "images" / self.place(corruption, severity)
        for i in numbers:
            self._save(folder / self.clean.names[i], self.image(corruption, severity, i))
        with atomic(self.mark(task)) as temporary:
            temporary.touch()

    def image(self, corruption: str, severity: int, number: int) -> U8:
        """One corrupted image."""
        table, seed = self.recipe.table(corruption), self.recipe.seed
        clean = self.clean.image(number)
        return corrupt(clean, corruption, severity, parameters=table, seed=seed, index=number)

    def _save(self, stem: Path, image: U8) -> None:
        with writing(stem):
            stem.parent.mkdir(parents=True, exist_ok=True)
            picture = Image.fromarray(image)
            if self.recipe.layout == "folders":
                # By concatenation: a stem may contain dots.
                picture.save(f"{stem}.JPEG", quality=JPEG_QUALITY, optimize=True)
            else:
                picture.save(f"{stem}.png")
