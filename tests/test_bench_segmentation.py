"""The benchmark of segmentation's cost: it counts maps rightly, and no method holds many."""

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch.nn.functional import interpolate

from ctta_bench.registry import METHODS, load_plugin

SCRIPTS = Path(__file__).parents[1] / "scripts"


@pytest.fixture(scope="module")
def bench() -> Iterator[ModuleType]:
    load_plugin("tests.toy_maps")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(SCRIPTS))
        module = importlib.import_module("costs.segmentation")
        patch.setattr(module, "COUNTED_SIZE", (64, 96))  # the least at which half can be seen
        yield module
    for name in [name for name in sys.modules if name.partition(".")[0] == "costs"]:
        del sys.modules[name]


def test_maps_are_counted_while_they_are_held(bench: ModuleType) -> None:
    logits = torch.rand(1, 19, 8, 8)

    def work() -> float:
        one = interpolate(logits, size=(64, 64), mode="bilinear")
        two = one + 1
        del one
        stack = torch.stack([two[0], two[0]])
        return float(stack.sum())

    assert bench.peak_maps(bench.allocations(work), 4 * 19 * 64 * 64) == 3
    assert bench.peak_maps([8, 3, 16, -8, 8, -16, -8], 8) == 3


def test_every_method_for_segmentation_is_counted(bench: ModuleType) -> None:
    classes = {name: METHODS.get(name) for name in METHODS.names()}
    # Other tests may have registered methods of their own.
    own = {n: c for n, c in classes.items() if c.__module__.startswith("ctta_bench.methods.")}
    segment = {name for name, method in own.items() if "segmentation" in method.tasks}
    assert {name for name, _ in bench.NEEDED} == segment


@pytest.mark.parametrize(
    ("name", "preset"),
    [
        ("source", "default"),
        *(
            pytest.param(name, "paper", marks=() if name in ("paid", "cotta") else pytest.mark.slow)
            for name in ("tent", "vdp", "cmae", "paid", "cotta", "vida", "svdp", "becotta")
        ),
    ],
)
def test_no_method_holds_more_than_one_map_beyond_what_it_needs(
    name: str, preset: str, bench: ModuleType
) -> None:
    held = bench.maps_of(name, preset, "toy_segformer")
    assert 1 <= held <= bench.NEEDED[name, preset] + 1
