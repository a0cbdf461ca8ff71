"""Order, packs and arrays: each step once, waves apart, and never more at once than allowed."""

from dataclasses import dataclass
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctta_bench.launch.steps import arrays, in_order, pack, wave_of


@dataclass(frozen=True)
class Fake:
    """A step with the attributes that packing needs."""

    name: str
    warms_up: bool = False
    needs: str | None = None
    model: str = "m"

    @property
    def cell(self) -> SimpleNamespace:
        return SimpleNamespace(request=SimpleNamespace(benchmark="b", model=self.model))


def steps(warmups: int, free: int, late: int) -> list[Fake]:
    return [
        *(Fake(f"late{n}", needs="w") for n in range(late)),
        *(Fake(f"free{n}") for n in range(free)),
        *(Fake(f"w{n}", True) for n in range(warmups)),
    ]


def test_warm_ups_come_first_and_what_starts_from_them_last() -> None:
    names = [step.name for step in in_order(steps(1, 2, 1))]
    assert names == ["w0", "free0", "free1", "late0"]


def test_cells_of_one_model_follow_one_another() -> None:
    mixed = [Fake("a", model="x"), Fake("b", model="y"), Fake("c", model="x")]
    assert [step.name for step in in_order(mixed)] == ["a", "c", "b"]


@given(st.integers(0, 5), st.integers(0, 9), st.integers(0, 9), st.integers(1, 4))
def test_packs_hold_every_step_once_and_never_two_waves(
    warmups: int, free: int, late: int, size: int
) -> None:
    ordered = in_order(steps(warmups, free, late))
    packs = pack(ordered, size)
    assert [n for start, stop in packs for n in range(start, stop)] == list(range(len(ordered)))
    assert all(stop - start <= size for start, stop in packs)
    assert all(len({wave_of(s) for s in ordered[start:stop]}) == 1 for start, stop in packs)


def test_a_grid_beyond_the_limit_becomes_several_arrays() -> None:
    found = arrays([1] * 25, 11, None)
    assert [list(a.packs) for a in found] == [
        list(range(11)),
        list(range(11, 22)),
        list(range(22, 25)),
    ]
    assert [a.after for a in found] == [(), (), ()]


def test_if_the_number_of_parallel_jobs_is_limited_arrays_wait_for_one_another() -> None:
    assert [a.after for a in arrays([1] * 25, 11, 3)] == [(), (0,), (1,)]
    assert [a.after for a in arrays([1] * 3, 2, 3)] == [(), ()]


def test_what_starts_from_warm_ups_waits_for_all_their_arrays() -> None:
    found = arrays([0, 0, 0, 1, 2], 2, None)
    assert [(list(a.packs), a.after) for a in found] == [
        ([0, 1], ()),
        ([2], ()),
        ([3], ()),
        ([4], (0, 1)),
    ]


@pytest.mark.parametrize("count", [1, 100_000])
def test_arrays_of_very_many_packs_are_made_at_once(count: int) -> None:
    found = arrays([1] * count, 1001, None)
    assert sum(len(a.packs) for a in found) == count
