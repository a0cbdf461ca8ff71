"""ReservoirTTA. v styles, c centroids, π weights of a batch, θ_k the host's copies."""

import hashlib
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from ctta_bench.authoring.parity import replay_case
from ctta_bench.errors import DataError, MethodError
from ctta_bench.method import softmax_entropy
from ctta_bench.methods.reservoir import distances, draw
from ctta_bench.parts import style as styles
from ctta_bench.parts.style import random_style_network, vgg19_style_network
from tests.methods import build, pictures, plain, snapshot, tensors
from tests.parity.test_parity import CASES
from tests.parity.test_teachers import noting, per_batch

DOUBLE = {"dtype": torch.float64, "precision": "float64"}
SGD = {"lr": 0.01, "momentum": 0.9}
SMALL = {"max_models": 3, "buffer_size": 6, "start": "source", **SGD}
RESERVOIRS = [name for name in CASES if name.startswith("reservoir_")]


def reservoir(**values: Any) -> Any:
    return build("reservoir", **SMALL | values)


def batches(count: int = 4, size: int = 8) -> list[Tensor]:
    """Batches of ever other styles: contrasts from 1 down."""
    return [
        0.5 + (images - 0.5) * 0.4**i for i, images in enumerate(pictures(count * size).split(size))
    ]


# -- the style


def test_a_style_is_the_log_of_the_unbiased_variance_of_channels_before_the_relu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(styles, "PIXELS_AT_ONCE", 16 * 16 * 16)  # three parts
    network, images = random_style_network().double(), pictures(40).double()
    shift, scale = (torch.tensor(v).double().view(1, 3, 1, 1) for v in (styles.MEAN, styles.STD))
    values, expected = (images - shift) / scale, []
    for place, layer in enumerate(network.features):
        values = layer(values)
        if place in (2, 5, 7):
            expected.append(values.transpose(0, 1).flatten(1).var(1).log())
    found = network(images)
    assert tuple(found.shape) == (64 + 128 + 128,)
    torch.testing.assert_close(found, torch.cat(expected))


def test_random_weights_are_always_the_same_and_draw_nothing() -> None:
    before = torch.get_rng_state()
    assert plain(tensors(random_style_network())) == plain(tensors(random_style_network()))
    assert torch.equal(before, torch.get_rng_state())


def vgg19_file(folder: Path, monkeypatch: pytest.MonkeyPatch, **left_out: Any) -> dict[str, Tensor]:
    """A file like torchvision's, with other layers too, as the one that is expected."""
    drawn = random_style_network(seed=1).state_dict()
    stored = drawn | {"features.10.weight": torch.zeros(2), "classifier.0.bias": torch.zeros(2)}
    for name in left_out.get("names", ()):
        del stored[name]
    (folder / "checkpoints").mkdir()
    torch.save(stored, file := folder / "checkpoints" / "vgg19.pth")
    digest = hashlib.sha256(file.read_bytes()).hexdigest()[:8]
    monkeypatch.setattr(styles, "WEIGHTS", f"vgg19-{left_out.get('digest', digest)}.pth")
    file.rename(file.with_name(styles.WEIGHTS))
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(folder))
    return drawn


def test_the_published_weights_are_read_from_torchs_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = vgg19_file(tmp_path, monkeypatch)
    network = vgg19_style_network(asked_by="X")
    assert plain(network.state_dict()) == plain(drawn)
    assert plain(tensors(reservoir(style_network="vgg19").style)) == plain(tensors(network))


def test_a_missing_a_foreign_and_an_incomplete_file_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path / "nowhere"))
    said = r"ReservoirTTA needs torchvision's VGG19 .* vgg19-dcbb9e9d.pth does not exist; download "
    with pytest.raises(DataError, match=said.replace("* vgg19", "*/vgg19")):
        reservoir(style_network="vgg19")
    (tmp_path / "one").mkdir()
    vgg19_file(tmp_path / "one", monkeypatch, digest="00000000")
    with pytest.raises(DataError, match=r"not torchvision's file \(SHA-256 [0-9a-f]{8}\)"):
        vgg19_style_network(asked_by="X")
    (tmp_path / "two").mkdir()
    vgg19_file(tmp_path / "two", monkeypatch, names=["features.5.bias"])
    with pytest.raises(DataError, match=r"has no tensor features\.5\.bias"):
        vgg19_style_network(asked_by="X")


