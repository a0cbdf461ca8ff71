"""Unfinished cells next to each other: short names, and the error so far compared with Source's."""

import json
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from ctta_bench.record.schema import BATCHES_FILE

SOURCE = "source"
_ID = re.compile(r"(?P<method>.+?)-(?P<where>.+)-(?P<hash>[0-9a-f]{8})")
Counts = tuple[int, int]  # errors, images


def short_names(cells: Sequence[str]) -> dict[str, str]:
    """Names of cells without the parts that all share, and without hashes that are not needed.

    `tent-fashion_c-fashion_vit-seed0-1a2b3c4d` is `tent` if benchmark, model and seed are the same
    everywhere.
    """
    parts = {cell: cell.split("-")[:-1] if _ID.fullmatch(cell) else [cell] for cell in cells}
    lengths = {len(each) for each in parts.values()}
    if len(lengths) == 1 and len(cells) > 1 and lengths != {1}:
        columns = list(zip(*parts.values(), strict=True))
        differ = [n for n, column in enumerate(columns) if n == 0 or len(set(column)) > 1]
        parts = {cell: [each[n] for n in differ] for cell, each in parts.items()}
    names = {cell: "-".join(each) for cell, each in parts.items()}
    count = Counter(names.values())
    return {
        cell: name if count[name] == 1 or name == cell else f"{name}-{cell[-8:-4]}"
        for cell, name in names.items()
    }


def so_far(directory: Path, cell: str) -> str:
    """`24.1 % (-3.2)`: the error of a cell so far, and minus that of Source on the same batches.

    "" without batches, or for a metric that is no error. Source is the one cell of this folder with
    the same benchmark, model and seed; without exactly one, only the error is shown.
    """
    ours = counts(directory / cell)
    if not ours:
        return ""
    error = _percent(ours)
    found = _ID.fullmatch(cell)
    sources = [] if found is None else [*directory.glob(f"{SOURCE}-{found['where']}-*")]
    theirs = counts(sources[0])[: len(ours)] if len(sources) == 1 else []
    if len(theirs) < len(ours) or found is None or found["method"] == SOURCE:
        return f"{error:.1f} %"
    return f"{error:.1f} % ({error - _percent(theirs):+.1f})"


def counts(folder: Path) -> list[Counts]:
    """Errors and images of each batch in batches.jsonl; [] for another metric."""
    try:
        lines = (folder / BATCHES_FILE).read_bytes().split(b"\n")[:-1]
        found = [json.loads(line) for line in lines]
        return [(int(line["errors"]), int(line["n"])) for line in found]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def _percent(batches: Sequence[Counts]) -> float:
    return 100 * sum(errors for errors, _ in batches) / sum(images for _, images in batches)
