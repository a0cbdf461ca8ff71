import copy
import random
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from ctta_bench.errors import MethodError
from ctta_bench.method.state import capture, load_state
from tests.methods import plain, through_disk

Pair = namedtuple("Pair", "image age")


class Phase(Enum):
    WARM = 1
    ADAPT = 2


@dataclass
class Item:
    image: Tensor
    age: int


class Box:
    """An object with the attributes given."""

    def __init__(self, **attributes: Any) -> None:
        vars(self).update(attributes)


def moved(box: Box, fresh: Box) -> Box:
    """`fresh` in the state of `box`, by way of a file."""
    load_state(fresh, through_disk(capture(box)))
    return fresh


@pytest.mark.parametrize(
    "value",
    [
        None, True, 3, 0.1, 2j, "text", b"bytes",
        [1, [2, (3,)]], (1, "a"), {1, 2}, frozenset({3}), {"a": {"b": [1]}, 2: 3, (1, 2): 4},
        deque([1, 2], maxlen=5), OrderedDict(b=1, a=2), Pair(1, 2), Phase.ADAPT,
        np.float32(0.1), np.float64(0.1), np.int64(7), np.bool_(True),
    ],
    ids=repr,
)  # fmt: skip
def test_a_value_made_along_the_stream_comes_back_with_its_type(value: Any) -> None:
    back = moved(Box(value=value), Box()).value
    assert back == value
    assert type(back) is type(value)


def test_a_deque_keeps_its_limit() -> None:
    assert moved(Box(memory=deque([1], maxlen=5)), Box()).memory.maxlen == 5


def test_keys_of_numpy_come_back_as_equal_keys() -> None:
    assert moved(Box(counts={np.int64(3): 1}), Box()).counts == {3: 1}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool])
def test_tensors_come_back_to_the_bit(dtype: torch.dtype) -> None:
    value = (torch.arange(6).reshape(2, 3) / 3).to(dtype)
    back = moved(Box(value=value), Box()).value
    assert back.dtype == dtype
    assert torch.equal(back, value)


def test_arrays_come_back_to_the_bit() -> None:
    value = np.arange(6, dtype=np.float32).reshape(2, 3) / 3
    back = moved(Box(value=value), Box()).value
    assert back.dtype == np.float32
    assert np.array_equal(back, value)


def test_what_is_captured_does_not_change_with_the_object() -> None:
    box = Box(t=torch.zeros(2), a=np.zeros(2), layer=nn.Linear(1, 1), memory=[torch.zeros(2)])
    tree = capture(box)
    before = plain(through_disk(tree))
    box.t.add_(1)
    box.a += 1
    box.layer.weight.data.add_(1)
    box.memory[0].add_(1)
    assert plain(tree) == before


def test_a_tensor_under_two_names_stays_one_tensor() -> None:
    shared = torch.ones(3)
    fresh = moved(Box(a=shared, b=[shared], c={"x": shared}), Box())
    assert fresh.a is fresh.b[0] is fresh.c["x"]


def test_equal_networks_are_copied_once_and_come_back_apart() -> None:
    student = nn.Linear(128, 128, bias=False)
    networks = {name: copy.deepcopy(student) for name in ("teacher", "anchor", "other", "negated")}
    with torch.no_grad():
        networks["other"].weight[-1, -1] += 1
        student.weight[-1, -1] = networks["teacher"].weight[-1, -1] = 0.0
        networks["anchor"].weight[-1, -1] = 0.0
        networks["negated"].weight[-1, -1] = -0.0  # equal, but for its bits
    box = Box(student=student, **networks)
    tree = capture(box)
    places = [tree[name]["tensors"]["weight"].data_ptr() for name in vars(box)]
    assert len(set(places)) == 3
    assert places[0] == places[1] == places[2]

    load_state(box, tree)
    with torch.no_grad():
        box.student.weight.zero_()
    assert box.teacher.weight.abs().sum() > 0
    assert torch.equal(tree["student"]["tensors"]["weight"], box.teacher.weight)


