"""Cityscapes → ACDC (Sakaridis et al., 2021): street scenes in fog, at night, in rain and snow.

The protocol of CoTTA's SegFormer code, used in later work as well: the 400 training images of each
condition in the order of their paths, one by one, at 960x540, scored with labels of 1920x1080.

Layout as unpacked, under ROOT or under ROOT/ACDC and ROOT/cityscapes:
rgb_anon/COND/SPLIT/SEQUENCE/*_rgb_anon.png, gt/COND/SPLIT/SEQUENCE/*_gt_labelTrainIds.png;
leftImg8bit/SPLIT/CITY/*_leftImg8bit.png, gtFine/SPLIT/CITY/*_gtFine_label{Train,}Ids.png.
"""

import functools
import hashlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import Field, field_serializer, field_validator

from ctta_bench.datasets.fetching.origins import by_hand_sentence
from ctta_bench.datasets.io.listing import left_out, listing, passed_over_note, subfolders
from ctta_bench.datasets.io.roots import data_root, provenance
from ctta_bench.datasets.io.street_classes import CLASSES
from ctta_bench.datasets.io.street_files import Size, StreetFiles, StreetImages, listed
from ctta_bench.errors import DataError
from ctta_bench.registry import BENCHMARKS
from ctta_bench.stream import CLEAN, Benchmark, ImageSet, SegmentationSettings, StreamSettings
from ctta_bench.stream.loading import load_ahead

CONDITIONS = ("fog", "night", "rain", "snow")
REFERENCE = "_ref"
SPLITS = ("train", "val")
SCALE: Size = (540, 960)
ACDC_SIZE, CITYSCAPES_SIZE = (1080, 1920), (1024, 2048)


class StreetSettings(SegmentationSettings):
    """Settings of cityscapes_acdc."""

    rounds: int = Field(
        3, ge=1, description="times that the four conditions are repeated; CoTTA uses 10"
    )
    split: Literal["train", "val"] = Field(
        "train", description="split of ACDC: 400 images per condition, or about 100"
    )
    scale: tuple[int, int] = Field(
        SCALE, description="height and width that images are resized to fit; labels keep their size"
    )
    images: Literal["all"] | Path = Field(
        "all", description="all images of the split, or a file that lists COND/SPLIT/SEQUENCE/FILE"
    )

    @field_validator("scale")
    @classmethod
    def _large_enough(cls, value: Size) -> Size:
        if not all(16 <= side <= 4096 for side in value):
            raise ValueError("write [HEIGHT, WIDTH], each from 16 to 4096")
        return value

    @field_serializer("images")
    def _content_of_a_list(self, value: Literal["all"] | Path) -> str:
        """The hash of a list's content, not its path, is part of a cell's identity."""
        if isinstance(value, str):
            return value
        content = "\n".join(_lines(value))
        return f"list sha256 {hashlib.sha256(content.encode()).hexdigest()[:16]}"


