"""The invariants of PAID. Names as in its file: m magnitude, U vectors, Ŵ direction, O rotation."""

import copy
from typing import Any

import pytest
import timm
import torch
from torch import Tensor

from ctta_bench.errors import DataError, MethodError
from ctta_bench.method import Method
from ctta_bench.model import SourceModel
from ctta_bench.parts.injection import merge
from ctta_bench.parts.moments import SourceStatistics
from ctta_bench.registry import METHODS
from tests.methods import build, changed, make, pictures, snapshot, source_images, tensors, toy

PAID = METHODS.get("paid")
DOUBLE = {"dtype": torch.float64, "precision": "float64"}
COMPONENTS = ("magnitude", "direction", "orthogonal", "magnitude_direction", "magnitude_orthogonal")
LAYER = "blocks.1.mlp.fc1"  # 24 inputs, 96 neurons


def adapted(steps: int = 3, **arguments: Any) -> Method:
    method = build("paid", **{"lr": 0.01} | arguments)
    for images in pictures(8 * steps).split(8):
        method(images.to(method.model.mean.dtype))
    return method


def source_weights() -> dict[str, Tensor]:
    return toy.toy_vit().state_dict()


def weights_of(method: Method) -> dict[str, Tensor]:
    """The weights that the network computes with, under their names in a plain network."""
    network = copy.deepcopy(method.model)
    merge(network)
    return network.network.state_dict()


