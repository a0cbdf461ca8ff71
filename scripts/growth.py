"""How time and memory grow: with the batch, the rank, the tokens, the model and the stream.

    python scripts/growth.py [--methods tent,paid] [--repeats 3] [--only batch,rank,...]

On random weights and images, one thread; times of one sweep take turns in one process. Prints the
tables of docs/performance.md.
"""

import argparse
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from ctta_bench.measuring.memory import peak_bytes, resting_bytes
from ctta_bench.measuring.scene import Scene, benchmark_of
from ctta_bench.measuring.subjects import Steps
from ctta_bench.measuring.timing import clock, take_turns

SMALL = "timm:vit_small_patch16_224"
POINTS: dict[str, tuple[str, list[dict[str, Any]]]] = {
    "batch": ("images a batch", [{"batch_size": n} for n in (1, 4, 16, 64)]),
    "rank": ("rank of PAID", [{"rank": n} for n in (2, 12, 48)]),
    "tokens": ("pixels of a side", [{"input_size": (n, n)} for n in (224, 384)]),
    "model": (
        "model",
        [{"model": f"timm:vit_{size}_patch16_224"} for size in ("tiny", "small", "base")],
    ),
}


def scene(
    batch_size: int = 4,
    model: str = SMALL,
    input_size: tuple[int, int] | None = None,
    rank: int = 12,
) -> Scene:
    """Random images and weights."""
    return Scene(
        benchmark_of("imagenet_c", {"batch_size": batch_size}, None),
        model,
        torch.device("cpu"),
        "float32",
        random=True,
        input_size=input_size,
        overrides={"paid": {"rank": rank}},
    )


def sweep(
    points: Sequence[Mapping[str, Any]], methods: Sequence[str], repeats: int
) -> Iterator[list[str]]:
    """A row a point: milliseconds an image and MB at most, by method."""
    steps = {
        (number, name): Steps(scene(**point), name)
        for number, point in enumerate(points)
        for name in methods
    }
    works = {f"{number} {name}": s.turn for (number, name), s in steps.items()}
    times = take_turns(works, repeats, clock(torch.device("cpu")))
    for number, point in enumerate(points):
        row = ["x".join(map(str, v)) if isinstance(v, tuple) else str(v) for v in point.values()]
        for name in methods:
            of_method = steps[number, name]
            seconds = statistics.median(times[f"{number} {name}"]) / of_method.images
            peak = peak_bytes(of_method.turn, torch.device("cpu"))
            row += [
                f"{1000 * seconds:.0f}",
                f"{(peak + resting_bytes(of_method.method)) / 1e6:.0f}",
            ]
        yield row


def along_the_stream(methods: Sequence[str], rounds: int, batches: int) -> Iterator[list[str]]:
    """A row a method: time of the last round over that of the first, and bytes of both."""
    fashion = Scene(
        benchmark_of("fashion_c", {"batch_size": 16}, None),
        "fashion_vit",
        torch.device("cpu"),
        "float32",
        random=True,
    )
    for name in methods:
        steps = Steps(fashion, name)
        spent, held, now = [], [], clock(torch.device("cpu"))
        for _ in range(rounds + 1):
            began = now()
            for _ in range(batches):
                steps.turn()
            spent.append(now() - began)
            held.append(resting_bytes(steps.method))
        whole = sum(spent[1:]) / (rounds * spent[1])
        yield [name, f"{whole:.3f}", f"{held[1] / 1e6:.2f}", f"{held[-1] / 1e6:.2f}"]


def printed(head: Sequence[str], rows: Iterator[list[str]]) -> None:
    """A table in Markdown."""
    print("|", " | ".join(head), "|")
    print("|", " | ".join(["---", *["---:"] * (len(head) - 1)]), "|")
    for row in rows:
        print("|", " | ".join(row), "|", flush=True)
    print()


def main() -> None:
    """Measure the sweeps and print them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--methods", default="source,tent,paid")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", default=",".join([*POINTS, "stream"]))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    methods, only = arguments.methods.split(","), arguments.only.split(",")
    for kind in only:
        if kind == "stream":
            head = ["method", "10 rounds / 10 x one", "MB after one", "MB after ten"]
            printed(head, along_the_stream(methods, 10, 40))
            continue
        what, points = POINTS[kind]
        head = [what, *(f"{m} {unit}" for m in methods for unit in ("ms/image", "MB"))]
        printed(head, sweep(points, methods, arguments.repeats))


if __name__ == "__main__":
    main()
