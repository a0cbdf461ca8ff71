"""Nothing grows along a stream: the tensors that a method holds, and the objects of Python."""

import gc
import itertools
import os

import pytest
import torch

from ctta_bench.measuring.memory import resting_bytes
from ctta_bench.registry import METHODS
from ctta_bench.testing import Bench, supported_benches

# Of a stream of 2,000 batches; memories and running averages are full long before.
SETTLED, LENGTH = 400, int(os.environ.get("CTTA_LEAK_BATCHES", "2000"))


def quick(bench: Bench) -> dict[str, int]:
    """Hyper-parameters that only make a step long."""
    known = bench.entry.Hyperparameters.model_fields
    return {key: 2 for key in ("views",) if key in known}


def live_tensors() -> int:
    gc.collect()
    return sum(1 for thing in gc.get_objects() if issubclass(type(thing), torch.Tensor))


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", METHODS.names())
def test_memory_is_constant_over_two_thousand_batches(name: str) -> None:
    bench = supported_benches(METHODS.get(name), {})[0]
    method = bench.method(**quick(bench))
    batches = itertools.cycle(bench.batches(8, size=4))

    def play(count: int) -> tuple[int, int]:
        for images in itertools.islice(batches, count):
            method(images)
        return resting_bytes(method), live_tensors()

    settled = play(min(SETTLED, LENGTH // 2))
    ended = play(LENGTH - min(SETTLED, LENGTH // 2))

    assert ended[0] <= settled[0] * 1.02 + 1024
    assert ended[1] <= settled[1] + 8