def test_what_equals_a_frozen_source_weight_is_not_copied() -> None:
    source = nn.Sequential(nn.Linear(128, 128), nn.LayerNorm(128)).requires_grad_(False)
    source[1].requires_grad_(True)
    box = Box(model=source, teacher=copy.deepcopy(source))
    tree = capture(box, frozen=source)
    kept = tree["teacher"]["tensors"]
    assert kept["0.weight"].data_ptr() == source[0].weight.data_ptr()
    assert kept["1.weight"].data_ptr() != source[1].weight.data_ptr()

    with torch.no_grad():
        box.teacher[0].weight.zero_()
    load_state(box, tree)
    assert torch.equal(box.teacher[0].weight, source[0].weight)
    assert box.teacher[0].weight.data_ptr() != source[0].weight.data_ptr()


def test_modules_are_filled_in_place() -> None:
    there, here = nn.BatchNorm1d(3), nn.BatchNorm1d(3)
    there(torch.rand(4, 3))
    fresh = moved(Box(layer=there), Box(layer=here))
    assert fresh.layer is here
    assert plain(here.state_dict()) == plain(there.state_dict())


def test_a_list_of_the_models_parameters_still_points_into_the_model() -> None:
    def box() -> Box:
        layer = nn.Linear(2, 2)
        return Box(layer=layer, chosen=[layer.weight], by_name={"bias": layer.bias})

    there, fresh = box(), box()
    moved(there, fresh)
    assert fresh.chosen[0] is fresh.layer.weight
    assert fresh.by_name["bias"] is fresh.layer.bias
    assert torch.equal(fresh.layer.weight, there.layer.weight)


@pytest.mark.parametrize("optimizer", ["SGD", "Adam", "AdamW"])
@pytest.mark.parametrize("leaf", [nn.Parameter, lambda t: t.requires_grad_()], ids=["par", "leaf"])
def test_an_optimiser_goes_on_with_its_moments(optimizer: str, leaf: Any) -> None:
    extra = {"momentum": 0.9} if optimizer == "SGD" else {}

    def box() -> Box:
        prompt = leaf(torch.tensor([1.0, -2.0]))
        return Box(prompt=prompt, optimizer=getattr(torch.optim, optimizer)([prompt], 0.1, **extra))

    def steps(box: Box, count: int) -> Box:
        for _ in range(count):
            box.optimizer.zero_grad()
            box.prompt.pow(2).sum().backward()
            box.optimizer.step()
        return box

    whole = steps(box(), 5)
    resumed = steps(moved(steps(box(), 2), box()), 3)
    assert torch.equal(resumed.prompt, whole.prompt)
    assert plain(resumed.optimizer.state_dict()) == plain(whole.optimizer.state_dict())


def test_a_learning_rate_schedule_goes_on() -> None:
    def box() -> Box:
        optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], 1.0)
        return Box(optimizer=optimizer, schedule=torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.1))

    there = box()
    for _ in range(3):
        there.optimizer.step()
        there.schedule.step()
    fresh = moved(there, box())
    fresh.optimizer.step()
    fresh.schedule.step()
    assert fresh.optimizer.param_groups[0]["lr"] == pytest.approx(0.01)


@pytest.mark.parametrize(
    ("make", "draw"),
    [
        (lambda: torch.Generator().manual_seed(1), lambda g: torch.rand(1, generator=g).item()),
        (lambda: np.random.default_rng(1), lambda g: g.random()),
        (lambda: random.Random(1), lambda g: g.random()),
    ],
    ids=["torch", "numpy", "python"],
)
def test_generators_go_on_where_they_were(make: Any, draw: Any) -> None:
    whole, first = make(), make()
    drawn = [draw(whole) for _ in range(3)]
    draw(first)
    fresh = moved(Box(rng=first), Box(rng=make()))
    assert [draw(fresh.rng), draw(fresh.rng)] == drawn[1:]


