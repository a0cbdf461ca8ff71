"""The invariants of PAID. Names as in its file: m magnitude, U vectors, Ŵ direction, O rotation."""

import copy
from collections import Counter
from typing import Any

import pytest
import timm
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from ctta_bench.analysis.kept_models.geometry import compare_layers, pooled, source_layer
from ctta_bench.config.presets import preset_values
from ctta_bench.errors import MethodError
from ctta_bench.method import Method
from ctta_bench.model import SourceModel
from ctta_bench.parts.adapters.injection import merge
from ctta_bench.registry import METHODS
from tests.methods import build, changed, make, pictures, source_images, tensors, toy

PAID = METHODS.get("paid")
DOUBLE = {"dtype": torch.float64, "precision": "float64"}
COMPONENTS = ("magnitude", "direction", "orthogonal", "magnitude_direction", "magnitude_orthogonal")
EXACT = {"atol": 1e-10, "rtol": 1e-10}
LAYER = "blocks.1.mlp.fc1"  # 24 inputs, 96 neurons


class Products(TorchDispatchMode):
    """Counts the matrix products inside by the shape of their result."""

    def __init__(self) -> None:
        super().__init__()
        self.shapes: Counter[tuple[int, ...]] = Counter()

    def __torch_dispatch__(
        self, function: Any, types: Any, arguments: Any = (), options: Any = None
    ) -> Any:
        result = function(*arguments, **(options or {}))
        if function in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default):
            self.shapes[tuple(result.shape)] += 1
        return result


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


@pytest.mark.parametrize(("rank", "paired", "sign"), [(2, True, 1), (12, True, 1), (3, False, -1)])
def test_the_rotation_is_orthogonal_and_each_reflection_turns_the_determinants_sign(
    rank: int, paired: bool, sign: int
) -> None:
    method = adapted(rank=rank, paired_init=paired, **DOUBLE)
    vectors = method.trainable[f"{LAYER}.vectors"].detach()
    rotation = chain(torch.eye(24, dtype=torch.float64), vectors)
    ours = dict(method.directions())[f"{LAYER}.adapters.m"]
    got = torch.linalg.lstsq(ours.unit_neurons(), ours() / ours.magnitude).solution
    torch.testing.assert_close(got, rotation, atol=1e-10, rtol=0)
    torch.testing.assert_close(got.T @ got, torch.eye(24, dtype=torch.float64))
    assert torch.linalg.det(got).item() == pytest.approx(sign)


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


def test_rotations_that_are_made_together_are_those_made_one_by_one() -> None:
    method, images = adapted(**DOUBLE), pictures(8).double()
    together, _ = method.features_and_logits(images)
    together[0].square().sum().backward()
    gradients = {name: p.grad for name, p in method.trainable.items()}
    method.optimizer_zero_grad()
    alone = method.model.features(images)  # each layer on its own
    torch.testing.assert_close(together[0], alone, **EXACT)
    alone.square().sum().backward()
    for name, parameter in method.trainable.items():
        torch.testing.assert_close(gradients[name], parameter.grad, **EXACT)


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_the_rotation_stays_orthogonal_in_half_precision(precision: Any) -> None:
    """T and its solution are made in float32 whatever the network computes in."""
    method = adapted(precision=precision)
    with torch.no_grad(), method._autocast():
        made = [(weight.weight, weight()) for _, weight in method.directions()]
    assert max(float((after - before).abs().max()) for before, after in made) > 1e-2
    for before, after in made:
        assert after.dtype == torch.float32
        assert float((cosines(after) - cosines(before)).abs().max()) <= 1e-5


def test_a_fused_projection_is_one_product_forward_and_one_backward() -> None:
    method = build("paid")
    with Products() as seen:
        method(pictures(8))
    tokens, width = 8 * 5, 24
    # Four blocks; the first has nothing to pass a gradient to. Also the product with q, k, v.
    assert seen.shapes[tokens, 3 * width] == 4
    inner = [shape for shape in seen.shapes.elements() if shape == (tokens, width)]
    # Forward the outputs of attention and MLP, backward what enters qkv, attention's output, fc1.
    assert len(inner) == 4 * 2 + 3 + 4 + 4


def test_the_length_of_the_vectors_does_not_matter() -> None:
    method = adapted()
    with torch.no_grad():
        before = method.model(pictures(4))
        for name, parameter in method.trainable.items():
            parameter *= torch.linspace(-3, 5, 12) if name.endswith("vectors") else 1
        torch.testing.assert_close(method.model(pictures(4)), before, atol=1e-5, rtol=0)


