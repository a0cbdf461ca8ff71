"""mIoU: the rules for absent classes, ignored pixels and empty domains, and mmseg as an oracle."""

from typing import Any

import numpy as np
import pytest
import torch
from mmseg.evaluation import IoUMetric
from torch import Tensor
from torch.nn.functional import interpolate

from ctta_bench.errors import DataError
from ctta_bench.scoring.classification import ErrorScorer
from ctta_bench.scoring.segmentation import MiouScorer, confusion_of, domain_metrics, predicted_maps

CLASSES = 4


def maps(*rows: str) -> Tensor:
    """A map uint8 from rows of digits; `.` is ignored."""
    return torch.tensor([[255 if c == "." else int(c) for c in row] for row in rows]).byte()


def logits_for(prediction: Tensor, classes: int = CLASSES) -> Tensor:
    """Logits [1, K, H, W] whose argmax is a map."""
    one_hot = torch.nn.functional.one_hot(prediction.long(), classes)
    return one_hot.movedim(-1, 0)[None].float() * 5


def confusion(prediction: Tensor, label: Tensor) -> np.ndarray:
    return confusion_of(prediction.long(), label, CLASSES)


def test_a_matrix_counts_labels_in_rows_and_predictions_in_columns() -> None:
    found = confusion(maps("0012", "2222"), maps("0112", "22.1"))
    assert found.tolist() == [
        [1, 0, 0, 0, 0],
        [1, 1, 1, 0, 0],
        [0, 0, 3, 0, 0],
        [0, 0, 0, 0, 0],
    ]
    assert found.dtype == np.int32


def test_the_iou_is_that_of_arithmetic_and_an_absent_class_is_in_no_mean() -> None:
    found = domain_metrics(confusion(maps("0012", "2222"), maps("0112", "22.1")))
    # road 1 / 2, 1: 1 / 3, 2: 3 / 4; class 3 is nowhere.
    assert found["iou"] == [50.0, pytest.approx(100 / 3), 75.0, None]
    assert found["miou"] == pytest.approx((50 + 100 / 3 + 75) / 3)
    assert found["pixels"] == 7
    assert found["pixel_accuracy"] == pytest.approx(100 * 5 / 7)


def test_a_class_that_is_only_predicted_counts_as_zero() -> None:
    found = domain_metrics(confusion(maps("0003"), maps("0000")))
    assert found["iou"] == [75.0, None, None, 0.0]
    assert found["miou"] == 37.5


def test_a_class_predicted_on_ignored_pixels_alone_is_absent() -> None:
    found = domain_metrics(confusion(maps("0033"), maps("00..")))
    assert found["iou"] == [100.0, None, None, None]
    assert found["miou"] == 100


def score(*pairs: tuple[Tensor, Tensor]) -> list[dict[str, Any]]:
    """The rounds of one domain of these predictions and labels."""
    scorer = MiouScorer(CLASSES)
    parts = [scorer.score(logits_for(p), label[None]) for p, label in pairs]
    count = len(pairs)
    arrays = {"confusion": np.concatenate([p["confusion"] for p in parts])}
    arrays |= {"index": np.arange(count), "domain": np.zeros(count, np.int16)}
    return scorer.summarise(arrays | {"round": np.zeros(count, np.int16)}, ["night"])


def test_a_picture_of_ignored_pixels_alone_changes_nothing() -> None:
    some = (maps("0012"), maps("0112"))
    (one,), (two,) = score(some), score(some, (maps("3333"), maps("....")))
    del one["domains"][0]["n"], two["domains"][0]["n"]
    assert one == two


def test_a_domain_without_a_labelled_pixel_is_neither_zero_nor_in_the_mean() -> None:
    (found,) = score((maps("0000"), maps("....")))
    (entry,) = found["domains"]
    assert entry["miou"] is None
    assert entry["pixel_accuracy"] is None
    assert entry["pixels"] == 0
    assert found["mean"] is None
    facts = MiouScorer(CLASSES).facts([found])
    assert facts["notes"] == ["no labelled pixel, and no part of the mean: night"]


