"""The source model of a process: read once, copied for each method."""

import copy
from pathlib import Path
from typing import Any

from ctta_bench.model import PassCounts, SourceModel
from ctta_bench.source_models.pretrained import load_source_model, sketch, stored_weights
from ctta_bench.source_models.weight_sets import located
from ctta_bench.source_models.weights import weight_file

Key = tuple[Any, ...]
UNKNOWN = "unknown"  # the fingerprint of weights that are not on this machine


class Models:
    """A cache of one source model, by name and options of `load_source_model`.

    A process uses one object: it fingerprints the model of a cell and provides copies for the cell,
    its warm-up and the following cells. Only the last model is held in memory, so cells with the
    same model should follow each other. several: whether more cells follow; if not, `release` drops
    the model. planning: a model without weights on this machine has `UNKNOWN` for its fingerprint;
    `missing` says so, a sentence for each, and `parameters` has the number of its parameters.
    """

    def __init__(self, *, several: bool = False, planning: bool = False) -> None:
        self.several, self.planning = several, planning
        self.missing: dict[str, None] = {}
        self.parameters: dict[str, int] = {}
        self._cached: tuple[Key, SourceModel] | None = None
        self._facts: dict[Key, tuple[str, dict[str, Any]]] = {}
        self._notes: dict[Key, str] = {}

    def fresh(self, name: str, options: dict[str, Any], *, last: bool = False) -> SourceModel:
        """A copy of the model as read, with its own count of passes.

        last: the cell needs no further copy, so without following cells the cached model itself is
        returned. Raises what `load_source_model` raises.
        """
        model = self._read(_key(name, options), name, options)
        if last and not self.several:
            self.drop()
            return model
        copied = copy.deepcopy(model)
        copied.passes = PassCounts()  # copies within a cell share it, cells do not
        return copied

    def facts(self, name: str, options: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        """SHA-256 of the model's weights, and its pre-processing; cached for every model."""
        key = _key(name, options)
        if key in self._facts:
            return self._facts[key]
        sketched = sketch(name, **options) if self.planning and not options["weights"] else None
        if sketched is None:
            model = self._read(key, name, options)
            self.parameters[name] = model.source_parameters
            self._facts[key] = model.sha256(), model.preprocessing.record()
            self._notes[key] = model.weights_note
        else:
            absent, self.parameters[name], preprocessing = sketched
            self.missing[absent] = None
            self._facts[key], self._notes[key] = (UNKNOWN, preprocessing.record()), ""
        return self._facts[key]

    def note(self, name: str, options: dict[str, Any]) -> str:
        """Which of a file's sets of weights the model has; "" if the file has one."""
        self.facts(name, options)
        return self._notes[_key(name, options)]

    def release(self) -> None:
        """Drop the cached model, unless more cells follow."""
        if not self.several:
            self.drop()

    def drop(self) -> None:
        """Drop the cached model, not the fingerprints."""
        self._cached = None

    def _read(self, key: Key, name: str, options: dict[str, Any]) -> SourceModel:
        if self._cached is None or self._cached[0] != key:
            self.drop()  # before the next one is read: never two in memory
            self._cached = key, load_source_model(name, **options)
        return self._cached[1]


def _key(name: str, options: dict[str, Any]) -> Key:
    """The identity of a model: name, options, and the stamp of the weights' file.

    The stamp (size, time, inode) changes when the file is written again.
    """
    path: Path | None = options["weights"] or stored_weights(name, options["root"])
    stamp: Key = (path,)
    if path is not None and located(path)[0].exists():
        stat = weight_file(path).stat()
        stamp = (path, stat.st_size, stat.st_mtime_ns, stat.st_ino)
    return (name, stamp, *options.items())
