"""The source model of a process: read once, and copied for each method that starts from it."""

import copy
from pathlib import Path
from typing import Any

from ctta_bench.model import PassCounts, SourceModel
from ctta_bench.source_models.pretrained import load_source_model, stored_weights
from ctta_bench.source_models.weights import weight_file

Key = tuple[Any, ...]


class Models:
    """Source models by name and options of `load_source_model`; the last one read is kept.

    One object goes through all that a process does: it fingerprints the model of a cell and gives
    that cell, its warm-up and the next cells their copies. Two models are never held at once, so
    cells of one model should follow one another. several: whether other cells follow; if not,
    `release` drops the model.
    """

    def __init__(self, *, several: bool = False) -> None:
        self.several = several
        self._kept: tuple[Key, SourceModel] | None = None
        self._facts: dict[Key, tuple[str, dict[str, Any]]] = {}

    def fresh(self, name: str, options: dict[str, Any], *, last: bool = False) -> SourceModel:
        """A copy of the model as it was read, with a count of passes of its own.

        last: its cell needs no other; unless other cells follow, the kept one is given away.
        Raises what `load_source_model` raises.
        """
        model = self._read(_key(name, options), name, options)
        if last and not self.several:
            self.drop()
            return model
        copied = copy.deepcopy(model)
        copied.passes = PassCounts()  # copies within a cell share theirs, cells do not
        return copied

    def facts(self, name: str, options: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        """SHA-256 of the model's weights, and its pre-processing; remembered for every model."""
        key = _key(name, options)
        if key not in self._facts:
            model = self._read(key, name, options)
            self._facts[key] = model.sha256(), model.preprocessing.record()
        return self._facts[key]

    def release(self) -> None:
        """Drop the kept model, unless several cells share it: the only one has its copy."""
        if not self.several:
            self.drop()

    def drop(self) -> None:
        """Drop the kept model; fingerprints stay."""
        self._kept = None

    def _read(self, key: Key, name: str, options: dict[str, Any]) -> SourceModel:
        if self._kept is None or self._kept[0] != key:
            self.drop()  # before the next one is read: never two at once
            self._kept = key, load_source_model(name, **options)
        return self._kept[1]


def _key(name: str, options: dict[str, Any]) -> Key:
    """The identity of a model: name, options, and the stamp of the weights' file.

    The stamp (size, time, inode) makes a file that was written again another model's.
    """
    path: Path | None = options["weights"] or stored_weights(name, options["root"])
    stamp: Key = (path,)
    if path is not None and path.exists():
        stat = weight_file(path).stat()
        stamp = (path, stat.st_size, stat.st_mtime_ns, stat.st_ino)
    return (name, stamp, *options.items())
