"""image_folder: any folder with the layout ROOT/DOMAIN/CLASS/IMAGE as a benchmark.

Domains and classes are the sorted names of the folders, images are sorted by relative path; the
order of the file system's listing has no effect. A class is a folder that holds images, directly or
in subfolders, in some domain. A folder `source` in place of a domain holds the source data.
Symbolic links are followed; hidden and system folders are left out.
"""

import functools
from collections.abc import Callable
from functools import partial

import numpy as np
from pydantic import Field

from ctta_bench.datasets.io.decoded import DecodedImages
from ctta_bench.datasets.io.decoding import Geometry
from ctta_bench.datasets.io.file_images import FileImages
from ctta_bench.datasets.io.listing import (
    ClassTree,
    class_tree,
    left_out,
    passed_over_note,
    strays,
    subfolders,
)
from ctta_bench.datasets.io.roots import provenance
from ctta_bench.errors import DataError
from ctta_bench.registry import BENCHMARKS
from ctta_bench.stream import Benchmark, ImageSet, StreamSettings

SOURCE = "source"
NAMED = 5  # absent classes that a note names


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
        """Number of classes over all domains."""
        return len(self.class_names)

    @property
    def class_names(self) -> tuple[str, ...]:  # type: ignore[override] # elsewhere a constant
        """The sorted names of the class folders that hold images in some domain."""
        found = (name for tree in self._trees.values() for name in tree.classes)
        return tuple(sorted(set(found)))

    @property
    def provenance(self) -> str | None:  # type: ignore[override] # elsewhere a constant
        """The footnote of self-made images, files that are not read, and absent classes."""
        if self.root is None or not self.root.is_dir():
            return None
        files = [f"{d}/{file}" for d, tree in self._trees.items() for file in tree.passed_over]
        notes = [provenance(self.root), passed_over_note([*strays(self.root), *files])]
        for name, tree in self._trees.items():
            absent = [c for c in self.class_names if c not in tree.classes]
            if absent and name in (*self.chosen_domains(), SOURCE):
                more = f" and {len(absent) - NAMED} more" if len(absent) > NAMED else ""
                notes.append(f"{name} has no images of {', '.join(absent[:NAMED])}{more}")
        return "; ".join(filter(None, notes)) or None

    def unknown_folders(self) -> list[str]:
        """Hidden and system folders, and class folders that hold no image in any domain."""
        if self.root is None or not self.root.is_dir():
            return []
        known = set(self.class_names)
        inside = [f"{d}/{folder}" for d, tree in self._trees.items() for folder in tree.left_out]
        empty = [
            f"{d}/{name}"
            for d in self._trees
            for name in subfolders(self.root / d)
            if name not in known
        ]
        return [*left_out(self.root), *inside, *empty]

    def problems(self) -> list[str]:
        """A missing root, or a root without domains or classes."""
        if self.root is None:
            return ["needs a folder ROOT/DOMAIN/CLASS/IMAGE; give it with --data-root ROOT."]
        if not self.root.is_dir():
            return [f"no folder {self.root}; give another one with --data-root ROOT."]
        if not self.domain_names() or not self.class_names:
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
        names = self._trees[name].images if name in self._trees else []
        if not names:
            raise DataError(f"{self.root / name}: holds no images in class folders.")
        place = {class_name: label for label, class_name in enumerate(self.class_names)}
        labels = np.asarray([place[image.partition("/")[0]] for image in names], np.int64)
        geometry = Geometry(self.settings.image_size, fit="squash")
        found = FileImages(self.root / name, names, labels, geometry)
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

    @functools.cached_property
    def _trees(self) -> dict[str, ClassTree]:
        """The images by domain and class, without class folders that hold none."""
        assert self.root is not None
        return {name: class_tree(self.root / name).with_images() for name in subfolders(self.root)}