def rows(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Weights of all adapted layers, query, key and value apart: rows are neurons."""
    found = {}
    for name, value in weights.items():
        if "blocks" in name and name.endswith("weight") and value.ndim == 2:
            parts = value.chunk(3) if "qkv" in name else (value,)
            found |= {f"{name}/{i}": part for i, part in enumerate(parts)}
    return found


def cosines(weight: Tensor) -> Tensor:
    """Between all pairs of neurons."""
    unit = weight.double() / weight.double().norm(dim=1, keepdim=True)
    return unit @ unit.T


def largest(before: dict[str, Tensor], after: dict[str, Tensor], measure: Any) -> float:
    """Largest change of a measure of weights over all layers."""
    return max(float((measure(after[n]) - measure(before[n])).abs().max()) for n in before)


def chain(direction: Tensor, vectors: Tensor) -> Tensor:
    """Ŵ H_1 ... H_r, one reflection after another."""
    for u in vectors.T:
        direction = direction - 2 * torch.outer(direction @ u, u) / (u @ u)
    return direction


# -- the decomposition -----------------------------------------------------------------------------


@pytest.mark.parametrize("component", COMPONENTS)
def test_the_start_is_the_source_model(component: str) -> None:
    method, source = build("paid", component=component), build("source")
    torch.testing.assert_close(method(pictures(8)), source(pictures(8)), atol=1e-5, rtol=0)


def test_adaptation_keeps_the_angles_between_neurons() -> None:
    before, after = rows(source_weights()), rows(weights_of(adapted()))
    assert largest(before, after, lambda w: w) > 1e-2
    assert largest(before, after, cosines) <= 1e-5


def test_the_magnitude_is_the_norm_of_each_neuron() -> None:
    for _, weight in adapted().directions():
        norms = weight().norm(dim=1, keepdim=True)
        torch.testing.assert_close(norms, weight.magnitude.abs(), atol=0, rtol=1e-5)


@pytest.mark.parametrize("rank", [2, 12])
def test_the_rotation_is_orthogonal_with_determinant_one(rank: int) -> None:
    method = adapted(rank=rank, **DOUBLE)
    vectors = method.trainable[f"{LAYER}.vectors"].detach()
    rotation = chain(torch.eye(24, dtype=torch.float64), vectors)
    ours = dict(method.directions())[f"{LAYER}.adapters.m"]
    got = torch.linalg.lstsq(ours.unit_neurons(), ours() / ours.magnitude).solution
    torch.testing.assert_close(got, rotation, atol=1e-10, rtol=0)
    torch.testing.assert_close(got.T @ got, torch.eye(24, dtype=torch.float64))
    assert torch.linalg.det(got).item() == pytest.approx(1)


def test_chain_compact_and_low_rank_forms_and_the_merged_layer_agree() -> None:
    method = adapted(**DOUBLE)
    layer = method.model.network.get_submodule(LAYER)
    weight = layer.adapters["m"]
    m, u, unit = weight.magnitude.detach(), weight.vectors.detach(), weight.unit_neurons()
    x = torch.randn(5, 24, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    t = torch.triu(u.T @ u, 1) + 0.5 * torch.diag((u * u).sum(0))
    low_rank = x @ unit.T - (x @ u) @ torch.linalg.inv(t).T @ (unit @ u).T
    expected = m.T * (x @ chain(unit, u).T) + layer.bias
    with torch.no_grad():
        torch.testing.assert_close(layer(x), expected, atol=1e-10, rtol=0)
        torch.testing.assert_close(m.T * low_rank + layer.bias, expected, atol=1e-10, rtol=0)
        merge(method.model)
        plain = method.model.network.get_submodule(LAYER)
        torch.testing.assert_close(plain(x), expected, atol=1e-10, rtol=0)


def test_the_length_of_the_vectors_does_not_matter() -> None:
    method = adapted()
    with torch.no_grad():
        before = method.model(pictures(4))
        for name, parameter in method.trainable.items():
            parameter *= torch.linspace(-3, 5, 12) if name.endswith("vectors") else 1
        torch.testing.assert_close(method.model(pictures(4)), before, atol=1e-5, rtol=0)


def test_rotating_the_other_side_would_change_the_angles() -> None:
    """The paper's formula, read literally, mixes neurons; the official code does not."""
    changes = []
    for _, weight in build("paid").directions():
        start = weight.unit_neurons()
        u = torch.randn(len(start), 12, generator=torch.Generator().manual_seed(0))
        changes.append((cosines(chain(start.T, u).T) - cosines(start)).abs().max())
        u = torch.randn(start.shape[1], 12, generator=torch.Generator().manual_seed(0))
        assert (cosines(chain(start, u)) - cosines(start)).abs().max() <= 1e-5
    assert min(changes) > 0.1


@pytest.mark.parametrize("component", COMPONENTS)
def test_a_neuron_of_zeros_does_no_harm(component: str) -> None:
    model = SourceModel(toy.toy_vit())
    model.network.get_submodule(LAYER).weight.data[3] = 0
    method = PAID(model, PAID.Hyperparameters(component=component))
    method.start(source_images())
    method(pictures(8))
    assert method.counters["skipped_updates"] == 0
    assert bool(method(pictures(8)).isfinite().all())


# -- gradients -------------------------------------------------------------------------------------


def vector_gradients(method: Method) -> list[tuple[Tensor, Tensor]]:
    method.objective(method.model.features(pictures(8).double())).backward()
    vectors = [p for name, p in method.trainable.items() if name.endswith("vectors")]
    return [(u.detach(), u.grad) for u in vectors]


def test_equal_neighbours_start_with_opposite_gradients() -> None:
    for _, gradient in vector_gradients(build("paid", **DOUBLE)):
        assert gradient.norm() > 0
        torch.testing.assert_close(gradient[:, 0::2], -gradient[:, 1::2], atol=1e-12, rtol=1e-8)


@pytest.mark.parametrize("steps", [0, 3])
def test_gradients_are_orthogonal_to_the_vectors(steps: int) -> None:
    for u, gradient in vector_gradients(adapted(steps, **DOUBLE)):
        scale = u.norm(dim=0) * gradient.norm(dim=0)
        assert ((u * gradient).sum(0).abs() / scale).max() < 1e-8


def test_without_the_deviation_term_the_sources_deviation_has_no_influence() -> None:
    methods = [build("paid", std_weight=0.0, lr=0.01) for _ in range(2)]
    methods[1].source.std = 100 + methods[1].source.std
    for method in methods:
        method(pictures(8))
    for name, parameter in methods[0].trainable.items():
        assert torch.equal(parameter, methods[1].trainable[name])


# -- what learns -----------------------------------------------------------------------------------


def test_only_magnitudes_and_vectors_change() -> None:
    method = build("paid", lr=0.01)
    before = tensors(method.model)
    method(pictures(8))
    moved = changed(before, method.model)
    assert {name.rsplit(".", 1)[1] for name in moved} == {"magnitude", "vectors"}
    assert len(moved) == 2 * 4 * 6
    assert len(method.trainable) == 2 * 4 * 6


@pytest.mark.parametrize(
    ("component", "kinds", "lengths", "angles"),
    [
        ("magnitude", {"magnitude"}, True, False),
        ("direction", {"direction"}, False, True),
        ("orthogonal", {"vectors"}, False, False),
        ("magnitude_direction", {"magnitude", "direction"}, True, True),
        ("magnitude_orthogonal", {"magnitude", "vectors"}, True, False),
    ],
)
def test_each_component_changes_only_its_part(
    component: str, kinds: set[str], lengths: bool, angles: bool
) -> None:
    method = adapted(component=component)
    assert {name.rsplit(".", 1)[1] for name in method.trainable} == kinds
    before, after = rows(source_weights()), rows(weights_of(method))
    assert (largest(before, after, lambda w: w.norm(dim=1)) > 1e-4) == lengths
    assert (largest(before, after, cosines) > 1e-4) == angles
    assert largest(before, after, lambda w: w) > 1e-3


def test_magnitudes_alone_keep_every_direction() -> None:
    before, after = rows(source_weights()), rows(weights_of(adapted(component="magnitude")))
    assert largest(before, after, lambda w: w / w.norm(dim=1, keepdim=True)) < 1e-6


ROLE_OF = {"proj.weight": "o", "fc1.weight": "m", "fc2.weight": "m"}


@pytest.mark.parametrize("layers", ["qv", "qk", "qkv", "qkvo", "qkvom", "m"])
def test_only_the_chosen_roles_change(layers: str) -> None:
    after = weights_of(adapted(1, layers=layers))
    for name, before in source_weights().items():
        roles = "qkv" if name.endswith("qkv.weight") else ROLE_OF.get(name.split(".", 3)[-1], "-")
        parts = zip(roles, before.chunk(len(roles)), after[name].chunk(len(roles)), strict=True)
        for role, old, new in parts:
            assert torch.equal(old, new) == (role not in layers or "blocks" not in name), name


def test_the_last_blocks_can_be_left_out() -> None:
    method = build("paid", skip_last_blocks=3)
    assert {name.split(".")[1] for name in method.trainable} == {"0"}


@pytest.mark.parametrize(
    ("rank", "skipped", "count"),
    [
        (2, 3, 186_624),
        (8, 0, 746_496),
        (12, 0, 1_078_272),
        (12, 3, 808_704),
        (14, 0, 1_244_160),
    ],
)
def test_vit_base_has_the_published_numbers_of_parameters(
    rank: int, skipped: int, count: int
) -> None:
    with torch.device("meta"):
        model = SourceModel(timm.create_model("vit_base_patch16_224"))
        method = PAID(model, PAID.Hyperparameters(rank=rank, skip_last_blocks=skipped))
    assert sum(p.numel() for p in method.trainable.values()) == count


@pytest.mark.parametrize("rank", [1, 3, 11])
def test_an_odd_rank_cannot_be_paired(rank: int) -> None:
    with pytest.raises(ValueError, match=f"rank must be even with paired_init, not {rank}"):
        PAID.Hyperparameters(rank=rank)
    assert PAID.Hyperparameters(rank=rank, paired_init=False).rank == rank
    assert PAID.Hyperparameters(rank=rank, component="magnitude").rank == rank


@pytest.mark.parametrize("layers", ["", "x", "qkvomx", "qq"])
def test_layers_name_each_role_at_most_once(layers: str) -> None:
    with pytest.raises(ValueError, match="layers"):
        PAID.Hyperparameters(layers=layers)


def test_a_model_without_linear_roles_is_refused() -> None:
    with pytest.raises(MethodError, match="toy_cnn has no linear layer of role q, k, v, o, m"):
        build("paid", "toy_cnn")


# -- statistics and parts --------------------------------------------------------------------------


@pytest.mark.parametrize("paired", [True, False])
def test_source_statistics_are_those_of_the_source_weights(paired: bool) -> None:
    method = build("paid", paired_init=paired, source_samples=32)
    network = SourceModel(toy.toy_vit().eval())
    images = torch.cat(list(source_images().batches()))[:32]
    with torch.no_grad():
        features = network.features(images)
    torch.testing.assert_close(method.source.mean, features.mean(0), atol=1e-5, rtol=0)
    torch.testing.assert_close(method.source.std, features.std(0, correction=1), atol=1e-5, rtol=0)
    assert method.source.images == 32


@pytest.mark.parametrize("regime", ["lineage", "true"])
@pytest.mark.parametrize("choice", ["stream", "official"])
def test_source_statistics_are_of_the_inputs_that_are_asked_for(regime: Any, choice: str) -> None:
    """The official code normalises source images, and feeds raw ones from the stream."""
    network = toy.toy_vit().eval()
    network.pretrained_cfg = {"mean": (0.2, 0.4, 0.6), "std": (0.5, 0.25, 0.5)}
    method = METHODS.get("paid")(
        SourceModel(copy.deepcopy(network), preprocessing=regime),
        METHODS.get("paid").Hyperparameters(source_samples=32, stats_preproc=choice),
    )
    source = source_images()
    method.start(source)
    images = torch.cat(list(source.batches()))[:32]
    is_raw = (regime, choice) == ("lineage", "stream")
    mean, std = (torch.tensor(network.pretrained_cfg[k]).view(3, 1, 1) for k in ("mean", "std"))
    inputs = images if is_raw else (images - mean) / std
    with torch.no_grad():
        features = network.forward_head(network.forward_features(inputs), pre_logits=True)
    torch.testing.assert_close(method.source.mean, features.mean(0), atol=1e-5, rtol=0)
    # The stream goes on as its regime says.
    fed = images if regime == "lineage" else (images - mean) / std
    torch.testing.assert_close(method.model.preprocess(images), fed)


def test_a_filter_that_keeps_no_source_image_is_an_error() -> None:
    with pytest.raises(DataError, match=r"0 source images are left .* entropy < 0\.15"):
        build("paid", entropy_filter=True)


def distance(features: Tensor, source: SourceStatistics) -> Tensor:
    """The objective with a weight of 1, written out."""
    return (features.mean(0) - source.mean).norm() + (features.std(0) - source.std).norm()


@pytest.mark.parametrize(("n", "sizes"), [(8, [2, 2, 2, 2]), (6, [2, 2, 2]), (9, [3, 3, 3])])
def test_parts_of_a_batch_are_averaged(n: int, sizes: list[int]) -> None:
    # A plain step of length 1: the change of a parameter is its gradient.
    settings = {"optimizer": "sgd", "lr": 1.0, "momentum": 0.0, **DOUBLE}
    method = build("paid", chunks=4, **settings)
    images, before = pictures(n).double(), snapshot(method)
    features = method.model.features(images).split(sizes)
    loss = sum(distance(part, method.source) for part in features) / len(sizes)
    loss.backward()
    expected = {name: before[name] - p.grad for name, p in method.trainable.items()}
    method.optimizer_zero_grad()
    method(images)
    for name, parameter in method.trainable.items():
        torch.testing.assert_close(parameter.detach(), expected[name], atol=1e-10, rtol=0)


@pytest.mark.parametrize(("n", "chunks"), [(8, 4), (9, 4), (7, 2), (3, 8)])
@pytest.mark.parametrize("name", ["paid", "lora", "dora"])
def test_parts_in_two_passes_make_the_step_of_the_whole_batch(
    name: str, n: int, chunks: int
) -> None:
    plain = {"optimizer": "sgd", "lr": 1.0, "momentum": 0.0, **DOUBLE}
    whole, parts = build(name, **plain), build(name, chunks=chunks, two_pass=True, **plain)
    images = pictures(n).double()
    torch.testing.assert_close(parts(images), whole(images), atol=1e-10, rtol=0)
    torch.testing.assert_close(parts.loss, whole.loss, atol=1e-10, rtol=0)
    for key, parameter in whole.trainable.items():
        torch.testing.assert_close(parts.trainable[key], parameter, atol=1e-10, rtol=0)
    assert parts.passes.forward_images == 2 * n
    assert parts.passes.backward_images == n


def test_two_passes_leave_out_an_update_that_is_not_finite() -> None:
    method = build("paid", chunks=2, two_pass=True, lr=0.01)
    images, before = pictures(8), tensors(method.model)
    images[7] = torch.nan
    method(images)
    assert changed(before, method.model) == set()
    assert method.counters["skipped_updates"] == 1


def test_parts_give_the_same_logits_and_another_update() -> None:
    whole, parts = build("paid", lr=0.01), build("paid", lr=0.01, chunks=4)
    torch.testing.assert_close(whole(pictures(8)), parts(pictures(8)), atol=1e-5, rtol=0)
    assert (whole(pictures(8)) - parts(pictures(8))).abs().max() > 1e-3


def test_one_image_is_aligned_by_its_mean_alone() -> None:
    method = build("paid")
    with torch.no_grad():
        expected = (method.model.features(pictures(1))[0] - method.source.mean).norm()
    method(pictures(1))
    torch.testing.assert_close(method.loss, expected)


def test_single_images_can_be_aligned_by_running_moments() -> None:
    method, images = build("paid", single_image="ema", lr=1e-3), pictures(12) * 0.4
    losses = []
    for image in images.split(1):
        method(image)
        losses.append(method.loss.item())
    assert all(bool(p.isfinite().all()) for p in method.trainable.values())
    assert method.counters["skipped_updates"] == 0
    # Unlike the mean alone, whose distance from the source's is that of one image.
    with torch.no_grad():
        alone = (method.model.features(images[:1])[0] - method.source.mean).norm()
    assert losses[0] < 0.5 * alone


def test_batches_are_no_matter_of_running_moments() -> None:
    ema, skip = build("paid", single_image="ema", lr=0.01), build("paid", lr=0.01)
    for images in pictures(16).split(8):
        assert torch.equal(ema(images), skip(images))


def test_a_reset_takes_running_moments_back_to_the_source() -> None:
    method = build("paid", single_image="ema", lr=1e-3)
    before = method.running.mean.clone()
    method(pictures(1))
    assert not torch.equal(method.running.mean, before)
    method.reset()
    assert torch.equal(method.running.mean, before)


def test_one_image_is_an_error_on_request() -> None:
    with pytest.raises(MethodError, match="one image has no standard deviation"):
        build("paid", single_image="error")(pictures(1))


@pytest.mark.parametrize(
    ("n", "chunks", "std_weight"), [(1, 1, 1.0), (1, 1, 0.0), (5, 4, 1.0), (13, 4, 1.0)]
)
def test_only_faithful_turns_a_part_of_one_image_into_nan(
    n: int, chunks: int, std_weight: float
) -> None:
    options = {"chunks": chunks, "std_weight": std_weight}
    ours, official = build("paid", **options), build("paid", faithful=True, **options)
    for method in (ours, official):
        assert bool(method(pictures(n)).isfinite().all())
    assert all(bool(p.isfinite().all()) for p in ours.trainable.values())
    assert ours.counters["skipped_updates"] == 0
    assert all(bool(p.isnan().all()) for p in official.trainable.values())


def test_faithful_divides_by_the_parts_asked_for() -> None:
    # Six images make three parts of two; the official code divides by four all the same.
    options = {"chunks": 4, "optimizer": "sgd", "lr": 1.0, "momentum": 0.0, **DOUBLE}
    steps = []
    for faithful in (False, True):
        method = build("paid", faithful=faithful, **options)
        before = snapshot(method)
        method(pictures(6).double())
        steps.append({name: p.detach() - before[name] for name, p in method.trainable.items()})
    for name, step in steps[1].items():
        torch.testing.assert_close(step, 0.75 * steps[0][name], atol=1e-12, rtol=0)


def test_one_bad_part_leaves_the_whole_update_out() -> None:
    method = build("paid", chunks=2, lr=0.01)
    images = pictures(8)
    images[7] = torch.nan
    before = tensors(method.model)
    method(images)
    assert changed(before, method.model) == set()
    assert method.counters["skipped_updates"] == 1
    assert all(p.grad is None for p in method.trainable.values())


def test_the_distance_to_the_source_shrinks() -> None:
    method = build("paid", lr=1e-3)
    losses = []
    for _ in range(10):
        method(pictures(16) * 0.4)
        losses.append(method.loss.item())
    assert losses[-1] < 0.8 * losses[0]


def test_seeds_give_other_vectors() -> None:
    first, same, other = (make(PAID, seed=s).trainable[f"{LAYER}.vectors"] for s in (0, 0, 1))
    assert torch.equal(first, same)
    assert not torch.equal(first, other)
    # Uniform in ± 1 / √(r / 2).
    assert 0.35 < first.abs().max() <= 6**-0.5


def test_on_the_output_side_the_rotation_mixes_neurons_as_the_formula_reads() -> None:
    weight = torch.randn(7, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    adapter = PAID.adapter(weight, PAID.Hyperparameters(rank=4, paired_init=False, side="output"))
    length = torch.linalg.vector_norm(weight, dim=1, keepdim=True)
    turned = weight / length
    for vector in adapter.vectors.detach().T.flip(0):  # O Ŵ = H_1 (H_2 (... Ŵ))
        turned = turned - 2 * torch.outer(vector, vector @ turned) / vector.dot(vector)
    torch.testing.assert_close(adapter(), length * turned, rtol=0, atol=1e-12)
    adapter.chained = True
    torch.testing.assert_close(adapter(), length * turned, rtol=0, atol=1e-12)


def test_on_the_output_side_the_start_is_the_source_model_and_the_angles_change() -> None:
    started = weights_of(build("paid", side="output", **DOUBLE))
    torch.testing.assert_close(started, {k: v.double() for k, v in source_weights().items()})
    weights = weights_of(adapted(side="output", **DOUBLE))
    assert largest(rows(source_weights()), rows(weights), cosines) > 1e-3
