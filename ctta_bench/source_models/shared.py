"""Source models that several cells of one process start from: read once, and copied for each.

Packed cells of a grid are ordered by their model, so that the last one is all that is kept.
"""

import contextlib
import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ctta_bench.model import PassCounts, SourceModel
from ctta_bench.source_models.pretrained import load_source_model, stored_weights
from ctta_bench.source_models.weights import weight_file

Key = tuple[Any, ...]


class _Shelf:
    """Where the last model stands; it holds nothing unless somebody shares."""

    sharing = False
    kept: tuple[Key, SourceModel] | None = None


@contextlib.contextmanager
def sharing_models() -> Iterator[None]:
    """Within the block the last source model that was read is kept for the next cell."""
    _Shelf.sharing = True
    try:
        yield
    finally:
        _Shelf.sharing, _Shelf.kept = False, None


def source_model(name: str, options: dict[str, Any], *, to_change: bool = True) -> SourceModel:
    """`load_source_model(name, **options)`, from the shelf where it stands there.

    One that is not `to_change` may be the shelf's own.
    """
    if not _Shelf.sharing:
        return load_source_model(name, **options)
    key = (name, stamp_of(name, options), tuple(options.items()))
    if _Shelf.kept is None or _Shelf.kept[0] != key:
        _Shelf.kept = None  # never two at once
        _Shelf.kept = key, load_source_model(name, **options)
    model = _Shelf.kept[1]
    return _fresh_copy(model) if to_change else model


def _fresh_copy(model: SourceModel) -> SourceModel:
    copied = copy.deepcopy(model)
    copied.passes = PassCounts()  # copies within a cell share theirs, cells do not
    return copied


def stamp_of(name: str, options: dict[str, Any]) -> tuple[Any, ...]:
    """File, size and time of a model's weights, so that a rewritten file is another model's."""
    path: Path | None = options["weights"] or stored_weights(name, options["root"])
    if path is None or not path.exists():
        return (path,)
    stat = weight_file(path).stat()
    return (path, stat.st_size, stat.st_mtime_ns, stat.st_ino)
