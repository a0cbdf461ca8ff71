"""The cost of methods: parameters, state, numbers of passes, FLOPs, memory, and ratios of times."""

import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode, addmm_flop, sdpa_backward_flop, sdpa_flop

from ctta_bench.errors import DataError, MethodError
from ctta_bench.measuring.memory import peak_bytes, resting_bytes
from ctta_bench.measuring.subjects import MethodSteps, PlainModel
from ctta_bench.measuring.timing import Spread, clock, ratios, take_turns
from ctta_bench.measuring.workload import Workload
from ctta_bench.record.schema import COST, COST_SCHEMA_VERSION
from ctta_bench.run.environment import environment

REFERENCE = "tent"
SOURCE = "source"


@dataclass(frozen=True)
class MethodCost:
    """The cost of a method.

    Passes are counted per image of the stream. Times are per image, too: `to_reference` is the time
    divided by that of TENT (None if TENT does not support the model), `to_bound` the time divided
    by FP · t_forward + BP · t_backward of the plain model. Memory: `resting_bytes` between steps,
    `peak_bytes` in addition to them during a step; `memory_to_source` is the ratio of the sums.
    """

    method: str
    preset: str
    hyperparameters: dict[str, Any]
    source_access: str
    trainable_parameters: int
    extra_parameters: int
    extra_state_bytes: int
    forward_per_image: float
    backward_per_image: float
    milliseconds_per_image: Spread
    images_per_second: float
    to_reference: Spread | None
    to_bound: Spread
    gflops_per_image: float
    resting_bytes: int
    peak_bytes: int
    memory_to_source: float


def measure(
    workload: Workload, methods: Sequence[str], *, repeats: int
) -> Iterator[MethodCost | tuple[str, str]]:
    """The cost of each method, or its name and why it does not support the workload's model."""
    plain, reference = PlainModel(workload), _reference(workload)
    source = MethodSteps(workload, SOURCE)
    source.turn()
    source_bytes = resting_bytes(source.method) + peak_bytes(source.turn, workload.device)
    del source
    for name in methods:
        try:
            steps = MethodSteps(workload, name)
        except (MethodError, DataError) as error:
            yield name, str(error)
            continue
        yield _measured(steps, plain, reference, source_bytes, repeats)


def _reference(workload: Workload) -> MethodSteps | None:
    """The steps of TENT; None if it does not support the model."""
    try:
        return MethodSteps(workload, REFERENCE)
    except MethodError:
        return None


def _measured(
    steps: MethodSteps,
    plain: PlainModel,
    reference: MethodSteps | None,
    source_bytes: int,
    repeats: int,
) -> MethodCost:
    workload, method = steps.workload, steps.method
    steps.turn()
    works: dict[str, Callable[[], object]] = {"forward": plain.forward}
    if method.trainable or steps.passes[-1][1]:
        names = plain.shared_with(method)
        works["backward"] = lambda: plain.backward(names)
    if reference is not None:
        works[REFERENCE] = reference.turn
    works["method"] = steps.turn
    times = take_turns(works, repeats, clock(workload.device))
    passes = steps.passes[-repeats:]
    by_image = [t / steps.images for t in times["method"]]
    to_reference = None
    if reference is not None:
        of_reference = [t / reference.images for t in times[REFERENCE]]
        to_reference = Spread.of(ratios(by_image, of_reference))
    images, rest = steps.images * repeats, resting_bytes(method)
    peak = peak_bytes(steps.turn, workload.device)
    return MethodCost(
        method=steps.name,
        preset=workload.preset,
        hyperparameters=method.hp.record(),
        source_access=method.source_access,
        trainable_parameters=sum(p.numel() for p in method.trainable.values()),
        extra_parameters=steps.extra_parameters(),
        extra_state_bytes=method.extra_state_bytes,
        forward_per_image=sum(f for f, _ in passes) / images,
        backward_per_image=sum(b for _, b in passes) / images,
        milliseconds_per_image=Spread.of([1000 * t for t in by_image]),
        images_per_second=1 / Spread.of(by_image).median,
        to_reference=to_reference,
        to_bound=Spread.of(ratios(times["method"], bounds_of(times, passes, workload.batch_size))),
        gflops_per_image=flops(steps.turn) / steps.images / 1e9,
        resting_bytes=rest,
        peak_bytes=peak,
        memory_to_source=(rest + peak) / source_bytes,
    )


def bounds_of(
    times: dict[str, list[float]], passes: Sequence[tuple[int, int]], batch_size: int
) -> list[float]:
    """Seconds that the passes of each turn take in the plain model.

    times: `forward`, and `backward` if there are backward passes, of one batch; `backward` includes
    a forward pass.
    """
    found = []
    for turn, (forward_images, backward_images) in enumerate(passes):
        forward = times["forward"][turn]
        backward = times["backward"][turn] - forward if backward_images else 0.0
        found.append((forward_images * forward + backward_images * backward) / batch_size)
    return found


def flops(work: Callable[[], object]) -> int:
    """Floating-point operations of products, convolutions and attention, counted by torch."""
    with FlopCounterMode(display=False, custom_mapping=_uncounted()) as counter:
        work()
    return counter.get_total_flops()


def _uncounted() -> dict[Any, Any]:
    """Formulas of torch under operator names that its counter does not include."""
    attention = "_scaled_dot_product_flash_attention_for_cpu"
    formulas: dict[str, Any] = {
        "addmm_": addmm_flop,
        attention: sdpa_flop,
        f"{attention}_backward": sdpa_backward_flop,
    }
    # Unwrapped: the counter itself converts tensors to shapes.
    return {getattr(torch.ops.aten, n): inspect.unwrap(formula) for n, formula in formulas.items()}


def record(
    workload: Workload,
    costs: Sequence[MethodCost],
    left_out: dict[str, str],
    repeats: int,
) -> dict[str, Any]:
    """The measurement as plain values, for reports (analysis/tables/measured_cost.py)."""
    model = workload.model()
    return {
        "schema_version": COST_SCHEMA_VERSION,
        "kind": COST,
        "benchmark": workload.benchmark.name,
        "model": {
            "name": workload.model_name,
            "sha256": None if workload.random else model.sha256(),
            "parameters": model.source_parameters,
        },
        "random": workload.random,
        "precision": workload.precision,
        "batch_size": workload.batch_size,
        "images": list(workload.batches[0].shape[-2:]),
        "input": list(model.preprocessing.size or workload.batches[0].shape[-2:]),
        "repeats": repeats,
        "reference": REFERENCE,
        "methods": [asdict(cost) for cost in costs],
        "left_out": left_out,
        "environment": environment(workload.device),
    }
