"""DomainNet-126 and ImageNet-D109: photographs, clip art, paintings, sketches and infographics.

Both are parts of DomainNet (Peng et al., 2019, the cleaned version) that text files list, a line
DOMAIN/CLASS/FILE LABEL per image. Layout: ROOT/DomainNet-126/DOMAIN/CLASS/*.jpg with the lists
ROOT/domainnet126_lists/DOMAIN_list.txt, and ROOT/imagenet-d/DOMAIN/CLASS/*.jpg (links to DomainNet)
with ROOT/imagenet_d109_lists/DOMAIN_list.txt. Lists and links are those of
mariodoebler/test-time-adaptation. Images have any size. They are resized (DomainNet-126: to a
square of 256 pixels, whatever their proportions; ImageNet-D109: the shorter side), then the centre
is cropped. The seed shuffles each domain by default.
"""

import functools
import re
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from ctta_bench.datasets.imagenet_c import VIT_B_16
from ctta_bench.datasets.imagenet_variants import VariantSettings
from ctta_bench.datasets.io.decoding import Geometry
from ctta_bench.datasets.io.file_benchmark import FileBenchmark
from ctta_bench.datasets.io.file_images import FileImages
from ctta_bench.datasets.io.image_lists import absent_files
from ctta_bench.datasets.io.imagenet import synsets, train_images
from ctta_bench.datasets.io.roots import data_root, how_to_get
from ctta_bench.errors import DataError
from ctta_bench.registry import BENCHMARKS
from ctta_bench.stream import ImageSet

# The stream of each source domain, as in the published tables.
ORDERS = {
    "real": ("clipart", "painting", "sketch"),
    "clipart": ("sketch", "real", "painting"),
    "painting": ("real", "sketch", "clipart"),
    "sketch": ("painting", "clipart", "real"),
}
_LINE = re.compile(r"(\w+)/([^/\\\s]+/[^/\\\s]+) (\d{1,4})")


class DomainNetSettings(VariantSettings):
    """Settings of DomainNet-126: the domain that the source model was trained on."""

    source: Literal["real", "clipart", "painting", "sketch"] = Field(
        "real", description="domain of the source model; the stream has the other three"
    )


class Listed(FileBenchmark):
    """Base of benchmarks whose images and labels are in ROOT/`lists`/DOMAIN_list.txt."""

    Settings = VariantSettings
    same_images = False
    lists: ClassVar[str] = ""

    def files(self, name: str, severity: int) -> FileImages:
        """The listed images of a domain, in the order of the list."""
        file = data_root(self.root) / self.lists / f"{name}_list.txt"
        try:
            stat = file.stat()
        except OSError:
            raise DataError(
                f"no list {file}. {how_to_get(self.name, data_root(self.root))}"
            ) from None
        names, labels = _read(file, (stat.st_size, stat.st_mtime_ns), name, self.num_classes)
        folder = self.home / name
        absent = absent_files(folder, names)
        if absent:
            raise DataError(
                f"{folder}: lacks {len(absent):,} of the {len(names):,} images of {file.name}, "
                f"first {absent[0]}; complete it, or choose other domains with "
                "--set domains=[NAME]."
            )
        return FileImages(folder, names, labels, self.geometry)

    @property
    def geometry(self) -> Geometry:
        """Of the streamed images."""
        return self.cropped

    def missing(self) -> str:
        """The message if the images are missing."""
        return f"no folder {self.home}. {how_to_get(self.name, data_root(self.root))}"


@functools.lru_cache(maxsize=12)
def _read(
    file: Path, _stamp: tuple[int, int], domain: str, classes: int
) -> tuple[tuple[str, ...], np.ndarray]:
    """The names CLASS/FILE and the labels int64 [n] of a list."""
    names, labels = [], []
    try:
        text = file.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise DataError(f"{file}: is not a text file of lines DOMAIN/CLASS/FILE LABEL.") from None
    for number, line in enumerate(text.splitlines(), 1):
        found = _LINE.fullmatch(line.strip())
        if line.strip() and (
            found is None or found[1] != domain or int(found[3]) >= classes or ".." in found[2]
        ):
            raise DataError(
                f"{file}:{number}: {line.strip()!r} is not {domain}/CLASS/FILE LABEL with a label "
                f"from 0 to {classes - 1}."
            )
        if found is not None:
            names.append(found[2])
            labels.append(int(found[3]))
    if not names:
        raise DataError(f"{file}: lists no images.")
    return tuple(names), np.asarray(labels, np.int64)


