"""Write the embedded images of Fashion-MNIST, per class: 200 test images that are scored, the next
200 for hold-out domains, and 100 training images.

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

# File: split, and which images of each class.
FILES = {
    "fashion_test": ("test", slice(0, 200)),
    "fashion_holdout": ("test", slice(200, 400)),
    "fashion_source": ("train", slice(0, 100)),
}


def of_each_class(labels: np.ndarray, which: slice) -> np.ndarray:
    """Numbers of these images of each class, ascending."""
    return np.sort(np.concatenate([np.flatnonzero(labels == c)[which] for c in range(10)]))


def alternating(labels: np.ndarray, chosen: np.ndarray) -> np.ndarray:
    """The chosen numbers so that any first 10 k images have k of each class."""
    rank = np.empty(len(chosen), int)
    for c in range(10):
        of_class = labels[chosen] == c
        rank[of_class] = np.arange(of_class.sum())
    return chosen[np.argsort(rank, kind="stable")]


def main() -> None:
    """Parse the command line and write both files."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=DEBIAN_PACKAGE)
    parser.add_argument("--out", type=Path, default=EMBEDDED)
    arguments = parser.parse_args()
    for name, (split, which) in FILES.items():
        images, labels = read_split(arguments.data, split)
        chosen = of_each_class(labels, which)
        if name == "fashion_holdout":  # classes reach their 200th image at different places
            chosen = alternating(labels, chosen)
        np.savez_compressed(
            arguments.out / f"{name}.npz",
            images=images[chosen],
            labels=labels[chosen].astype(np.uint8),
        )


if __name__ == "__main__":
    main()
