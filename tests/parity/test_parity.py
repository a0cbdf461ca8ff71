"""Ours against the golden outputs of the official implementations (README.md beside this file).

Cases come from this folder and from every folder in CTTA_BENCH_PARITY (separated as in PATH).
"""

import json
import math
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from ctta_bench.alignment import filter_limit, source_statistics
from ctta_bench.model import SourceModel
from tests.parity.translation import adapted, build, translate

HERE = Path(__file__).parent
FOLDERS = [
    HERE,
    *map(Path, filter(None, os.environ.get("CTTA_BENCH_PARITY", "").split(os.pathsep))),
]
STREAM = load_file(HERE / "stream" / "stream.safetensors")


def collect() -> dict[str, Path]:
    """All case files by name."""
    return {f.stem: f for folder in FOLDERS for f in sorted((folder / "cases").glob("*.json"))}


def read(file: Path) -> dict[str, Any]:
    return json.loads(file.read_text(encoding="utf-8"))


CASES = collect()
RUNS = [n for n, f in CASES.items() if translate(read(f)) is not None]


def tiny_vit() -> nn.Module:
    network = VisionTransformer(
        img_size=32, patch_size=8, embed_dim=48, depth=4, num_heads=4, num_classes=10
    )
    network.load_state_dict(load_file(HERE / "model" / "tiny_vit.safetensors"), strict=True)
    return network


class TinyCNN(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        for i, (before, after) in enumerate(((3, 16), (16, 32), (32, 48)), start=1):
            layers = [nn.Conv2d(before, after, 3, 2, 1, bias=False), nn.BatchNorm2d(after)]
            self.add_module(f"block{i}", nn.Sequential(*layers, nn.ReLU()))
        self.fc = nn.Linear(48, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.block3(self.block2(self.block1(x)))
        return self.fc(nn.functional.adaptive_avg_pool2d(x, 1).flatten(1))


def tiny_cnn() -> nn.Module:
    network = TinyCNN()
    network.load_state_dict(load_file(HERE / "model" / "tiny_cnn.safetensors"), strict=True)
    return network


class ParitySource:
    """The 64 source images in batches of 16, in order."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.images = STREAM["source_images"].to(dtype) / 255

    def batches(self, batch_size: int = 16) -> list[Tensor]:
        return list(self.images.split(16))


def play(
    name: str, dtype: torch.dtype
) -> tuple[dict[str, Any], Any, list[Tensor], dict[str, Tensor]]:
    """Run a case through our method: the case, the method, logits per batch, recorded tensors."""
    case = read(CASES[name])
    recorded = load_file(CASES[name].with_suffix(".safetensors"))
    network = {"tiny_vit": tiny_vit, "tiny_cnn": tiny_cnn}[case["model"]]()
    method = build(case, recorded, network, dtype, ParitySource(dtype))
    count = sum(key.startswith("logits_") for key in recorded)
    logits = [method(STREAM[f"images_{i}"].to(dtype) / 255) for i in range(count)]
    return case, method, logits, recorded


def number(value: Any) -> float:
    return math.nan if value == "nan" else float(value)


@pytest.mark.parametrize("name", RUNS)
def test_logits_equal_the_official_ones_in_float64(name: str) -> None:
    case, _, logits, recorded = play(name, torch.float64)
    assert logits
    for i, ours in enumerate(logits):
        difference = (ours - recorded[f"logits64_{i}"]).abs().max()
        assert float(difference) <= case["tolerance"]["logits64_abs"], f"batch {i}"


@pytest.mark.parametrize("name", RUNS)
def test_logits_and_adapted_tensors_equal_the_official_ones_in_float32(name: str) -> None:
    case, method, logits, recorded = play(name, torch.float32)
    for i, ours in enumerate(logits):
        difference = (ours - recorded[f"logits_{i}"]).abs().max()
        assert float(difference) <= case["tolerance"]["logits_abs"], f"batch {i}"
    ours = adapted(method)
    assert set(case["final"]["student"]) <= set(ours)
    for key, facts in case["final"]["student"].items():
        tensor, tolerance = ours[key], facts["tolerance"]
        assert list(tensor.shape) == facts["shape"]
        first = [number(v) for v in facts.get("first8", [])]
        assert tensor.flatten()[: len(first)].tolist() == pytest.approx(
            first, abs=tolerance, nan_ok=True
        )
        assert float(tensor.sum()) == pytest.approx(
            number(facts["sum"]), abs=tolerance * tensor.numel(), nan_ok=True
        )
        assert float(tensor.norm()) == pytest.approx(
            number(facts["l2"]), abs=tolerance * tensor.numel() ** 0.5, nan_ok=True
        )
        whole = recorded.get(f"final/student/{key}")
        if whole is not None:
            torch.testing.assert_close(tensor, whole, atol=tolerance, rtol=0, equal_nan=True)


@pytest.mark.parametrize("name", [n for n in RUNS if n.startswith("sar")])
def test_resets_and_the_moving_average_equal_the_official_ones(name: str) -> None:
    case, method, _, _ = play(name, torch.float64)
    after = case["per_batch"][-1]
    assert method.counters["resets"] == after.get("resets_so_far", 0)
    expected = after.get("ema_after_batch")
    assert method.average == (None if expected is None else pytest.approx(expected, abs=1e-6))


@pytest.mark.parametrize("name", ["paid_source_stats_all", "paid_source_stats_filtered"])
def test_source_statistics_equal_the_official_ones(name: str) -> None:
    case = read(CASES[name])
    recorded = load_file(CASES[name].with_suffix(".safetensors"))
    limit = filter_limit(1000 if "1000" in case["hyper_parameters"]["threshold"] else 10)
    statistics = source_statistics(
        SourceModel(tiny_vit().eval()),
        ParitySource(torch.float32).batches(),
        samples=case["hyper_parameters"]["num_samples"],
        entropy_limit=limit,
    )
    assert statistics.images == case["kept_images"]
    torch.testing.assert_close(statistics.mean, recorded["aux/source_mean"], atol=1e-5, rtol=0)
    torch.testing.assert_close(statistics.std, recorded["aux/source_std"], atol=1e-5, rtol=0)


def test_every_case_of_the_methods_so_far_is_run() -> None:
    ours = {"source", "tent", "sar", "paid"}
    expected = {n for n, f in CASES.items() if n.split("_")[0] in ours and f.parent.parent == HERE}
    # Statistics have a test of their own; the reset after every three updates is another method.
    expected -= {"paid_source_stats_all", "paid_source_stats_filtered", "tent_mario_rdumb"}
    assert expected <= set(RUNS)
