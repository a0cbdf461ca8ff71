"""Write the embedded images: 200 test and 100 training images per class of Fashion-MNIST.

    python scripts/embed_images.py --data /usr/share/datasets/fashion-mnist

`--data` is a folder with the four idx files, plain or gzipped (Debian's package
dataset-fashion-mnist, or the `raw` folder of torchvision's FashionMNIST). Images are stored grey,
uint8, 28x28.
"""

import argparse
from pathlib import Path

import numpy as np

from ctta_bench.datasets.fashion import DEBIAN_PACKAGE, EMBEDDED
from ctta_bench.datasets.io.idx import read_split

IMAGES_PER_CLASS = {"test": 200, "train": 100}
NAMES = {"test": "fashion_test", "train": "fashion_source"}


def first_of_each_class(labels: np.ndarray, count: int) -> np.ndarray:
    """Numbers of the first `count` images of each class, ascending."""
    return np.sort(np.concatenate([np.flatnonzero(labels == c)[:count] for c in range(10)]))


def main() -> None:
    """Parse the command line and write both files."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=DEBIAN_PACKAGE)
    parser.add_argument("--out", type=Path, default=EMBEDDED)
    arguments = parser.parse_args()
    for split, count in IMAGES_PER_CLASS.items():
        images, labels = read_split(arguments.data, split)
        chosen = first_of_each_class(labels, count)
        np.savez_compressed(
            arguments.out / f"{NAMES[split]}.npz",
            images=images[chosen],
            labels=labels[chosen].astype(np.uint8),
        )


if __name__ == "__main__":
    main()
