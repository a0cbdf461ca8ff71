"""image_folder: any folder with the layout ROOT/DOMAIN/CLASS/IMAGE as a benchmark.

Domains and classes are the sorted names of the folders, images are sorted by relative path; the
order of the file system's listing has no effect. A folder `source` in place of a domain holds the
source data. Symbolic links are followed.
"""

from collections.abc import Callable
from functools import partial

import numpy as np
from pydantic import Field

from ctta_bench.datasets.io.decoded import DecodedImages
from ctta_bench.datasets.io.decoding import Geometry, image_names, subfolders
from ctta_bench.datasets.io.file_images import FileImages
from ctta_bench.errors import DataError
from ctta_bench.registry import BENCHMARKS
from ctta_bench.stream import Benchmark, ImageSet, StreamSettings

SOURCE = "source"


class FolderSettings(StreamSettings):
    """Settings of image_folder."""

    image_size: int = Field(224, ge=8, le=4096, description="images are resized to this square")


@BENCHMARKS.register_module("image_folder")
class ImageFolder(Benchmark):
    """Your own images: ROOT/DOMAIN/CLASS/IMAGE, domains and classes in sorted order."""

    Settings = FolderSettings
    name = "image_folder"
    display_name = "Image folder"
    same_images = False
    decodes = True

    @property
    def num_classes(self) -> int:  # type: ignore[override] # elsewhere a constant of the class
        """Number of class folders over all domains."""
        return len(self._classes())

    def problems(self) -> list[str]:
        """A missing root, or a root without domains or classes."""
        if self.root is None:
            return ["needs a folder ROOT/DOMAIN/CLASS/IMAGE; give it with --data-root ROOT."]
        if not self.root.is_dir():
            return [f"no folder {self.root}; give another one with --data-root ROOT."]
        if not self.domain_names() or not self._classes():
            return [f"{self.root} holds no DOMAIN/CLASS folders; give --data-root ROOT."]
        return []

    def domain_names(self) -> tuple[str, ...]:
        """All folders of the root except `source`."""
        if self.root is None or not self.root.is_dir():
            raise DataError(f"{self.name}: {self.problems()[0]}")
        return tuple(n for n in subfolders(self.root) if n != SOURCE)

    def domain(self, name: str, severity: int | None = None) -> ImageSet:
        """The images of one domain, sorted by class and file name."""
        assert self.root is not None
        names: list[str] = []
        labels: list[int] = []
        for label, class_name in enumerate(self._classes()):
            folder = self.root / name / class_name
            images = image_names(folder) if folder.is_dir() else []
            names += [f"{class_name}/{image}" for image in images]
            labels += [label] * len(images)
        if not names:
            raise DataError(f"{self.root / name}: holds no images in class folders.")
        geometry = Geometry(self.settings.image_size, fit="squash")
        found = FileImages(self.root / name, names, np.asarray(labels, np.int64), geometry)
        if self.decoded_cache is None or name == SOURCE:
            return found
        return DecodedImages(found.cut(self.settings.examples or len(names)), self.decoded_cache)

    def prepare_data(self, report: Callable[[str, int, int], None], workers: int) -> None:
        """Decode the images into the cache, if there is one."""
        for name in self.chosen_domains() if self.decoded_cache is not None else ():
            images = self.domain(name)
            assert isinstance(images, DecodedImages)
            images.fill(partial(report, f"decoding {name}"), workers)

    def source(self) -> ImageSet | None:
        """The images of the folder `source`; None if it does not exist."""
        assert self.root is not None
        return self.domain(SOURCE) if (self.root / SOURCE).is_dir() else None

    def source_location(self) -> str:
        """The folder `source`."""
        return f"the folder {self.root / SOURCE}, of CLASS/IMAGE" if self.root else ""

    def _classes(self) -> list[str]:
        assert self.root is not None
        return sorted({c for d in subfolders(self.root) for c in subfolders(self.root / d)})
