"""The manifest of a self-made set: manifest.json in its folder, and its footnote in provenance.txt.

Results on self-made corruptions are not comparable to those on the published files: these were
drawn without a seed, and ImageNet-C was stored as JPEG by another library.
"""

import importlib.metadata
import json
from pathlib import Path
from typing import Any

from PIL import features

from ctta_bench.datasets.io.files import atomic, write_json
from ctta_bench.datasets.io.roots import PROVENANCE
from ctta_bench.datasets.making.corruptions import VERSION
from ctta_bench.errors import DataError

NAME = "manifest.json"
_GENERATOR = "ctta-bench"


def new_manifest(facts: dict[str, Any]) -> dict[str, Any]:
    """A manifest with these facts and without units."""
    libraries = ("numpy", "scipy", "opencv-python-headless", "pillow")
    return {
        "generator": _GENERATOR,
        "version": _version(_GENERATOR),
        "corruptions_version": VERSION,
        **facts,
        "libraries": {name: _version(name) for name in libraries}
        | {"libjpeg": features.version("jpg")},
        "note": "self-made: errors on these files are not comparable to those on the published set",
        "units": {},
    }


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def read_manifest(folder: Path) -> dict[str, Any] | None:
    """The manifest of a self-made set, None for any other folder. Raises DataError if damaged."""
    file = folder / NAME
    if not file.is_file():
        return None
    try:
        manifest: dict[str, Any] = json.loads(file.read_text("utf-8"))
        is_ours = manifest["generator"] == _GENERATOR
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{file}: is damaged ({error}); make the set again.") from error
    return manifest if is_ours else None


def write_manifest(folder: Path, manifest: dict[str, Any]) -> None:
    """Write the manifest, and provenance.txt: the footnote of results on this folder."""
    with atomic(folder / PROVENANCE) as temporary:
        temporary.write_text(f"{footnote(manifest)}\n", encoding="utf-8")
    write_json(folder / NAME, manifest)


def footnote(manifest: dict[str, Any]) -> str:
    """The footnote that marks results on a self-made set."""
    if "seed" not in manifest:
        return "rehearsal images"
    jpeg = manifest.get("jpeg_quality")
    stored = f", JPEG quality {jpeg}" if jpeg else ""
    of = " of rehearsal images" if manifest.get("rehearsal") else ""
    text = (
        f"self-made corruptions{of} (version {manifest['corruptions_version']}, "
        f"seed {manifest['seed']}{stored})"
    )
    not_read = manifest.get("not_read")  # of the clean images
    return f"{text}; of its clean images, {not_read}" if not_read else text
