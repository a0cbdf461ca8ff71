"""Run folders of segmentation as the engine leaves them, made from label maps."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml

CLASSES = ("road", "sky", "person", "train")
IGNORE = 255


def confusion_of(label: np.ndarray, prediction: np.ndarray, classes: int) -> np.ndarray:
    """[classes, classes + 1] pixel by pixel; prediction -1 is in the last column."""
    matrix = np.zeros((classes, classes + 1), np.int32)
    for true, said in zip(label.ravel().tolist(), prediction.ravel().tolist(), strict=True):
        if true != IGNORE:
            matrix[true, said] += 1  # -1 counts from the end
    return matrix


def scores(matrix: np.ndarray) -> dict[str, Any]:
    """Pixels, IoU, mIoU and pixel accuracy of one summed matrix, class by class."""
    iou: list[float | None] = []
    for k in range(len(matrix)):
        hits = int(matrix[k, k])
        union = int(matrix[k].sum()) + int(matrix[:, k].sum()) - hits
        iou.append(100 * hits / union if union else None)
    pixels = int(matrix.sum())
    there = [value for value in iou if value is not None]
    right = sum(int(matrix[k, k]) for k in range(len(matrix)))
    return {
        "pixels": pixels,
        "miou": sum(there) / len(there) if pixels else None,
        "iou": iou,
        "pixel_accuracy": 100 * right / pixels if pixels else None,
    }


def mean(values: Sequence[float | None]) -> float | None:
    there = [value for value in values if value is not None]
    return sum(there) / len(there) if there else None


def write_street_cell(
    root: Path,
    method: str,
    maps: Mapping[str, Any] | Sequence[Mapping[str, Any]],
    *,
    seed: int = 0,
    experiment: str = "streets",
    benchmark: str = "streets_mini",
    model: str = "segformer_b0",
    setting: str = "continual",
    scale: Sequence[int] = (54, 96),
    classes: Sequence[str] = CLASSES,
    preset: str = "default",
    hyperparameters: Mapping[str, Any] | None = None,
    unfinished: bool = False,
    pictures: bool = True,
    order: Sequence[int] | None = None,
) -> Path:
    """Write one cell of batch size 1.

    `maps` gives for each domain a list of (label, prediction) arrays [h, w], an image each, for
    one or more rounds. Images are seen in `order`.
    """
    rounds = [maps] if isinstance(maps, Mapping) else list(maps)
    domains = list(rounds[0])
    identity = json.dumps([method, preset, hyperparameters, seed, list(scale), len(rounds), model])
    digest = hashlib.sha256(identity.encode()).hexdigest()[:8]
    folder = root / experiment / f"{method}-{benchmark}-{model}-seed{seed}-{digest}"
    folder.mkdir(parents=True)
    cell = {
        "schema_version": 1,
        "id": folder.name,
        "experiment": experiment,
        "method": {
            "name": method,
            "preset": preset,
            "hyperparameters": dict(hyperparameters or {}),
            "window": 0,
        },
        "benchmark": {
            "name": benchmark,
            "task": "segmentation",
            "setting": setting,
            "domains": domains,
            "rounds": len(rounds),
            "batch_size": 1,
            "examples": None,
            "order": "file",
            "scale": list(scale),
            "inference": "whole",
        },
        "model": {"name": model, "sha256": "c" * 64},
        "preprocessing": {"regime": "true", "mean": [0.5] * 3, "std": [0.5] * 3},
        "precision": "float32",
        "seed": seed,
    }
    (folder / "cell.yaml").write_text(yaml.safe_dump(cell, sort_keys=False))
    (folder / "env.json").write_text(json.dumps({"torch": "2.6.0", "device": "cpu"}))
    if unfinished:
        return folder
    arrays: dict[str, list[Any]] = {name: [] for name in ("confusion", "index", "domain", "round")}
    frames: dict[str, list[Any]] = {
        name: [] for name in ("image", "label", "prediction", "domain", "index")
    }
    lines, parts = [], []
    for step, by_domain in enumerate(rounds):
        entries = []
        for position, domain in enumerate(domains):
            images = by_domain[domain]
            matrices = [confusion_of(*pair, len(classes)) for pair in images]
            for seen, index in enumerate(order or range(len(images))):
                for name, value in (
                    ("confusion", matrices[index]),
                    ("index", index),
                    ("domain", position),
                    ("round", step),
                ):
                    arrays[name].append(value)
                pixels = int(matrices[index].sum())
                lines.append(
                    {
                        "batch": len(lines),
                        "round": step,
                        "domain": domain,
                        "n": 1,
                        "pixels": pixels,
                        "errors": pixels - int(np.trace(matrices[index][:, :-1])),
                        "loss": None,
                        "ms": 10.0,
                        "skipped": 0,
                    }
                )
                if step == 0 and seen < 2:
                    label, prediction = images[index]
                    grey = np.full((*label.shape, 3), 40 * (index % 6 + 1), np.uint8)
                    for name, value in (
                        ("image", grey),
                        ("label", label.astype(np.uint8)),
                        ("prediction", prediction.astype(np.uint8)),
                        ("domain", position),
                        ("index", index),
                    ):
                        frames[name].append(value)
            entries.append({"domain": domain, "n": len(images), **scores(sum(matrices))})
        round_mean = mean([entry["miou"] for entry in entries])
        parts.append({"round": step, "mean": round_mean, "domains": entries})
    (folder / "batches.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    np.savez_compressed(
        folder / "predictions.npz",
        confusion=np.stack(arrays["confusion"]),
        index=np.array(arrays["index"], np.int64),
        domain=np.array(arrays["domain"], np.int16),
        round=np.array(arrays["round"], np.int16),
    )
    if pictures:
        np.savez_compressed(
            folder / "pictures.npz",
            image=np.stack(frames["image"]),
            label=np.stack(frames["label"]),
            prediction=np.stack(frames["prediction"]),
            domain=np.array(frames["domain"], np.int16),
            index=np.array(frames["index"], np.int64),
        )
    result = {
        "schema_version": 1,
        "cell": folder.name,
        "metric": "miou",
        "mean": mean([part["mean"] for part in parts]),
        "rounds": parts,
        "classes": list(classes),
        "counters": {"skipped_updates": 0, "resets": 0},
        "cost": {
            "trainable_parameters": 864,
            "extra_state_bytes": 0,
            "forward_per_image": 1.0,
            "backward_per_image": 1.0,
            "seconds": 41.0,
            "images_per_second": 7.0,
            "peak_memory_mb": 512.0,
        },
        "order_sha256": f"order of seed {seed}",
        "model_sha256": "c" * 64,
        "source_accuracy": None,
    }
    (folder / "result.json").write_text(json.dumps(result))
    return folder


def row(*pixels: int) -> np.ndarray:
    """A map of one line."""
    return np.array([pixels])
