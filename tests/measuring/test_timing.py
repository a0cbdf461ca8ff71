"""Works that take turns, on a clock of the test's own."""

import pytest
import torch

from ctta_bench.measuring.timing import Spread, clock, ratios, take_turns


class Clock:
    def __init__(self) -> None:
        self.time = 0.0

    def __call__(self) -> float:
        return self.time


def test_works_take_turns_and_the_first_round_is_not_counted() -> None:
    now, order = Clock(), []

    def work(name: str, seconds: list[float]):
        def run() -> None:
            order.append(name)
            now.time += seconds.pop(0)

        return run

    times = take_turns({"a": work("a", [9, 2, 4]), "b": work("b", [9, 1, 1])}, 2, now)

    assert times == {"a": [2, 4], "b": [1, 1]}
    assert order == ["a", "b", "a", "b", "a", "b"]
    assert ratios(times["a"], times["b"]) == [2, 4]


def test_a_spread_is_median_least_and_largest() -> None:
    assert Spread.of([5.0, 1.0, 2.0]) == Spread(2.0, 1.0, 5.0)


def test_one_cpu_thread_is_timed_by_what_it_computed() -> None:
    now = clock(torch.device("cpu"))
    began = now()
    sum(range(300_000))
    assert 0 < now() - began < 10
    import time

    assert now is time.thread_time


@pytest.mark.gpu
def test_a_gpu_is_waited_for() -> None:
    device = torch.device("cuda")
    now, x = clock(device), torch.rand(4096, 4096, device=device)
    began = now()
    for _ in range(20):
        x @ x
    assert now() - began > 0.001
