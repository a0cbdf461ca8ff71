"""PAID, LoRA and DoRA in each form of their product, compared with TENT in turns on one thread.

Memory is the peak during a step, in addition to that between steps. Exit code 1 if a bound is
missed.
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

# Method and form of its product; the method's goal applies to "auto", which chooses the fastest.
SUBJECTS = (
    ("paid", "auto"),
    ("lora", "auto"),
    ("dora", "auto"),
    ("paid", "activation"),
    ("paid", "weight"),
    ("paid", "chain"),
)


def in_form(workload: Workload, name: str, form: str) -> MethodSteps:
    """A method's steps; "chain": apply one reflection after another to the weight."""
    steps = MethodSteps(workload, name)
    for layer in steps.method.model.modules():
        if isinstance(layer, InjectedLinear):
            layer.form = "weight" if form == "chain" else form  # type: ignore[assignment]
            for adapter in layer.adapters.values():
                if form == "chain":
                    adapter.chained = True  # type: ignore[assignment]
    return steps


def rows(workload: Workload, methods: list[str], forms: list[str], repeats: int) -> Iterator[Row]:
    """Time and peak memory of a step divided by those of TENT; one method at a time."""
    tent = MethodSteps(workload, "tent")
    tent.turn()
    tent_peak = peak_bytes(tent.turn, workload.device)
    for name, form in SUBJECTS:
        if name not in methods or form not in forms:
            continue
        steps, has_goal = in_form(workload, name, form), form == "auto"
        works = {"subject": steps.turn, "tent": tent.turn}
        times = take_turns(works, repeats, clock(workload.device))
        peak = peak_bytes(steps.turn, workload.device)
        most = MEMORY + adapted_bytes(steps.method) / tent_peak
        named = f"{name} ({form})"
        yield Row(
            f"{named}: step / TENT",
            ratios(times["subject"], times["tent"]),
            at_most(TO_TENT[name] if has_goal else float("inf")),
        )
        yield Row(
            f"{named}: {peak / 1e6:.0f} MB / TENT's {tent_peak / 1e6:.0f}",
            [peak / tent_peak],
            at_most(most if has_goal else float("inf")),
        )


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of the command."""
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--model", default="vit_small_patch16_224", help="model of timm")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--methods", default="paid,lora,dora", help="methods to measure")
    parser.add_argument(
        "--forms", default="auto,activation,weight,chain", help="forms of the product"
    )


def run(chosen: argparse.Namespace) -> int:
    """Measure and print; returns the exit code."""
    torch.set_num_threads(1)
    workload = random_workload(chosen.model, chosen.batch_size, torch.device(chosen.device))
    methods, forms = chosen.methods.split(","), chosen.forms.split(",")
    return judged(rows(workload, methods, forms, chosen.repeats))