@BENCHMARKS.register_module("cityscapes_acdc")
class CityscapesACDC(Benchmark):
    """Cityscapes → ACDC: segmentation of streets in fog, at night, in rain and in snow."""

    Settings = StreetSettings
    name = "cityscapes_acdc"
    display_name = "Cityscapes → ACDC"
    year = 2021
    citation = "sakaridis2021acdc"
    domain_display_names = {
        "fog": "Fog", "night": "Night", "rain": "Rain", "snow": "Snow",
        "fog_ref": "Fog (reference)", "night_ref": "Night (reference)",
        "rain_ref": "Rain (reference)", "snow_ref": "Snow (reference)", "clean": "Clean",
    }  # fmt: skip
    task = "segmentation"
    num_classes = len(CLASSES)
    class_names = CLASSES
    default_model = "segformer_b5"
    same_images = False
    decodes = True

    def __init__(self, settings: StreamSettings | None = None, root: Path | None = None) -> None:
        super().__init__(settings, data_root(root))
        self._passed_over: dict[Path, str] = {}

    def domain_names(self) -> tuple[str, ...]:
        """The four conditions in the protocol's order."""
        return CONDITIONS

    def extra_domains(self) -> tuple[str, ...]:
        """ACDC's images of the same places in clear weather, and Cityscapes' validation images."""
        return (*(condition + REFERENCE for condition in CONDITIONS), CLEAN)

    def unknown_folders(self) -> list[str]:
        """Folders that are not a condition."""
        folder = self._place("rgb_anon")
        if not folder.is_dir():
            return []
        return [*(n for n in subfolders(folder) if n not in CONDITIONS), *left_out(folder)]

    @property
    def provenance(self) -> str | None:  # type: ignore[override] # elsewhere a constant
        """How the images differ from those of the protocol; None if they do not."""
        chosen, notes = self.settings, [provenance(self._place("rgb_anon"))]
        if chosen.split != "train":
            notes.append(f"the {chosen.split} split of ACDC instead of its training images")
        if tuple(chosen.scale) != SCALE:
            notes.append(f"images at {_words(chosen.scale)} pixels instead of {_words(SCALE)}")
        if chosen.images != "all":
            notes.append(f"a list of images ({Path(chosen.images).name})")
        notes += self._passed_over.values()
        return "; ".join(filter(None, notes)) or None

    def domain(self, name: str, severity: int | None = None) -> ImageSet:
        """The images of a condition with label maps. Raises DataError if some are missing."""
        return self._domains(name)

    @functools.cached_property
    def _domains(self) -> Callable[[str], StreetFiles]:
        return functools.cache(self._found)  # a run needs it several times

    def _found(self, name: str) -> StreetFiles:
        if name == CLEAN:
            return self._cityscapes("val")
        condition, is_reference = name.removesuffix(REFERENCE), name.endswith(REFERENCE)
        ref = REFERENCE if is_reference else ""
        inside = f"{condition}/{self.settings.split}{ref}"
        images, maps = self._place("rgb_anon") / inside, self._place("gt") / inside
        suffix, map_suffix = f"_rgb{ref}_anon.png", f"_gt{ref}_labelTrainIds.png"
        names = self._listed(images, inside, suffix)
        return self._paired(images, names, suffix, maps, map_suffix, self.settings.scale)

    def _listed(self, folder: Path, inside: str, suffix: str) -> list[str]:
        """Names of a domain's images: all, sorted by path, or those of a list in its order."""
        there = self._all(folder, suffix)
        if not there:
            raise DataError(f"no images *{suffix} in {folder}; {self._how()}")
        if self.settings.images == "all":
            return there
        lines = [line for line in _lines(self.settings.images) if line.startswith(f"{inside}/")]
        names = [line.removeprefix(f"{inside}/") for line in lines]
        absent = sorted(set(names) - set(there))
        if absent or not names:
            what = f"{absent[0]}, which {folder} lacks" if absent else f"no image of {inside}/"
            raise DataError(f"{self.settings.images}: lists {what}.")
        return names

    def _all(self, folder: Path, suffix: str) -> list[str]:
        """All images of a folder; notes those that end otherwise, which are not read."""
        if not folder.is_dir():
            return []
        found, there = listed(folder, suffix), listing(folder)
        others = sorted({*there.images, *there.passed_over} - set(found))
        if (note := passed_over_note(others)) is not None:
            place = folder.relative_to(data_root(self.root)).as_posix()
            self._passed_over[folder] = f"{place}: {note}"
        return found

    def _paired(
        self, images: Path, names: list[str], suffix: str, maps: Path, map_suffix: str, box: Size
    ) -> StreetFiles:
        """Images with the label maps of the same names. Raises DataError for a missing map."""
        map_names = [name.removesuffix(suffix) + map_suffix for name in names]
        there = set(listed(maps, map_suffix)) if maps.is_dir() else set()
        absent = next((name for name in map_names if name not in there), None)
        if absent is not None:
            raise DataError(f"{maps / absent}: this label map is missing; {self._how()}")
        raw_ids = map_suffix.endswith("labelIds.png")
        return StreetFiles(images, names, box, maps, map_names, raw_ids)

    def _cityscapes(self, split: str) -> StreetFiles:
        images, maps = (self._place(name) / split for name in ("leftImg8bit", "gtFine"))
        suffix = "_leftImg8bit.png"
        names = self._all(images, suffix)
        if not names:
            raise DataError(f"no images *{suffix} in {images}; {self._how('cityscapes')}")
        # Train ids exist only if cityscapesScripts have made them.
        made = "_gtFine_labelTrainIds.png"
        kind = made if maps.is_dir() and listed(maps, made) else "_gtFine_labelIds.png"
        return self._paired(images, names, suffix, maps, kind, self._source_box)

    @property
    def _source_box(self) -> Size:
        """The size of Cityscapes' images at the same scale as ACDC's: 512x1024 for 540x960."""
        sides = zip(CITYSCAPES_SIZE, self.settings.scale, ACDC_SIZE, strict=True)
        height, width = (round(full * scale / acdc) for full, scale, acdc in sides)
        return height, width

    @functools.cached_property
    def _source(self) -> StreetImages | None:
        folder = self._place("leftImg8bit") / "train"
        if not folder.is_dir():
            return None
        if self._place("gtFine").is_dir():
            return self._cityscapes("train")
        return StreetImages(folder, listed(folder, "_leftImg8bit.png"), self._source_box)

    def source(self) -> ImageSet | None:
        """Cityscapes' training images, with label maps if they exist; None without images."""
        return self._source

    def source_location(self) -> str:
        """Cityscapes' folders."""
        return f"{self._place('leftImg8bit') / 'train'} and {self._place('gtFine') / 'train'}"

    def source_settings(self) -> dict[str, Any]:
        """Only the scale: split and list select images of ACDC."""
        return {"scale": list(self.settings.scale)}

    def training_sets(self, folder: Path | None) -> tuple[ImageSet, ImageSet | None]:
        """Cityscapes with labels: training images, and validation images if they are there.

        Raises DataError if they are missing.
        """
        at = self if folder is None else type(self)(self.settings, folder)
        train = at._cityscapes("train")
        has_test = (at._place("leftImg8bit") / "val").is_dir()
        return train, at._cityscapes("val") if has_test else None

    def problems(self) -> list[str]:
        """Missing data of the domains that the stream reads."""
        if self.decoded_cache is not None:
            return ["does not cache decoded images; leave out --cache-decoded."]
        if not self._place("rgb_anon").is_dir():
            return [f"no folder {self._place('rgb_anon')}; {self._how()}"]
        found = []
        for name in self.chosen_domains():
            try:
                self._domains(name)
            except DataError as error:
                found.append(f"domain {name}: {error}")
        return found

    def prepare_data(self, report: Callable[[str, int, int], None], workers: int) -> None:
        """Read every label map of the stream: a wrong one stops the run before its start."""
        for name in self.chosen_domains():
            images = self._domains(name)
            count = min(self.settings.examples or len(images.names), len(images.names))
            for number, _ in enumerate(
                load_ahead(partial(_try_map, images), range(count), workers)
            ):
                report(f"reading label maps of {name}", number + 1, count)

    def _place(self, name: str) -> Path:
        """ROOT/`name`, or `name` in the folder of its data set under ROOT."""
        root = data_root(self.root)
        sets = (
            ("cityscapes", "Cityscapes") if name in ("leftImg8bit", "gtFine") else ("ACDC", "acdc")
        )
        places = [root / name, *(root / folder / name for folder in sets)]
        return next((place for place in places if place.is_dir()), places[0])

    def _how(self, name: str = "cityscapes_acdc") -> str:
        return by_hand_sentence(name, data_root(self.root))


def _try_map(images: StreetFiles, number: int) -> bool:
    images.maps(np.array([number]))
    return True


def _words(size: Size) -> str:
    """Width and height, as usually written: `960x540`."""
    return f"{size[1]}x{size[0]}"


def _lines(file: Path) -> list[str]:
    """The images of a list. Raises DataError for a file that is missing, empty or not text."""
    try:
        lines = [line.strip() for line in file.read_text(encoding="utf-8").splitlines()]
    except (OSError, UnicodeDecodeError):
        raise DataError(f"{file}: no such text file of lines COND/SPLIT/SEQUENCE/FILE.") from None
    names = [line.removeprefix("rgb_anon/") for line in lines if line]
    for name in names:
        condition, _, rest = name.partition("/")
        if (
            condition not in CONDITIONS
            or rest.partition("/")[0].removesuffix(REFERENCE) not in SPLITS
        ):
            raise DataError(
                f"{file}: {name!r} is not COND/SPLIT/SEQUENCE/FILE with COND one of "
                f"{', '.join(CONDITIONS)} and SPLIT train or val."
            )
    if not names or len(set(names)) < len(names):
        raise DataError(f"{file}: lists {'an image twice' if names else 'no images'}.")
    return names
