"""The invariants of ASR. C concentration, φ disagreement, F importance, θ* means."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from ctta_bench.authoring.parity import collect, replay_case, repository_cases
from ctta_bench.errors import MethodError
from ctta_bench.method import Method, softmax_entropy
from ctta_bench.methods.asr import AdaptiveReset, ResetHyperparameters, Watch
from ctta_bench.registry import METHODS
from tests.methods import build, make, pictures, plain, snapshot, through_disk

DOUBLE: dict[str, Any] = {"dtype": torch.float64, "precision": "float64"}
NEVER = {"threshold": 1e-300}  # C is above ln(1e-299)
ALWAYS = {"threshold": 1.0}  # C is below ln 10
ALL_KEPT = {"kept_share": 1.0, "kept_slope": 0.0}
HOSTS = ["asr_eta", "asr_roid", "asr_tent"]


def watched(host: str) -> Any:
    """ASR on any host, as a plug-in would define it."""
    kind = METHODS.get(host)

    class Hyperparameters(ResetHyperparameters, kind.Hyperparameters):
        """Of both."""

    return type("MyReset", (AdaptiveReset, kind), {"Hyperparameters": Hyperparameters})


def stream(count: int = 4, size: int = 8, **options: Any) -> list[Tensor]:
    return list(pictures(count * size, **options).split(size))


def concentration(method: Method, images: Tensor) -> float:
    with torch.no_grad():
        return float(softmax_entropy(method.model(images).mean(0, keepdim=True)))


# -- when nothing is reset, it is its host


@pytest.mark.parametrize(
    "host", ["eta", "roid", "tent", "sar", "deyo", "cmf", "rdumb", "pseudo_label", "come_tent"]
)
@pytest.mark.parametrize("network", ["toy_vit", "toy_cnn"])
def test_without_a_reset_it_is_its_host_to_the_bit(host: str, network: str) -> None:
    settings = {"lr": 0.01} | ({"reset_every": 3} if host == "rdumb" else {})
    ours = make(watched(host), network, **settings, **NEVER)
    alone = build(host, network, **settings)
    for images in [*stream(5), pictures(5), pictures(1)]:
        assert torch.equal(ours(images), alone(images))
    assert plain(snapshot(ours)) == plain(snapshot(alone))
    assert ours.counters == alone.counters


def test_a_single_image_leaves_everything_out() -> None:
    ours, alone = build("asr_tent", lr=0.01, **ALWAYS), build("tent", lr=0.01)
    for image in pictures(4).split(1):
        assert torch.equal(ours(image), alone(image))
    assert ours.counters["resets"] == 0 and ours.watch.steps == 0


# -- when: the moving average


def test_the_average_moves_by_the_share_of_agreeing_images() -> None:
    method = build("asr_tent", lr=0.5, concentration_rate=0.3, threshold=1e-3, **DOUBLE)
    source, average = build("source", **DOUBLE), math.log(1e-3 * 10)
    seen = set()
    for images in stream(6):
        images = images.double()
        c, logits = concentration(method, images), method(images)
        phi = float((logits.argmax(-1) != source(images).argmax(-1)).double().mean())
        average += 0.3 * (1 - phi) * (c - average)
        assert method.watch.average == pytest.approx(average, rel=1e-9)
        assert method.watch.weight == pytest.approx(5.0 * phi**2)
        seen.add(phi)
    assert max(seen) > 0 and method.counters["resets"] == 0


def test_complete_disagreement_freezes_the_average() -> None:
    method = build("asr_tent", threshold=1e-3)
    with torch.no_grad():
        method.source_model.network.head.bias[0] += 1e4
        method.model.network.head.bias[1] += 10
    before = method.watch.average
    method(pictures(8))
    assert method.watch.average == before and method.watch.weight == 5.0


# -- where: the last tensors


@pytest.mark.parametrize(("share", "kept"), [(0.0, 0), (0.5, 9), (0.51, 10), (1.0, 18)])
def test_the_first_tensors_are_kept_and_the_others_are_those_of_the_source(
    share: float, kept: int
) -> None:
    method = build("asr_tent", lr=0.01, kept_share=share, kept_slope=0.0, **ALWAYS)
    alone = build("tent", lr=0.01)
    source, (images, more) = snapshot(method), stream(2)
    assert torch.equal(method(images), alone(images))
    adapted = snapshot(alone)
    for number, (name, value) in enumerate(snapshot(method).items()):
        assert torch.equal(value, adapted[name] if number < kept else source[name])
        assert not torch.equal(adapted[name], source[name])
    assert method.optimizer.state_dict()["state"] == {}
    assert method.counters["resets"] == 1
    assert method.watch.average == method.start_average
    method(more)
    assert method.counters["resets"] == 2


def test_the_share_falls_with_the_distance_below_the_average() -> None:
    images = stream(1)[0].double()
    c = concentration(build("asr_tent", **DOUBLE), images)
    slope = 0.4 / (math.log(10) - c)  # keeps 0.8 - 0.4 of 18 tensors: those below 7.2
    method = build("asr_tent", lr=0.01, kept_share=0.8, kept_slope=slope, **ALWAYS, **DOUBLE)
    source = snapshot(method)
    method(images)
    kept = [not torch.equal(v, source[n]) for n, v in snapshot(method).items()]
    assert kept == [True] * 8 + [False] * 10


def test_a_reset_that_keeps_all_still_clears_the_optimiser() -> None:
    settings = {"lr": 0.01, "consolidation_weight": 0.0} | ALL_KEPT | ALWAYS
    method, alone = build("asr_tent", **settings), build("tent", lr=0.01)
    for images in stream(4):
        assert torch.equal(method(images), alone(images))
        alone.optimizer = alone.build_optimizer()
    assert method.counters["resets"] == 4


def test_the_rest_of_the_host_s_state_is_reset_too() -> None:
    for faithful in (False, True):
        options = {"margin": 1.0, "max_similarity": 2.0, "faithful": faithful}
        eta = build("asr_eta", lr=0.01, **options, **ALL_KEPT, **ALWAYS)
        eta(pictures(8))
        assert eta.selection.average is None
    roid = build("asr_roid", lr=0.01, **ALL_KEPT, **ALWAYS)
    roid(pictures(8))
    assert roid.average.tolist() == pytest.approx([0.1] * 10)
    assert roid.full_batch == 8  # a fact of the stream


@pytest.mark.parametrize("name", HOSTS)
def test_any_other_reset_returns_to_the_source_model_and_forgets(name: str) -> None:
    selects = {"margin": 1.0, "max_similarity": 2.0} if name == "asr_eta" else {}
    method = build(name, lr=0.01, **selects, **ALL_KEPT, **ALWAYS)
    source = plain(snapshot(method))
    for images in stream(3):
        method(images)
    assert plain(snapshot(method)) != source and method.watch.importance
    method.reset()
    assert plain(snapshot(method)) == source
    assert method.watch.average == method.start_average
    assert method.watch.importance == [] and method.watch.steps == 0
    assert not any(bool(s.any()) for s in (*method.watch.squares, *method.watch.values))


def test_a_host_that_resets_itself_is_not_reset_again() -> None:
    method = make(watched("rdumb"), lr=0.01, reset_every=2, **ALL_KEPT, **ALWAYS)
    for images in stream(4):
        method(images)
    assert method.counters["resets"] == 4  # ASR, RDumb, ASR, RDumb


@pytest.mark.parametrize("faithful", [False, True])
def test_the_code_resets_the_anchor_of_roid_in_place_of_the_network(faithful: bool) -> None:
    half = {"kept_share": 0.5, "kept_slope": 0.0}
    method = build("asr_roid", lr=0.01, faithful=faithful, **half, **ALWAYS)
    alone, source = build("roid", lr=0.01), list(snapshot(method).values())
    images = pictures(8)
    method(images)
    alone(images)
    adapted = list(snapshot(alone).values())
    mixed = plain(adapted[:9] + source[9:])
    assert plain(list(snapshot(method).values())) == (plain(adapted) if faithful else mixed)
    assert plain(method.source) == (mixed if faithful else plain(source))
    method.reset()
    assert plain(method.source) == plain(list(snapshot(method).values())) == plain(source)


# -- what was lost pulls on


def test_importance_and_means_are_averages_since_the_last_reset_folded_by_a_tenth() -> None:
    watch = Watch(0.0)
    for first, expected in ((4.0, 2.0), (8.0, 0.9 * 2.0 + 0.1 * 4.0)):
        watch.squares, watch.values = [torch.tensor([first])], [torch.tensor([2 * first])]
        watch.steps = 2
        watch.fold()
        assert watch.importance[0].tolist() == pytest.approx([expected])
        assert watch.means[0].tolist() == pytest.approx([2 * expected])
        assert watch.steps == 0 and not bool(watch.squares[0].any())


def test_the_pull_is_twice_weight_importance_and_way_and_not_part_of_the_importance() -> None:
    settings = {"lr": 1.0, "momentum": 0.0} | ALL_KEPT | NEVER | DOUBLE
    free, held = build("asr_tent", **settings), build("asr_tent", **settings)
    sizes = [1e-3 * (number + 1) for number in range(18)]
    held.watch.weight = 0.7
    held.watch.importance = [torch.full_like(p, 2.0) for p in held.trainable.values()]
    held.watch.means = [
        p.detach() - size for p, size in zip(held.trainable.values(), sizes, strict=True)
    ]
    images = pictures(8).double()
    assert torch.equal(free(images), held(images))
    for one, other, size in zip(
        free.trainable.values(), held.trainable.values(), sizes, strict=True
    ):
        torch.testing.assert_close(other.detach(), one.detach() - 2 * 0.7 * 2.0 * size)
    assert plain(free.watch.squares) == plain(held.watch.squares)


def test_the_sums_hold_the_gradients_and_the_values_from_before_each_step() -> None:
    method = build("asr_tent", lr=0.01, **NEVER, **DOUBLE)
    squares = [torch.zeros_like(p) for p in method.trainable.values()]
    values = [torch.zeros_like(p) for p in method.trainable.values()]
    for images in stream(3):
        loss = softmax_entropy(method.model(images.double())).mean()
        gradients = torch.autograd.grad(loss, list(method.trainable.values()))
        torch._foreach_add_(squares, [g.square() for g in gradients])
        torch._foreach_add_(values, list(snapshot(method).values()))
        method(images.double())
    torch.testing.assert_close(method.watch.squares, squares)
    torch.testing.assert_close(method.watch.values, values)
    assert method.watch.steps == 3


def test_nothing_selected_has_no_gradient_but_counts_as_a_step() -> None:
    method = build("asr_eta", margin=0.0, **NEVER)
    method(pictures(8))
    assert method.watch.steps == 1
    assert not any(bool(s.any()) for s in method.watch.squares)
    assert all(bool(v.any()) for v in method.watch.values[::2])  # the weights


def test_agreement_with_the_source_never_pulls() -> None:
    method = build("asr_tent", lr=1e-6, **ALL_KEPT, **ALWAYS)
    for images in stream(4):
        method(images)
        assert method.watch.importance and method.watch.weight == 0


# -- edges


def test_a_host_without_adapted_parameters_is_refused_in_a_sentence() -> None:
    with pytest.raises(MethodError, match="MyReset has nothing to reset: its host adapts no"):
        make(watched("lame"))


@pytest.mark.parametrize("name", HOSTS)
def test_images_that_are_not_finite_reset_nothing(name: str) -> None:
    method = build(name, lr=0.01, **ALWAYS)
    average = method.watch.average
    images = pictures(8)
    images[1] = torch.nan
    method(images)
    assert method.counters["resets"] == 0 and method.watch.average == average
    assert all(bool(s.isfinite().all()) for s in method.watch.squares)


@pytest.mark.parametrize("name", HOSTS)
def test_a_run_resumes_between_resets_with_the_same_bits(name: str) -> None:
    settings = {"lr": 0.05, "threshold": 0.95, "kept_share": 0.5, "kept_slope": 1.0}
    whole, batches = build(name, **settings), stream(6)
    logits = []
    for number, images in enumerate(batches):
        if number == 3:
            saved = through_disk(whole.state_dict())
        logits.append(whole(images))
    assert whole.counters["resets"] > 1
    rest = build(name, **settings)
    rest.load_state_dict(saved)
    for images, expected in zip(batches[3:], logits[3:], strict=True):
        assert torch.equal(rest(images), expected)


@pytest.mark.parametrize("name", ["asr_eta", "asr_eta_adam", "asr_roid", "asr_roid_network"])
def test_resets_and_the_average_are_those_of_the_code(name: str) -> None:
    replayed = replay_case(collect([repository_cases()])[name], torch.float64)
    theirs = replayed.case["per_batch"]
    assert [after["resets"] for after in replayed.after_batch] == [
        line["resets_so_far"] for line in theirs
    ]
    watch = replayed.method.watch
    assert watch.average == pytest.approx(theirs[-1]["cumulative_after_batch"], rel=1e-6)
    assert watch.weight == pytest.approx(theirs[-1]["consolidation_coefficient"])
    for number, key in enumerate(replayed.method.trainable):
        for ours, what in ((watch.importance, "fisher"), (watch.means, "mean")):
            expected = replayed.recorded[f"aux/estimated_{what}/{key}"].double()
            torch.testing.assert_close(ours[number], expected, atol=1e-6, rtol=1e-4)
