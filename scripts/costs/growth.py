"""Growth of time and memory with the batch, the rank, the tokens, the model and the stream.

Random weights and images, one thread; the points of a sweep run in turns in one process. Prints the
tables of docs/performance.md; `--figure docs/images/growth.png` draws their curves.
"""

import argparse
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from matplotlib.axes import Axes

from costs.steps import random_workload
from ctta_bench.analysis.figure.canvas import Canvas
from ctta_bench.measuring.memory import peak_bytes, resting_bytes
from ctta_bench.measuring.subjects import MethodSteps
from ctta_bench.measuring.timing import clock, ratios, take_turns
from ctta_bench.measuring.workload import Workload, benchmark_of

POINTS: dict[str, tuple[str, list[dict[str, Any]]]] = {
    "batch": ("images per batch", [{"batch_size": n} for n in (1, 4, 16, 64)]),
    "rank": ("rank", [{"rank": n} for n in (2, 12, 48)]),
    "tokens": ("image side in pixels", [{"input_size": (n, n)} for n in (224, 384)]),
    "model": (
        "model",
        [{"model": f"vit_{size}_patch16_224"} for size in ("tiny", "small", "base")],
    ),
}
RANKED = ("paid", "lora", "dora")


@dataclass(frozen=True)
class Row:
    """A point of a sweep: milliseconds per image and peak MB, by method."""

    point: str
    milliseconds: dict[str, float]
    megabytes: dict[str, float]


def workload(
    batch_size: int = 4,
    model: str = "vit_small_patch16_224",
    input_size: tuple[int, int] | None = None,
    rank: int = 12,
) -> Workload:
    """A workload of random images and weights."""
    ranks = {name: {"rank": rank} for name in RANKED}
    return random_workload(model, batch_size, torch.device("cpu"), ranks, input_size)


def sweep(
    points: Sequence[Mapping[str, Any]], methods: Sequence[str], repeats: int
) -> Iterator[Row]:
    """One row per point."""
    steps = {
        (number, name): MethodSteps(workload(**point), name)
        for number, point in enumerate(points)
        for name in methods
    }
    works = {f"{number} {name}": s.turn for (number, name), s in steps.items()}
    times = take_turns(works, repeats, clock(torch.device("cpu")))
    for number, point in enumerate(points):
        (value,) = point.values()
        row = Row(str(value[0] if isinstance(value, tuple) else value), {}, {})
        for name in methods:
            of_method = steps[number, name]
            seconds = statistics.median(times[f"{number} {name}"]) / of_method.images
            peak = peak_bytes(of_method.turn, torch.device("cpu"))
            row.milliseconds[name] = 1000 * seconds
            row.megabytes[name] = (peak + resting_bytes(of_method.method)) / 1e6
        yield row


def along_the_stream(methods: Sequence[str], rounds: int, batches: int) -> Iterator[list[str]]:
    """One row per method: time of all rounds over as many first rounds, MB after first and last.

    Each round runs in turns with a first round of a reset method, so that changes in the machine's
    speed affect both.
    """
    fashion = Workload(
        benchmark_of("fashion_c", {"batch_size": 16}, None),
        "fashion_vit",
        torch.device("cpu"),
        "float32",
        random=True,
    )
    for name in methods:
        yield [
            name,
            *rounds_of(MethodSteps(fashion, name), MethodSteps(fashion, name), rounds, batches),
        ]


def rounds_of(going: MethodSteps, first: MethodSteps, rounds: int, batches: int) -> list[str]:
    """The row of a method, without its name; `first` is reset before each of its rounds."""
    memory: list[int] = []

    def a_round(steps: MethodSteps) -> None:
        for _ in range(batches):
            steps.turn()

    def one_more() -> None:
        a_round(going)
        memory.append(resting_bytes(going.method))

    def a_first() -> None:
        first.method.reset()
        a_round(first)

    times = take_turns({"on": one_more, "first": a_first}, rounds, clock(torch.device("cpu")))
    each = statistics.quantiles(ratios(times["on"], times["first"]), n=4)
    whole = sum(times["on"]) / sum(times["first"])
    spread = f"{whole:.3f} ({each[0]:.2f}–{each[2]:.2f})"
    return [spread, f"{memory[0] / 1e6:.2f}", f"{memory[-1] / 1e6:.2f}"]


