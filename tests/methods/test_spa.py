"""The invariants of SPA. α strengths of the noise, W the linear layer on the features of views."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ctta_bench.authoring.parity import collect, largest_difference, replay_case, repository_cases
from ctta_bench.errors import DataError, MethodError
from ctta_bench.methods.spa import draw_masks, with_noise, without_frequencies
from ctta_bench.model import SourceModel
from ctta_bench.registry import METHODS
from tests.methods import build, changed, pictures, plain, snapshot, tensors, toy

DOUBLE: dict[str, Any] = {"dtype": torch.float64, "precision": "float64"}
HOSTS = ["spa_tent", "spa_eta", "spa_eata"]
OPEN: dict[str, dict[str, Any]] = {
    "spa": {},
    "spa_tent": {},
    "spa_eta": {"margin": 1.0, "max_similarity": 2.0},
    "spa_eata": {"margin": 1.0, "max_similarity": 2.0},
}
SIZES = [(32, 32), (15, 15), (16, 21), (224, 224)]


def normal(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


# -- the view without low frequencies


@pytest.mark.parametrize(("height", "width"), SIZES)
def test_a_mask_is_symmetric_about_the_mean_so_that_images_stay_real(
    height: int, width: int
) -> None:
    masks = draw_masks(2, height, width, 0.5).double()
    assert set(masks.unique().tolist()) == {0.0, 1.0}
    images = normal(2, 3, height, width)
    shifted = torch.fft.fftshift(torch.fft.fft2(images), (-2, -1)) * masks
    whole = torch.fft.ifft2(torch.fft.ifftshift(shifted, (-2, -1)))
    assert whole.imag.abs().max() <= 1e-12 * whole.real.abs().max()
    torch.testing.assert_close(without_frequencies(images, masks), whole.real)


def test_only_the_low_fifth_and_its_mirror_image_is_masked() -> None:
    lost = (draw_masks(64, 32, 32, 0.9) == 0).any(0).any(0).nonzero()
    assert lost.min(0).values.tolist() == [13, 13]
    assert lost.max(0).values.tolist() == [19, 19]
    lost = (draw_masks(8, 224, 224, 0.9) == 0).any(0).any(0).nonzero()
    assert lost.min(0).values.tolist() == [90, 90]
    assert lost.max(0).values.tolist() == [134, 134]


@pytest.mark.parametrize("ratio", [0.0, 0.2, 1.0])
def test_each_frequency_is_lost_with_the_given_probability_also_the_mean(ratio: float) -> None:
    masks = draw_masks(2000, 32, 32, ratio)
    for row, column in ((16, 16), (13, 13), (16, 18), (14, 17)):
        assert float((masks[..., row, column] == 0).float().mean()) == pytest.approx(
            ratio, abs=0.02
        )
    images = normal(2, 3, 32, 32)
    if ratio == 1.0:
        means = without_frequencies(images, masks[:2]).mean((-2, -1))
        torch.testing.assert_close(means, torch.zeros_like(means), atol=1e-12, rtol=0)
    if ratio == 0.0:
        torch.testing.assert_close(without_frequencies(images, masks[:2]), images)


# -- the view with noise


def test_each_patch_mixes_in_its_share_of_the_batch_s_one_noise_and_is_clipped() -> None:
    images, noise = normal(2, 3, 4, 6) / 4, normal(3, 4, 6)
    shares = torch.tensor([0.0, 1.0, 0.25, 0.0, 0.0, 0.0]).double()
    mixed = with_noise(images, noise, shares, 2)
    inside = images.clamp(-1, 1)
    torch.testing.assert_close(mixed[..., :2, :2], inside[..., :2, :2])
    expected = noise[:, :2, 2:4].clamp(-1, 1).expand(2, -1, -1, -1)
    torch.testing.assert_close(mixed[..., :2, 2:4], expected)
    quarter = 0.75 * images[..., :2, 4:] + 0.25 * noise[:, :2, 4:]
    torch.testing.assert_close(mixed[..., :2, 4:], quarter.clamp(-1, 1))


def test_patches_at_the_rim_may_be_smaller() -> None:
    shares = torch.arange(6.0).double() / 6
    mixed = with_noise(torch.ones(1, 3, 5, 7).double(), torch.zeros(3, 5, 7).double(), shares, 3)
    torch.testing.assert_close(mixed[0, 0, :, 0], 1 - shares[[0, 0, 0, 3, 3]])
    torch.testing.assert_close(mixed[0, 0, 0], 1 - shares[[0, 0, 0, 1, 1, 1, 2]])


@pytest.mark.parametrize(("faithful", "first"), [(False, 0.1), (True, 0.4)])
def test_the_mean_of_the_squared_strengths_is_the_noise_ratio(faithful: bool, first: float) -> None:
    method = build("spa", noise_ratio=0.1, noise_patch=4, faithful=faithful)
    start = method.start_strengths(16, 16)
    assert len(start) == 16
    assert float(start.square().mean()) == pytest.approx(first)
    for images in pictures(24).split(8):
        method(images)
        alpha = method.strengths
        assert alpha.abs().max() <= 1
        mean = float(alpha.square().mean())
        assert mean <= 0.1 + 1e-6  # less, if some are clipped
        assert mean == pytest.approx(0.1, rel=1e-4) or bool((alpha.abs() == 1).any())
    assert alpha.std() > 0


def test_the_strengths_ascend_with_momentum_before_they_are_scaled() -> None:
    method = build("spa", noise_ratio=0.25, noise_patch=8, **DOUBLE)
    first = method.start_strengths(16, 16)
    gradient = torch.tensor([0.1, -0.1, 0.0, 0.2]).double()
    method.strengthen(first, gradient)
    raised = 0.5 + gradient
    torch.testing.assert_close(method.strengths, raised * 0.5 / raised.square().mean().sqrt())
    second = method.strengths.clone()
    method.strengthen(second, gradient)
    raised = second + 1.9 * gradient
    torch.testing.assert_close(method.strengths, raised * 0.5 / raised.square().mean().sqrt())
    before = plain(method.strengths)
    method.strengthen(method.strengths, gradient * torch.nan)
    assert plain(method.strengths) == before


# -- the loss


def test_the_loss_is_the_divergence_over_images_that_are_surer_than_their_view() -> None:
    method, images = build("spa", **DOUBLE), pictures(8).double()
    with torch.no_grad():
        method.predictor.weight *= 0.8  # less certain, but not everywhere
        views = images.flip(-1)
        p = method.model(images).softmax(-1)
        q = method.model.head(0.8 * method.model.features(views)).softmax(-1)
        surer = p.amax(-1) > q.amax(-1)
        assert 0 < surer.sum() < 8
        expected = (p * (p / q).log()).sum(-1)[surer].mean()
        view = (views - method.model.mean) / method.model.std
        found = method.distance(method.model(images), view)
    torch.testing.assert_close(found, expected)
    assert expected >= 0
    with torch.no_grad():
        sharper = method.distance(method.model(images) / 100, view)
    assert float(sharper) == 0


def test_views_equal_to_the_image_teach_nothing() -> None:
    method = build("spa", mask_ratio=0.0, noise_ratio=0.0, **DOUBLE)
    before = snapshot(method)
    for images in (pictures(16).double() * 0.5).split(8):
        method(images)
    for name, value in snapshot(method).items():
        torch.testing.assert_close(value, before[name], atol=1e-12, rtol=0)


def test_scored_logits_do_not_depend_on_the_linear_layer() -> None:
    ours, source = build("spa", lr=0.0, predictor_lr=0.5), build("source")
    for images in pictures(24).split(8):
        torch.testing.assert_close(ours(images), source(images), atol=1e-5, rtol=0)
    assert not torch.equal(ours.predictor.weight, torch.eye(24))


@pytest.mark.parametrize("name", HOSTS)
def test_a_tenth_of_the_host_s_loss_is_added(name: str) -> None:
    host_name = name.removeprefix("spa_")
    settings = OPEN[name] | DOUBLE
    alone, ours = (build(n, **(DOUBLE if n == "spa" else settings)) for n in ("spa", name))
    host, images = build(host_name, **settings), pictures(8).double()
    for method in (alone, ours, host):
        method(images)
    torch.testing.assert_close(ours.loss, alone.loss + 0.1 * host.loss)


def test_a_host_that_selects_nothing_adds_nothing() -> None:
    alone, ours = build("spa"), build("spa_eta", margin=0.0)
    for images in pictures(16).split(8):
        torch.testing.assert_close(ours(images), alone(images))
    assert ours.selection.average is None


def test_the_fisher_term_pulls_norm_layers_back() -> None:
    settings = OPEN["spa_eata"] | DOUBLE
    free, held = (build("spa_eata", fisher_weight=w, **settings) for w in (0.0, 1e4))
    images = pictures(8).double()
    with torch.no_grad():
        for method in (free, held):
            for parameter in method.norms:
                parameter += 0.01
    free(images)
    held(images)
    drift = sum(float(f.sum()) * 1e-4 for f in held.fisher)
    assert float(held.loss - free.loss) == pytest.approx(0.1 * 1e4 * drift, rel=1e-6)
    assert len(held.norms) == len(held.fisher) == 18


# -- edges


@pytest.mark.parametrize("name", list(OPEN))
def test_a_batch_that_is_not_finite_changes_nothing_and_is_counted(name: str) -> None:
    method = build(name, noise_patch=8, **OPEN[name])
    method(pictures(8))
    before, strengths = tensors(method.model), plain(method.strengths)
    method(torch.full((4, 3, toy.SIDE, toy.SIDE), torch.nan))
    assert method.counters["skipped_updates"] == 1
    assert changed(before, method.model) == set()
    assert plain(method.strengths) == strengths


def test_a_reset_restores_strengths_and_linear_layer() -> None:
    method = build("spa", noise_patch=8)
    for images in pictures(16).split(8):
        method(images)
    method.reset()
    assert method.strengths is None and method.velocity is None
    assert torch.equal(method.predictor.weight, torch.eye(24))


def test_it_needs_features_and_eata_needs_source_images() -> None:
    class Bare(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm2d(3)

        def forward(self, images: Tensor) -> Tensor:
            return self.norm(images).mean((-2, -1))

    with pytest.raises(MethodError, match=r"SPA does not support Bare: it uses features"):
        METHODS.get("spa")(SourceModel(Bare()))

    class Nothing:
        def batches(self, size: int) -> list[Tensor]:
            return []

    with pytest.raises(DataError, match=r"SPA \(EATA\) needs source images .* `spa_eta`"):
        METHODS.get("spa_eata")(SourceModel(toy.toy_vit())).start(Nothing())


@pytest.mark.parametrize(("name", "equal"), [("spa", True), ("spa_tent", True), ("spa_eta", False)])
def test_the_default_equals_the_code_where_its_first_noise_ratio_is_the_configured_one(
    name: str, equal: bool
) -> None:
    file = collect([repository_cases()])[name]
    found = file.hyperparameters() | {"faithful": False}
    object.__setattr__(file, "hyperparameters", lambda: found)
    replayed = replay_case(file, torch.float64)
    assert (largest_difference(replayed, "logits64_") <= 1e-9) == equal


@pytest.mark.parametrize("name", ["spa", "spa_tent", "spa_eta"])
def test_the_strengths_after_the_last_batch_are_those_of_the_code(name: str) -> None:
    replayed = replay_case(collect([repository_cases()])[name], torch.float64)
    last = replayed.case["per_batch"][-1]
    assert float(replayed.method.strengths.norm()) == pytest.approx(last["alpha_norm"], rel=1e-6)
