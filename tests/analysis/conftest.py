"""Run folders as the engine leaves them, made from error rates alone."""

import functools
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

NUM_CLASSES = 10


def wrong_answers(n: int, errors: int, seed: int | None) -> np.ndarray:
    """A mask with exactly `errors` of n set: the first ones, or a random choice."""
    order = np.arange(n) if seed is None else np.random.default_rng(seed).permutation(n)
    return order < errors


def write_cell(
    root: Path,
    method: str,
    rates: Mapping[str, float] | Sequence[Mapping[str, float]],
    *,
    n: int = 100,
    seed: int = 0,
    batch_size: int = 20,
    experiment: str = "trial",
    preset: str = "default",
    hyperparameters: Mapping[str, Any] | None = None,
    sha: str = "a" * 64,
    regime: str = "true",
    mean: Sequence[float] = (0.5, 0.5, 0.5),
    severity: int = 5,
    unfinished: bool = False,
    collapsed: Sequence[str] = (),
    shuffle_errors: bool = False,
    counters: Mapping[str, int] | None = None,
    env: Mapping[str, Any] | None = None,
    cost: Mapping[str, float] | None = None,
    probes: Sequence[Mapping[str, Any]] = (),
    labels: Mapping[str, int] | None = None,
) -> Path:
    """Write one cell; `rates` gives the error rate in [0, 1] per domain, for one or more rounds.

    Images are numbered 0..n-1 in every domain and have label = number mod 10, or mod `labels` of
    the domain.
    """
    rounds = [rates] if isinstance(rates, Mapping) else list(rates)
    domains = list(rounds[0])
    hyperparameters = dict(hyperparameters or {})
    identity = [
        method,
        preset,
        hyperparameters,
        sha,
        regime,
        severity,
        n,
        seed,
        batch_size,
        len(rounds),
    ]
    digest = hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:8]
    folder = root / experiment / f"{method}-mini_c-seed{seed}-{digest}"
    folder.mkdir(parents=True)
    cell = {
        "schema_version": 1,
        "id": folder.name,
        "experiment": experiment,
        "method": {
            "name": method,
            "preset": preset,
            "hyperparameters": hyperparameters,
            "window": 0,
        },
        "benchmark": {
            "name": "mini_c",
            "setting": "continual",
            "severity": severity,
            "domains": domains,
            "rounds": len(rounds),
            "batch_size": batch_size,
            "examples": n,
            "order": "shuffled",
        },
        "model": {"name": "mini_vit", "sha256": sha},
        "preprocessing": {"regime": regime, "mean": list(mean), "std": [0.5] * 3, "size": [32, 32]},
        "precision": "float32",
        "seed": seed,
        "num_batches": len(rounds) * len(domains) * -(-n // batch_size),
    }
    (folder / "cell.yaml").write_text(yaml.safe_dump(cell, sort_keys=False))
    (folder / "env.json").write_text(
        json.dumps({"torch": "2.6.0", "timm": "1.0.15", **(env or {})})
    )
    order = np.random.default_rng(seed).permutation(n)
    arrays: dict[str, list[np.ndarray]] = {}
    lines, parts = [], []
    for step, rate in enumerate(rounds):
        entries = []
        for position, domain in enumerate(domains):
            label = np.arange(n) % (labels or {}).get(domain, NUM_CLASSES)
            errors = round(rate[domain] * n)
            wrong = wrong_answers(n, errors, 1000 * seed + position if shuffle_errors else None)
            prediction = np.where(wrong, (label + 1) % NUM_CLASSES, label)
            if domain in collapsed:
                prediction = np.zeros(n, dtype=int)
                wrong, errors = prediction != label, int((prediction != label).sum())
            for name, values in (
                ("prediction", prediction[order].astype(np.int32)),
                ("label", label[order].astype(np.int32)),
                ("confidence", np.full(n, 0.5, np.float32)),
                ("nll", np.full(n, 0.7, np.float32)),
                ("brier", np.full(n, 0.3, np.float32)),
                ("index", order.astype(np.int64)),
                ("domain", np.full(n, position, np.int16)),
                ("round", np.full(n, step, np.int16)),
            ):
                arrays.setdefault(name, []).append(values)
            for start in range(0, n, batch_size):
                images = order[start : start + batch_size]
                lines.append(
                    {
                        "batch": len(lines),
                        "round": step,
                        "domain": domain,
                        "n": len(images),
                        "errors": int(wrong[images].sum()),
                        "loss": 0.5,
                        "ms": 10.0,
                        "skipped": 0,
                    }
                )
            entries.append(
                {
                    "domain": domain,
                    "n": n,
                    "errors": errors,
                    "error": 100 * errors / n,
                    "ece": 5.0,
                    "nll": 0.7,
                    "brier": 0.3,
                }
            )
        mean_error = sum(entry["error"] for entry in entries) / len(entries)
        parts.append({"round": step, "mean": mean_error, "domains": entries})
    if unfinished:
        lines = lines[: len(lines) // 2]
    (folder / "batches.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    if unfinished:
        return folder
    np.savez_compressed(
        folder / "predictions.npz", **{name: np.concatenate(v) for name, v in arrays.items()}
    )
    result = {
        "schema_version": 1,
        "cell": folder.name,
        "metric": "error",
        "mean": sum(part["mean"] for part in parts) / len(parts),
        "rounds": parts,
        "counters": {"skipped_updates": 0, "resets": 0, **(counters or {})},
        "cost": {
            "trainable_parameters": 864,
            "extra_state_bytes": 0,
            "forward_per_image": 1.0,
            "backward_per_image": 1.0,
            "seconds": 41.0,
            "images_per_second": 731.0,
            "peak_memory_mb": 512.0,
            **(cost or {}),
        },
        "order_sha256": f"order of seed {seed}",
        "model_sha256": sha,
        "source_accuracy": 91.2,
    }
    result |= {"source_probes": list(probes)} if probes else {}
    (folder / "result.json").write_text(json.dumps(result))
    return folder


def _edit_json(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


@pytest.fixture
def edit_json() -> Callable[[Path, Callable[[dict[str, Any]], None]], None]:
    """Change a JSON file in place."""
    return _edit_json


@pytest.fixture
def runs_dir(tmp_path: Path) -> Path:
    """An empty folder for experiments."""
    folder = tmp_path / "runs"
    folder.mkdir()
    return folder


@pytest.fixture
def cell(runs_dir: Path) -> Callable[..., Path]:
    """`write_cell` into runs_dir."""
    return functools.partial(write_cell, runs_dir)


@pytest.fixture(scope="session")
def write() -> Callable[..., Path]:
    """`write_cell` itself."""
    return write_cell
