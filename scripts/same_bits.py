"""Check that two folders of runs have bit-identical results, as after a refactoring.

    python scripts/same_bits.py runs/before runs/after

Compares cells of the same name: predictions (bytes of every array), batch lines and results without
times, and learnt weights of warm-ups. Prints one line per difference; exit code 1 if there is any.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

from ctta_bench.record import schema

TIMES = {"ms", "seconds", "images_per_second", "peak_memory_mb", "learnt_sha256"}


def without_times(value: Any) -> Any:
    """A JSON value without times, at every depth."""
    if isinstance(value, dict):
        return {key: without_times(v) for key, v in value.items() if key not in TIMES}
    return [without_times(v) for v in value] if isinstance(value, list) else value


def content(cell: Path) -> Iterator[tuple[str, Any]]:
    """The values of a cell that must be equal, by name."""
    for name in (schema.PREDICTIONS_FILE, schema.PICTURES_FILE):
        if (cell / name).is_file():
            with np.load(cell / name) as arrays:
                yield from ((f"{name}/{key}", _bytes(arrays[key])) for key in arrays.files)
    for file in sorted(
        [*cell.glob("*.safetensors"), *cell.glob(f"{schema.MODELS_FOLDER}/*.safetensors")]
    ):
        yield from ((f"{file.name}/{key}", _bytes(v)) for key, v in load_file(file).items())
    result = (cell / schema.RESULT_FILE).read_text("utf-8")
    yield schema.RESULT_FILE, without_times(json.loads(result))
    lines = (cell / schema.BATCHES_FILE).read_text("utf-8").splitlines()
    yield schema.BATCHES_FILE, [without_times(json.loads(line)) for line in lines]


def _bytes(array: np.ndarray) -> tuple[str, tuple[int, ...], bytes]:
    return str(array.dtype), array.shape, array.tobytes()


def differences(before: Path, after: Path) -> list[str]:
    """One line per difference; cells without a result count as missing."""
    cells = {
        folder: {file.parent.name: file.parent for file in folder.glob(f"**/{schema.RESULT_FILE}")}
        for folder in (before, after)
    }
    found = [
        f"{name}: is in only one of the two folders"
        for name in sorted({*cells[before]} ^ {*cells[after]})
    ]
    for name in sorted({*cells[before]} & {*cells[after]}):
        here, there = dict(content(cells[before][name])), dict(content(cells[after][name]))
        odd = [key for key in sorted({*here, *there}) if here.get(key) != there.get(key)]
        found += [f"{name}: {key} differs" for key in odd]
    return found


if __name__ == "__main__":
    folders = [Path(argument) for argument in sys.argv[1:]]
    if len(folders) != 2 or not all(folder.is_dir() for folder in folders):
        sys.exit("error: usage: same_bits.py BEFORE AFTER, two folders of runs")
    found = differences(*folders)
    count = len([*folders[0].glob(f"**/{schema.RESULT_FILE}")])
    print("\n".join(found) or f"{count} cells are bit-identical")
    sys.exit(bool(found) or not count)