def test_source_styles_give_the_mean_and_the_threshold() -> None:
    method = reservoir(source_styles=7, style_batch_size=8)  # 40 images: five in a pass
    drawn = torch.randn(6, method.style.width)
    drawn[5] = drawn[4]  # a distance of zero does not count
    method.learn_styles(drawn)
    assert torch.equal(method.origin, drawn.mean(0))
    apart = torch.pdist(drawn)
    assert method.threshold == pytest.approx(float(apart[apart > 0].quantile(0.999)))
    with pytest.raises(DataError, match="6 source batches have the same style; set style_batch"):
        method.learn_styles(drawn[:1].expand(6, -1))


# -- clusters


@pytest.mark.parametrize("host", ["tent", "eta", "eata", "sar", "roid"])
def test_with_one_copy_it_is_its_host_to_the_bit(host: str) -> None:
    values = {**SGD, "nesterov": True} | ({"margin": 1.0} if host != "roid" else {})
    known = build(host).Hyperparameters.model_fields
    values |= {"max_similarity": 0.4} if "max_similarity" in known else {}
    values = {name: value for name, value in values.items() if name in known}
    alone = {"consistency": False, "prior": "off"} if host == "roid" else {}
    more = {"source_samples": 16} if "source_samples" in known else {}
    theirs = build(host, **values, **alone, **more)
    ours = reservoir(host=host, max_models=1, buffer_size=1, source_samples=16, **values)
    for images in batches():
        assert torch.equal(ours(images), theirs(images))
    assert plain(snapshot(ours)) == plain(snapshot(theirs))
    assert ours.counters == theirs.counters


def test_far_styles_found_clusters_up_to_the_most_and_weights_add_up_to_one() -> None:
    method, models = reservoir(), []
    for images in batches(5):
        probabilities, _ = method.route(method.style(images), len(images))
        assert float(probabilities.sum()) == pytest.approx(1)
        method(images)
        models.append(len(method.weights))
    assert models == [1, 2, 3, 3, 3]
    assert len(method.beside) == 3 and method.extra_state_bytes > 0


def test_a_short_last_batch_founds_no_cluster() -> None:
    method, (first, second, *_) = reservoir(), batches()
    method(first)
    method(second[:7])
    assert len(method.weights) == 1
    method(second)
    assert len(method.weights) == 2


def test_only_the_nearest_copy_learns() -> None:
    method = reservoir()
    for images in batches(3):
        method(images)
    before, (*_, images) = plain(method.weights), batches(3)
    method(images)
    after = plain(method.weights)
    changed = [k for k, (old, new) in enumerate(zip(before, after, strict=True)) if old != new]
    assert changed == [method.used]


def test_the_weighted_copies_are_scored_before_the_step() -> None:
    method = build("reservoir", **SMALL, **DOUBLE)
    for images in batches(3):
        method(images.double())
    images = batches(4)[3].double()
    probabilities, founds = method.route(method.style(images), 8)
    assert not founds and float(probabilities.min()) > 0
    mean = [
        sum(
            share * weights[place]
            for share, weights in zip(probabilities, method.weights, strict=True)
        )
        for place in range(len(method.trainable))
    ]
    method.load(mean)
    expected = method.model(images)
    torch.testing.assert_close(method.predict(images), expected)
    torch.testing.assert_close(method(images), expected)


def test_without_ensembling_the_nearest_copy_is_scored_and_a_pass_is_saved() -> None:
    method, images = reservoir(ensembling=False), batches(1)[0]
    expected = method.predict(images)
    before = method.passes.forward_images
    torch.testing.assert_close(method(images), expected)
    assert method.passes.forward_images - before == 8


