"""The goals of `make bench`: what is measured, against what, and what it may be."""

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from ctta_bench.api import load_benchmark, load_method, load_model
from ctta_bench.measuring.costs import bounds_of
from ctta_bench.measuring.memory import peak_bytes, resting_bytes
from ctta_bench.measuring.scene import Scene, benchmark_of
from ctta_bench.measuring.subjects import Plain, Steps
from ctta_bench.measuring.timing import clock, ratios, take_turns
from ctta_bench.method.updates import ema_update
from ctta_bench.model import SourceModel
from ctta_bench.parts.adapters.injected import InjectedLinear
from ctta_bench.parts.views.batch import random_view
from ctta_bench.run.checkpoint import Progress
from ctta_bench.run.engine import play
from ctta_bench.stream import ArrayImages, Domain, Stream, batch_domains
from ctta_bench.stream.settings import StreamSettings

Work = Callable[[], object]
# Few views: what each costs is what counts, and updates weigh the more.
FEW_VIEWS = {
    "cotta": {"views": 4},
    "vida": {"views": 4, "lr": 1e-4, "lr_adapters": 1e-4},
    "rotta": {"memory_size": 16, "update_every": 16},
}
NORMS = ("tent", "pseudo_label", "eata", "sar")
ADAPTERS = ("paid", "lora", "dora")
TEACHERS = ("cotta", "rotta", "vida")
TO_TENT = {"paid": 1.15, "lora": 1.20, "dora": 1.20}
TO_BOUND = dict.fromkeys(NORMS, 1.10) | dict.fromkeys(TEACHERS, 1.15)
MEMORY = 1.10
AUGMENTATION, TEACHING = 0.08, 0.03


@dataclass(frozen=True)
class Goal:
    """`<=` or `>=` a number."""

    sign: str
    bound: float


@dataclass(frozen=True)
class Row:
    """Ratios, or seconds, whose median is held against a goal."""

    name: str
    values: Sequence[float]
    goal: Goal

    @property
    def median(self) -> float:
        """Of the values."""
        return statistics.median(self.values)

    @property
    def missed(self) -> bool:
        """Whether the median misses the goal."""
        up = self.goal.sign == ">="
        return self.median < self.goal.bound if up else self.median > self.goal.bound


def engine_rows(model: str, batch_size: int, device: torch.device) -> Iterator[Row]:
    """Source through the engine over a bare loop: with a small model, and with the large one."""
    fashion = load_benchmark("fashion_c", batch_size=50, examples=1000, domains=("contrast",))
    fashion.make_ready(lambda *_: None, 2)
    stream = Stream(batch_domains(fashion), fashion.settings, seed=0)
    source = load_model("fashion_vit").to(device)
    # A step of milliseconds, where what is beside it shows most; no goal is set for it but 0.9.
    yield Row(
        "source: bare loop / engine, fashion_vit", engine_ratio(source, stream, 9), _least(0.9)
    )
    large = _scene(model, batch_size, device).model()
    size = large.preprocessing.size
    images = np.random.default_rng(0).integers(0, 256, (2 * batch_size, 3, *size), np.uint8)
    domain = Domain("random", ArrayImages(images, np.zeros(len(images), np.int64)))
    stream = Stream([domain], StreamSettings(batch_size=batch_size), seed=0)
    yield Row(f"source: bare loop / engine, {model}", engine_ratio(large, stream, 5), _least(0.98))


def engine_ratio(model: SourceModel, stream: Stream, repeats: int) -> list[float]:
    """Time of a bare loop over that of the engine's on the same images."""
    method = load_method("source", model)
    method.start()
    network, device = model.network, method.device
    ready = [batch.images.to(device) for batch in stream.batches()]

    def engine() -> None:
        play(method, stream, Progress())

    @torch.no_grad()
    def bare() -> None:
        for batch in ready:
            network((batch - model.mean) / model.std).argmax(-1)

    times = take_turns({"engine": engine, "bare": bare}, repeats, clock(device))
    return ratios(times["bare"], times["engine"])


