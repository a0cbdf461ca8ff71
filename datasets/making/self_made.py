"""Self-made benchmarks: which clean images they are made from, and their folders."""

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ctta_bench.datasets.io.decoding import Geometry
from ctta_bench.datasets.io.files import writing
from ctta_bench.datasets.io.imagenet import FOLDER as IMAGENET
from ctta_bench.datasets.io.listing import passed_over_note
from ctta_bench.datasets.io.python_batches import read_batch
from ctta_bench.datasets.making.clean import CleanFolder, CleanImages, clean_images, store
from ctta_bench.datasets.making.corrupted_sets import SEVERITIES, make_set
from ctta_bench.datasets.making.corruptions import CORRUPTIONS
from ctta_bench.datasets.making.shards import Layout, Recipe
from ctta_bench.errors import ConfigError, DataError, expanded
from ctta_bench.registry import canonical


@dataclass(frozen=True)
class Target:
    """Folder, layout, table of parameters and image size of a benchmark.

    `clean`: the test images, under the root, from which the published set was made.
    """

    folder: str
    layout: Layout
    parameters: str
    size: int
    clean: str = ""
    label_key: str = ""


TARGETS = {
    "cifar10_c": Target(
        "CIFAR-10-C", "arrays", "cifar", 32, "cifar-10-batches-py/test_batch", "labels"
    ),
    "cifar100_c": Target(
        "CIFAR-100-C", "arrays", "cifar", 32, "cifar-100-python/test", "fine_labels"
    ),
    "imagenet_c": Target("ImageNet-C", "folders", "imagenet", 224, f"{IMAGENET}/val"),
    "image_folder": Target("", "domains", "imagenet", 224),
}


@dataclass(frozen=True)
class MakeOptions:
    """The options of `ctta-bench data make`; None or (): as published."""

    source: Path | None = None
    corruptions: Sequence[str] = CORRUPTIONS
    severities: Sequence[int] = ()
    parameters: str | None = None
    size: int | None = None
    seed: int = 0


def make_benchmark(
    name: str,
    root: Path,
    options: MakeOptions,
    *,
    workers: int = 1,
    report: Callable[[int, int], None] | None = None,
) -> tuple[Path, list[str]]:
    """Make a benchmark's corrupted set under `root`; returns its folder and the units made.

    Example: `make_benchmark("cifar10_c", root, MakeOptions(corruptions=["fog"]), workers=4)`

    Raises ConfigError for an invalid benchmark or value, DataError for missing images or a folder
    that holds other files.
    """
    target = TARGETS.get(canonical(name))
    if target is None:
        raise ConfigError(f"data make {name!r}: choose {', '.join(TARGETS)}.")
    severities = tuple(options.severities) or ((5,) if target.layout == "domains" else SEVERITIES)
    if target.layout == "domains" and len(severities) > 1:
        raise ConfigError("--severity: image_folder holds one severity; give one.")
    root = expanded(root)
    if options.source is not None:
        options = replace(options, source=expanded(options.source))
    folder = root / target.folder
    recipe = Recipe(
        target.layout,
        options.parameters or target.parameters,
        options.seed,
        severity=severities[0] if target.layout == "domains" else 5,
    )
    staging = root / f".clean-{canonical(name)}"
    try:
        clean = _clean(canonical(name), target, root, options, staging)
        made = make_set(
            clean,
            folder,
            recipe,
            corruptions=options.corruptions,
            severities=severities,
            workers=workers,
            facts={"source": str(options.source or root / target.clean)} | _not_read(clean),
            data_root=root,
            report=report,
        )
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return folder, made


def _not_read(clean: CleanImages) -> dict[str, str]:
    """For the manifest: files of the clean images that look like images and are not read."""
    note = passed_over_note(clean.passed_over) if isinstance(clean, CleanFolder) else None
    return {} if note is None else {"not_read": note}


def _clean(
    name: str, target: Target, root: Path, options: MakeOptions, staging: Path
) -> CleanImages:
    size = options.size or target.size
    # ImageNet-C was cropped as ImageNet is: shorter side to 256, then the central 224 x 224.
    resize = size if target.layout == "arrays" else round(size * 8 / 7)
    if size < 8:
        raise ConfigError(f"--size {size}: images to corrupt have at least 8 pixels per side.")
    geometry = Geometry(size, "crop", resize)
    is_array = target.layout == "arrays" if options.source is None else options.source.is_file()
    if options.size is not None and is_array:
        raise ConfigError("--size: is for folders of images; arrays keep their size; leave it out.")
    if options.source is not None:
        if not options.source.exists():
            raise DataError(f"--source {options.source}: no such file or folder.")
        return clean_images(options.source, geometry, staging)
    found = root / target.clean
    if not target.clean or not found.exists():
        where = f"no {found}; " if target.clean else ""
        raise DataError(
            f"{name}: {where}give the clean images with --source: a folder CLASS/IMAGE, an .npz "
            "with images and labels, or an .npy next to a labels.npy."
        )
    if target.layout != "arrays":
        return clean_images(found, geometry, staging)
    images, labels = read_batch(found, target.label_key)
    with writing(staging):
        staging.mkdir(parents=True, exist_ok=True)
    return store(images.transpose(0, 2, 3, 1), labels, staging)