def test_a_new_copy_is_the_most_informative_one_with_its_optimiser() -> None:
    method = reservoir(start="mi")
    for images in batches(2):
        method(images)
    images, scores = batches(3)[2], []
    for weights in method.weights:
        method.load(weights)
        logits = method.model(images).detach()
        mean = logits.softmax(1).mean(0)
        scores.append(float(softmax_entropy(logits).mean() + (mean * mean.log()).sum()))
    best = scores.index(min(scores))
    weights, beside = method.new_weights(images)
    assert plain(weights) == plain(method.weights[best])
    assert plain(beside["optimizer"]) == plain(method.beside[best]["optimizer"])


def test_progressive_copies_move_by_their_weight_alone() -> None:
    whole, part = (reservoir(progressive=value) for value in (False, True))
    images = batches(1)[0]
    shares = [float(m.route(m.style(images), 8)[0].max()) for m in (whole, part)]
    whole(images)
    part(images)
    for start, new, moved in zip(
        whole.start_weights, whole.weights[whole.used], part.weights[part.used], strict=True
    ):
        torch.testing.assert_close(moved, start.lerp(new, shares[1]))


# -- the buffer


@pytest.fixture
def filled() -> Any:
    """A method with a full buffer of two styles for its one copy, of many seen."""
    method = reservoir()
    method.buffer, method.seen = torch.randn(2, method.style.width), 7
    return method


@pytest.mark.parametrize(("faithful", "most"), [(False, 7), (True, 6)])
def test_reservoir_sampling_draws_among_all_styles_seen(
    filled: Any, faithful: bool, most: int
) -> None:
    filled.hp = filled.hp.model_copy(update={"faithful": faithful})
    asked: list[int] = []
    filled.draw = lambda bound: asked.append(bound) or 1
    style, one = torch.randn(filled.style.width), torch.ones(1)
    kept = filled.buffer[0].clone()
    filled.keep(style, one)
    assert asked == [most] and filled.seen == 8
    assert torch.equal(filled.buffer[1], style) and torch.equal(filled.buffer[0], kept)
    filled.draw = lambda bound: 2
    before = filled.buffer.clone()
    filled.keep(torch.zeros_like(style), one)
    assert torch.equal(filled.buffer, before) and filled.seen == 9


def test_each_seen_style_is_kept_with_the_same_probability() -> None:
    method, counts = reservoir(), torch.zeros(6)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for _ in range(600):
            method.buffer, method.seen = method.buffer[:0], 0
            for number in range(6):
                method.keep(torch.full((method.style.width,), float(number)), torch.ones(1))
            counts[method.buffer[:, 0].long()] += 1
    torch.testing.assert_close(counts / 600, torch.full((6,), 2 / 6), atol=0.06, rtol=0)


def test_the_count_of_seen_styles_begins_again(filled: Any) -> None:
    filled.seen = 20
    filled.keep(torch.zeros(filled.style.width), torch.ones(1))
    assert filled.seen == 2


def test_fifo_drops_the_oldest_and_replace_the_least_likely_of_the_cluster(filled: Any) -> None:
    style, one = torch.ones(filled.style.width), torch.ones(1)
    second = filled.buffer[1].clone()
    filled.hp = filled.hp.model_copy(update={"sampling": "fifo"})
    filled.keep(style, one)
    assert torch.equal(filled.buffer, torch.stack([second, style]))
    # Two clusters: rows 0, 1 and 3 are nearest to the first, row 1 least so.
    filled.hp = filled.hp.model_copy(update={"sampling": "replace"})
    filled.weights, width = filled.weights * 2, filled.style.width
    filled.origin = torch.zeros(width)
    along = torch.eye(width)[0]
    with torch.no_grad():
        filled.offsets[1] = 10 * along
    filled.buffer = torch.stack([0 * along, 4 * along, 9 * along, 1 * along])
    near = (-distances(along[None] * 2, filled.origin + filled.offsets[:2]))[0].softmax(0).detach()
    filled.keep(2 * along, near)
    assert filled.buffer[:, 0].tolist() == [0, 2, 9, 1]
    far = (-distances(along[None] * 4.5, filled.origin + filled.offsets[:2]))[0].softmax(0).detach()
    filled.keep(4.5 * along, far)  # less likely than all of its cluster
    assert filled.buffer[:, 0].tolist() == [0, 2, 9, 1]


