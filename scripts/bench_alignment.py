"""Cost of PAID, LoRA and DoRA as ratios to TENT in the same process: `make bench`.

    python scripts/bench_alignment.py [--repeats 7] [--methods paid] [--forms auto] [--device cuda]

One step each on the same batch in turn, on one thread (on a GPU: on the GPU), and the median of
the ratios counts. Time is that of the processor, so that other work on the machine matters less.
Memory is what a step allocates at most beside what rests before it, as torch's profiler counts it.
Exit code 1 if a bound is missed.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import timm
import torch
from torch import Tensor

from ctta_bench.api import load_method
from ctta_bench.method import Method
from ctta_bench.model import SourceModel
from ctta_bench.parts.adapters.injected import InjectedLinear
from ctta_bench.stream import ArrayImages, SourceData

# Method, form of its product, bound on its time (None: printed alone).
SUBJECTS: tuple[tuple[str, str, float | None], ...] = (
    ("paid", "auto", 1.15),
    ("lora", "auto", 1.20),
    ("dora", "auto", 1.20),
    ("paid", "activation", None),
    ("paid", "weight", None),
    ("paid", "chain", None),
)


def build(name: str, form: str, model: str, size: int, device: torch.device) -> Method:
    """A method on a network of random weights, ready to step."""
    torch.manual_seed(0)
    network = timm.create_model(model, num_classes=100)
    method = load_method(name, SourceModel(network).to(device))
    images = np.random.default_rng(0).integers(0, 256, (8, 3, size, size), dtype=np.uint8)
    source = ArrayImages(images, np.zeros(8, np.int64))
    access = SourceData(source, labelled=False, seed=0, device=device, dtype=torch.float32)
    method.start(None if method.source_access == "none" else access)
    for layer in method.model.modules():
        if isinstance(layer, InjectedLinear):
            choose(layer, form)
    return method


def choose(layer: InjectedLinear, form: str) -> None:
    """The form of a layer's product; "chain" is one reflection after another on the weight."""
    layer.form = "weight" if form == "chain" else form  # type: ignore[assignment]
    for adapter in layer.adapters.values():
        if form == "chain":
            adapter.chained = True  # type: ignore[assignment]


def clock(device: torch.device) -> Callable[[], float]:
    """Seconds of the processor, or of the wall behind a GPU's queue."""
    if device.type == "cpu":
        return time.process_time

    def waited() -> float:
        torch.cuda.synchronize(device)
        return time.perf_counter()

    return waited


def ratios(subject: Method, reference: Method, images: Tensor, repeats: int) -> list[float]:
    """Time of a step over that of the reference's, once a repeat, the two in turn."""
    now = clock(images.device)
    subject(images), reference(images)  # warm up
    found = []
    for _ in range(repeats):
        times = []
        for method in (subject, reference):
            began = now()
            method(images)
            times.append(now() - began)
        found.append(times[0] / times[1])
    return found


def peak_bytes(method: Method, images: Tensor) -> int:
    """Most bytes that a step holds at once beside those held before it."""
    method(images)
    if images.device.type == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        method(images)
        return torch.cuda.max_memory_allocated() - before
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True) as profile:
        method(images)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "trace.json"
        profile.export_chrome_trace(str(file))
        events: list[dict[str, Any]] = json.loads(file.read_text())["traceEvents"]
    changes = [e for e in events if e.get("name") == "[memory]"]
    held = peak = 0
    for event in sorted(changes, key=lambda e: float(e["ts"])):
        held += int(event["args"]["Bytes"])
        peak = max(peak, held)
    return peak


def adapted_bytes(method: Method) -> int:
    """Bytes of one copy of the adapted weights."""
    layers = [m for m in method.model.modules() if isinstance(m, InjectedLinear)]
    return sum(layer.weight.numel() * layer.weight.element_size() for layer in layers)


def main() -> None:
    """Measure, print a table, and fail if a bound is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--model", default="vit_small_patch16_224")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--methods", default="paid,lora,dora", help="those to measure")
    parser.add_argument("--forms", default="auto,activation,weight,chain", help="of the product")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    device = torch.device(arguments.device)
    size = timm.create_model(arguments.model).pretrained_cfg["input_size"][-1]
    generator = torch.Generator().manual_seed(1)
    images = torch.rand(arguments.batch_size, 3, size, size, generator=generator).to(device)

    def built(name: str, form: str) -> Method:
        return build(name, form, arguments.model, size, device)

    tent = built("tent", "auto")
    tent_peak, missed = peak_bytes(tent, images), 0
    print(f"{'step / TENT step':24s}{'median':>8s}{'min':>8s}{'max':>8s}{'bound':>8s}   peak MB")
    print(f"{'tent':24s}{1:8.3f}{'':24s}{tent_peak / 1e6:10.0f}")
    for name, form, bound in SUBJECTS:
        if name not in arguments.methods.split(",") or form not in arguments.forms.split(","):
            continue
        method = built(name, form)
        values = ratios(method, tent, images, arguments.repeats)
        peak, allowed = peak_bytes(method, images), 1.1 * tent_peak + adapted_bytes(method)
        median = statistics.median(values)
        slow, large = bound is not None and median > bound, bound is not None and peak > allowed
        missed += slow + large
        print(
            f"{f'{name} ({form})':24s}{median:8.3f}{min(values):8.3f}{max(values):8.3f}"
            f"{bound or '':>8}{peak / 1e6:10.0f} (allowed: {allowed / 1e6:.0f})"
            f"{'   TIME MISSED' * slow}{'   MEMORY MISSED' * large}",
            flush=True,
        )
        del method
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
