"""CCC, Continuously Changing Corruptions (Press et al., 2023, RDumb): the published streams.

Nine streams of 7,500,000 images at each level of difficulty: three speeds (images until the next
change) times three seeds. Layout: ROOT/CCC/baseline_LEVEL_transition+speed_SPEED_seed_SEED/
serial_00000.tar, ...; tars of members KEY.input.jpg (224x224) and KEY.output.cls (class 0 to 999),
read without unpacking. Each stream is a domain, in the order of its tars, and the method is reset
before it. The paper reports the mean over the nine streams.
"""

import hashlib
import tarfile
from dataclasses import dataclass
from functools import lru_cache
from io import BytesIO
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from platformdirs import user_cache_path
from pydantic import Field
from torch import Tensor

from ctta_bench.datasets.imagenet_c import VIT_B_16
from ctta_bench.datasets.io.decoding import Geometry, decode
from ctta_bench.datasets.io.files import atomic
from ctta_bench.datasets.io.imagenet import train_images
from ctta_bench.datasets.io.listing import left_out, looks_like_an_image, subfolders
from ctta_bench.datasets.io.roots import data_root, provenance
from ctta_bench.errors import DataError
from ctta_bench.registry import BENCHMARKS
from ctta_bench.stream import Benchmark, ImageSet, SettingName, StreamSettings

SPEEDS, SEEDS = (1000, 2000, 5000), (43, 44, 45)
IMAGE, LABEL = "input.jpg", "output.cls"
BLOCK = 512  # bytes per block of a tar
URL = "https://mlcloud.uni-tuebingen.de:7443/datasets/CCC"


class CCCSettings(StreamSettings):
    """Settings of CCC: a level of difficulty, and a reset before each stream."""

    setting: SettingName = Field(
        "reset", description="reset: the method is reset before each stream"
    )
    level: Literal[0, 20, 40] = Field(
        20,
        description="accuracy of ResNet-50 in % that the corruptions are tuned for; 0: hardest",
    )
    speed: Literal[1000, 2000, 5000] | None = Field(
        None, description="images until the next change: the three streams of this speed; null: all"
    )
    crop: int = Field(224, ge=8, le=1024, description="side of the stored images, in pixels")

    def record(self) -> dict[str, Any]:
        """The content of cell.yaml, without a speed that is not chosen."""
        return {k: v for k, v in super().record().items() if k != "speed" or v is not None}


@dataclass(frozen=True)
class TarIndex:
    """The images of a tar, in its order: offset and size in bytes (int64) and class (int16)."""

    offset: np.ndarray
    size: np.ndarray
    label: np.ndarray


class TarImages:
    """The images of several tars, one after another."""

    def __init__(self, tars: list[Path], indices: list[TarIndex], geometry: Geometry) -> None:
        self.tars, self.indices, self.geometry = tars, indices, geometry
        self.labels = np.concatenate([i.label for i in indices]).astype(np.int64)
        self._ends = np.cumsum([len(i.label) for i in indices])

    def fingerprint(self, count: int) -> dict[str, str]:
        """The sizes of all images of the tars, from their indices."""
        sizes = np.concatenate([index.size for index in self.indices])[:count]
        return {"sizes": hashlib.sha256(sizes.astype("<i8").tobytes()).hexdigest()[:16]}

    def load(self, index: np.ndarray) -> Tensor:
        """uint8 [k, 3, size, size]. Raises DataError naming an image that cannot be decoded."""
        side = self.geometry.size
        out = np.empty((len(index), 3, side, side), np.uint8)
        for row, number in enumerate(index):
            tar = int(np.searchsorted(self._ends, number, side="right"))
            place = int(number) - (int(self._ends[tar - 1]) if tar else 0)
            begin, size = self.indices[tar].offset[place], self.indices[tar].size[place]
            content = BytesIO(_mapped(self.tars[tar])[begin : begin + size].tobytes())
            out[row] = decode(content, self.geometry, f"{self.tars[tar]}: image {place}")
        return torch.from_numpy(out)


@lru_cache(maxsize=8)
def _mapped(tar: Path) -> np.ndarray:
    return np.memmap(tar, np.uint8, "r")


def tar_index(tar: Path, cache: Path) -> TarIndex:
    """The index of a tar, stored in `cache`, since reading 75,000 members takes seconds.

    Raises DataError for a tar that is truncated or has other content.
    """
    stat = tar.stat()
    key = hashlib.sha256(f"{tar.resolve()} {stat.st_size} {stat.st_mtime_ns}".encode()).hexdigest()
    file = cache / f"{key[:24]}.npy"
    try:
        table = np.load(file, allow_pickle=False)
    except (OSError, ValueError, EOFError):  # missing or damaged: make it
        table = _scan(tar)
        with atomic(file) as temporary, temporary.open("wb") as stream:
            np.save(stream, table)
    return TarIndex(*table)