def test_draws_include_both_ends() -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        assert {draw(2) for _ in range(60)} == {0, 1, 2}


def test_centroids_are_fitted_to_the_mutual_information_of_the_buffer() -> None:
    method = reservoir(centroid_lr=0.05)
    for images in batches(3):
        method(images)

    def information(styles: Tensor) -> float:
        scores = -distances(styles, method.origin + method.offsets[:3].detach())
        mean = scores.softmax(1).mean(0)
        return float(softmax_entropy(scores).mean() + (mean * mean.log()).sum())

    with torch.no_grad():
        method.offsets.mul_(0.1)
    style = method.style(batches(1)[0])
    styles = torch.cat([method.buffer, style[None]])
    before = information(styles)
    for _ in range(5):
        method.fit_centroids(style)
    assert information(styles) < before


# -- all of it


def test_nan_images_are_routed_as_the_last_ones_and_change_no_copy() -> None:
    method = reservoir()
    for images in batches(2):
        method(images)
    before = plain(method.weights), plain(method.buffer), plain(method.offsets.data), method.used
    method(torch.full((8, 3, 16, 16), torch.nan))
    after = plain(method.weights), plain(method.buffer), plain(method.offsets.data), method.used
    assert before == after and method.counters["skipped_updates"] == 1
    assert bool(method(pictures(1)).isfinite().all())


def test_a_reset_empties_the_reservoir_and_a_host_s_reset_its_own_copy_alone() -> None:
    method = reservoir()
    for images in batches(3):
        method(images)
    method.reset()
    assert (len(method.weights), len(method.buffer), method.seen) == (1, 0, 0)
    assert plain(method.weights[0]) == plain(method.start_weights)
    assert not bool(method.offsets.any())
    # SAR recovers in every batch: the loss is always below this threshold.
    recovering = reservoir(host="sar", margin=9.0, recovery_threshold=99.0)
    first, second = batches(2)
    recovering(first)
    assert recovering.counters["resets"] == 1
    assert plain(recovering.weights[recovering.used]) == plain(recovering.start_weights)
    recovering(second)
    assert len(recovering.weights) == 2


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ValueError, match="buffer_size must be at least max_models"):
        reservoir(max_models=4, buffer_size=3)
    with pytest.raises(MethodError, match="no plain network"):
        _ = reservoir().scored_model


# -- the official code


@pytest.mark.parametrize("name", RESERVOIRS)
def test_clusters_routes_and_buffers_are_the_official_ones(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shares: list[list[float]] = []
    kind = type(reservoir())
    average = kind.averaged

    def noted(method: Any, images: Tensor, probabilities: Tensor, copies: Any) -> Tensor:
        shares.append(probabilities.tolist())
        return average(method, images, probabilities, copies)

    monkeypatch.setattr(kind, "averaged", noted)
    facts = noting(monkeypatch, "reservoir", lambda m: (len(m.weights), m.used, len(m.buffer)))
    replayed = replay_case(CASES[name], torch.float64)
    for ours, key in zip(zip(*facts, strict=True), ("models", "used_model", "buffer"), strict=True):
        assert list(ours) == per_batch(replayed, key)
    for ours, theirs in zip(shares, per_batch(replayed, "probabilities"), strict=True):
        assert ours == pytest.approx(theirs, abs=1e-5)
    method: Any = replayed.method
    assert method.threshold == pytest.approx(replayed.case["cluster_threshold"], rel=1e-6)
    recorded = replayed.recorded
    centroids = method.origin + method.offsets[: len(method.weights)].detach()
    for found, what in ((centroids, "centroids"), (method.buffer, "buffer")):
        torch.testing.assert_close(found.float(), recorded[f"aux/{what}"], atol=1e-3, rtol=0)
    for number, weights in enumerate(method.weights):
        for tensor, value in zip(method.trainable, weights, strict=True):
            theirs = recorded[f"aux/model_{number}/{tensor}"]
            torch.testing.assert_close(value.float(), theirs, atol=1e-4, rtol=0)
