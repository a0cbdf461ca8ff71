"""The data root, footnotes of self-made sets, and messages on missing data."""

import os
from pathlib import Path

from platformdirs import user_cache_path

from ctta_bench.errors import expanded

PROVENANCE = "provenance.txt"


def data_root(root: Path | None) -> Path:
    """The folder of data sets: the one given, else CTTA_BENCH_DATA, else the user's cache."""
    return expanded(root or os.environ.get("CTTA_BENCH_DATA") or user_cache_path("ctta-bench"))


def provenance(folder: Path) -> str | None:
    """First line of provenance.txt, the footnote of a set other than the published files."""
    file = folder / PROVENANCE
    if not file.is_file():
        return None
    return file.read_text(encoding="utf-8").strip().partition("\n")[0] or None


def how_to_get(benchmark: str, root: Path) -> str:
    """The end of a message on missing files: how to get them."""
    return (
        f"`ctta-bench data download {benchmark} --data-root {root}` downloads it, or give the "
        "right folder with --data-root."
    )
