"""The 19 classes of Cityscapes and ACDC in the order of their train ids, and their colours.

Names, colours and raw ids are those of cityscapesScripts (labels.py). Without torch, since tools
that draw import this too.
"""

IGNORE = 255  # train id of pixels that metrics ignore
CLASSES: tuple[str, ...] = (
    "road", "sidewalk", "building", "wall", "fence", "pole", "traffic light", "traffic sign",
    "vegetation", "terrain", "sky", "person", "rider", "car", "truck", "bus", "train",
    "motorcycle", "bicycle",
)  # fmt: skip
PALETTE: tuple[tuple[int, int, int], ...] = (
    (128, 64, 128), (244, 35, 232), (70, 70, 70), (102, 102, 156), (190, 153, 153),
    (153, 153, 153), (250, 170, 30), (220, 220, 0), (107, 142, 35), (152, 251, 152),
    (70, 130, 180), (220, 20, 60), (255, 0, 0), (0, 0, 142), (0, 0, 70), (0, 60, 100),
    (0, 80, 100), (0, 0, 230), (119, 11, 32),
)  # fmt: skip
# The raw id of each class, as in files *_labelIds.png; all other raw ids are ignored.
LABEL_IDS: tuple[int, ...] = (
    7, 8, 11, 12, 13, 17, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 31, 32, 33,
)  # fmt: skip