def printed(head: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table in Markdown."""
    print("|", " | ".join(head), "|")
    print("|", " | ".join(["---", *["---:"] * (len(head) - 1)]), "|")
    for row in rows:
        print("|", " | ".join(row), "|", flush=True)
    print()


def shown(name: str) -> str:
    """The short name of a point, for tables and axes."""
    return name.removesuffix("_patch16_224")


def curves(found: Mapping[str, Sequence[Row]], methods: Sequence[str], file: Path) -> None:
    """Draw times above and memory below, one panel per sweep, one line per method, log2 axes."""
    canvas = Canvas()
    with canvas.drawing():
        figure = canvas.figure((2.6 * len(found) + 1.2, 5.0), 4.0)
        panels = figure.subplots(2, len(found), squeeze=False, sharey="row", sharex="col")
        for column, (kind, rows) in enumerate(found.items()):
            for name in rows[0].milliseconds:
                color = f"C{methods.index(name)}"
                for line, unit in enumerate(("milliseconds", "megabytes")):
                    values = [getattr(row, unit)[name] for row in rows]
                    _line(panels[line, column], [r.point for r in rows], values, name, color)
            panels[1, column].set_xlabel(POINTS[kind][0])
        panels[0, 0].set_ylabel("ms per image")
        panels[1, 0].set_ylabel("peak MB")
        figure.legend(
            *panels[0, 0].get_legend_handles_labels(), loc="outside right center", frameon=False
        )
        figure.savefig(file, dpi=150)


def _line(
    axes: Axes, points: Sequence[str], values: Sequence[float], name: str, color: str
) -> None:
    """Draw a method's values; numeric points are to scale, names are evenly spaced."""
    numbers = [float(p) if p.isdigit() else k for k, p in enumerate(points)]
    axes.plot(numbers, values, marker="o", markersize=4, label=name, color=color)
    axes.set_yscale("log", base=2)
    if points[0].isdigit():
        axes.set_xscale("log", base=2)
    axes.set_xticks(numbers, [shown(p) for p in points])
    axes.minorticks_off()
    axes.yaxis.set_major_formatter("{x:.0f}")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of the command."""
    parser.add_argument("--methods", default="source,tent,paid")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", default=",".join([*POINTS, "stream"]))
    parser.add_argument("--figure", type=Path, help="draw the curves of the sweeps")


def run(chosen: argparse.Namespace) -> int:
    """Measure the sweeps and print them; there are no goals."""
    torch.set_num_threads(1)
    methods, only = chosen.methods.split(","), chosen.only.split(",")
    found: dict[str, list[Row]] = {}
    for kind in only:
        if kind == "stream":
            head = ["method", "10 rounds / 10 x one", "MB after one", "MB after ten"]
            printed(head, along_the_stream(methods, 10, 40))
            continue
        what, points = POINTS[kind]
        ranked = [name for name in methods if kind != "rank" or name in RANKED]
        found[kind] = list(sweep(points, ranked, chosen.repeats))
        head = [what, *(f"{m} {unit}" for m in ranked for unit in ("ms/image", "MB"))]
        units = [(row.milliseconds, row.megabytes) for row in found[kind]]
        cells = [[f"{u[name]:.0f}" for name in ranked for u in pair] for pair in units]
        printed(head, [[shown(r.point), *c] for r, c in zip(found[kind], cells, strict=True)])
    if chosen.figure and found:
        curves(found, methods, chosen.figure)
    return 0
