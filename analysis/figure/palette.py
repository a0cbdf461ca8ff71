"""How a method looks in every figure and on the page, and the colours of segmented pictures.

A look is a colour, a marker and a dash, fixed by the method's name: the same in every report. The
first 40 names of `_ORDER` differ in marker and dash alone, so also in grey; their pairs of colour
and marker differ as well. Other names, such as those of plug-ins, get one of the other 240 looks
from a hash of the name.

Colours: Okabe and Ito (2008) without black and yellow, and the wine red of Tol (2021). Any two of
them differ by at least 16 (CIE 1976 L*a*b*) in normal vision and with each kind of colour
blindness, after Machado et al. (2009).
"""

import colorsys
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ctta_bench.analysis.table.rows import SOURCE

COLOURS = ("#0072B2", "#E69F00", "#009E73", "#882255", "#56B4E9", "#D55E00", "#CC79A7")
MARKERS = "os^DvPX*<>"
DASHES: tuple[tuple[float, ...], ...] = ((), (5, 1.5), (1.5, 1), (5, 1, 1, 1))
GREY = "#B4B4B4"  # of a line that does not stand out
# New names are added at the end, so that no look changes.
_ORDER = (
    "tent", "cotta", "eata", "sar", "roid", "paid", "norm",
    "pseudo_label", "vida", "svdp", "vdp", "cmae", "dept", "rmt",
    "rdumb", "rotta", "deyo", "lame", "t3a", "foa", "lora",
    "dora", "ecotta", "santa", "cmf", "dpcore", "eta", "foa_bp",
    "foa_shift", "finetune", "come_tent", "come_eata", "come_sar", "rem", "petal",
    "kff", "palm", "spa", "reservoir", "asr_tent",
)  # fmt: skip
_FIXED = len(MARKERS) * len(DASHES)
_ALL = _FIXED * len(COLOURS)
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


@dataclass(frozen=True)
class Look:
    """How one method is drawn.

    colour: hexadecimal. marker: a letter of matplotlib, "" for none. dash: lengths of stroke and
    gap in points, () for a whole line.
    """

    colour: str
    marker: str
    dash: tuple[float, ...] = ()

    @property
    def line(self) -> dict[str, Any]:
        """The arguments of matplotlib's `plot`."""
        dashes = (0, self.dash) if self.dash else "-"
        return {"color": self.colour, "marker": self.marker, "ls": dashes}


SOURCE_LOOK = Look("#111111", "")


def look_of(method: str) -> Look:
    """The look of a method by its registry name.

    Example: `look_of("tent").colour` is "#0072B2" in every report.
    """
    if method == SOURCE:
        return SOURCE_LOOK
    return _look(_ORDER.index(method) if method in _ORDER else _hashed(method))


def looks(methods: Mapping[str, str]) -> dict[str, Look]:
    """The look of each row of a report; no two of them are the same, for up to 240 rows.

    methods: the method of each row by the row's name. The only row of a method, or the row that has
    the method's name, looks like the method; where two hashes meet, the later name gets the next
    free look. Other rows of a method (other hyper-parameters) get looks that no method of `_ORDER`
    has, with the colours and markers that are rarest in the report.

    Example: `looks({row.name: row.method for row in rows(runs)})`
    """
    counts = Counter(methods.values())
    own = {name for name, method in methods.items() if counts[method] == 1 or name == method}
    found: dict[str, Look] = {}
    for name in sorted(methods, key=lambda n: (n not in own, n)):
        method = methods[name]
        first = look_of(method) if name in own else _look(_hashed(method))
        others = [_look(_hashed(method, step)) for step in range(_ALL - _FIXED)]
        free = [look for look in (first, *others) if look not in found.values()] or [first]
        if name not in own:
            colours = Counter(look.colour for look in found.values())
            markers = Counter(look.marker for look in found.values())
            free.sort(key=lambda look: (colours[look.colour], markers[look.marker]))
        found[name] = free[0]
    return {name: found[name] for name in methods}


def _hashed(name: str, steps: int = 0) -> int:
    """A place behind the fixed ones, some steps after that of the name's hash."""
    return _FIXED + (zlib.crc32(name.encode()) + steps) % (_ALL - _FIXED)


def _look(place: int) -> Look:
    """The look of a place in [0, 280): 7 and 10 have no common factor, so all differ."""
    turn, within = divmod(place, len(COLOURS) * len(MARKERS))
    return Look(
        COLOURS[within % len(COLOURS)],
        MARKERS[within % len(MARKERS)],
        DASHES[(within // len(MARKERS) + turn) % len(DASHES)],
    )


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