@BENCHMARKS.register_module("domainnet126")
class DomainNet126(Listed):
    """DomainNet-126: photographs, clip art, paintings and sketches of 126 classes."""

    Settings = DomainNetSettings
    name = "domainnet126"
    display_name = "DomainNet-126"
    year = 2019
    citation = "peng2019domainnet"
    domain_display_names = {
        "clipart": "Clip art", "infograph": "Infographics", "painting": "Paintings",
        "quickdraw": "Quick Draw", "real": "Photographs", "sketch": "Sketches",
    }  # fmt: skip
    folder = "DomainNet-126"
    lists = "domainnet126_lists"
    num_classes = 126
    default_model = "domainnet126_resnet50"

    @property
    def geometry(self) -> Geometry:
        """Images are resized to a square, which changes their proportions, then cropped."""
        chosen = self.settings
        return Geometry(chosen.crop, "squash", chosen.resize, chosen.interpolation)

    def domain_names(self) -> tuple[str, ...]:
        """The three domains other than the source, in the published order."""
        return ORDERS[self.settings.source]

    def source(self) -> ImageSet | None:
        """The images of the source domain, on which the model was trained; None without a list."""
        source = self.settings.source
        if not (data_root(self.root) / self.lists / f"{source}_list.txt").is_file():
            return None
        return self.files(source, 0)

    def source_location(self) -> str:
        """The list of the source domain."""
        return f"the list {data_root(self.root) / self.lists / self.settings.source}_list.txt"


# The classes of ImageNet, by number, that are the 109 classes in the order of the lists: those
# classes of ImageNet-D (Rusak et al., 2022) to which one class of ImageNet corresponds.
D109 = (
    403, 407, 310, 414, 954, 425, 790, 430, 435, 831, 309, 785, 703, 447, 455, 457, 937, 462, 463,
    354, 470, 471, 472, 483, 486, 497, 635, 49, 534, 799, 48, 740, 103, 543, 998, 549, 767, 545,
    552, 130, 567, 587, 515, 334, 746, 417, 604, 104, 615, 623, 607, 626, 437, 629, 637, 650, 651,
    947, 677, 679, 628, 544, 24, 696, 701, 145, 721, 953, 963, 748, 761, 491, 776, 71, 784, 349,
    792, 797, 113, 801, 805, 806, 814, 910, 335, 823, 919, 827, 949, 833, 843, 845, 610, 849, 850,
    851, 672, 292, 859, 866, 920, 466, 875, 513, 879, 883, 889, 897, 340,
)  # fmt: skip


@BENCHMARKS.register_module("imagenet_d109")
class ImageNetD109(Listed):
    """ImageNet-D109: five domains of DomainNet, 109 classes that ImageNet has as well."""

    name = "imagenet_d109"
    display_name = "ImageNet-D109"
    year = 2022
    citation = "rusak2022imagenetd"
    domain_display_names = "domainnet126"
    folder = "imagenet-d"
    lists = "imagenet_d109_lists"
    num_classes = 109
    default_model = VIT_B_16

    def domain_names(self) -> tuple[str, ...]:
        """Five of the six domains; the sixth, quickdraw, is in no published table."""
        return ("clipart", "infograph", "painting", "real", "sketch")

    def extra_domains(self) -> tuple[str, ...]:
        """Drawings of a few lines, which hardly any model recognises."""
        return ("quickdraw",)

    def hold_out_domains(self) -> tuple[str, ...]:
        """None: the sixth domain is not there to choose hyper-parameters on."""
        return ()

    @functools.cached_property
    def _train(self) -> FileImages | None:
        classes = [synsets()[number] for number in D109]
        return train_images(data_root(self.root), self.cropped, classes)

    @classmethod
    def model_classes(cls) -> tuple[int, ...] | None:
        """Positions of the 109 classes among ImageNet's 1,000."""
        return D109
