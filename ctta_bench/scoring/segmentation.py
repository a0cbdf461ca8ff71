"""Scores of segmentation: a confusion matrix per image, and pictures of the first images."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import interpolate

from ctta_bench.errors import DataError
from ctta_bench.registry import METRICS
from ctta_bench.scoring.base import Arrays, Scorer, SourceCheck
from ctta_bench.scoring.confusion import domain_metrics
from ctta_bench.stream import Batch

IGNORED = 255
FRAMES_PER_DOMAIN = 2  # stored as pictures
FRAME_WIDTH = 480  # at most, in pixels


@dataclass
class MapScores:
    """The stored scores of each image, in stream order (arrays of equal length)."""

    confusion: np.ndarray  # int32 [n, K, K + 1], pixels by label and prediction
    index: np.ndarray  # int64, number within its domain
    domain: np.ndarray  # int16
    round: np.ndarray  # int16


def predicted_maps(logits: Tensor, size: tuple[int, int]) -> Tensor:
    """Classes int64 [H, W] of one image's logits [1, K, h, w], resized to `size` before the argmax.

    Bilinear, corners not aligned. -1 for pixels that depend on a non-finite logit.
    """
    large = logits.detach().to(torch.promote_types(logits.dtype, torch.float32))
    if large.shape[-2:] != size:
        large = interpolate(large, size=size, mode="bilinear", align_corners=False)
    prediction = large[0].max(0).indices  # equals argmax, in a third of the time
    if not bool(torch.isfinite(logits).all()):
        prediction[~torch.isfinite(large[0]).all(0)] = -1
    return prediction


def confusion_of(prediction: Tensor, label: Tensor, num_classes: int) -> np.ndarray:
    """Numbers of pixels by label (row) and prediction (column), int32 [K, K + 1].

    prediction: int64 [H, W]. label: uint8 [H, W]. The last column counts invalid predictions.
    Raises DataError for a label that is neither a class nor 255.
    """
    valid = label != IGNORED
    rows, columns = label[valid].long(), prediction[valid]
    columns = torch.where(columns < 0, num_classes, columns)
    counts = torch.bincount(rows * (num_classes + 1) + columns, minlength=_cells(num_classes))
    if len(counts) > _cells(num_classes):
        raise DataError(
            f"a label map contains the value {int(rows.max())}, but classes are 0 to "
            f"{num_classes - 1}, and {IGNORED} marks ignored pixels."
        )
    return counts.view(num_classes, num_classes + 1).cpu().numpy().astype(np.int32)


def _cells(num_classes: int) -> int:
    return num_classes * (num_classes + 1)


class MiouScorer(Scorer):
    """Segmentation: the mean intersection over union in %, higher is better."""

    num_check_images, check_batch_size = 8, 1

    def __init__(self, num_classes: int, class_names: Sequence[str] = ()) -> None:
        super().__init__(METRICS.get("segmentation")())
        self.num_classes = num_classes
        self.class_names = list(class_names) or [f"class {n}" for n in range(num_classes)]

    def score(self, logits: Tensor, labels: Tensor) -> Arrays:
        """`confusion` int32 [n, K, K + 1] from logits [n, K, h, w] and labels uint8 [n, H, W].

        Image by image, on the device of the logits, so that one full-size copy of logits is in
        memory at a time.
        """
        found = []
        for one, label in zip(logits.split(1), labels.to(logits.device), strict=True):
            prediction = predicted_maps(one, (label.shape[0], label.shape[1]))
            found.append(confusion_of(prediction, label, self.num_classes))
        return {"confusion": np.stack(found)}

    def line_values(self, scores: Arrays) -> dict[str, int | float]:
        """Numbers of labelled pixels, and of wrong ones among them."""
        total = scores["confusion"].sum(0, dtype=np.int64)
        pixels = int(total.sum())
        return {"pixels": pixels, "errors": pixels - int(np.trace(total))}

    def named(self, arrays: Arrays) -> MapScores:
        """The arrays as `MapScores`."""
        return MapScores(**{name: arrays[name] for name in MapScores.__dataclass_fields__})

    def frames(self, batch: Batch, logits: Tensor, kept: Sequence[Arrays]) -> list[Arrays]:
        """The first images of each domain in the first round."""
        have = [int(frame["domain"]) for frame in kept]
        new = []
        for row, domain in enumerate(batch.domain.tolist() if batch.round == 0 else ()):
            if have.count(domain) < FRAMES_PER_DOMAIN:
                have.append(domain)
                new.append(_frame(batch, logits, row))
        return new

    def gallery(self, frames: Sequence[Arrays]) -> Arrays:
        """Frames as arrays [f, h, w(, 3)]; smaller ones are padded at the right and bottom."""
        if not frames:
            return {}
        height, width = np.max([frame["label"].shape for frame in frames], axis=0)
        empty = {"image": 0, "label": IGNORED, "prediction": IGNORED}
        found: Arrays = {}
        for key, value in empty.items():
            tail = (3,) if key == "image" else ()
            stack = np.full((len(frames), height, width, *tail), value, np.uint8)
            for row, frame in enumerate(frames):
                h, w = frame["label"].shape
                stack[row, :h, :w] = frame[key]
            found[key] = stack
        return found | {key: np.array([f[key] for f in frames]) for key in ("domain", "index")}

    def facts(self, rounds: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """The names of the classes, and a note on domains that could not be scored."""
        empty = {d["domain"]: 0 for r in rounds for d in r["domains"] if d["miou"] is None}
        note = f"no labelled pixel, and no part of the mean: {', '.join(empty)}"
        return {"classes": self.class_names} | ({"notes": [note]} if empty else {})

    def check(self, outputs: Iterable[tuple[Tensor, Tensor]], num_classes: int) -> SourceCheck:
        """Near chance: less than the mIoU of predicting one class everywhere.

        The returned accuracy is that of pixels, but the mIoU decides: a third of a street is road.
        """
        found = [self.score(logits, labels)["confusion"] for logits, labels in outputs]
        metrics = domain_metrics(np.concatenate(found).sum(0, dtype=np.int64))
        chance = 100 / max(1, sum(value is not None for value in metrics["iou"]))
        miou, accuracy = metrics["miou"] or 0.0, metrics["pixel_accuracy"] or 0.0
        finding = f"reaches an mIoU of {miou:.1f} % on {len(found)} source images"
        return SourceCheck(accuracy, miou < chance, chance, finding)


def _frame(batch: Batch, logits: Tensor, row: int) -> Arrays:
    """One image with its labels and predictions, uint8, at most FRAME_WIDTH pixels wide."""
    label = batch.labels[row]
    prediction = predicted_maps(logits[row : row + 1], (label.shape[0], label.shape[1]))
    prediction = torch.where(prediction < 0, IGNORED, prediction).cpu()
    image = batch.images[row].detach().float().cpu()
    width = min(FRAME_WIDTH, image.shape[-1])
    size = (max(1, round(image.shape[-2] * width / image.shape[-1])), width)
    shown = interpolate(image[None], size=size, mode="bilinear", antialias=True)[0]

    def small(map_: Tensor) -> np.ndarray:
        return interpolate(map_[None, None].float(), size=size)[0, 0].byte().numpy()

    return {
        "image": shown.mul(255).round().clamp(0, 255).byte().movedim(0, -1).contiguous().numpy(),
        "label": small(label),
        "prediction": small(prediction),
        "domain": np.array(batch.domain[row], np.int16),
        "index": np.array(batch.index[row], np.int64),
    }
