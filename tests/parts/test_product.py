"""Products with adapted weights: every form against plain differentiation through the weight."""

import functools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ctta_bench.methods.dora import DecomposedLowRankWeight
from ctta_bench.methods.paid import DecomposedWeight
from ctta_bench.model import SourceModel
from ctta_bench.parts.adapters import product
from ctta_bench.parts.adapters.injected import InjectedLinear
from ctta_bench.parts.adapters.injection import adapters_disabled, cached_weights, inject, merge
from ctta_bench.parts.adapters.weights import Factors, LowRankWeight
from tests.methods import toy

DOUBLE = torch.float64
EXACT = {"atol": 1e-10, "rtol": 1e-10}
FORMS = ("activation", "merged", "auto")
ADAPTERS = {
    "paid": lambda w: DecomposedWeight(w, "magnitude_orthogonal", 4, True),
    "paid of odd rank": lambda w: DecomposedWeight(w, "magnitude_orthogonal", 3, False),
    "magnitude": lambda w: DecomposedWeight(w, "magnitude", 4, True),
    "orthogonal": lambda w: DecomposedWeight(w, "orthogonal", 4, True),
    "direction": lambda w: DecomposedWeight(w, "direction", 4, True),
    "magnitude_direction": lambda w: DecomposedWeight(w, "magnitude_direction", 4, True),
    "lora": lambda w: LowRankWeight(w, 3, 0.5),
    "dora": lambda w: DecomposedLowRankWeight(w, 3, 0.5, True),
    "dora with its norm's gradient": lambda w: DecomposedLowRankWeight(w, 3, 0.5, False),
}


def layer(
    kind: str, inputs: int, outputs: int, roles: str = "m", adapted: str = "m", bias: bool = True
) -> InjectedLinear:
    """A layer in float64, its adapters moved away from their start."""
    torch.manual_seed(0)
    base = nn.Linear(inputs, outputs, bias=bias).to(DOUBLE).requires_grad_(False)
    rows = base.weight.detach().chunk(len(roles))
    adapters = {r: ADAPTERS[kind](rows[i]) for i, r in enumerate(roles) if r in adapted}
    made = InjectedLinear(base, roles, adapters)
    with torch.no_grad():
        for parameter in made.adapters.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return made


def results(made: InjectedLinear, form: Any, x: Tensor, coefficients: Tensor) -> list[Tensor]:
    """Output, and gradients of its product with `coefficients` wrt. input and parameters."""
    made.form = form
    x = x.clone().requires_grad_()
    made.zero_grad()
    y = made(x)
    (y * coefficients).sum().backward()
    gradients = [p.grad for p in made.adapters.parameters()]
    assert all(g is not None for g in [x.grad, *gradients])
    return [y.detach(), x.grad, *gradients]  # type: ignore[list-item]


def compare(made: InjectedLinear, form: str, shape: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(*shape, made.in_features, generator=generator, dtype=DOUBLE)
    coefficients = torch.randn(*shape, made.out_features, generator=generator, dtype=DOUBLE)
    expected = results(made, "weight", x, coefficients)
    for got, wanted in zip(results(made, form, x, coefficients), expected, strict=True):
        torch.testing.assert_close(got, wanted, **EXACT)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", ADAPTERS)
def test_every_form_has_the_values_and_gradients_of_the_weight(kind: str, form: str) -> None:
    compare(layer(kind, 8, 6), form, (5, 3))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("inputs", "outputs", "shape"),
    [(7, 5, (3,)), (5, 13, (1, 1)), (13, 5, (2, 40)), (4, 4, (2, 3, 5)), (6, 300, (9, 100))],
)
def test_odd_shapes_are_no_exception(
    form: str, inputs: int, outputs: int, shape: tuple[int, ...]
) -> None:
    compare(layer("paid", inputs, outputs), form, shape)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("adapted", ["q", "v", "qv", "kv", "qkv"])
@pytest.mark.parametrize("kind", ["paid", "lora", "dora"])
def test_of_a_fused_projection_any_roles_can_be_adapted(kind: str, adapted: str, form: str) -> None:
    compare(layer(kind, 6, 18, "qkv", adapted), form, (4, 3))


