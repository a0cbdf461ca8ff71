"""ImageNet-C (Hendrycks and Dietterich, 2019) and ImageNet-3DCC (Kar et al., 2022).

Layout: ROOT/ImageNet-C/CORRUPTION/SEVERITY/SYNSET/ILSVRC2012_val_XXXXXXXX.JPEG, 50,000 images of
224x224 per severity, as published; ROOT/ImageNet-3DCC likewise. A stream has RobustBench's 5,000
images in the order of its list, as in the published tables, or all 50,000 in the order of their
numbers (`images=all`).
"""

import hashlib
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field, field_serializer

from ctta_bench.datasets.io.decoding import Geometry
from ctta_bench.datasets.io.file_benchmark import FileBenchmark, FileSettings
from ctta_bench.datasets.io.file_images import FileImages
from ctta_bench.datasets.io.flat_val import flat_classes, flat_files
from ctta_bench.datasets.io.image_lists import (
    ROBUSTBENCH,
    SMALL,
    all_files,
    listed_files,
    read_list,
    robustbench_files,
)
from ctta_bench.datasets.io.imagenet import FOLDER as CLEAN_FOLDER
from ctta_bench.datasets.io.imagenet import class_folders
from ctta_bench.datasets.io.listing import left_out, subfolders
from ctta_bench.datasets.io.roots import data_root, how_to_get
from ctta_bench.datasets.making.corruptions import CORRUPTIONS, HOLD_OUT
from ctta_bench.errors import DataError
from ctta_bench.registry import BENCHMARKS
from ctta_bench.stream import CLEAN, CorruptionSettings

VIT_B_16 = "timm:vit_base_patch16_224.augreg_in21k_ft_in1k"
CORRUPTIONS_3D = (
    "near_focus", "far_focus", "bit_error", "color_quant", "flash", "fog_3d", "h265_abr",
    "h265_crf", "iso_noise", "low_light", "xy_motion_blur", "z_motion_blur",
)  # fmt: skip


class ImageNetCSettings(FileSettings, CorruptionSettings):
    """Settings of ImageNet-C and -3DCC."""

    images: Literal["list", "all"] | Path = Field(
        "list", description="list: RobustBench's 5,000; all; or a file that lists SYNSET/FILE"
    )

    @field_serializer("images")
    def _content_of_a_list(self, value: Literal["list", "all"] | Path) -> str:
        """The hash of a list's content, not its path, is part of a cell's identity."""
        if isinstance(value, str):
            return value
        content = "\n".join(read_list(value))
        return f"list sha256 {hashlib.sha256(content.encode()).hexdigest()[:16]}"


