"""Cost of segmentation as ratios of times in one process, and the peak number of maps in memory.

Times are those of the processor on one thread, for one image; subjects and references run in turns,
and the median of the ratios is used. Maps: the peak number of maps of all classes at the labels'
size, by far the largest tensors, during a step and its scoring. It does not depend on the size of
images and is counted on small ones. Goals and baseline as those of steps.
"""

import argparse
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, interpolate

from costs.rows import Row, at_most, judged
from ctta_bench.api import load_method
from ctta_bench.measuring.memory import allocations
from ctta_bench.measuring.timing import clock, ratios, take_turns
from ctta_bench.method import Method
from ctta_bench.model import SourceModel
from ctta_bench.registry import METHODS, MODELS
from ctta_bench.scoring.segmentation import MiouScorer
from ctta_bench.stream import ArrayImages, SourceData

CLASSES = 19
BENCHMARK = "cityscapes_acdc"
COUNTED_SIZE = (136, 240)  # a fourth of the protocol's images, and so of its labels

# Maps of all classes at the labels' size (twice the images') that a step needs at least with
# torch's own operators: the scored logits, which the scorer enlarges if the method does not; if the
# loss is at that size, also the student's logits, their log-probabilities and the gradients of
# both; while views are averaged, the plain view, the sum, and logits and probabilities of the next.
SCORED, STUDENT, VIEWS = 1, 4, 4
NEEDED = {
    ("source", "default"): SCORED,
    ("tent", "default"): SCORED,
    ("tent", "paper"): STUDENT,
    ("pseudo_label", "default"): STUDENT,
    ("sar", "paper"): SCORED,
    ("ecotta", "paper"): SCORED,
    ("dept", "paper"): SCORED,
    ("cmae", "paper"): SCORED,
    ("vdp", "paper"): SCORED,
    ("paid", "paper"): SCORED,
    ("lora", "default"): SCORED,
    ("dora", "default"): SCORED,
    ("cotta", "paper"): max(VIEWS, SCORED + STUDENT),
    ("vida", "paper"): max(VIEWS, SCORED + STUDENT),
    ("svdp", "paper"): max(VIEWS, SCORED + STUDENT),
    ("becotta", "paper"): max(VIEWS, SCORED + STUDENT),
}


def build(name: str, preset: str, model: str, size: Sequence[int]) -> Method:
    """A method with its values for Cityscapes→ACDC on a network of random weights."""
    torch.manual_seed(0)
    values: dict[str, Any] = {}
    known = METHODS.get(name).Hyperparameters.model_fields
    if "image_size" in known:
        values["image_size"] = tuple(size)
    if "warmup_iterations" in known:
        values["warmup_iterations"] = 0  # no part of a step
    network = SourceModel(MODELS.get(model)(), name=model)
    method = load_method(name, network, preset=preset, benchmark=BENCHMARK, **values)
    images = np.random.default_rng(0).integers(0, 256, (2, 3, *size), dtype=np.uint8)
    source = ArrayImages(images, np.zeros(2, np.int64))
    cpu = torch.device("cpu")
    access = SourceData(source, labelled=False, seed=0, device=cpu, dtype=torch.float32)
    method.start(None if method.source_access == "none" else access)
    return method


# -- time


def entropy(logits: Tensor) -> Tensor:
    """Mean entropy of pixels."""
    return -(logits.softmax(1) * logits.log_softmax(1)).sum(1).mean()


def own_labels(logits: Tensor) -> Tensor:
    """Cross-entropy between logits, enlarged eight times, and their argmax."""
    size = (8 * logits.shape[-2], 8 * logits.shape[-1])
    large = interpolate(logits, size=size, mode="bilinear", align_corners=False)
    return cross_entropy(large, large.detach().argmax(1))


def plain_pass(model: str, loss: Callable[[Tensor], Tensor]) -> Callable[[Tensor], None]:
    """A bare forward and backward pass, with gradients of the norm layers that TENT adapts."""
    network = SourceModel(MODELS.get(model)()).eval().requires_grad_(False)
    parameters = list(network.norm_parameters().values())
    for parameter in parameters:
        parameter.requires_grad_(True)

    def run(images: Tensor) -> None:
        torch.autograd.grad(loss(network(images)), parameters)

    return run


def timed(model: str, size: Sequence[int], repeats: int) -> Iterator[Row]:
    """Ratios of times, each with its bound."""
    subjects = {
        "plain": plain_pass(model, entropy),
        "tent": build("tent", "default", model, size),
        "paid": build("paid", "default", model, size),
        "plain hard": plain_pass(model, own_labels),
        "tent hard": build("tent", "paper", model, size),
    }
    generator = torch.Generator().manual_seed(1)
    images = torch.rand(1, 3, *size, generator=generator)
    works = {name: partial(subject, images) for name, subject in subjects.items()}
    times = take_turns(works, repeats, clock(torch.device("cpu")))
    for subject, reference, bound in (
        ("tent", "plain", 1.10),
        ("tent hard", "plain hard", 1.10),
        ("paid", "tent", 1.25),
    ):
        name = f"{model} {size[0]}x{size[1]}: {subject} / {reference}"
        yield Row(name, ratios(times[subject], times[reference]), at_most(bound))


# -- maps


def peak_maps(changes: Iterable[int], map_bytes: int) -> int:
    """Peak number of maps of this size, from the sizes of allocations (frees are negative).

    Only allocations of whole maps, or stacks of them, count.
    """
    current = most = 0
    for size in changes:
        if size % map_bytes == 0:
            current += size // map_bytes
            most = max(most, current)
    return most


def maps_of(name: str, preset: str, model: str) -> int:
    """Peak number of maps at the labels' size during a step of a method and its scoring."""
    method = build(name, preset, model, COUNTED_SIZE)
    height, width = (2 * side for side in COUNTED_SIZE)
    images = torch.rand(1, 3, *COUNTED_SIZE)
    labels = torch.zeros(1, height, width, dtype=torch.uint8)
    scorer = MiouScorer(CLASSES)

    def work() -> Tensor:
        logits = method(images)
        scorer.score(logits, labels)
        return logits

    work()  # allocate what is needed once, mainly the state of the optimiser
    return peak_maps(allocations(work), 4 * CLASSES * height * width)


def measured(only: str | None, model: str, size: Sequence[int], repeats: int) -> Iterator[Row]:
    """The rows of times, of maps, or of both."""
    if only != "maps":
        yield from timed(model, size, repeats)
    if only != "time":
        for (name, preset), needed in NEEDED.items():
            maps = maps_of(name, preset, model)
            yield Row(f"maps: {name} ({preset})", [maps], at_most(needed + 1))


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of the command."""
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--model", default="segformer_b0")
    parser.add_argument("--size", type=int, nargs=2, default=(540, 960))
    parser.add_argument("--only", choices=["time", "maps"], help="measure only times, or only maps")
    parser.add_argument("--write-baseline", action="store_true")


def run(chosen: argparse.Namespace) -> int:
    """Measure and print; returns the exit code."""
    torch.set_num_threads(1)
    rows = measured(chosen.only, chosen.model, chosen.size, chosen.repeats)
    return judged(rows, write=chosen.write_baseline)
