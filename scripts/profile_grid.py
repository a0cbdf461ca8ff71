"""Where the time of a grid goes: shares inside the methods' forward and backward passes.

    python scripts/profile_grid.py [quickstart] [--examples 50] [--seeds 0]

Runs the cells of an experiment one after another in this process, into a temporary folder, as
`ctta-bench grid` does, and prints a profile of the processor's time.
"""

import argparse
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

BEGAN = time.process_time()

import torch  # noqa: E402

from ctta_bench.config.experiment import expand, load_experiment  # noqa: E402
from ctta_bench.method import Method  # noqa: E402
from ctta_bench.model import SourceModel  # noqa: E402
from ctta_bench.record.folder import RunFolder  # noqa: E402
from ctta_bench.run import engine  # noqa: E402


class Ledger:
    """Seconds by part; the innermost part that is open gets the time."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self.open = ["the rest of the engine"]
        self.since = time.process_time()

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Time within the block goes to `name`."""
        self._turn()
        self.open.append(name)
        try:
            yield
        finally:
            self._turn()
            self.open.pop()

    def _turn(self) -> None:
        now = time.process_time()
        self.seconds[self.open[-1]] += now - self.since
        self.since = now


def timed(ledger: Ledger, owner: Any, attribute: str, name: str) -> None:
    """Put the time of a function to a part."""
    original: Callable[..., Any] = getattr(owner, attribute)

    def wrapper(*arguments: Any, **options: Any) -> Any:
        with ledger.part(name):
            return original(*arguments, **options)

    setattr(owner, attribute, wrapper)


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("experiment", nargs="?", default="quickstart")
    parser.add_argument("--examples", type=int, default=None, help="images a domain")
    parser.add_argument("--seeds", default="", help="those of the experiment")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    ledger = Ledger()
    timed(ledger, SourceModel, "forward", "forward passes")
    timed(ledger, SourceModel, "features", "forward passes")
    timed(ledger, torch.Tensor, "backward", "backward passes")
    timed(ledger, Method, "__call__", "methods: losses, optimisers, all else")
    timed(ledger, Method, "start", "preparation, before the stream")
    timed(ledger, engine, "source_accuracy", "check of the model on source images")
    timed(ledger, engine, "build_method", "loading models")
    timed(ledger, engine, "build_model", "loading models")
    options: dict[str, Any] = {}
    if arguments.seeds:
        options["seeds"] = tuple(map(int, arguments.seeds.split(",")))
    experiment = load_experiment(arguments.experiment)
    if arguments.examples is not None:
        more = {"benchmark.examples": arguments.examples}
        experiment = experiment.model_copy(update={"set": experiment.set | more})
    with ledger.part("resolving the cells"):
        cells = expand(experiment, **options)
    with tempfile.TemporaryDirectory() as folder:
        for cell in cells:
            engine.run_cell(cell, RunFolder(Path(folder) / cell.id))
    with ledger.part("the end"):
        total = time.process_time() - BEGAN
    ledger.seconds["imports"] = total - sum(ledger.seconds.values())
    print(f"{len(cells)} cells, {total:.1f} s of the processor")
    for name, seconds in sorted(ledger.seconds.items(), key=lambda item: -item[1]):
        print(f"  {100 * seconds / total:5.1f} %  {name}")
    passes = ledger.seconds["forward passes"] + ledger.seconds["backward passes"]
    print(f"forward and backward passes: {100 * passes / total:.1f} %")


if __name__ == "__main__":
    main()
