"""How methods look: the same in every report, unique, and told apart by everyone."""

import itertools

import numpy as np
import pytest
from matplotlib.colors import to_rgb

from ctta_bench.analysis.figure import palette
from ctta_bench.analysis.figure.palette import (
    COLOURS,
    DASHES,
    MARKERS,
    SOURCE_LOOK,
    Look,
    look_of,
    looks,
)
from ctta_bench.registry import METHODS

# Machado, Oliveira and Fernandes (2009), severity 1; of linear RGB.
BLINDNESS = {
    "none": np.eye(3),
    "protanopia": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "deuteranopia": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ],
    "tritanopia": [
        [1.255528, -0.076749, -0.178779],
        [-0.078411, 0.930809, 0.147602],
        [0.004733, 0.691367, 0.303900],
    ],
}


def lab(colour: str, kind: str) -> np.ndarray:
    """CIE 1976 L*a*b* of an sRGB colour as it is seen."""
    shares = np.array(to_rgb(colour))
    linear = np.where(shares <= 0.04045, shares / 12.92, ((shares + 0.055) / 1.055) ** 2.4)
    seen = np.clip(np.array(BLINDNESS[kind]) @ linear, 0, 1)
    to_xyz = np.array(
        [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
    )
    x, y, z = np.cbrt(to_xyz @ seen / [0.9505, 1.0, 1.089])  # none is as dark as the linear part
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("kind", BLINDNESS)
def test_colours_differ_for_everyone(kind):
    seen = [lab(colour, kind) for colour in COLOURS]
    assert min(np.linalg.norm(a - b) for a, b in itertools.combinations(seen, 2)) > 16


def test_the_fixed_looks_are_those_of_methods():
    assert set(palette._ORDER) <= set(METHODS.names())
    assert len(set(palette._ORDER)) == len(palette._ORDER) <= palette._FIXED


def test_forty_fixed_looks_differ_in_grey_and_as_single_marks():
    found = [palette._look(place) for place in range(palette._FIXED)]
    assert len({(look.marker, look.dash) for look in found}) == 40
    assert len({(look.colour, look.marker) for look in found}) == 40


def test_all_places_differ():
    assert len({palette._look(place) for place in range(palette._ALL)}) == 280


def test_a_look_never_changes():
    assert look_of("tent") == Look("#0072B2", "o", ())
    assert look_of("finetune") == Look("#E69F00", ">", (1.5, 1))
    assert look_of("a_plug_in") == Look("#E69F00", "o", (1.5, 1))
    assert look_of("source") == SOURCE_LOOK


def test_sixty_plug_ins_look_different_and_as_alone_where_no_hashes_meet():
    names = [f"plug_in_{number}" for number in range(60)]
    found = looks({name: name for name in [*names, "tent", "source"]})
    assert len(set(found.values())) == 62
    assert found["tent"] == look_of("tent") and found["source"] == SOURCE_LOOK
    assert sum(found[name] == look_of(name) for name in names) > 40


def test_the_company_of_other_methods_changes_no_look():
    alone = looks({"tent": "tent", "my_method": "my_method"})
    among = looks({name: name for name in [*METHODS.names(), "my_method"]})
    assert alone == {name: among[name] for name in alone}


def test_rows_of_one_method_differ_and_leave_the_others_their_looks():
    methods = {"paid": "paid"} | {f"paid rank={rank}": "paid" for rank in range(9)}
    found = looks(methods | {"tent": "tent"})
    assert found["paid"] == look_of("paid")
    assert len({look.colour for name, look in found.items() if "rank" in name}) == len(COLOURS)
    assert len(set(found.values())) == len(found)
    assert not set(found.values()) & {look_of(name) for name in ("cotta", "sar", "roid")}


def test_more_rows_than_looks_still_have_one():
    found = looks({f"a {number}": "a" for number in range(300)})
    assert len(set(found.values())) == palette._ALL - palette._FIXED


def test_a_look_draws_a_line():
    assert look_of("tent").line == {"color": "#0072B2", "marker": "o", "ls": "-"}
    assert DASHES[2] in [look_of(name).dash for name in METHODS.names()]
    assert look_of("finetune").line["ls"] == (0, (1.5, 1))
    assert set(MARKERS) >= {look_of(name).marker for name in METHODS.names()} - {""}
