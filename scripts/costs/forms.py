"""PAID, LoRA and DoRA in each form of their product against TENT, in turn on one thread.

Memory is what a step holds at most beside what rests before it. Exit code 1 if a bound is missed.
"""

import argparse
from collections.abc import Iterator

import torch

from costs.rows import Row, at_most, judged
from costs.steps import MEMORY, TO_TENT, adapted_bytes, random_workload
from ctta_bench.measuring.memory import peak_bytes
from ctta_bench.measuring.subjects import MethodSteps
from ctta_bench.measuring.timing import clock, ratios, take_turns
from ctta_bench.measuring.workload import Workload
from ctta_bench.parts.adapters.injected import InjectedLinear

# Method and form of its product; "auto", which takes the fastest, is held to the method's goal.
SUBJECTS = (
    ("paid", "auto"),
    ("lora", "auto"),
    ("dora", "auto"),
    ("paid", "activation"),
    ("paid", "weight"),
    ("paid", "chain"),
)


def in_form(workload: Workload, name: str, form: str) -> MethodSteps:
    """A method's steps; "chain" is one reflection after another on the weight."""
    steps = MethodSteps(workload, name)
    for layer in steps.method.model.modules():
        if isinstance(layer, InjectedLinear):
            layer.form = "weight" if form == "chain" else form  # type: ignore[assignment]
            for adapter in layer.adapters.values():
                if form == "chain":
                    adapter.chained = True  # type: ignore[assignment]
    return steps


def rows(workload: Workload, methods: list[str], forms: list[str], repeats: int) -> Iterator[Row]:
    """Time of a step, and memory beside what rests, over TENT's; one method at a time."""
    tent = MethodSteps(workload, "tent")
    tent.turn()
    tent_peak = peak_bytes(tent.turn, workload.device)
    for name, form in SUBJECTS:
        if name not in methods or form not in forms:
            continue
        steps, is_held = in_form(workload, name, form), form == "auto"
        works = {"subject": steps.turn, "tent": tent.turn}
        times = take_turns(works, repeats, clock(workload.device))
        peak = peak_bytes(steps.turn, workload.device)
        most = MEMORY + adapted_bytes(steps.method) / tent_peak
        named = f"{name} ({form})"
        yield Row(
            f"{named}: step / TENT",
            ratios(times["subject"], times["tent"]),
            at_most(TO_TENT[name] if is_held else float("inf")),
        )
        yield Row(
            f"{named}: {peak / 1e6:.0f} MB / TENT's {tent_peak / 1e6:.0f}",
            [peak / tent_peak],
            at_most(most if is_held else float("inf")),
        )


def add_options(parser: argparse.ArgumentParser) -> None:
    """What is measured, on what."""
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--model", default="vit_small_patch16_224", help="of timm")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--methods", default="paid,lora,dora", help="those to measure")
    parser.add_argument("--forms", default="auto,activation,weight,chain", help="of the product")


def run(chosen: argparse.Namespace) -> int:
    """Measure and print; the exit code."""
    torch.set_num_threads(1)
    workload = random_workload(chosen.model, chosen.batch_size, torch.device(chosen.device))
    methods, forms = chosen.methods.split(","), chosen.forms.split(",")
    return judged(rows(workload, methods, forms, chosen.repeats))
