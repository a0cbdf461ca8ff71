"""The invariants of Continual-MAE."""

import math
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor

from ctta_bench.authoring.parity import collect, replay_case
from ctta_bench.errors import MethodError
from ctta_bench.method import Method
from ctta_bench.model import SourceModel
from ctta_bench.parts.hog import oriented_gradients, patch_targets
from ctta_bench.parts.views import passes
from ctta_bench.registry import METHODS
from tests.methods import build, changed, make, pictures, plain, snapshot, source_images, tensors

CMAE = METHODS.get("cmae")
hog = oriented_gradients
SGD = {"optimizer": "sgd", "lr": 0.01, "momentum": 0.0}
SMALL = {"views": 2, **SGD}
DOUBLE = {"dtype": torch.float64, "precision": "float64"}
# Neither mask nor HOG: the masked pass is the clean one.
PLAIN = {"mask_ratio": 0.0, "hog_ratio": 0.0}
UNMOVED = {"network.cls_token", "network.pos_embed", "mean", "std"}
GOLDEN = collect([Path(__file__).parents[1] / "parity"])


def noise(*shape: int) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(3)).double()


def quarter(number: int) -> tuple[slice, slice]:
    """Rows and columns of one of the four patches of a picture."""
    row, column = divmod(number, 2)
    return slice(8 * row, 8 * row + 8), slice(8 * column, 8 * column + 8)


def hidden(*patches: int) -> Tensor:
    """The mask of one image with these patches."""
    return torch.tensor([[number in patches for number in range(4)]])


# -- what learns -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "classes", "count"),
    [
        ("vit_base_patch16_384", 10, 85_738_102),
        ("vit_base_patch16_384", 100, 85_807_312),
        ("vit_base_patch16_224", 1000, 86_499_412),
    ],
)
def test_vit_base_has_the_counted_parameters(name: str, classes: int, count: int) -> None:
    with torch.device("meta"):
        method = CMAE(SourceModel(timm.create_model(name, num_classes=classes)))
    assert sum(p.numel() for p in method.trainable.values()) == count
    assert sum(p.numel() for p in method.beside.values()) == 83_820
    frozen = {n for n, _ in method.model.network.named_parameters()} - set(method.trainable)
    assert frozen == {"cls_token", "pos_embed"}


def test_every_weight_and_bias_and_what_stands_beside_moves() -> None:
    method = build("cmae", restore_probability=0.0, **SMALL)
    start, before = snapshot(method), tensors(method.model)
    for images in pictures(16).split(8):
        method(images)
    assert changed(before, method.model) == set(before) - UNMOVED
    assert all(not torch.equal(start[n], method.trainable[n]) for n in method.beside)


def test_the_mask_token_starts_at_zero_and_the_projection_near_it() -> None:
    method = build("cmae")
    assert method.mask_token.count_nonzero() == method.projection.bias.count_nonzero() == 0
    weight = method.projection.weight
    assert weight.shape == (108, 24)
    # 2,592 draws: the sample deviation is off by 1.4 % on average.
    assert weight.detach().std().item() == pytest.approx(0.02, rel=0.08)


def test_without_hog_there_is_no_projection() -> None:
    assert set(build("cmae", hog_ratio=0.0).beside) == {"mask_token"}


def test_networks_that_are_no_vit_are_refused() -> None:
    with pytest.raises(MethodError, match=r"C-MAE does not support toy_cnn: .* timm"):
        build("cmae", "toy_cnn")


@pytest.mark.parametrize("patch", [(8, 4), (5, 5)])
def test_patches_that_no_cells_divide_are_refused(patch: tuple[int, int]) -> None:
    network = VisionTransformer(
        img_size=(40, 40), patch_size=patch, embed_dim=24, depth=1, num_heads=2
    )
    with pytest.raises(MethodError, match=f"square patches .* not {patch[0]} x {patch[1]}"):
        CMAE(SourceModel(network))


# -- histograms of oriented gradients --------------------------------------------------------------


