"""Draw docs/images/scenes.png: twelve scenes of scenes_c, clean and under each corruption.

Usage: python scripts/draw_scenes.py [FILE]
"""

import sys
from pathlib import Path

import numpy as np
from PIL import Image

from ctta_bench.datasets.making.corruptions import CORRUPTIONS, HOLD_OUT, corrupt_batch
from ctta_bench.datasets.scenes import PARAMETERS, clean

FILE = Path(__file__).parents[1] / "docs" / "images" / "scenes.png"
NUMBERS = np.arange(12)
ROWS, SCALE = 4, 2  # rows of domains; size of a pixel


def strip(images: np.ndarray) -> np.ndarray:
    """Scenes side by side in rows of four: uint8 [h, w, 3]."""
    rows = [np.concatenate(list(images[i : i + 4]), axis=1) for i in range(0, len(images), 4)]
    tile = np.concatenate(rows, axis=0).repeat(SCALE, 0).repeat(SCALE, 1)
    return np.pad(tile, ((0, 8), (0, 8), (0, 0)), constant_values=255)


def main() -> None:
    """Draw the clean scenes, the fifteen corruptions, then the hold-out ones, row by row."""
    file = Path(sys.argv[1]) if len(sys.argv) > 1 else FILE
    shown = [clean("test").images[NUMBERS].transpose(0, 2, 3, 1)]
    for name in (*CORRUPTIONS, *HOLD_OUT):
        scenes = clean("holdout" if name in HOLD_OUT else "test").images[NUMBERS]
        images = np.ascontiguousarray(scenes.transpose(0, 2, 3, 1))
        shown.append(corrupt_batch(images, name, 5, parameters=PARAMETERS, seed=0, indices=NUMBERS))
    across = len(shown) // ROWS
    rows = [shown[i : i + across] for i in range(0, len(shown), across)]
    grid = np.concatenate([np.concatenate([*map(strip, row)], axis=1) for row in rows])
    Image.fromarray(grid[:-8, :-8]).save(file, optimize=True)


if __name__ == "__main__":
    main()
