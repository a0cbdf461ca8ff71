"""Make a corrupted set from clean images, in the layout of the published ones.

arrays   as CIFAR-10-C: CORRUPTION.npy, five blocks of n images by severity, and labels.npy
folders  as ImageNet-C: CORRUPTION/SEVERITY/CLASS/NAME.JPEG of quality 85
domains  CORRUPTION/CLASS/NAME.png of one severity, for the benchmark image_folder

An image depends only on seed, corruption, severity and its number, not on the number of workers.
A unit (one corruption, or one corruption at one severity) gets its final name once it is complete.
After an interruption, the next call resumes.
"""

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ctta_bench.datasets.io.files import atomic, digest_of, locked, writing
from ctta_bench.datasets.making.clean import CleanImages
from ctta_bench.datasets.making.corruptions import PARAMETERS, VERSION
from ctta_bench.datasets.making.manifest import new_manifest, read_manifest, write_manifest
from ctta_bench.datasets.making.shards import JPEG_QUALITY, Job, Layout, Recipe, Unit
from ctta_bench.datasets.making.workers import run_workers
from ctta_bench.errors import ConfigError, DataError

SEVERITIES = (1, 2, 3, 4, 5)
SHARD = 100  # images per task


def make_set(
    clean: CleanImages,
    target: Path,
    recipe: Recipe,
    *,
    corruptions: Sequence[str],
    severities: Sequence[int] = SEVERITIES,
    workers: int = 1,
    facts: dict[str, Any] | None = None,
    data_root: Path | None = None,
    shard: int = SHARD,
    report: Callable[[int, int], None] | None = None,
) -> list[str]:
    """Make the missing files and folders of the set in `target`; returns those that were made.

    facts: more entries for the manifest. data_root: folder in which full-size frost pictures may
    be. shard: images that a worker makes at a time, the most that an interruption loses.
    `report(shards done, shards in total)`. Raises ConfigError for unknown corruptions or
    severities, DataError if the folder holds another set or an image cannot be decoded.
    """
    _check(recipe, corruptions, severities)
    key = recipe.key(clean)
    _refuse_another_set(target, key)
    with locked(target / "set"):
        work = target / f".making-{key[:12]}-{shard}"
        job = Job(clean, recipe, target, work, shard)
        manifest = _manifest(job, key, facts or {})
        wanted = [
            unit
            for unit in _units(job, corruptions, severities)
            if unit.place not in manifest["units"] or not (target / unit.place).exists()
        ]
        if wanted:
            _run(job, wanted, workers, data_root, report)
        for unit in wanted:
            finish = _finish_array if recipe.layout == "arrays" else _finish_folder
            finish(job, unit)
            _record(job, manifest, unit.place)
        if recipe.layout == "arrays" and "labels.npy" not in manifest["units"]:
            _write_labels(job)
            _record(job, manifest, "labels.npy")
        shutil.rmtree(job.work, ignore_errors=True)
    return [unit.place for unit in wanted]


def _check(recipe: Recipe, corruptions: Sequence[str], severities: Sequence[int]) -> None:
    for name in corruptions:
        if name not in PARAMETERS["cifar"]:
            raise ConfigError(f"--corruption {name!r}: choose {', '.join(PARAMETERS['cifar'])}.")
    for severity in (*severities, recipe.severity):
        if severity not in SEVERITIES:
            raise ConfigError(f"--severity {severity}: choose 1, 2, 3, 4 or 5.")
    if recipe.layout == "arrays" and tuple(severities) != SEVERITIES:
        raise ConfigError(
            "--severity: files of this layout hold all five severities; leave it out."
        )


def _units(job: Job, corruptions: Sequence[str], severities: Sequence[int]) -> list[Unit]:
    by_layout: dict[Layout, list[tuple[int, ...]]] = {
        "arrays": [SEVERITIES],
        "folders": [(severity,) for severity in severities],
        "domains": [(job.recipe.severity,)],
    }
    groups = by_layout[job.recipe.layout]
    return [Unit(job.place(c, group[0]), c, group) for c in corruptions for group in groups]


