"""Speed as ratios against a reference in the same process: `make bench`.

    python scripts/bench.py [--batches 40] [--repeats 5]

Subject and reference take turns, and the median of the ratios counts, so that a machine whose
speed drifts does not matter. Start-up times are medians of fresh processes. Exit code 1 if a bound
is missed.
"""

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from ctta_bench.api import load_benchmark, load_method, load_model
from ctta_bench.checkpoint import Progress
from ctta_bench.engine import play
from ctta_bench.method import softmax_entropy
from ctta_bench.stream import Stream, batch_domains


def ratio(subject: Callable[[], None], reference: Callable[[], None], repeats: int) -> list[float]:
    """Time of `subject` over that of `reference`, once a repeat, the two in turn."""
    subject(), reference()  # warm up
    ratios = []
    for _ in range(repeats):
        times = []
        for work in (subject, reference):
            began = time.perf_counter()
            work()
            times.append(time.perf_counter() - began)
        ratios.append(times[0] / times[1])
    return ratios


def stream(batches: int, batch_size: int) -> Stream:
    """A stream of the embedded benchmark."""
    benchmark = load_benchmark(
        "fashion_c",
        batch_size=batch_size,
        examples=batches * batch_size,
        domains=("contrast",),
    )
    benchmark.make_ready(lambda *_: None, 2)
    return Stream(batch_domains(benchmark), benchmark.settings, seed=0)


def source_speed(batches: int, repeats: int) -> list[float]:
    """Speed of Source through the engine as a share of a bare loop over the same batches."""
    images = stream(batches, 50)
    method = load_method("source", load_model("fashion_vit"))
    method.start()
    network = load_model("fashion_vit").network.eval()
    ready = [b.images for b in images.batches()]

    def engine() -> None:
        play(method, images, Progress())

    @torch.no_grad()
    def bare() -> None:
        for batch in ready:
            network((batch - 0.5) / 0.5).argmax(-1)

    return [1 / r for r in ratio(engine, bare, repeats)]


def tent_cost(batches: int, repeats: int) -> list[float]:
    """Time of TENT over that of forward and backward through its own graph."""
    ready = [b.images for b in stream(batches, 50).batches()]
    method = load_method("tent", load_model("fashion_vit"))
    method.start()
    model = load_model("fashion_vit").eval().requires_grad_(False)
    parameters: Sequence[Tensor] = list(model.norm_parameters().values())
    for parameter in parameters:
        parameter.requires_grad_(True)

    def tent() -> None:
        for batch in ready:
            method(batch)

    def graph() -> None:
        for batch in ready:
            torch.autograd.grad(softmax_entropy(model(batch)).mean(), parameters)

    return ratio(tent, graph, repeats)


def start_up(*arguments: str, repeats: int) -> list[float]:
    """Seconds of a fresh Python process with these arguments, less those of an empty one."""
    times = {}
    for call in (arguments, ("-c", "pass")):
        times[call] = []
        for _ in range(repeats):
            began = time.perf_counter()
            subprocess.run([sys.executable, *call], check=True, stdout=subprocess.DEVNULL)
            times[call].append(time.perf_counter() - began)
    empty = statistics.median(times["-c", "pass"])
    return [t - (empty if arguments[0] == "-c" else 0) for t in times[arguments]]


def main() -> None:
    """Measure everything, print a table, and fail if a bound is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batches", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=7)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    command = str(Path(sys.executable).parent / "ctta-bench")
    repeats = arguments.repeats
    rows = [
        ("source: engine speed / bare loop", source_speed(arguments.batches, repeats), ">=", 0.95),
        ("tent: step / forward + backward", tent_cost(arguments.batches, repeats), "<=", 1.15),
        ("import ctta_bench [s]", start_up("-c", "import ctta_bench", repeats=repeats), "<=", 0.3),
        (
            "ctta-bench list methods [s]",
            start_up(command, "list", "methods", repeats=repeats),
            "<=",
            0.7,
        ),
        ("ctta-bench --help [s]", start_up(command, "--help", repeats=repeats), "<=", 0.7),
    ]
    missed = 0
    print(f"{'':36s}{'median':>9s}{'min':>9s}{'max':>9s}   bound")
    for name, values, sign, bound in rows:
        median = statistics.median(values)
        met = median >= bound if sign == ">=" else median <= bound
        missed += not met
        print(
            f"{name:36s}{median:9.3f}{min(values):9.3f}{max(values):9.3f}   "
            f"{sign} {bound}{'' if met else '   MISSED'}"
        )
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