def _scan(tar: Path) -> np.ndarray:
    """Rows offset, size and class, int64 [3, n]."""
    images: dict[str, tuple[int, int]] = {}
    labels: dict[str, int] = {}
    try:
        with tarfile.open(tar, "r:") as archive:
            for member in archive:
                key, _, kind = member.name.rpartition("/")[2].partition(".")
                if kind == IMAGE:
                    images[key] = (member.offset_data, member.size)
                elif kind != LABEL and looks_like_an_image(Path(f"{key}.{kind}")):
                    raise DataError(
                        f"{tar}: holds {member.name}, but only images *.{IMAGE} are read; this is "
                        "not a tar of CCC: download it again."
                    )
                elif kind == LABEL:
                    content = archive.extractfile(member)
                    labels[key] = int(content.read(16)) if content is not None else -1
            end = archive.offset
    except (tarfile.TarError, OSError, ValueError) as error:
        raise DataError(
            f"{tar}: is not a complete tar of CCC ({error}); download it again."
        ) from None
    lacking = [key for key in images if not 0 <= labels.get(key, -1) < 1000]
    # tarfile does not detect truncation; a complete tar ends with blocks of zeros.
    with tar.open("rb") as file:
        file.seek(end)
        is_whole = file.read(BLOCK) == bytes(BLOCK)
    if lacking or not images or not is_whole:
        what = f"image {lacking[0]} has no class" if lacking else "it is truncated"
        raise DataError(f"{tar}: is not a complete tar of CCC ({what}); download it again.")
    return np.asarray([(*place, labels[key]) for key, place in images.items()], np.int64).T


@BENCHMARKS.register_module("ccc")
class CCC(Benchmark):
    """CCC: corruptions that fade into each other, nine streams of 7,500,000 images per level."""

    Settings = CCCSettings
    name = "ccc"
    display_name = "CCC"
    year = 2023
    citation = "press2023rdumb"
    num_classes = 1000
    default_model = VIT_B_16
    same_images = False
    decodes = True

    @property
    def home(self) -> Path:
        """ROOT/CCC."""
        return data_root(self.root) / "CCC"

    @property
    def provenance(self) -> str | None:  # type: ignore[override] # elsewhere a constant
        """The footnote of a rehearsal; None for the published tars."""
        return provenance(self.home)

    def domain_names(self) -> tuple[str, ...]:
        """The nine streams of the level, or the three of a speed."""
        level, chosen = self.settings.level, self.settings.speed
        speeds = SPEEDS if chosen is None else (chosen,)
        return tuple(stream_name(level, speed, seed) for speed in speeds for seed in SEEDS)

    def source_settings(self) -> dict[str, Any]:
        """As of every benchmark, without the choice of streams."""
        return {k: v for k, v in super().source_settings().items() if k != "speed"}

    def unknown_folders(self) -> list[str]:
        """Folders that are not a stream of any level."""
        known = {stream_name(b, v, s) for b in (0, 20, 40) for v in SPEEDS for s in SEEDS}
        if not self.home.is_dir():
            return []
        return [*(n for n in subfolders(self.home) if n not in known), *left_out(self.home)]

    def problems(self) -> list[str]:
        """Streams without tars, and a cache of decoded images, which would be too large."""
        if self.decoded_cache is not None:
            return [
                "decoded images cannot be cached, since one stream would take 1.1 TB; leave out "
                "--cache-decoded."
            ]
        missing = [n for n in self.chosen_domains() if not self._tars(n)]
        gaps = [gap for n in self.chosen_domains() if (gap := self._gap(n))]
        return gaps + [
            f"no tars in {self.home / n}: download serial_00000.tar and so on from {URL}/{n}/, or "
            f"choose other streams with --set domains=[NAME]."
            for n in missing
        ]

    def domain(self, name: str, severity: int | None = None) -> ImageSet:
        """A stream: the images of as many of its tars as `examples` needs."""
        wanted, found, indices = self.settings.examples, 0, []
        tars = self._tars(name)
        if not tars:
            raise DataError(f"no tars in {self.home / name}.")
        if (gap := self._gap(name)) is not None:
            raise DataError(gap)
        for tar in tars:
            indices.append(tar_index(tar, user_cache_path("ctta-bench") / "ccc"))
            found += len(indices[-1].label)
            if wanted is not None and found >= wanted:
                break
        return TarImages(tars[: len(indices)], indices, Geometry(self.settings.crop))

    def source(self) -> ImageSet | None:
        """ImageNet's training images, if ROOT/imagenet2012/train exists."""
        crop = self.settings.crop
        return train_images(data_root(self.root), Geometry(crop, "crop", round(crop * 256 / 224)))

    def source_location(self) -> str:
        """ROOT/imagenet2012/train."""
        return f"{data_root(self.root) / 'imagenet2012' / 'train'}, one folder per synset"

    def _gap(self, name: str) -> str | None:
        """A sentence on a tar that is missing between others, or begins after the first."""
        there = {tar.name for tar in self._tars(name)}
        expected = [f"serial_{number:05d}.tar" for number in range(len(there))]
        absent = next((tar for tar in expected if tar not in there), None)
        if absent is None:
            return None
        return (
            f"{self.home / name}: {absent} is missing, and later tars are there: the stream would "
            f"skip its images; download it from {URL}/{name}/."
        )

    def _tars(self, name: str) -> list[Path]:
        return sorted((self.home / name).glob("serial_*.tar"))


def stream_name(level: int, speed: int, seed: int) -> str:
    """The name of a stream, as published."""
    return f"baseline_{level}_transition+speed_{speed}_seed_{seed}"