def _refuse_another_set(target: Path, key: str) -> None:
    """Raise DataError if the folder holds anything other than a part of this set."""
    found = read_manifest(target)
    made_by = VERSION if found is None else found.get("corruptions_version", VERSION)
    if made_by != VERSION:
        raise DataError(
            f"{target}: holds corruptions of version {made_by}, but this release makes version "
            f"{VERSION}, and one set has one version; choose another --root or move it away (it "
            "stays readable)."
        )
    if found is not None and found.get("key") != key:
        raise DataError(
            f"{target}: holds a set made from other images, parameters or seed; choose another "
            "--root or move it away."
        )
    is_used = target.is_dir() and any(not p.name.startswith(".") for p in target.iterdir())
    if found is None and is_used:
        raise DataError(
            f"{target}: holds files that this program did not make, and nothing is overwritten; "
            "choose another --root or move it away."
        )


def _manifest(job: Job, key: str, facts: dict[str, Any]) -> dict[str, Any]:
    """The manifest of the target; a new one if there is none."""
    found = read_manifest(job.target)
    if found is not None:
        return found
    recipe, (height, width) = job.recipe, job.clean.image(0).shape[:2]
    manifest = new_manifest(
        {
            "layout": recipe.layout,
            "parameters": recipe.parameters,
            "parameters_of_frost": recipe.table("frost"),
            "seed": recipe.seed,
            "images": len(job.clean.labels),
            "size": [height, width],
            "jpeg_quality": JPEG_QUALITY if recipe.layout == "folders" else None,
            "source_sha256": job.clean.sha256(),
            "key": key,
            **facts,
        }
    )
    # Written before the first unit, so all files next to it were made by this program.
    with writing(job.target):
        job.target.mkdir(parents=True, exist_ok=True)
    write_manifest(job.target, manifest)
    return manifest


def _run(
    job: Job,
    units: Sequence[Unit],
    workers: int,
    data_root: Path | None,
    report: Callable[[int, int], None] | None,
) -> None:
    with writing(job.work):
        job.work.mkdir(parents=True, exist_ok=True)
    all_tasks = [task for unit in units for task in job.tasks(unit)]
    tasks = [task for task in all_tasks if not job.mark(task).exists()]
    if not tasks:
        return
    has_frost = data_root is not None and (data_root / "frost").is_dir()
    run_workers(
        job.write_shard,
        tasks,
        workers=workers,
        report=report,
        environment={"CTTA_BENCH_DATA": str(data_root)} if has_frost else None,
    )


def _finish_array(job: Job, unit: Unit) -> None:
    """Join the shards to CORRUPTION.npy, with the bytes that np.save would write."""
    tasks = job.tasks(unit)
    shape = (len(unit.severities) * len(job.clean.labels), *job.clean.image(0).shape)
    header = {"descr": "|u1", "fortran_order": False, "shape": shape}
    with atomic(job.target / unit.place) as temporary, temporary.open("wb") as stream:
        np.lib.format.write_array_header_1_0(stream, header)
        for task in tasks:
            stream.write(np.load(job.mark(task), allow_pickle=False).tobytes())
    for task in tasks:
        job.mark(task).unlink()


def _finish_folder(job: Job, unit: Unit) -> None:
    """Move the folder to its final name, unless an interrupted call has done so."""
    final = job.target / unit.place
    if not final.exists():
        with writing(final):
            final.parent.mkdir(parents=True, exist_ok=True)
            (job.work / "images" / unit.place).rename(final)


def _write_labels(job: Job) -> None:
    labels = np.tile(job.clean.labels, len(SEVERITIES))
    small = labels.astype(np.uint8)
    with atomic(job.target / "labels.npy") as temporary, temporary.open("wb") as stream:
        np.save(stream, small if (small == labels).all() else labels)


def _record(job: Job, manifest: dict[str, Any], place: str) -> None:
    manifest["units"][place] = list(digest_of(job.target / place))
    write_manifest(job.target, manifest)