@pytest.mark.parametrize("form", FORMS)
def test_a_layer_without_bias_is_no_exception(form: str) -> None:
    compare(layer("paid", 8, 6, bias=False), form, (5, 3))


@pytest.mark.parametrize("kind", ["paid", "orthogonal", "magnitude"])
@pytest.mark.parametrize("form", FORMS)
def test_one_reflection_after_another_gives_the_same(kind: str, form: str) -> None:
    made = layer(kind, 8, 6)
    generator = torch.Generator().manual_seed(1)
    x, c = (torch.randn(5, k, generator=generator, dtype=DOUBLE) for k in (8, 6))
    got = results(made, form, x, c)
    adapter: Any = made.adapters["m"]
    adapter.chained = True
    for ours, theirs in zip(got, results(made, "weight", x, c), strict=True):
        torch.testing.assert_close(ours, theirs, **EXACT)


@pytest.mark.parametrize("magnitude", [0.0, 1e-300, 1e-12, -0.5])
@pytest.mark.parametrize("kind", ["paid", "dora"])
def test_a_neuron_of_hardly_any_length_has_the_right_gradient(kind: str, magnitude: float) -> None:
    """Its output does not show its direction: the gradient of c is computed in another way."""
    made = layer(kind, 8, 6)
    adapter: Any = made.adapters["m"]
    with torch.no_grad():
        adapter.magnitude[2] = magnitude
        adapter.magnitude[4] = 1e-5
        made.bias[4] = 1e4
    compare(made, "merged", (5, 3))


@pytest.mark.parametrize("zero", ["row", "column", "all"])
@pytest.mark.parametrize("kind", ADAPTERS)
def test_zeros_in_a_weight_give_finite_gradients(kind: str, zero: str) -> None:
    torch.manual_seed(0)
    base = nn.Linear(8, 6).to(DOUBLE).requires_grad_(False)
    place = {"row": (2,), "column": (slice(None), 3), "all": ()}[zero]
    base.weight[place] = 0
    made = InjectedLinear(base, "m", {"m": ADAPTERS[kind](base.weight.detach())})
    x, c = torch.randn(5, 8, dtype=DOUBLE), torch.randn(5, 6, dtype=DOUBLE)
    for form in ("merged", "activation"):
        found = results(made, form, x, c)
        assert all(bool(tensor.isfinite().all()) for tensor in found)


@pytest.mark.parametrize("make", [nn.GELU(), nn.GELU("tanh"), nn.LayerNorm(8), nn.Tanh()])
def test_inputs_that_are_made_again_are_the_same(make: nn.Module) -> None:
    """The product stores the input of a GELU or LayerNorm, which these store anyway."""
    made, make = layer("paid", 8, 6), make.to(DOUBLE).requires_grad_(False)
    x = torch.randn(5, 3, 8, dtype=DOUBLE, generator=torch.Generator().manual_seed(2))
    found = []
    for form in ("weight", "merged"):
        made.form = form  # type: ignore[assignment]
        entered = x.clone().requires_grad_()
        made.zero_grad()
        made(make(entered)).square().sum().backward()
        found.append([entered.grad, *(p.grad for p in made.adapters.parameters())])
    for got, wanted in zip(found[1], found[0], strict=True):
        torch.testing.assert_close(got, wanted, **EXACT)


def held(made: InjectedLinear, make: nn.Module) -> int:
    """Numbers that the layer's own node stores, without tensors that other nodes store."""
    entered = torch.randn(50, 8, dtype=DOUBLE).requires_grad_()
    passed = make(entered)
    kept: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.numel()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        y = made(passed)
    own = {entered.untyped_storage().data_ptr(), made.weight.untyped_storage().data_ptr()}
    assert y.shape == (50, 6)
    return sum(size for place, size in kept.items() if place not in own)


def test_an_input_that_can_be_made_again_is_not_kept() -> None:
    made = layer("lora", 8, 6)
    made.form = "merged"
    assert held(made, nn.Tanh()) - held(made, nn.GELU()) == 50 * 8


