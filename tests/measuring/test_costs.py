"""What the cost of a method consists of, on the toy benchmark."""

import dataclasses

import pytest
import torch

from ctta_bench.errors import ConfigError, DataError
from ctta_bench.measuring.costs import MethodCost, bounds_of, flops, measure, record
from ctta_bench.measuring.subjects import MethodSteps, PlainModel
from ctta_bench.measuring.workload import Workload, benchmark_of, overrides_by_owner

pytestmark = pytest.mark.usefixtures("toy")
CPU = torch.device("cpu")


def workload(**changes) -> Workload:
    values = {"model_name": "toy_vit", "device": CPU, "precision": "float32"} | changes
    return Workload(benchmark_of("toy", {"batch_size": 8}, None), **values)


def costs(*methods: str, **changes) -> dict[str, MethodCost]:
    found = measure(workload(**changes), methods, repeats=2)
    return {cost.method: cost for cost in found}


def test_passes_parameters_and_state_are_those_of_the_methods() -> None:
    found = costs("source", "tent", "sar", "paid", overrides={"sar": {"margin": 10.0}})

    passes = {n: (c.forward_per_image, c.backward_per_image) for n, c in found.items()}
    assert passes == {"source": (1, 0), "tent": (1, 1), "sar": (2, 2), "paid": (1, 1)}
    # Nine norms of width 24, each with weight and bias; of SAR those of three of four blocks.
    learnable = {n: c.trainable_parameters for n, c in found.items()}
    assert learnable["source"] == 0
    assert learnable["tent"] == 9 * 2 * 24
    assert learnable["sar"] == 6 * 2 * 24
    assert found["tent"].extra_parameters == found["sar"].extra_parameters == 0
    assert found["paid"].extra_parameters == found["paid"].trainable_parameters > 0
    assert found["source"].to_reference.median < 1 < found["sar"].to_reference.median
    assert found["source"].memory_to_source == 1
    assert found["tent"].memory_to_source > 1
    for cost in found.values():
        assert cost.to_bound.low <= cost.to_bound.median <= cost.to_bound.high
        assert cost.to_bound.median > 0.3
        assert cost.images_per_second > 0


def test_nothing_is_computed_for_frozen_weights() -> None:
    """A step of TENT has the products of a forward pass, and those that carry the gradient back."""
    steps = MethodSteps(workload(), "tent")
    model = steps.method.model
    learning = list(steps.method.trainable.values())
    images = steps.workload.batches[0]
    forward = flops(lambda: model(images))

    def to_inputs() -> None:
        torch.autograd.grad(model(images).logsumexp(-1).sum(), learning)

    assert flops(steps.turn) == flops(to_inputs) < 2 * forward


def test_attention_and_sums_in_place_are_counted_on_a_cpu() -> None:
    q = torch.rand(2, 4, 8, 16)
    attended = 2 * 2 * 4 * 8 * 8 * 16 * 2  # images, heads, queries x keys x width; two products

    assert flops(lambda: torch.nn.functional.scaled_dot_product_attention(q, q, q)) == attended
    a, b, c = torch.rand(3, 5), torch.rand(5, 7), torch.zeros(3, 7)
    assert flops(lambda: c.addmm_(a, b)) == 2 * 3 * 5 * 7


def test_the_bound_of_each_turn_is_of_its_own_passes() -> None:
    times = {"forward": [1.0, 2.0], "backward": [4.0, 6.0], "method": [9.0, 9.0]}

    assert bounds_of(times, [(8, 8), (24, 0)], batch_size=8) == [4.0, 6.0]


def test_a_method_that_adapts_others_alone_is_held_against_the_gradient_of_the_norms() -> None:
    where = workload()
    plain = PlainModel(where)

    assert plain.shared_with(where.method("paid")) == plain.norms
    assert plain.shared_with(where.method("tent")) == plain.norms
    assert "blocks.0.attn.qkv.weight" in plain.shared_with(where.method("vida"))


def test_a_turn_lasts_from_update_to_update() -> None:
    steps = MethodSteps(
        workload(overrides={"rotta": {"update_every": 16, "memory_size": 16}}), "rotta"
    )
    steps.turn()
    steps.turn()

    assert steps.images == 16
    (_, (forward, backward)) = steps.passes
    assert forward == 16 + 2 * backward  # the teacher on the batches; both on the memory
    assert backward > 0


def test_a_method_that_does_not_support_the_model_has_the_reason() -> None:
    ((name, why),) = measure(workload(), ["norm"], repeats=1)

    assert name == "norm"
    assert "BatchNorm" in why


def test_a_random_workload_reads_nothing_and_lets_every_image_take_part() -> None:
    where = workload(random=True)
    ((sar,)) = measure(where, ["sar"], repeats=1)

    assert (sar.forward_per_image, sar.backward_per_image) == (2, 2)
    assert record(where, [sar], {}, 1)["model"]["sha256"] is None


def test_random_workloads_of_one_seed_are_equal() -> None:
    first, second = workload(random=True), workload(random=True)

    assert all(map(torch.equal, first.batches, second.batches))
    assert first.model().sha256() == second.model().sha256()


def test_a_record_is_plain_values() -> None:
    import json

    where = workload()
    (source,) = measure(where, ["source"], repeats=1)
    made = record(where, [source], {"norm": "why"}, 1)

    assert json.loads(json.dumps(made)) == made
    assert made["methods"][0]["to_bound"].keys() == {"median", "low", "high"}
    assert made["batch_size"] == 8
    assert made["left_out"] == {"norm": "why"}
    assert dataclasses.asdict(source)["method"] == "source"


def test_overrides_go_to_the_methods_that_have_them() -> None:
    values = {"benchmark.batch_size": 4, "lr": 0.1, "sar.rho": 0.2}

    settings, by_method = overrides_by_owner(values, ["source", "tent", "sar"])

    assert settings == {"batch_size": 4}
    assert by_method == {"source": {}, "tent": {"lr": 0.1}, "sar": {"lr": 0.1, "rho": 0.2}}


@pytest.mark.parametrize("key", ["rank", "tent.rank"])
def test_an_override_without_owner_is_refused(key: str) -> None:
    with pytest.raises(ConfigError, match="rank"):
        _, by_method = overrides_by_owner({key: 3}, ["source"])
        workload(overrides=by_method)


def test_data_that_is_missing_points_to_random_images(tmp_path) -> None:
    with pytest.raises(DataError, match="--random"):
        Workload(
            benchmark_of("imagenet_c", {}, tmp_path), "timm:vit_tiny_patch16_224", CPU, "float32"
        )