def method_rows(
    model: str, batch_size: int, device: torch.device, only: set[str], repeats: int
) -> Iterator[Row]:
    """Times of steps over their bounds and over TENT, shares of a step, and memory."""
    scene = _scene(model, batch_size, device)
    wanted = [n for n in (*NORMS, *ADAPTERS) if not only or n in only]
    if wanted:
        yield from _group(scene, list(dict.fromkeys(["tent", *wanted])), repeats)
    for name in TEACHERS:
        if not only or name in only:
            yield from _group(scene, [name], max(3, repeats - 2))


def _group(scene: Scene, names: Sequence[str], repeats: int) -> Iterator[Row]:
    plain = Plain(scene)
    steps = {name: Steps(scene, name) for name in names}
    shared = plain.shared_with(steps[names[0]].method)
    for of_method in steps.values():
        of_method.turn()
    peaks = {name: peak_bytes(s.turn, scene.device) for name, s in steps.items()}
    backward = partial(plain.backward, shared)
    backward()
    needed = peak_bytes(backward, scene.device)
    works: dict[str, Work] = {"forward": plain.forward, "backward": backward}
    works |= {name: s.turn for name, s in steps.items()} | _parts(scene, steps)
    plain.forward()
    times = take_turns(works, repeats, clock(scene.device), warm=0)  # all have had their first turn
    for name, of_method in steps.items():
        if name in TO_BOUND:
            bounds = bounds_of(times, of_method.passes[-repeats:], scene.batch_size)
            to_bound = ratios(times[name], bounds)
            yield Row(f"{name}: step / bound", to_bound, _most(TO_BOUND[name]))
        if name in TO_TENT:
            yield Row(
                f"{name}: step / TENT", ratios(times[name], times["tent"]), _most(TO_TENT[name])
            )
        if name in TEACHERS:
            yield from _shares(name, of_method, times)
        memory = _memory(of_method, peaks[name], needed)
        yield Row(f"{name}: memory / necessary", [memory], _most(MEMORY))


def _parts(scene: Scene, steps: dict[str, Steps]) -> dict[str, Work]:
    """Parts of the steps of methods with a teacher, on their own."""
    found: dict[str, Work] = {}
    for name, of_method in steps.items():
        method: Any = of_method.method
        if name in TEACHERS:
            found["view"] = partial(random_view, scene.batches[0])
            found["teacher"] = partial(_teach, method)
    return found


def _teach(method: Any) -> None:
    """The teacher's update of a method, and its restoration, if it has one."""
    ema_update(method.teacher.parameters(), method.model.parameters(), 1.0)
    if hasattr(method, "restored") and method.hp.restore_probability:
        method.restore()


def _shares(name: str, steps: Steps, times: dict[str, list[float]]) -> Iterator[Row]:
    views = steps.method.hp.views if "views" in steps.method.hp.record() else 1
    view = [views * t for t in times["view"]]
    yield Row(f"{name}: augmentation / step", ratios(view, times[name]), _most(AUGMENTATION))
    teaching = ratios(times["teacher"], times[name])
    yield Row(f"{name}: teacher, restore / step", teaching, _most(TEACHING))


def _memory(steps: Steps, peak: int, plain_peak: int) -> float:
    """What a method holds at most over what it must hold.

    That is the networks with what is kept of them, the optimiser's moments, a copy of what learns
    for `reset`, and what a plain step holds; of adapted layers one copy of the adapted weights.
    """
    method = steps.method
    network = [*method.model.parameters(), *method.model.buffers()]
    moments = resting_bytes(getattr(method, "optimizer", None))
    learning = resting_bytes(list(method.trainable.values()))
    layers = [m for m in method.model.modules() if isinstance(m, InjectedLinear)]
    adapted = sum(layer.weight.numel() * layer.weight.element_size() for layer in layers)
    needed = resting_bytes(network) + moments + method.extra_state_bytes + learning + adapted
    return (resting_bytes(method) + peak) / (needed + plain_peak)


def _scene(model: str, batch_size: int, device: torch.device) -> Scene:
    benchmark = benchmark_of("imagenet_c", {"batch_size": batch_size}, None)
    return Scene(benchmark, f"timm:{model}", device, "float32", random=True, overrides=FEW_VIEWS)


def _most(bound: float) -> Goal:
    return Goal("<=", bound)


def _least(bound: float) -> Goal:
    return Goal(">=", bound)
