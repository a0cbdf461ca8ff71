"""Base class for benchmarks of image files: geometry, damaged images, cache of decoded images."""

import functools
from abc import abstractmethod
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Literal

from pydantic import Field, model_validator

from ctta_bench.datasets.io.decoded import DecodedImages
from ctta_bench.datasets.io.decoding import Geometry, Interpolation
from ctta_bench.datasets.io.file_images import FileImages
from ctta_bench.datasets.io.imagenet import FOLDER as CLEAN_FOLDER
from ctta_bench.datasets.io.imagenet import synsets, train_images
from ctta_bench.datasets.io.listing import passed_over_note
from ctta_bench.datasets.io.roots import data_root, provenance
from ctta_bench.errors import DataError
from ctta_bench.stream import Benchmark, ImageSet, StreamSettings
from ctta_bench.stream.loading import find_damaged

Report = Callable[[str, int, int], None]


class FileSettings(StreamSettings):
    """Settings of benchmarks of image files."""

    undecodable: Literal["stop", "skip"] = Field(
        "stop",
        description="an image that cannot be decoded: stop the run, or skip the image",
    )
    crop: int = Field(224, ge=8, le=1024, description="side of the streamed images, in pixels")
    resize: int = Field(
        256, ge=8, le=4096, description="shorter side before the crop, for images of other sizes"
    )
    interpolation: Interpolation = Field("bilinear", description="interpolation of this resizing")

    @model_validator(mode="after")
    def _crop_fits(self) -> "FileSettings":
        if self.crop > self.resize:
            raise ValueError(f"crop {self.crop} is larger than resize {self.resize}")
        return self


class FileBenchmark(Benchmark):
    """Base of benchmarks of image files under ROOT/`folder`.

    Subclasses define `files`; `notes` are footnotes on the streamed images.
    """

    decodes = True
    folder = ""
    classes = "imagenet"  # which list of ImageNet's classes: see `synsets`

    def __init__(self, settings: StreamSettings | None = None, root: Path | None = None) -> None:
        super().__init__(settings, data_root(root))
        self.notes: set[str] = set()
        self._folders_left_out: set[str] = set()
        self._left_out: dict[Path, list[int]] = {}

    @abstractmethod
    def files(self, name: str, severity: int) -> FileImages:
        """The files of a domain. Raises DataError if they are missing."""

    @property
    def home(self) -> Path:
        """ROOT/`folder`."""
        return data_root(self.root) / self.folder

    @property
    def provenance(self) -> str | None:  # type: ignore[override] # elsewhere a constant
        """How the images differ from the published ones; None if they do not."""
        top = data_root(self.root) / Path(self.folder).parts[0]
        made = provenance(self.home) or provenance(top)
        return "; ".join(filter(None, [made, *sorted(self.notes)])) or None

    @property
    def cropped(self) -> Geometry:
        """Geometry for images of any size."""
        chosen = self.settings
        return Geometry(chosen.crop, "crop", chosen.resize, chosen.interpolation)

    def domain(self, name: str, severity: int | None = None) -> ImageSet:
        """The images of one domain, without damaged ones that are skipped."""
        images = self._whole(name, severity or int(getattr(self.settings, "severity", 0)))
        wanted = self.settings.examples
        if wanted is not None and wanted > len(images.names):
            raise DataError(
                f"benchmark.examples: {wanted} images requested, but {images.folder} has "
                f"{len(images.names)}."
            )
        if self.decoded_cache is None:
            return images
        return DecodedImages(images.cut(wanted or len(images.names)), self.decoded_cache)

    def _whole(self, name: str, severity: int) -> FileImages:
        images = self.files(name, severity)
        self._note_unread(images)
        bad = self._left_out.get(images.folder)
        return images.without(bad) if bad else images

    def _note_unread(self, images: FileImages) -> None:
        place = images.folder.relative_to(data_root(self.root)).as_posix()
        if (note := passed_over_note(images.passed_over)) is not None:
            self.notes.add(f"{place}: {note}")
        self._folders_left_out |= {f"{place}/{name}" for name in images.left_out}

    def unknown_folders(self) -> list[str]:
        """Hidden and system folders among those that were read."""
        return sorted(self._folders_left_out)

    @functools.cached_property
    def _train(self) -> FileImages | None:
        # Cached: listing a million files takes seconds, and a run needs it several times.
        return train_images(data_root(self.root), self.cropped, synsets(self.classes))

    def source(self) -> ImageSet | None:
        """ImageNet's training images of the benchmark's classes, or None if they are missing."""
        if self._train is not None:
            self._note_unread(self._train)
        return self._train

    def source_location(self) -> str:
        """ROOT/imagenet2012/train."""
        return f"{data_root(self.root) / CLEAN_FOLDER / 'train'}, one folder per synset"

    def problems(self) -> list[str]:
        """Missing data of the domains that the stream reads."""
        if not self.home.is_dir():
            return [self.missing()]
        found = []
        for name, severity in self.needed():
            try:
                self.files(name, severity)
            except DataError as error:
                found.append(f"domain {name}: {error}")
        return found

    def missing(self) -> str:
        """The message if the whole set is missing."""
        return f"no folder {self.home}."

    def prepare_data(self, report: Report, workers: int) -> None:
        """Find damaged images if they are to be skipped; fill the cache if there is one."""
        if self.settings.undecodable == "skip":
            self._find_damaged(report, workers)
        if self.decoded_cache is not None:
            for name, severity in self.needed():
                images = self.domain(name, severity)
                assert isinstance(images, DecodedImages)
                images.fill(partial(report, f"decoding {name}"), workers)

    def _find_damaged(self, report: Report, workers: int) -> None:
        for name, severity in self.needed():
            images = self.files(name, severity)
            bad = find_damaged(
                images,
                partial(report, f"checking images of {name}"),
                workers,
                wanted=self.settings.examples,
            )
            if bad:
                self._left_out[images.folder] = list(bad)
                left_out = ", ".join(images.names[i] for i in list(bad)[:3])
                more = f" and {len(bad) - 3} more" if len(bad) > 3 else ""
                self.notes.add(f"{name} without {len(bad)} damaged ({left_out}{more})")
