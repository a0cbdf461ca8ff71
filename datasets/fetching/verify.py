"""Compare data on disk with checksums: published ones, those of unpacking, or of a manifest."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ctta_bench.datasets.fetching.obtain import DOWNLOADS
from ctta_bench.datasets.fetching.origins import Origin, find_origin
from ctta_bench.datasets.io.files import digest_of
from ctta_bench.datasets.making.manifest import footnote, read_manifest
from ctta_bench.errors import DataError

Verdict = Literal["whole", "differs", "missing", "unknown"]


@dataclass(frozen=True)
class Finding:
    """The check of one file or folder: its path, the verdict, and what it was compared with."""

    place: str
    verdict: Verdict
    against: str


def verify(
    benchmark: str, root: Path, report: Callable[[str], None] | None = None
) -> list[Finding]:
    """Compare the data of a benchmark with their checksums, by file or by folder.

    `report(place)` is called before each check. Without a checksum the verdict is "unknown", never
    "whole".

    Example: `all(finding.verdict == "whole" for finding in verify("cifar10_c", root))`
    """
    origin = find_origin(benchmark)
    findings = []
    for folder in origin.folders:
        for finding in _folder(origin, root, folder, report):
            findings.append(finding)
    return findings


def _folder(
    origin: Origin, root: Path, folder: str, report: Callable[[str], None] | None
) -> Iterator[Finding]:
    if not (root / folder).is_dir():
        yield Finding(folder, "missing", f"no folder {root / folder}")
        return
    expected = _expected(origin, root, folder)
    if not expected:
        yield Finding(folder, "unknown", "no checksum is published, and it was not unpacked here")
    for place, (digest, against) in expected.items():
        if report is not None:
            report(place)
        if not (root / place).exists():
            yield Finding(place, "missing", against)
            continue
        files, found = digest_of(root / place)
        verdict: Verdict = "whole" if [files, found] == digest else "differs"
        yield Finding(place, verdict, against)


def _expected(origin: Origin, root: Path, folder: str) -> dict[str, tuple[list[int | str], str]]:
    """By path: number of files, checksum, and where these come from.

    A manifest has priority over published checksums, and these over the record of unpacking.
    """
    manifest = read_manifest(root / folder)
    if manifest is not None:
        against = f"its manifest: {footnote(manifest)}"
        return {f"{folder}/{unit}": (d, against) for unit, d in manifest["units"].items()}
    published = {
        place: ([1, md5], "the published md5")
        for place, md5 in origin.md5.items()
        if place.startswith(f"{folder}/")
    }
    return published or _unpacked(origin, root, folder)  # type: ignore[return-value]


def _unpacked(origin: Origin, root: Path, folder: str) -> dict[str, tuple[list[int | str], str]]:
    found: dict[str, tuple[list[int | str], str]] = {}
    for archive in origin.archives:
        record = root / DOWNLOADS / f"{archive.file}.unpacked.json"
        if archive.into != folder or not record.is_file():
            continue
        try:
            units = json.loads(record.read_text("utf-8"))["units"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DataError(f"{record}: is damaged ({error}); delete it.") from error
        against = f"the unpacked content of {archive.file} (md5 {archive.md5})"
        found |= {f"{folder}/{unit}": (digest, against) for unit, digest in units.items()}
    return found
