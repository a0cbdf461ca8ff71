"""CoTTA, RoTTA and RDumb compared with the reference outputs beyond logits: views, memories,
resets, and the teacher's tensors at the end."""

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor

from ctta_bench.authoring.parity import ReplayedCase, replay_case, tensor_mismatches
from ctta_bench.method import Method
from ctta_bench.methods.official import rotta
from ctta_bench.registry import METHODS
from tests.parity.test_parity import CASES

COTTA = [name for name in CASES if name.startswith("cotta_")]
ROTTA = [name for name in CASES if name.startswith("rotta_")]


def noting(monkeypatch: pytest.MonkeyPatch, name: str, fact: Any) -> list[Any]:
    """A list that gets `fact(method)` after each batch of the method called `name`."""
    found: list[Any] = []
    kind = METHODS.get(name)

    def call(method: Method, images: Tensor) -> Tensor:
        logits = Method.__call__(method, images)
        found.append(fact(method))
        return logits

    monkeypatch.setattr(kind, "__call__", call)
    return found


def per_batch(replayed: ReplayedCase, key: str) -> list[Any]:
    return [after[key] for after in replayed.case["per_batch"]]


@pytest.mark.parametrize("name", COTTA)
def test_views_are_made_where_the_official_code_makes_them(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = noting(monkeypatch, "cotta", lambda method: method.augment.calls)
    assert calls == per_batch(replay_case(CASES[name], torch.float64), "augmentation_calls_so_far")


def by_class(method: Any, fact: str) -> list[list[float]]:
    return [
        [getattr(item, fact) for item in method.memory if item.label == label]
        for label in range(10)
    ]


@pytest.mark.parametrize("name", ROTTA)
def test_the_memory_is_the_official_one_after_every_batch(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = noting(
        monkeypatch,
        "rotta",
        lambda m: (by_class(m, "age"), by_class(m, "uncertainty"), m.seen, m.augment.calls),
    )
    replayed = replay_case(CASES[name], torch.float32)
    ages, uncertainties, seen, calls = zip(*facts, strict=True)
    assert list(ages) == per_batch(replayed, "memory_ages")
    for ours, theirs in zip(uncertainties, per_batch(replayed, "memory_uncertainty"), strict=True):
        assert ours == [pytest.approx(values, abs=1e-5) for values in theirs]
    assert list(seen) == per_batch(replayed, "inserted_so_far")
    assert list(calls) == per_batch(replayed, "augmentation_calls_so_far")


@pytest.mark.parametrize("name", [*COTTA, *ROTTA])
def test_the_teacher_ends_as_the_official_one(name: str) -> None:
    replayed = replay_case(CASES[name], torch.float32)
    method: Any = replayed.method
    teacher = rotta.named_tensors(method.teacher.network)
    case = {"final": {"student": replayed.case["final"]["teacher"]}}
    assert len(case["final"]["student"]) >= 11
    compared = dataclasses.replace(replayed, case=case, recorded={}, tensors=teacher)
    assert tensor_mismatches(compared) == []


def test_resets_come_where_those_of_the_second_implementation_come() -> None:
    replayed = replay_case(CASES["tent_mario_rdumb"], torch.float64)
    resets = [after["resets"] for after in replayed.after_batch]
    assert resets == per_batch(replayed, "resets_so_far") == [0, 0, 1, 1, 1, 2, 2]
