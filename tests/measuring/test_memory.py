"""Bytes at rest and in a step."""

import torch
from torch import nn

from ctta_bench.measuring.memory import peak_bytes, resting_bytes

CPU = torch.device("cpu")


class Owner:
    def __init__(self) -> None:
        self.layer = nn.Linear(8, 4, bias=False)  # 128 bytes
        self.again = [self.layer.weight, {"view": self.layer.weight[:2]}]
        self.kept = (torch.zeros(10), "text", 3)  # 40 bytes
        self.itself = self


def test_each_tensor_at_rest_counts_once() -> None:
    assert resting_bytes(Owner()) == 128 + 40


def test_gradients_and_the_optimiser_rest_as_well() -> None:
    owner = Owner()
    owner.optimizer = torch.optim.SGD(owner.layer.parameters(), 0.1, momentum=0.9)
    owner.layer(torch.ones(1, 8)).sum().backward()
    owner.optimizer.step()

    assert resting_bytes(owner) == 3 * 128 + 40  # weight, gradient, momentum


def test_the_peak_is_what_a_step_holds_at_once() -> None:
    def work() -> None:
        first = torch.empty(1000)
        del first
        second = torch.empty(3000)
        third = torch.empty(1000)
        del second, third

    assert 16_000 <= peak_bytes(work, CPU) < 17_000


def test_what_a_step_frees_of_before_is_no_peak() -> None:
    held = [torch.empty(1000)]

    def work() -> None:
        held.clear()
        held.append(torch.empty(1000))

    assert peak_bytes(work, CPU) <= 4096