class CorruptionFolders(FileBenchmark):
    """Base of benchmarks with the layout ROOT/`folder`/CORRUPTION/SEVERITY/SYNSET/FILE."""

    Settings = ImageNetCSettings
    num_classes = 1000
    default_model = VIT_B_16
    severities = (1, 2, 3, 4, 5)
    corruptions: tuple[str, ...] = ()
    hold_out: tuple[str, ...] = ()

    def domain_names(self) -> tuple[str, ...]:
        """The corruptions in their usual order."""
        return self.corruptions

    def extra_domains(self) -> tuple[str, ...]:
        """Hold-out corruptions, which no mean includes, and the clean validation images."""
        return (*self.hold_out, CLEAN)

    def unknown_folders(self) -> list[str]:
        """Folders that are not a corruption, hidden and system folders."""
        if not self.home.is_dir():
            return []
        known = {*self.corruptions, *self.hold_out}
        others = [name for name in subfolders(self.home) if name not in known]
        return [*others, *left_out(self.home), *super().unknown_folders()]

    def missing(self) -> str:
        """The message if the whole set is missing."""
        return (
            f"no folder {self.home}; expected is {self.folder}/CORRUPTION/SEVERITY/SYNSET/FILE. "
            + how_to_get(self.name, data_root(self.root))
        )

    def files(self, name: str, severity: int) -> FileImages:
        """The images of a corruption that the setting `images` selects, in its order."""
        root = data_root(self.root)
        if name == CLEAN:
            folder, geometry = root / CLEAN_FOLDER / "val", self.cropped
        else:
            folder = self.home / name / str(severity)
            geometry = Geometry(
                self.settings.crop
            )  # published in this size; another size is an error
        if not folder.is_dir():
            raise DataError(f"no folder {folder}; {how_to_get(self.name, root)}")
        if name == CLEAN and (classes := flat_classes(folder)) is not None:
            return self._of_flat(folder, classes, geometry)
        match self.settings.images:
            case "all":
                return all_files(folder, geometry)
            case "list":
                images, note = robustbench_files(folder, geometry)
                self.notes |= {note} if note else set()
                return images
            case file:
                class_folders(folder)
                return listed_files(folder, read_list(file), str(file), geometry)

    def _of_flat(self, folder: Path, classes: dict[str, str], geometry: Geometry) -> FileImages:
        """The same for a folder without synset folders, given the classes of its images."""
        match self.settings.images:
            case "list" if len(classes) < len(read_list(ROBUSTBENCH)):
                self.notes.add(SMALL)
                return flat_files(folder, classes, geometry)
            case "list":
                whole = read_list(ROBUSTBENCH)
                return flat_files(folder, classes, geometry, whole, "RobustBench's list")
            case "all":
                return flat_files(folder, classes, geometry)
            case file:
                return flat_files(folder, classes, geometry, read_list(file), str(file))


@BENCHMARKS.register_module("imagenet_c")
class ImageNetC(CorruptionFolders):
    """ImageNet-C: 15 corruptions and 4 for hold-out, at 5 severities, 5,000 or 50,000 images."""

    name = "imagenet_c"
    display_name = "ImageNet-C"
    year = 2019
    citation = "hendrycks2019corruptions"
    domain_display_names = {
        "gaussian_noise": "Gaussian", "shot_noise": "Shot", "impulse_noise": "Impulse",
        "defocus_blur": "Defocus", "glass_blur": "Glass", "motion_blur": "Motion",
        "zoom_blur": "Zoom", "snow": "Snow", "frost": "Frost", "fog": "Fog",
        "brightness": "Brightness", "contrast": "Contrast", "elastic_transform": "Elastic",
        "pixelate": "Pixelate", "jpeg_compression": "JPEG", "speckle_noise": "Speckle",
        "gaussian_blur": "Gaussian blur", "spatter": "Spatter", "saturate": "Saturate",
        "clean": "Clean",
    }  # fmt: skip
    folder = "ImageNet-C"
    semantic_shift: ClassVar = {"benchmark": "cifar100_c", "labels": 100, "domains": ["clean"]}
    corruptions = CORRUPTIONS
    hold_out = HOLD_OUT


@BENCHMARKS.register_module("imagenet_3dcc")
class ImageNet3DCC(CorruptionFolders):
    """ImageNet-3DCC: 12 corruptions that use the depth of the scene, at 5 severities."""

    name = "imagenet_3dcc"
    display_name = "ImageNet-3DCC"
    year = 2022
    citation = "kar2022corruptions"
    domain_display_names = {
        "near_focus": "Near focus", "far_focus": "Far focus", "bit_error": "Bit error",
        "color_quant": "Colour quantisation", "flash": "Flash", "fog_3d": "Fog 3D",
        "h265_abr": "H.265 ABR", "h265_crf": "H.265 CRF", "iso_noise": "ISO noise",
        "low_light": "Low light", "xy_motion_blur": "XY motion blur",
        "z_motion_blur": "Z motion blur", "clean": "Clean",
    }  # fmt: skip
    folder = "ImageNet-3DCC"
    semantic_shift: ClassVar = {"benchmark": "cifar100_c", "labels": 100, "domains": ["clean"]}
    corruptions = CORRUPTIONS_3D