def test_dicts_that_make_their_values_keep_making_them() -> None:
    there = Box(bank=defaultdict(list, {1: [2]}), seen=Counter("aab"))
    fresh = moved(there, Box(bank=defaultdict(list), seen=Counter("zz")))
    fresh.bank[9].append(3)
    assert fresh.bank == {1: [2], 9: [3]}
    assert fresh.seen["a"] == 2
    assert fresh.seen["z"] == 0


def test_objects_in_a_memory_come_back_as_objects_of_their_class() -> None:
    fresh = moved(Box(memory=deque([Item(torch.ones(2), 3)], maxlen=4)), Box())
    (item,) = fresh.memory
    assert type(item) is Item
    assert item.age == 3
    assert item.image.tolist() == [1, 1]


def test_the_classes_of_a_memory_may_be_those_of_the_owners_base() -> None:
    child = type("Child", (Box,), {"__module__": "tests.methods"})
    there, fresh = child(memory=[Item(torch.ones(1), 2)]), child()
    load_state(fresh, through_disk(capture(there)))
    assert type(fresh.memory[0]) is Item


def test_an_object_may_point_back_to_its_owner() -> None:
    there, fresh = Box(), Box()
    there.memory = Box(owner=there, size=3)
    moved(there, fresh)
    assert fresh.memory.owner is fresh
    assert fresh.memory.size == 3


def test_functions_and_settings_stay_those_of_the_fresh_object() -> None:
    fresh = Box(loss=max, device=torch.device("cpu"))
    moved(Box(loss=min, device=torch.device("cpu")), fresh)
    assert fresh.loss is max


def test_attributes_that_appeared_later_are_deleted() -> None:
    box = Box(kept=1)
    tree = capture(box)
    box.average = torch.ones(1)
    load_state(box, tree)
    assert vars(box) == {"kept": 1}


def test_attributes_to_skip_are_neither_captured_nor_deleted() -> None:
    box = Box(a=1, b=2)
    tree = capture(box, skip=frozenset({"b"}))
    assert set(tree) == {"a"}
    load_state(box, tree, skip=frozenset({"b"}))
    assert box.b == 2


def test_frozen_weights_of_the_source_model_are_not_copied() -> None:
    network = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)).requires_grad_(False)
    network[1].weight.requires_grad_(True)
    box = Box(model=network, teacher=nn.Linear(1, 1).requires_grad_(False))
    tree = capture(box, frozen=network)
    buffers = {"1.running_mean", "1.running_var", "1.num_batches_tracked"}
    assert set(tree["model"]["tensors"]) == {"1.weight", *buffers}
    assert set(tree["teacher"]["tensors"]) == {"weight", "bias"}


@pytest.mark.parametrize("value", [iter([1]), {torch.ones(1): 2}], ids=["iterator", "tensor key"])
def test_what_cannot_be_saved_is_refused_by_name(value: Any) -> None:
    with pytest.raises(MethodError, match=r"^Box: .*memory is a .*cannot be saved; use .*\.$"):
        capture(Box(memory=value))


@pytest.mark.parametrize("value", [nn.Linear(1, 1), nn.Parameter(torch.ones(1))])
def test_a_module_that_a_fresh_object_lacks_is_asked_for_in_setup(value: Any) -> None:
    with pytest.raises(MethodError, match=r"Box\.teacher .* create .* in setup\(\)"):
        moved(Box(teacher=value), Box())


def test_the_state_of_another_model_is_refused() -> None:
    with pytest.raises(MethodError, match=r"no tensor weight of shape \(2, 3\)"):
        moved(Box(layer=nn.Linear(3, 2)), Box(layer=nn.Linear(2, 2)))


def test_classes_from_elsewhere_are_never_built_by_a_checkpoint() -> None:
    tree = capture(Box(memory=[Item(torch.ones(1), 1)]))
    tree["memory"]["items"][0]["class"] = "Popen"
    with pytest.raises(MethodError, match=r"class 'Popen', which tests\.test_state does not"):
        load_state(Box(), tree)
