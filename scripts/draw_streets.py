"""Draw docs/images/streets.png: a scene of each domain of streets_acdc, with its labels.

Usage: python scripts/draw_streets.py [FILE]
"""

import sys
from pathlib import Path

import numpy as np
from PIL import Image

from ctta_bench.datasets.io.street_classes import PALETTE
from ctta_bench.datasets.streets_acdc import SETS, Streets

FILE = Path(__file__).parents[1] / "docs" / "images" / "streets.png"
NUMBERS = np.array([7])
GAP = 4


def column(name: str) -> np.ndarray:
    """Images above their label maps, uint8 [h, w, 3]."""
    images = Streets(name, 400).load(NUMBERS).movedim(1, -1).numpy()
    maps = np.array(PALETTE, np.uint8)[Streets(name, 400).maps(NUMBERS).numpy()[:, ::2, ::2]]
    cells = [cell for pair in zip(images, maps, strict=True) for cell in pair]
    return np.concatenate(
        [np.pad(c, ((0, GAP), (0, GAP), (0, 0)), constant_values=255) for c in cells]
    )


def main() -> None:
    """Draw the domains from left to right: clean, fog, night, rain, snow, dusk, dust."""
    file = Path(sys.argv[1]) if len(sys.argv) > 1 else FILE
    grid = np.concatenate([column(name) for name in SETS if name != "train"], axis=1)
    Image.fromarray(grid[:-GAP, :-GAP]).save(file, optimize=True)


if __name__ == "__main__":
    main()
