"""ImageNet-R, -A, -Sketch and -V2: other images of ImageNet's classes, one domain each.

Layout: ROOT/imagenet-r/SYNSET/*.jpg, ROOT/imagenet-a/SYNSET/*.jpg, ROOT/ImageNet-Sketch/sketch/
SYNSET/*.JPEG, ROOT/imagenet-v2/imagenetv2-matched-frequency-format-val/CLASS/*.jpeg, where CLASS is
a number from 0 to 999. Images have any size: the shorter side is resized, then the centre is
cropped. Files are sorted by class, so by default the seed shuffles them.
"""

import numpy as np
from pydantic import Field

from ctta_bench.datasets.imagenet_c import VIT_B_16
from ctta_bench.datasets.io.file_benchmark import FileBenchmark, FileSettings
from ctta_bench.datasets.io.file_images import FileImages
from ctta_bench.datasets.io.imagenet import class_files, positions, synsets
from ctta_bench.datasets.io.listing import class_tree, subfolders
from ctta_bench.datasets.io.roots import data_root, how_to_get
from ctta_bench.errors import DataError
from ctta_bench.registry import BENCHMARKS
from ctta_bench.stream import ImageOrder


class VariantSettings(FileSettings):
    """Settings of the ImageNet variants: shuffled by default."""

    order: ImageOrder = Field(
        "shuffled", description="within a domain: file (by class and name), or shuffled by the seed"
    )


class Variant(FileBenchmark):
    """Base of the variants with synset folders."""

    Settings = VariantSettings
    num_classes = 1000
    num_logits = 1000  # of the model, before it is restricted to the set's classes
    default_model = VIT_B_16

    def domain_names(self) -> tuple[str, ...]:
        """The whole set."""
        return (self.name,)

    def unknown_folders(self) -> list[str]:
        """Folders of other classes, hidden and system folders."""
        known = {*synsets(self.classes)} | {str(number) for number in range(1000)}
        others = subfolders(self.home) if self.home.is_dir() else []
        return [*(name for name in others if name not in known), *super().unknown_folders()]

    def missing(self) -> str:
        """The message if the set is missing."""
        return f"no folder {self.home}. {how_to_get(self.name, data_root(self.root))}"

    def files(self, name: str, severity: int) -> FileImages:
        """All images, sorted by class and name."""
        return class_files(self.home, self.cropped, synsets(self.classes))

    @classmethod
    def model_classes(cls) -> tuple[int, ...] | None:
        """Positions of the set's classes among ImageNet's 1,000; None for all 1,000."""
        return positions(cls.classes) if cls.num_classes < cls.num_logits else None


@BENCHMARKS.register_module("imagenet_r")
class ImageNetR(Variant):
    """ImageNet-R: 30,000 renditions (art, cartoons, toys, ...) of 200 classes."""

    name = "imagenet_r"
    display_name = "ImageNet-R"
    year = 2021
    citation = "hendrycks2021renditions"
    domain_display_names = {"imagenet_r": "ImageNet-R"}
    folder = "imagenet-r"
    num_classes = 200
    classes = "imagenet_r"


@BENCHMARKS.register_module("imagenet_a")
class ImageNetA(Variant):
    """ImageNet-A: 7,500 photographs of 200 classes that ResNet-50 misclassifies."""

    name = "imagenet_a"
    display_name = "ImageNet-A"
    year = 2021
    citation = "hendrycks2021adversarial"
    domain_display_names = {"imagenet_a": "ImageNet-A"}
    folder = "imagenet-a"
    num_classes = 200
    classes = "imagenet_a"


@BENCHMARKS.register_module("imagenet_sketch")
class ImageNetSketch(Variant):
    """ImageNet-Sketch: 50,889 black-and-white sketches of all 1,000 classes."""

    name = "imagenet_sketch"
    display_name = "ImageNet-Sketch"
    year = 2019
    citation = "wang2019sketch"
    domain_display_names = {"imagenet_sketch": "ImageNet-Sketch"}
    folder = "ImageNet-Sketch/sketch"


@BENCHMARKS.register_module("imagenet_v2")
class ImageNetV2(Variant):
    """ImageNet-V2: 10,000 new photographs of all 1,000 classes, matched in frequency."""

    name = "imagenet_v2"
    display_name = "ImageNet-V2"
    year = 2019
    citation = "recht2019imagenet"
    domain_display_names = {"imagenet_v2": "ImageNet-V2"}
    folder = "imagenet-v2/imagenetv2-matched-frequency-format-val"

    def files(self, name: str, severity: int) -> FileImages:
        """All images, sorted by class number (not as text: 100 comes after 2) and file."""
        numbers = subfolders(self.home)
        unknown = [n for n in numbers if not (n.isascii() and n.isdigit() and int(n) < 1000)]
        if unknown:
            raise DataError(
                f"{self.home}: the folder {unknown[0]!r} is not a class number from 0 to 999; "
                "rename or move it."
            )
        tree = class_tree(self.home)
        names = sorted(tree.images, key=lambda name: int(name.partition("/")[0]))
        if not names:
            raise DataError(f"{self.home}: holds no images in folders 0 to 999.")
        labels = np.asarray([int(name.partition("/")[0]) for name in names], np.int64)
        passed_over, left_out = tree.passed_over, tree.left_out
        return FileImages(self.home, names, labels, self.cropped, passed_over, left_out)
