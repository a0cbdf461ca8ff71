import math

import numpy as np
import pytest
import torch

from ctta_bench.scoring.classification import (
    FIELDS,
    Scores,
    expected_calibration_error,
    score_batch,
    summarise,
)

# Four images: right, wrong, right, wrong.
PROBABILITIES = [[0.7, 0.2, 0.1], [0.5, 0.4, 0.1], [0.25, 0.5, 0.25], [0.105, 0.105, 0.79]]
LABELS = [0, 1, 1, 0]
NLL = [-math.log(p) for p in (0.7, 0.4, 0.5, 0.105)]
BRIER = [0.14, 0.62, 0.375, 0.895**2 + 0.105**2 + 0.79**2]


def logits(dtype: torch.dtype = torch.float32) -> torch.Tensor:
    # Any constant may be added to logits.
    return (torch.tensor(PROBABILITIES, dtype=torch.float64).log() + 3).to(dtype)


def scores(domain: list[int] | None = None, rounds: list[int] | None = None) -> Scores:
    arrays = score_batch(logits(), torch.tensor(LABELS))
    n = len(LABELS)
    return Scores(
        **arrays,
        index=np.arange(n),
        domain=np.asarray(domain or [0] * n, np.int16),
        round=np.asarray(rounds or [0] * n, np.int16),
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_scores_of_each_image(dtype: torch.dtype) -> None:
    found = score_batch(logits(dtype), torch.tensor(LABELS))
    assert found["prediction"].tolist() == [0, 0, 1, 2]
    assert found["label"].tolist() == LABELS
    assert found["confidence"] == pytest.approx([0.7, 0.5, 0.5, 0.79])
    assert found["nll"] == pytest.approx(NLL)
    assert found["brier"] == pytest.approx(BRIER)
    kinds = {name: str(array.dtype) for name, array in found.items()}
    assert kinds == {
        "prediction": "int32", "label": "int32", "confidence": "float32", "nll": "float32",
        "brier": "float32",
    }  # fmt: skip


def test_half_precision_logits_are_scored_in_float32() -> None:
    found = score_batch(torch.tensor([[20.0, 0.0]]).bfloat16(), torch.tensor([1]))
    assert found["nll"] == pytest.approx([20.0])


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_logits_that_are_not_finite_count_as_wrong(bad: float) -> None:
    found = score_batch(torch.tensor([[bad, 0.0], [1.0, 0.0]]), torch.tensor([0, 0]))
    assert found["prediction"].tolist() == [-1, 0]
    assert found["confidence"][0] == 0
    assert found["nll"][0] == math.inf
    assert found["brier"][0] == 2


def test_metrics_of_a_domain_are_means_over_its_images_in_percent() -> None:
    ((entry,),) = [r["domains"] for r in summarise(scores(), ["fog"])]
    # Bins of confidence: {0.7: right}, {0.5: right, 0.5: wrong}, {0.79: wrong}.
    ece = (0.3 + abs(1 - 2 * 0.5) + 0.79) / 4
    assert entry == {
        "domain": "fog",
        "n": 4,
        "errors": 2,
        "error": 50.0,
        "ece": pytest.approx(100 * ece, abs=1e-4),
        "nll": pytest.approx(sum(NLL) / 4),
        "brier": pytest.approx(sum(BRIER) / 4),
    }


def test_the_mean_of_a_round_weighs_domains_equally() -> None:
    # Domain "fog" has one image, right; domain "snow" three, two of them wrong.
    (only,) = summarise(scores(domain=[0, 1, 1, 1]), ["fog", "snow"])
    assert [d["error"] for d in only["domains"]] == [0, pytest.approx(200 / 3)]
    assert only["mean"] == pytest.approx(100 / 3)


def test_rounds_are_summarised_apart_and_absent_domains_left_out() -> None:
    first, second = summarise(scores(domain=[0, 0, 1, 1], rounds=[0, 0, 1, 1]), ["fog", "snow"])
    assert (first["round"], [d["domain"] for d in first["domains"]]) == (0, ["fog"])
    assert (second["round"], [d["domain"] for d in second["domains"]]) == (1, ["snow"])
    assert first["mean"] == second["mean"] == 50


def test_a_perfectly_calibrated_predictor_has_no_calibration_error() -> None:
    confidence = np.array([0.75] * 4 + [1.0] * 2, np.float32)
    correct = np.array([1, 1, 1, 0, 1, 1], bool)
    assert expected_calibration_error(confidence, correct) == 0


def test_full_confidence_falls_into_the_last_bin() -> None:
    # In one bin the two gaps, -1 and 0.05, are summed before the absolute value is taken.
    error = expected_calibration_error(np.array([1.0, 0.95]), np.array([False, True]))
    assert error == pytest.approx(0.95 / 2)


def test_calibration_error_equals_that_of_torchmetrics() -> None:
    from torchmetrics.classification import MulticlassCalibrationError

    generator = torch.Generator().manual_seed(0)
    outputs = 3 * torch.randn(500, 10, generator=generator)
    labels = torch.randint(10, (500,), generator=generator)
    theirs = MulticlassCalibrationError(num_classes=10, n_bins=15, norm="l1")(outputs, labels)
    found = score_batch(outputs, labels)
    ours = expected_calibration_error(found["confidence"], found["prediction"] == found["label"])
    assert ours == pytest.approx(theirs.item(), abs=1e-6)


def test_the_fields_of_the_scores_are_those_stored_with_a_run() -> None:
    assert FIELDS == (
        "prediction", "label", "confidence", "nll", "brier", "index", "domain", "round",
    )  # fmt: skip
    assert scores().correct.tolist() == [True, False, True, False]


def test_top_five_error_is_measured_of_a_hundred_classes_or_more() -> None:
    logits = torch.arange(100.0).repeat(3, 1)  # the five largest are 95 to 99
    labels = torch.tensor([99, 95, 94])
    logits = torch.cat([logits, torch.full((1, 100), torch.nan)])

    scores = score_batch(logits, torch.tensor([*labels.tolist(), 99]))

    assert scores["top5_error"].tolist() == [0, 0, 1, 1]  # not finite: the worst
    assert "top5_error" not in score_batch(logits[:, :99], torch.tensor([0, 1, 2, 3]))