def test_the_adapted_weight_is_made_once_where_no_parameter_changes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls = []

    def counted(*arguments: Any) -> Tensor:
        calls.append(1)
        return original(*arguments)

    original = product.assemble
    monkeypatch.setattr(product, "assemble", counted)
    model = SourceModel(toy.toy_vit().eval()).requires_grad_(False)
    inject(model, "o", lambda w: LowRankWeight(w, 2))
    images = toy.pictures(64)

    def step() -> int:
        calls.clear()
        for part in images.chunk(2):
            model(part).sum().backward()
        return len(calls)

    with cached_weights(model):
        assert step() == 4  # blocks
    # Of two parts forward and backward, where the first block has nothing to pass a gradient to.
    assert step() == 2 * (4 + 3)
    with cached_weights(model), torch.no_grad():
        before = model(images)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * parameter.requires_grad)
        assert not torch.equal(model(images), before)


def test_an_input_without_gradient_gets_none() -> None:
    made = layer("paid", 8, 6)
    made.form = "merged"
    made(torch.randn(5, 8, dtype=DOUBLE)).sum().backward()
    assert all(bool(p.grad.isfinite().all()) for p in made.adapters.parameters())


def test_parameters_that_change_before_the_gradient_are_told() -> None:
    made = layer("lora", 8, 6)
    made.form = "merged"
    y = made(torch.randn(5, 8, dtype=DOUBLE)).sum()
    with torch.no_grad():
        next(made.adapters.parameters()).add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward()


@pytest.fixture(params=["paid", "lora", "dora"])
def kinds(request: pytest.FixtureRequest) -> Iterator[str]:
    yield request.param


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_stays_near_the_full(kinds: str, dtype: torch.dtype) -> None:
    made = layer(kinds, 64, 48).float()
    generator = torch.Generator().manual_seed(1)
    x, c = (torch.randn(100, k, generator=generator) for k in (64, 48))
    full = results(made, "weight", x, c)
    with torch.autocast("cpu", dtype=dtype):
        assert made(x).dtype == dtype
        half = results(made, "merged", x, c)
    for got, wanted in zip(half, full, strict=True):
        assert (got.float() - wanted).norm() <= 0.02 * wanted.norm()


def test_the_merged_form_gives_the_bits_of_the_merged_network(kinds: str) -> None:
    model = SourceModel(toy.toy_vit().eval()).requires_grad_(False)
    inject(model, "qkvom", ADAPTERS[kinds])
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * parameter.requires_grad * torch.randn_like(parameter))
        for module in model.modules():
            if isinstance(module, InjectedLinear):
                module.form = "merged"
        adapted = model(toy.pictures(8))
        merge(model)
        assert torch.equal(model(toy.pictures(8)), adapted)


def test_factors_of_nothing_are_the_weight_itself() -> None:
    weight = torch.randn(3, 4)
    assert Factors().of(weight) is weight


def test_bypassed_layers_use_no_factors(kinds: str) -> None:
    model = SourceModel(toy.toy_vit().eval()).requires_grad_(False)
    with torch.no_grad():
        source = model(toy.pictures(4))
        inject(model, "qkvom", ADAPTERS[kinds])
        for parameter in model.parameters():
            parameter.add_(0.1 * parameter.requires_grad)
        with adapters_disabled(model):
            assert torch.equal(model(toy.pictures(4)), source)


@pytest.mark.parametrize(("tokens", "form"), [(1, "activation"), (1000, "merged")])
def test_by_default_the_number_of_tokens_decides_the_form(
    tokens: int, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, used = layer("paid", 8, 6), []

    def noted(name: str, original: Any, *arguments: Any) -> Tensor:
        used.append(name)
        return original(*arguments)

    for name in ("activation", "merged"):
        original = getattr(product, name)
        monkeypatch.setattr(product, name, functools.partial(noted, name, original))
    made(torch.randn(tokens, 8, dtype=DOUBLE))
    assert used == [form]
