import math

import pytest
import torch
from torch import nn

from ctta_bench.errors import ConfigError, DataError, MethodError
from ctta_bench.model import SourceModel
from ctta_bench.parts.source.moments import (
    RunningMoments,
    SourceStatistics,
    alignment_loss,
    filter_limit,
    source_statistics,
)

# Mean (1, 0), unbiased deviation (√2, 0).
FEATURES = torch.tensor([[0.0, 0.0], [2.0, 0.0]])
ELSEWHERE = SourceStatistics(mean=torch.tensor([1.0, 3.0]), std=torch.zeros(2), images=9)


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> SourceModel:
    """Features are the two values of an "image" [2, 1, 1], logits are ten times these."""
    network = nn.Sequential(nn.Flatten(), nn.Linear(2, 2, bias=False))
    with torch.no_grad():
        network[1].weight.copy_(10 * torch.eye(2))
    model = SourceModel(network.eval()).double()
    monkeypatch.setattr(model, "preprocess", lambda batch: batch)
    return model


def images(*features: tuple[float, float]) -> torch.Tensor:
    return torch.tensor(features, dtype=torch.float64)[:, :, None, None]


@pytest.mark.parametrize("weight", [0.0, 0.1, 1.0])
def test_the_loss_is_the_distance_of_means_and_weighted_deviations(weight: float) -> None:
    loss = alignment_loss(FEATURES, ELSEWHERE, weight)
    assert float(loss) == pytest.approx(3 + weight * math.sqrt(2))


def test_without_the_deviation_term_its_source_has_no_influence() -> None:
    gradients = []
    for std in (torch.zeros(2), torch.tensor([5.0, -7.0])):
        features = FEATURES.clone().requires_grad_()
        alignment_loss(features, SourceStatistics(ELSEWHERE.mean, std, 9), 0.0).backward()
        gradients.append(features.grad)
    assert torch.equal(*gradients)
    # The unit vector from the source's mean to the batch's, shared by two images.
    assert gradients[0].tolist() == [[0.0, -0.5], [0.0, -0.5]]


def test_at_the_source_itself_loss_and_gradient_are_zero() -> None:
    features = FEATURES.clone().requires_grad_()
    here = SourceStatistics(FEATURES.mean(0), FEATURES.std(0), 2)
    loss = alignment_loss(features, here, 1.0)
    loss.backward()
    assert loss.item() == 0
    assert features.grad.tolist() == [[0.0, 0.0], [0.0, 0.0]]


def test_one_image_leaves_the_deviation_out() -> None:
    assert float(alignment_loss(FEATURES[:1], ELSEWHERE, 1.0)) == pytest.approx(math.sqrt(10))


def test_one_image_is_an_error_on_request() -> None:
    with pytest.raises(MethodError, match="one image has no standard deviation: use a batch"):
        alignment_loss(FEATURES[:1], ELSEWHERE, 1.0, single="error")
    assert alignment_loss(FEATURES, ELSEWHERE, 1.0, single="error").isfinite()


@pytest.mark.parametrize("weight", [0.0, 1.0])
def test_one_image_becomes_nan_as_in_the_official_code(weight: float) -> None:
    assert alignment_loss(FEATURES[:1], ELSEWHERE, weight, single="nan").isnan()


def test_half_precision_features_are_reduced_in_float32() -> None:
    assert alignment_loss(FEATURES.bfloat16(), ELSEWHERE, 1.0).dtype == torch.float32


def test_statistics_are_mean_and_unbiased_deviation_over_all_batches(model: SourceModel) -> None:
    batches = [images((0, 1), (2, 1)), images((4, 1))]
    found = source_statistics(model, batches, samples=500, entropy_limit=None)
    assert found.images == 3
    assert found.mean.tolist() == [2, 1]
    assert found.std.tolist() == [2, 0]


def test_statistics_stop_at_the_number_of_images_asked_for(model: SourceModel) -> None:
    batches = iter([images((0, 0), (1, 0), (5, 5)), images((9, 9))])
    found = source_statistics(model, batches, samples=2, entropy_limit=None)
    assert found.images == 2
    assert found.mean.tolist() == [0.5, 0]
    assert len(list(batches)) == 1


def test_the_filter_keeps_confident_images_and_counts_only_these(model: SourceModel) -> None:
    # Logits of equal size have an entropy of ln 2, those 10 and 20 apart next to none.
    batches = [images((0, 0), (1, 0)), images((2, 2), (0, 2))]
    found = source_statistics(model, batches, samples=2, entropy_limit=0.5)
    assert found.images == 2
    assert found.mean.tolist() == [0.5, 1]


@pytest.mark.parametrize(("limit", "left"), [(1e-9, 0), (1e-3, 1)])
def test_too_few_images_after_the_filter_are_an_error(
    model: SourceModel, limit: float, left: int
) -> None:
    batches = [images((0, 0), (1, 0))]  # the second has an entropy of 5e-4
    with pytest.raises(DataError, match=f"^{left} source images are left .* at least 2 are needed"):
        source_statistics(model, batches, samples=500, entropy_limit=limit)


def test_no_source_images_at_all_are_an_error(model: SourceModel) -> None:
    with pytest.raises(DataError, match=r"^0 source images are left"):
        source_statistics(model, [], samples=500, entropy_limit=None)


@pytest.mark.parametrize(("classes", "limit"), [(1000, 2.4539), (100, 1.3026), (10, 0.1513)])
def test_the_filter_limits_are_those_of_the_official_code(classes: int, limit: float) -> None:
    assert filter_limit(classes) == pytest.approx(limit, abs=5e-5)


def test_a_filter_that_no_image_can_pass_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"entropy_filter needs at least 8 classes .* not 7"):
        filter_limit(7)
    assert filter_limit(8) > 0


def test_running_moments_start_at_the_source_and_take_a_tenth_of_each_image() -> None:
    running = RunningMoments(SourceStatistics(torch.tensor([1.0]), torch.tensor([2.0]), 9))
    image = torch.tensor([[11.0]], requires_grad=True)
    mean, std = running.update_statistics(image)
    # 0.9 · 1 + 0.1 · 11, and of squares 0.9 · (1 + 4) + 0.1 · 121 = 16.6.
    assert mean.item() == pytest.approx(2.0)
    assert std.item() == pytest.approx(math.sqrt(16.6 - 4))
    mean.backward()
    assert image.grad.item() == pytest.approx(0.1)
    mean, _ = running.update_statistics(torch.tensor([[2.0]]))
    assert mean.item() == pytest.approx(0.9 * 2 + 0.1 * 2)


def test_running_moments_forget_an_image_that_is_not_finite() -> None:
    running = RunningMoments(SourceStatistics(torch.tensor([1.0]), torch.tensor([2.0]), 9))
    running.update_statistics(torch.tensor([[torch.nan]]))
    assert (running.mean.item(), running.square.item()) == (1.0, 5.0)


def test_a_feature_that_never_varies_has_a_finite_gradient() -> None:
    running = RunningMoments(SourceStatistics(torch.tensor([3.0]), torch.tensor([0.0]), 9))
    image = torch.tensor([[3.0]], requires_grad=True)
    running.update_statistics(image)[1].backward()
    assert image.grad.isfinite().all()
