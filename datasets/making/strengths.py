"""Names of the corruptions and the published parameters of their severities; imports no library."""

from typing import Any

# The published parameters of severities 1 to 5, for CIFAR (32 pixels) and for ImageNet (224), in
# the order of the function's arguments; lengths in pixels. Corruptions in their usual order.
# fmt: off
_TABLE: dict[str, tuple[tuple[Any, ...], tuple[Any, ...]]] = {
    "gaussian_noise": ((.04, .06, .08, .09, .10), (.08, .12, .18, .26, .38)),
    "shot_noise": ((500, 250, 100, 75, 50), (60, 25, 12, 5, 3)),
    "impulse_noise": ((.01, .02, .03, .05, .07), (.03, .06, .09, .17, .27)),
    "defocus_blur": (((.3, .4), (.4, .5), (.5, .6), (1, .2), (1.5, .1)),
                     ((3, .1), (4, .5), (6, .5), (8, .5), (10, .5))),
    "glass_blur": (((.05, 1, 1), (.25, 1, 1), (.4, 1, 1), (.25, 1, 2), (.4, 1, 2)),
                   ((.7, 1, 2), (.9, 2, 1), (1, 2, 3), (1.1, 3, 2), (1.5, 4, 2))),
    "motion_blur": (((6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5)),
                    ((10, 3), (15, 5), (15, 8), (15, 12), (20, 15))),
    "zoom_blur": (((1.06, .01), (1.11, .01), (1.16, .01), (1.21, .01), (1.26, .01)),
                  ((1.11, .01), (1.16, .01), (1.21, .02), (1.26, .02), (1.31, .03))),
    "snow": (((.1, .2, 1, .6, 8, 3, .95), (.1, .2, 1, .5, 10, 4, .9),
              (.15, .3, 1.75, .55, 10, 4, .9), (.25, .3, 2.25, .6, 12, 6, .85),
              (.3, .3, 1.25, .65, 14, 12, .8)),
             ((.1, .3, 3, .5, 10, 4, .8), (.2, .3, 2, .5, 12, 4, .7), (.55, .3, 4, .9, 12, 8, .7),
              (.55, .3, 4.5, .85, 12, 8, .65), (.55, .3, 2.5, .85, 12, 12, .55))),
    "frost": (((1, .2, .2), (1, .3, .2), (.9, .4, .2), (.85, .4, .2), (.75, .45, .2)),
              ((1, .4, 1), (.8, .6, 1), (.7, .7, 1), (.65, .7, 1), (.6, .75, 1))),
    "fog": (((.2, 3), (.5, 3), (.75, 2.5), (1, 2), (1.5, 1.75)),
            ((1.5, 2), (2, 2), (2.5, 1.7), (2.5, 1.5), (3, 1.4))),
    "brightness": ((.05, .1, .15, .2, .3), (.1, .2, .3, .4, .5)),
    "contrast": ((.75, .5, .4, .3, .15), (.4, .3, .2, .1, .05)),
    "elastic_transform": (
        ((0, 0, 2.56), (1.6, 6.4, 2.24), (2.56, 1.92, 1.92), (3.2, 1.28, 1.6), (3.2, .96, .96)),
        ((488, 170.8, 24.4), (488, 19.52, 48.8), (12.2, 2.44, 4.88), (17.08, 2.44, 4.88),
         (29.28, 2.44, 4.88))),
    "pixelate": ((.95, .9, .85, .75, .65), (.6, .5, .4, .3, .25)),
    "jpeg_compression": ((80, 65, 58, 50, 40), (25, 18, 15, 10, 7)),
    "speckle_noise": ((.06, .1, .12, .16, .2), (.15, .2, .35, .45, .6)),
    "gaussian_blur": ((.4, .6, .7, .8, 1), (1, 2, 3, 4, 6)),
    "spatter": (((.62, .1, .7, .7, .5, 0), (.65, .1, .8, .7, .5, 0), (.65, .3, 1, .69, .5, 0),
                 (.65, .1, .7, .69, .6, 1), (.65, .1, .5, .68, .6, 1)),
                ((.65, .3, 4, .69, .6, 0), (.65, .3, 3, .68, .6, 0), (.65, .3, 2, .68, .5, 0),
                 (.65, .3, 1, .65, 1.5, 1), (.67, .4, 1, .65, 1.5, 1))),
    "saturate": (((.3, 0), (.1, 0), (1.5, 0), (2, .1), (2.5, .2)),
                 ((.3, 0), (.1, 0), (2, 0), (5, .1), (20, .2))),
}
# fmt: on

CORRUPTIONS: tuple[str, ...] = tuple(_TABLE)[:15]
HOLD_OUT: tuple[str, ...] = tuple(_TABLE)[15:]  # for validation, never in a mean
# In the table `mixed`, for small images in colour: corruptions with the values for ImageNet, since
# those for CIFAR hardly cost a model anything. The others have lengths in pixels, or are strong.
_STRONGER = frozenset(
    {"gaussian_noise", "shot_noise", "impulse_noise", "snow", "brightness", "pixelate"}
    | {"jpeg_compression", "speckle_noise", "gaussian_blur", "spatter"}
)
PARAMETERS: dict[str, dict[str, tuple[Any, ...]]] = {
    "cifar": {name: cifar for name, (cifar, _) in _TABLE.items()},
    "imagenet": {name: imagenet for name, (_, imagenet) in _TABLE.items()},
    "mixed": {name: tables[name in _STRONGER] for name, tables in _TABLE.items()},
}