def test_a_vector_of_zeros_reflects_nothing() -> None:
    weight = torch.randn(7, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    adapter = PAID.adapter(weight, PAID.Hyperparameters(rank=3, paired_init=False))
    with torch.no_grad():
        adapter.vectors[:, 1] = 0
        others = adapter.vectors[:, [0, 2]].clone()
    torch.testing.assert_close(adapter(), chain(weight, others), **EXACT)
    adapter().square().sum().backward()
    assert bool(adapter.vectors.grad.isfinite().all())


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
    method.distance([method.model.features(pictures(8).double())]).backward()
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
    methods[1].source_statistics.std = 100 + methods[1].source_statistics.std
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


MEASURES = {"delta_m", "delta_a", "delta_s_per_pair"}


@pytest.mark.parametrize(
    ("component", "kinds", "moved"),
    [
        ("magnitude", {"magnitude"}, {"delta_m"}),
        ("direction", {"direction"}, {"delta_a", "delta_s_per_pair"}),
        ("orthogonal", {"vectors"}, {"delta_a"}),
        ("magnitude_direction", {"magnitude", "direction"}, MEASURES),
        ("magnitude_orthogonal", {"magnitude", "vectors"}, {"delta_m", "delta_a"}),
    ],
)
def test_each_component_changes_only_its_part(
    component: str, kinds: set[str], moved: set[str]
) -> None:
    """Lengths, angles to the start and angles between neurons, as the experiments measure them."""
    method = adapted(component=component, **DOUBLE)
    assert {name.rsplit(".", 1)[1] for name in method.trainable} == kinds
    before = {name: source_layer(w.numpy()) for name, w in rows(source_weights()).items()}
    after = {name: w.numpy() for name, w in rows(weights_of(method)).items()}
    found = pooled(compare_layers(before, after, "adapted"))
    assert {measure for measure in MEASURES if found[measure] > 1e-4} == moved
    assert all(found[measure] < 1e-9 for measure in MEASURES - moved)


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
        (2, 0, 248_832),
        (2, 3, 186_624),
        (8, 0, 746_496),
        (10, 3, 684_288),
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


@pytest.mark.parametrize(
    ("preset", "benchmark", "lr", "rank", "weight", "skipped", "chunks"),
    [
        ("paper", "imagenet_c", 2e-4, 12, 0.1, 0, 1),
        ("paper", "cifar10_c", 8e-5, 12, 1.0, 0, 1),
        ("paper", "cifar100_c", 8e-5, 12, 1.0, 0, 1),
        ("paper", "cityscapes_acdc", 1e-4, 12, 1.0, 0, 1),
        ("code", "imagenet_c", 2e-4, 12, 0.0, 3, 1),
        ("code", "cifar10_c", 8e-5, 14, 1.0, 0, 4),
        ("code", "cifar100_c", 8e-5, 2, 1.0, 0, 4),
    ],
)
def test_the_presets_are_the_papers_text_and_the_official_code(
    preset: str, benchmark: str, lr: float, rank: int, weight: float, skipped: int, chunks: int
) -> None:
    hp = PAID.Hyperparameters(**preset_values("paid", preset, benchmark))
    found = (hp.lr, hp.rank, hp.std_weight, hp.skip_last_blocks, hp.chunks)
    assert found == (lr, rank, weight, skipped, chunks)
    assert (hp.optimizer, hp.betas, hp.weight_decay) == ("adamw", (0.9, 0.999), 0.0)
    source = {"paper": (500, False, False), "code": (3000, True, True)}[preset]
    assert (hp.source_samples, hp.entropy_filter, hp.faithful) == source
    # The warm-up: its epochs, images a batch, and augmentation; there is none for segmentation.
    warmups = {"imagenet_c": (3, 128, "colour"), "cityscapes_acdc": (0, 128, "none")}
    expected = warmups.get(benchmark, (10, 64, "crop"))
    recipe = (hp.warmup_epochs, hp.warmup_batch_size, hp.warmup_augmentation)
    assert recipe == expected
    assert (hp.warmup_optimizer, hp.warmup_lr) == ("sgd", 0.05)


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
    with pytest.raises(MethodError, match=r"PAID does not support toy_cnn: .* role q, k, v, o, m"):
        build("paid", "toy_cnn")


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
