"""Cache of tensors computed from source images before the stream, shared between cells.

One file per entry in the benchmark's cache folder. It contains the tensors and everything that
decided them: source weights, normalisation, precision, the images and the caller's arguments.
"""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from ctta_bench.errors import DataError, RunError
from ctta_bench.record.folder import atomic
from ctta_bench.stream import ImageSet, MapSet

HASHED_IMAGES = 8
VERSION = 1  # raised when the same facts give other tensors


@dataclass(frozen=True)
class SourceCache:
    """Cache of tensors by the facts that decide them; called by `SourceData.once`.

    folder: that of the files. facts: those common to all entries of one model and source set.
    """

    folder: Path
    facts: dict[str, Any]
    say: Callable[[str], None] = lambda text: None

    def __call__(
        self, what: str, facts: dict[str, Any], make: Callable[[], dict[str, Tensor]]
    ) -> dict[str, Tensor]:
        """The stored tensors of `make()`; if there are none, call it and store its tensors.

        A damaged file is replaced. If the folder cannot be written, nothing is stored. Both are
        reported. Raises DataError if a file was made from other facts than its name states.
        """
        wanted = {"what": what, "version": VERSION, **self.facts, **facts}
        text = json.dumps(wanted, sort_keys=True)
        file = self.folder / f"{what}-{hashlib.sha256(text.encode()).hexdigest()[:16]}.safetensors"
        stored = self._read(file, wanted)
        if stored is not None:
            return stored
        made = {name: value.detach().cpu().contiguous() for name, value in make().items()}
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            with atomic(file) as temporary:
                save_file(made, temporary, metadata={"facts": text})
        except (RunError, OSError) as error:
            self.say(f"{file}: {what} could not be stored and will be computed again ({error})")
        return made

    def _read(self, file: Path, wanted: dict[str, Any]) -> dict[str, Tensor] | None:
        if not file.is_file():
            return None
        try:
            with safetensors.safe_open(file, framework="pt") as tensors:
                facts = json.loads((tensors.metadata() or {})["facts"])
                stored = {name: tensors.get_tensor(name) for name in tensors.keys()}  # noqa: SIM118
        except (OSError, SafetensorError, ValueError, KeyError) as error:
            self.say(f"{file}: is damaged ({type(error).__name__}) and is computed again")
            return None
        odd = sorted(key for key in wanted | facts if wanted.get(key) != facts.get(key))
        if odd:
            raise DataError(
                f"{file}: was made from another {odd[0].replace('_', ' ')}; delete it, and it is "
                "computed again."
            )
        return stored


def fingerprint_of(images: ImageSet, order: np.ndarray) -> str:
    """SHA-256 of a source set: its labels, the order in which it is read, and its first images.

    If the labels are maps, the maps of the first images are included.
    """
    digest = hashlib.sha256(np.asarray(images.labels, "<i8").tobytes())
    digest.update(np.ascontiguousarray(order, "<i8").tobytes())
    first = order[:HASHED_IMAGES]
    probes = [images.load(first)]
    if isinstance(images, MapSet):
        probes.append(images.maps(first))
    for probe in probes:
        digest.update(f"{probe.dtype} {tuple(probe.shape)}".encode())
        digest.update(probe.contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