def test_matrices_are_summed_over_a_domain_before_the_iou_is_taken() -> None:
    (found,) = score((maps("0000"), maps("0000")), (maps("0111"), maps("1111")))
    # Class 0: 4 of 5 pixels; class 1: 3 of 4. The mean of per-image values would be another.
    assert found["domains"][0]["iou"][:2] == [80.0, 75.0]


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_pixels_of_non_finite_logits_are_wrong_and_named_by_no_class(bad: float) -> None:
    logits = logits_for(maps("0011"))
    logits[0, 2, 0, 1] = bad
    label = maps("0011")
    assert predicted_maps(logits, (1, 4)).tolist() == [[0, -1, 1, 1]]
    found = MiouScorer(CLASSES).score(logits, label[None])["confusion"][0]
    assert found[:, -1].tolist() == [1, 0, 0, 0]
    assert domain_metrics(found)["iou"][:2] == [50.0, 100.0]


def test_non_finite_logits_spoil_the_pixels_that_they_reach_alone() -> None:
    logits = torch.zeros(1, 3, 4, 4)
    logits[0, 1] = 1.0
    logits[0, 0, 0, 0] = float("nan")
    found = predicted_maps(logits, (8, 8))
    # At twice the size a value reaches a pixel and a half beyond its own two, into rows 0 to 2.
    assert (found == -1).nonzero().max() <= 3
    assert found[0, 0] == -1
    assert (found[4:, 4:] == 1).all()


def test_logits_are_resized_before_the_argmax() -> None:
    # Bilinear values at five pixels are 2, 1.8, 1, .2, 0 of class 0 and 0, .3, 1.5, 2.7, 3 of
    # class 1. An argmax first, then the nearest, would give the middle pixel to class 0.
    logits = torch.tensor([[[2.0, 0.0]], [[0.0, 3.0]]])[None]
    assert predicted_maps(logits, (1, 5)).tolist() == [[0, 0, 1, 1, 1]]
    nearest = interpolate(logits.argmax(1)[None].float(), size=(1, 5))
    assert nearest.flatten().tolist() == [0, 0, 0, 1, 1]


def test_half_precision_is_scored_in_single() -> None:
    logits = torch.randn(1, 5, 6, 6, generator=torch.Generator().manual_seed(0)).half()
    assert torch.equal(predicted_maps(logits, (11, 13)), predicted_maps(logits.float(), (11, 13)))


def test_a_label_out_of_range_is_refused() -> None:
    with pytest.raises(DataError, match="contains the value 7, but classes are 0 to 3"):
        confusion(maps("0000"), maps("0007"))


def test_mmsegmentation_agrees() -> None:
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(5, 19, 9, 16, generator=generator)
    logits[:, 17] = -9.0  # never predicted and, below, never labelled
    labels = torch.randint(0, 17, (5, 36, 64), generator=generator).byte()
    labels[torch.rand(5, 36, 64, generator=generator) < 0.2] = 255
    metric = IoUMetric(iou_metrics=["mIoU"], ignore_index=255)
    metric.dataset_meta = {"classes": [str(n) for n in range(19)]}
    for one, label in zip(logits, labels, strict=True):
        large = interpolate(one[None], size=(36, 64), mode="bilinear", align_corners=False)
        sample = {
            "pred_sem_seg": {"data": large.argmax(1)},
            "gt_sem_seg": {"data": label[None].long()},
        }
        metric.process({}, [sample])
    theirs = metric.compute_metrics(metric.results)
    scorer = MiouScorer(19)
    arrays = scorer.score(logits, labels) | {"index": np.arange(5)}
    arrays |= {key: np.zeros(5, np.int16) for key in ("domain", "round")}
    ((ours,),) = [entry["domains"] for entry in scorer.summarise(arrays, ["fog"])]
    assert ours["miou"] == pytest.approx(theirs["mIoU"], abs=0.006)  # theirs has two decimals
    assert ours["pixel_accuracy"] == pytest.approx(theirs["aAcc"], abs=0.006)
    assert ours["iou"][17] is None
    assert ours["iou"][18] == 0.0


def test_the_two_tasks_have_one_face() -> None:
    for scorer in (ErrorScorer(), MiouScorer(3)):
        assert scorer.mean_text(12.3456).endswith("12.35 %")
        assert scorer.metric.name in ("error", "miou")


def test_naming_one_class_everywhere_is_near_chance_and_a_fair_model_is_not() -> None:
    label = maps("0000000012", "0000000033")
    constant = MiouScorer(CLASSES).check([(logits_for(maps("0" * 10, "0" * 10)), label[None])], 4)
    fair = MiouScorer(CLASSES).check(
        [(logits_for(maps("0000000012", "0000001133")), label[None])], 4
    )
    assert constant.near_chance
    assert constant.accuracy == 80
    assert not fair.near_chance
    assert fair.chance == 25
