"""Get a benchmark's data: download, check, unpack, and move complete folders into place."""

import shutil
from collections.abc import Callable
from pathlib import Path

from ctta_bench.datasets.fetching.fetch import Remote, check, fetch
from ctta_bench.datasets.fetching.origins import Archive
from ctta_bench.datasets.fetching.unpack import unpack
from ctta_bench.datasets.io.files import locked, write_json, writing
from ctta_bench.datasets.making.manifest import footnote, read_manifest
from ctta_bench.errors import DataError, expanded

DOWNLOADS = "downloads"  # folder under the data root, for archives and records of unpacking
Step = Callable[[str, int, int], None]  # (what, bytes done, bytes in total)


def missing(archive: Archive, root: Path) -> list[str]:
    """The folders of an archive that are missing under the root."""
    return [name for name in archive.provides if not (root / archive.into / name).exists()]


def obtain(
    archive: Archive,
    root: Path,
    *,
    mirror: str | None = None,
    keep_archive: bool = False,
    report: Step | None = None,
    pause: float = 2.0,
) -> bool:
    """Download and unpack an archive unless its folders exist; returns whether anything was done.

    mirror: a folder or http(s) address that holds the file under its own name. Raises DataError if
    anything fails; then no incomplete folder has a final name, and the same command resumes.
    """
    downloads = root / DOWNLOADS
    with locked(downloads / archive.file):
        _refuse_self_made(archive, root)
        lacking = missing(archive, root)
        staged = root / archive.into / f".{archive.file}.unpacking"
        if not lacking and not staged.exists():
            return False
        if not (staged / ".whole").exists():
            _refuse_a_mix(archive, root, lacking)
            _unpack(
                archive, _file(archive, downloads, mirror, report, pause), staged, downloads, report
            )
        _move_into_place(staged, root / archive.into)
        if not keep_archive:
            (downloads / archive.file).unlink(missing_ok=True)
    return True


def _refuse_self_made(archive: Archive, root: Path) -> None:
    """Raise DataError if a self-made set of the same name is in the way."""
    for folder in (root / archive.into, *(root / archive.into / n for n in archive.provides)):
        if (manifest := read_manifest(folder)) is not None:
            raise DataError(
                f"{folder}: holds {footnote(manifest)}, not the published files; choose another "
                "--root or move it away."
            )


def _refuse_a_mix(archive: Archive, root: Path, lacking: list[str]) -> None:
    there = sorted(set(archive.provides) - set(lacking))
    if there:
        raise DataError(
            f"{root / archive.into}: {', '.join(there)} of {archive.file} is there, but "
            f"{', '.join(lacking)} is not; move it away, since nothing is overwritten."
        )


def _file(
    archive: Archive, downloads: Path, mirror: str | None, report: Step | None, pause: float
) -> Path:
    """The archive, checked; one in a local folder is used where it is."""
    remote = Remote(archive.url, archive.bytes, archive.md5)

    def progress_of(what: str) -> Callable[[int, int], None] | None:
        return None if report is None else lambda done, total: report(what, done, total)

    if mirror is not None and not mirror.startswith(("http://", "https://")):
        file = expanded(mirror) / archive.file
        if not file.is_file():
            raise DataError(f"--mirror {mirror}: holds no {archive.file}.")
        check(file, remote, progress_of(f"checking {archive.file}"), delete=False)
        return file
    if mirror is not None:
        remote = Remote(f"{mirror.rstrip('/')}/{archive.file}", archive.bytes, archive.md5)
    file = downloads / archive.file
    if file.is_file():
        check(file, remote, progress_of(f"checking {archive.file}"))
    else:
        _refuse_a_small_disk(archive, downloads)
        fetch(remote, file, report=progress_of(archive.file), pause=pause)
    return file


def _refuse_a_small_disk(archive: Archive, downloads: Path) -> None:
    """Raise DataError if the archive and its content do not fit; nothing if the size is unknown."""
    if archive.bytes is None:
        return
    part = downloads / f"{archive.file}.part"
    needed = 2 * archive.bytes - (part.stat().st_size if part.exists() else 0)
    with writing(downloads):
        downloads.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(downloads).free
    if free < needed:
        raise DataError(
            f"{downloads}: {archive.file} and its content need {needed / 1e9:.1f} GB, but "
            f"{free / 1e9:.1f} GB are free; free some space or choose another --root."
        )


def _unpack(
    archive: Archive, file: Path, staged: Path, downloads: Path, report: Step | None
) -> None:
    if staged.exists():
        shutil.rmtree(staged)  # left by an interrupted call
    try:
        with writing(staged):
            staged.mkdir(parents=True)
        sums = unpack(
            file,
            staged,
            group=archive.group,
            report=report
            and (lambda done, total: report(f"unpacking {archive.file}", done, total)),
        )
        lacking = [name for name in archive.provides if not (staged / name).exists()]
        if lacking:
            raise DataError(
                f"{file}: does not hold {', '.join(lacking)}; it is a different archive: delete it."
            )
        record = {
            "archive": archive.file,
            "md5": archive.md5,
            "into": archive.into,
            "units": {name: [digest.files, digest.hex] for name, digest in sums.items()},
        }
        write_json(downloads / f"{archive.file}.unpacked.json", record)
        (staged / ".whole").touch()
    except BaseException:
        shutil.rmtree(staged, ignore_errors=True)
        raise


def _move_into_place(staged: Path, into: Path) -> None:
    """Move complete folders into place; after an interruption the next call resumes."""
    with writing(into):
        for entry in sorted(staged.iterdir()):
            if entry.name != ".whole" and not (into / entry.name).exists():
                entry.rename(into / entry.name)
        shutil.rmtree(staged)
