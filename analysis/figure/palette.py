"""The colours of segmented pictures."""

import colorsys
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

IGNORE = 255
UNLABELLED = (0, 0, 0)
# Cityscapes, in the order of its train ids.
CITYSCAPES: dict[str, tuple[int, int, int]] = {
    "road": (128, 64, 128),
    "sidewalk": (244, 35, 232),
    "building": (70, 70, 70),
    "wall": (102, 102, 156),
    "fence": (190, 153, 153),
    "pole": (153, 153, 153),
    "traffic light": (250, 170, 30),
    "traffic sign": (220, 220, 0),
    "vegetation": (107, 142, 35),
    "terrain": (152, 251, 152),
    "sky": (70, 130, 180),
    "person": (220, 20, 60),
    "rider": (255, 0, 0),
    "car": (0, 0, 142),
    "truck": (0, 0, 70),
    "bus": (0, 60, 100),
    "train": (0, 80, 100),
    "motorcycle": (0, 0, 230),
    "bicycle": (119, 11, 32),
}


def colours_of(classes: Sequence[str]) -> npt.NDArray[np.uint8]:
    """[256, 3] a colour for each value of a map of classes; black for values that are no class.

    Classes of Cityscapes have its colours; other classes have hues around the colour circle.
    """
    colours = np.tile(np.array(UNLABELLED, np.uint8), (256, 1))
    for place, name in enumerate(classes):
        hue = colorsys.hsv_to_rgb(place / max(len(classes), 1), 0.75, 0.85)
        own = tuple(round(255 * part) for part in hue)
        colours[place] = CITYSCAPES.get(name.replace("_", " "), own)
    return colours
