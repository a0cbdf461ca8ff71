"""Where data sets lie, and what stands beside self-made ones."""

import os
from pathlib import Path

from platformdirs import user_cache_path

PROVENANCE = "provenance.txt"


def data_root(root: Path | None) -> Path:
    """The folder of data sets: the one given, else CTTA_BENCH_DATA, else the user's cache."""
    return Path(root or os.environ.get("CTTA_BENCH_DATA") or user_cache_path("ctta-bench"))


def provenance(folder: Path) -> str | None:
    """First line of provenance.txt, which stands in sets that are not the published files."""
    file = folder / PROVENANCE
    if not file.is_file():
        return None
    return file.read_text(encoding="utf-8").strip().partition("\n")[0] or None


def how_to_get(benchmark: str, root: Path) -> str:
    """The last words of a sentence on missing files."""
    return (
        f"`ctta-bench data download {benchmark} --data-root {root}` fetches it, or give the right "
        "folder with --data-root."
    )