def test_histograms_have_the_shape_of_cells_and_length_one() -> None:
    histograms = hog(noise(2, 3, 32, 48), 8)
    assert histograms.shape == (2, 3, 9, 4, 6)
    torch.testing.assert_close(histograms.norm(dim=2), torch.ones(2, 3, 4, 6).double())
    assert patch_targets(histograms).shape == (2, 2 * 3, 108)


def test_the_mean_square_of_a_target_is_a_ninth_where_no_cell_is_flat() -> None:
    targets = patch_targets(hog(noise(2, 3, 32, 32), 8))
    assert float(targets.square().mean()) == pytest.approx(1 / 9, rel=1e-12)


@pytest.mark.parametrize("value", [0.0, 0.3, 0.5, 1.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_target_of_a_flat_image_is_zero(value: float, dtype: torch.dtype) -> None:
    assert hog(torch.full((1, 3, 16, 16), value, dtype=dtype), 4).count_nonzero() == 0


def test_targets_know_no_brightness_and_no_contrast() -> None:
    images = noise(2, 3, 32, 32)
    expected = hog(images, 8)
    torch.testing.assert_close(hog(images + 0.2, 8), expected, atol=1e-6, rtol=0)
    torch.testing.assert_close(hog(images * 0.3, 8), expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize(("step", "expected"), [((0.0, 1.0), 4), ((1.0, 0.0), 0), ((1.0, 1.0), 2)])
def test_a_ramp_votes_for_its_direction_alone(step: tuple[float, float], expected: int) -> None:
    """Gradient (rows, columns) = `step`: half a turn across is bin 4 of 9, down is bin 0."""
    rows, columns = torch.arange(16).double(), torch.arange(16).double()
    ramp = step[0] * rows[:, None] + step[1] * columns
    inner = hog((ramp / 32).expand(1, 3, 16, 16), 4)[0, 0, :, 1:3, 1:3]
    assert torch.equal(inner.argmax(0), torch.full((2, 2), expected))
    torch.testing.assert_close(inner.amax(0), torch.ones(2, 2).double())


def test_targets_are_ordered_by_colour_bin_row_and_column() -> None:
    histograms = torch.arange(3 * 9 * 4 * 6).view(1, 3, 9, 4, 6)
    targets = patch_targets(histograms)
    colour, number, row, column = 2, 7, 1, 0
    index = ((colour * 9 + number) * 2 + row) * 2 + column
    # Patch 5 of a grid of 2 x 3 stands in row 1 and column 2.
    expected = histograms[0, colour, number, 2 * 1 + row, 2 * 2 + column]
    assert targets[0, 5, index] == expected


# -- the mask --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("side", "ratio", "count"), [(32, 0.5, 8), (32, 0.3, 4), (32, 0.0, 0), (32, 1.0, 16)]
)
def test_a_share_of_patches_is_masked_rounded_down(side: int, ratio: float, count: int) -> None:
    network = VisionTransformer(
        img_size=side, patch_size=8, embed_dim=24, depth=1, num_heads=2, num_classes=10
    )
    method = CMAE(SourceModel(network), CMAE.Hyperparameters(mask_ratio=ratio, views=2))
    assert method.mask(torch.rand(3, 3, side, side)).sum(1).tolist() == [count] * 3


class Given(CMAE):
    """The uncertainty is given."""

    given: Any = None

    def uncertainty(self, images: Tensor) -> Tensor:
        return self.given.expand(len(images), -1)


def test_the_most_uncertain_patches_are_masked_and_the_first_of_equals() -> None:
    method = make(Given, mask_ratio=0.5)
    method.given = torch.tensor([[0.1, 0.4, 0.2, 0.3]])
    assert torch.equal(method.mask(pictures(1)), hidden(1, 3))
    method.given = torch.zeros(1, 4)
    assert torch.equal(method.mask(pictures(1)), hidden(0, 1))


def test_uncertainty_is_the_unbiased_variance_of_the_tokens_mean_over_views() -> None:
    method = build("cmae", views=3, **DOUBLE)
    shades = iter((0.9, 0.7, 0.5))
    method.augment = lambda images, size: images * next(shades)
    images = pictures(2).double()
    with torch.no_grad():
        found = method.uncertainty(images)
        means = [
            method.model.network.forward_features(method.model.preprocess(images * s))[:, 1:].mean(
                -1
            )
            for s in (0.9, 0.7, 0.5)
        ]
    middle = sum(means) / 3
    expected = sum((mean - middle) ** 2 for mean in means) / 2
    torch.testing.assert_close(found, expected, atol=1e-12, rtol=1e-9)


@pytest.mark.parametrize(
    ("score", "values"), [("channel_mean", 1), ("logit", 10), ("feature_variance", 24)]
)
def test_other_scores_compare_logits_or_all_channels(score: str, values: int) -> None:
    method = build("cmae", score=score, views=2)
    assert method.scored(torch.rand(2, 4, 24)).shape == (2, 4, values)
    assert method.mask(pictures(2)).sum(1).tolist() == [2, 2]


@pytest.mark.parametrize("together", [1, 6, 64])
def test_views_that_pass_together_have_the_same_variance(
    together: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(passes, "IMAGES_PER_PASS", together)
    method = build("cmae", views=5, **DOUBLE)
    shades = iter((0.9, 0.8, 0.7, 0.6, 0.5))
    method.augment = lambda images, size: images * next(shades)
    images = pictures(2).double()
    with torch.no_grad():
        scores = [method.forward(images * s)[1].mean(-1) for s in (0.9, 0.8, 0.7, 0.6, 0.5)]
        found = method.uncertainty(images)
    torch.testing.assert_close(found, torch.stack(scores).var(0), atol=1e-12, rtol=1e-9)


def test_masks_and_mask_tokens_equal_the_official_ones() -> None:
    """Every mask of the official run, and its mask token at the end."""
    method = play_and_record("cmae_official")
    for number, mask in enumerate(method.masks):
        assert torch.equal(mask, method.recorded[f"aux/mask_{number}"])
    assert len(method.masks) == 7
    theirs = method.recorded["aux/final_mask_token"].double()
    torch.testing.assert_close(method.mask_token.detach().flatten(), theirs, atol=1e-6, rtol=0)


def play_and_record(case: str) -> Any:
    """The method of a case after its stream, with the masks that it chose."""
    masks: list[Tensor] = []
    original = CMAE.mask

    def remember(self: Any, images: Tensor) -> Tensor:
        masks.append(original(self, images))
        return masks[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CMAE, "mask", remember)
        replayed = replay_case(GOLDEN[case], torch.float64)
    method: Any = replayed.method
    method.masks, method.recorded = masks, replayed.recorded
    return method


# -- the masked pass -------------------------------------------------------------------------------


def test_what_a_masked_patch_shows_changes_no_bit() -> None:
    method = build("cmae")
    image, other = pictures(1), pictures(1)
    rows, columns = quarter(1)
    other[..., rows, columns] = 0.9
    with torch.no_grad():
        expected, tokens = method.masked_pass(image, hidden(1))
        found, _ = method.masked_pass(other, hidden(1))
        shown, _ = method.masked_pass(other, hidden(2))
    assert torch.equal(found, expected)
    assert tokens.shape == (1, 4, 24)  # masked patches stay in the sequence
    assert (shown - expected).abs().max() > 1e-3


def test_the_position_of_a_masked_patch_is_kept_and_nothing_masked_is_the_clean_pass() -> None:
    method = build("cmae")
    with torch.no_grad():
        one, _ = method.masked_pass(pictures(1), hidden(0))
        method.model.network.pos_embed[:, 1] *= 3  # of patch 0, behind the class token's
        moved, _ = method.masked_pass(pictures(1), hidden(0))
        clean, _ = method.masked_pass(pictures(1), hidden())
        assert torch.equal(clean, method.model(pictures(1)))
    assert (moved - one).abs().max() > 1e-3


def test_only_masked_tokens_are_reconstructed() -> None:
    method = build("cmae", **DOUBLE)
    images, mask = pictures(1).double(), hidden(0, 3)
    tokens = torch.rand(1, 4, 24, dtype=torch.float64, requires_grad=True)
    loss = method.reconstruction_loss(tokens, images, mask)
    target = patch_targets(hog(images, 4))[0, [0, 3]]
    expected = (method.projection(tokens[0, [0, 3]]) - target).square().sum() / (2 * 108)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-9)
    (gradient,) = torch.autograd.grad(loss, tokens)
    assert gradient[0, [1, 2]].count_nonzero() == 0
    assert bool(gradient[0, [0, 3]].abs().amax(1).gt(0).all())


def test_a_projection_that_hits_its_target_has_no_gradient() -> None:
    method = build("cmae", **DOUBLE)
    images = torch.full((1, 3, 16, 16), 0.5, dtype=torch.float64)  # its targets are zero
    torch.nn.init.zeros_(method.projection.weight)
    loss = method.reconstruction_loss(torch.rand(1, 4, 24).double(), images, hidden(0, 1))
    gradients = torch.autograd.grad(loss, list(method.projection.parameters()))
    assert [int(g.count_nonzero()) for g in gradients] == [0, 0]


def test_the_loss_is_the_cross_entropy_plus_a_share_of_the_reconstruction() -> None:
    losses = []
    for ratio in (1e-12, 1.0, 3.0):
        method = build("cmae", hog_ratio=ratio, views=2, lr=0.0, **DOUBLE)
        method(pictures(4).double())
        losses.append(float(method.loss))
    assert losses[2] - losses[0] == pytest.approx(3 * (losses[1] - losses[0]), rel=1e-6)
    # The target's mean square is at most a ninth, and the projection starts near zero.
    assert 0.02 < losses[1] - losses[0] < 0.3


def test_histograms_are_those_of_the_image_at_the_networks_input_size() -> None:
    method = build("cmae", **SMALL)
    seen, sizes = [], []
    original = method.reconstruction_loss
    method.reconstruction_loss = lambda *a: seen.append(a[1].shape[-2:]) or original(*a)
    method.augment = lambda images, size: sizes.append(images.shape[-2:]) or images
    assert method(pictures(2)[..., :8, :8]).shape == (2, 10)
    assert set(seen) == set(sizes) == {(16, 16)}


# -- step, restoration and what is scored ----------------------------------------------------------


def test_without_mask_and_hog_the_first_batch_has_no_gradient_and_takes_no_step() -> None:
    method = build("cmae", lr=0.01, views=2, restore_probability=0.0, **PLAIN)
    start = snapshot(method)
    for images in pictures(16).split(8):
        method(images)
    assert plain(snapshot(method)) == plain(start)
    assert method.counters["skipped_updates"] == 0


def test_without_mask_and_hog_the_gradient_is_rounding_noise() -> None:
    method = build("cmae", views=2, min_gradient_norm=0.0, restore_probability=0.0, **PLAIN, **SGD)
    start = snapshot(method)
    method(pictures(8))
    moves = [float((p.detach() - start[n]).abs().max()) for n, p in method.trainable.items()]
    assert max(moves) < 1e-7


def test_only_faithful_lets_adam_step_on_rounding_noise() -> None:
    method = build("cmae", lr=0.01, views=2, restore_probability=0.0, faithful=True, **PLAIN)
    start = snapshot(method)
    method(pictures(8))
    moves = [float((p.detach() - start[n]).abs().max()) for n, p in method.trainable.items()]
    assert max(moves) > 0.1 * 0.01


def test_an_empty_mask_leaves_the_reconstruction_out() -> None:
    method = build("cmae", mask_ratio=0.1, **SMALL)  # int(0.4) = 0
    assert bool(method(pictures(4)).isfinite().all())
    assert method.counters["skipped_updates"] == 0


def test_the_clean_prediction_from_before_the_update_is_scored() -> None:
    method = build("cmae", **SMALL)
    for images in pictures(24).split(8):
        with torch.no_grad():
            before = method.model(images)
        assert torch.equal(method(images), before)
        with torch.no_grad():
            assert (method.model(images) - before).abs().max() > 1e-4


def test_the_restored_student_teaches_the_next_batch() -> None:
    """Restored as a whole, it is the source again, whatever projection and mask token learnt."""
    method, source = build("cmae", restore_probability=1.0, **SMALL), build("source")
    beside = {name: parameter.clone() for name, parameter in method.beside.items()}
    for images in pictures(24).split(8):
        torch.testing.assert_close(method(images), source(images), atol=1e-5, rtol=0)
    assert all(torch.equal(p, s) for p, s in zip(method.restored, method.source, strict=True))
    assert all(not torch.equal(beside[name], p) for name, p in method.beside.items())


@pytest.mark.parametrize("probability", [0.01, 0.3])
def test_a_restoration_takes_its_share_of_the_networks_scalars(probability: float) -> None:
    method = build("cmae", restore_probability=probability)
    with torch.no_grad():
        for parameter in method.trainable.values():
            parameter += 1
    beside = plain(method.beside)
    method.stochastic_restore()
    pairs = list(zip(method.restored, method.source, strict=True))
    count = sum(p.numel() for p, _ in pairs)
    restored = sum(int((p == s).sum()) for p, s in pairs)
    deviation = math.sqrt(count * probability * (1 - probability))
    assert abs(restored - count * probability) < 4 * deviation
    assert plain(method.beside) == beside


@pytest.mark.parametrize("faithful", [False, True])
def test_only_faithful_keeps_projection_and_mask_token_over_a_reset(faithful: bool) -> None:
    method = build("cmae", faithful=faithful, **SMALL)
    start = snapshot(method)
    for images in pictures(16).split(8):
        method(images)
    learnt = snapshot(method)
    method.reset()
    expected = {n: (learnt if faithful and n in method.beside else start)[n] for n in start}
    assert plain(snapshot(method)) == plain(expected)


def test_a_batch_that_is_not_finite_moves_and_restores_nothing() -> None:
    method = build("cmae", restore_probability=0.5, **SMALL)
    method(pictures(8))
    before = snapshot(method)
    method(torch.full((4, 3, 16, 16), torch.nan))
    assert plain(snapshot(method)) == plain(before)
    assert method.counters["skipped_updates"] == 1


def test_half_precision_reaches_every_weight() -> None:
    """Passes without gradients come first; their half copies of the weights have none."""
    method = build("cmae", precision="bfloat16", restore_probability=0.0, **SMALL)
    before = tensors(method.model)
    method(pictures(8))
    assert changed(before, method.model) == set(before) - UNMOVED


def test_a_batch_costs_twelve_forward_passes_and_one_back() -> None:
    method = build("cmae")
    method(pictures(5))
    assert method.passes.forward_images == 5 * 12
    assert method.passes.backward_images == 5


# -- the warm-up -----------------------------------------------------------------------------------


def test_without_warm_up_no_source_data_are_read() -> None:
    method = build("cmae")
    assert method.source_access == "none"
    assert METHODS.get("cmae").warmup_access == "unlabelled"


def test_the_warm_up_teaches_projection_and_mask_token_on_the_source_alone() -> None:
    cold = build("cmae")
    warm = build("cmae", warmup_iterations=30, warmup_lr=0.01, warmup_batch_size=16, views=2)
    assert plain(tensors(warm.model)) == plain(tensors(cold.model))
    assert set(warm.trainable) == set(cold.trainable)
    assert all(p.requires_grad for p in warm.trainable.values())
    assert warm.mask_token.count_nonzero() == 24
    assert warm.passes.forward_images == 0
    assert reconstruction(warm) < 0.9 * reconstruction(cold)
    assert type(warm.optimizer) is torch.optim.Adam and not warm.optimizer.state


def reconstruction(method: Method) -> float:
    """Reconstruction error over the source set with one half of every image masked."""
    any_method: Any = method
    (images,) = source_images().batches(40)
    mask = torch.tensor([True, False, False, True]).expand(len(images), -1)
    with torch.no_grad():
        _, tokens = any_method.masked_pass(images, mask)
        return float(any_method.reconstruction_loss(tokens, images, mask))


def test_a_reset_after_a_warm_up_returns_to_its_end() -> None:
    method = build("cmae", warmup_iterations=3, warmup_batch_size=16, **SMALL)
    start = snapshot(method)
    method(pictures(8))
    method.reset()
    assert plain(snapshot(method)) == plain(start)
