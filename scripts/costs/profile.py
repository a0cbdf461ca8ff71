"""Shares of a grid's time: forward and backward passes of methods, and everything else.

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

import torch

from ctta_bench.config.experiment import expand, load_experiment
from ctta_bench.method import Method
from ctta_bench.model import SourceModel
from ctta_bench.record.folder import RunFolder
from ctta_bench.run import engine
from ctta_bench.run.open import OpenCell
from ctta_bench.source_models.shared import Models


class Ledger:
    """Seconds by section; time counts for the innermost open section."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self.open = ["the rest of the engine"]
        self.since = time.process_time()

    @contextmanager
    def section(self, name: str) -> Iterator[None]:
        """Time within the block counts for `name`."""
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
    """Count the time of a function for the section `name`."""
    original: Callable[..., Any] = getattr(owner, attribute)

    def wrapper(*arguments: Any, **options: Any) -> Any:
        with ledger.section(name):
            return original(*arguments, **options)

    setattr(owner, attribute, wrapper)


# Functions, as the engine calls them, and the section for which their time counts.
SECTIONS: tuple[tuple[Any, str, str], ...] = (
    (SourceModel, "forward", "forward passes"),
    (SourceModel, "features", "forward passes"),
    (torch.Tensor, "backward", "backward passes"),
    (Method, "__call__", "methods: losses, optimisers, all else"),
    (Method, "start", "preparation, before the stream"),
    (engine, "source_accuracy", "check of the model on source images"),
    (OpenCell, "model", "copies of models"),
    (OpenCell, "method", "copies of models"),
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of the command."""
    parser.add_argument("experiment", nargs="?", default="quickstart")
    parser.add_argument("--examples", type=int, default=None, help="images per domain")
    parser.add_argument("--seeds", default="", help="default: those of the experiment")


def run(chosen: argparse.Namespace) -> int:
    """Run and print; there are no goals."""
    torch.set_num_threads(1)
    ledger = Ledger()
    for owner, attribute, name in SECTIONS:
        timed(ledger, owner, attribute, name)
    options: dict[str, Any] = {}
    if chosen.seeds:
        options["seeds"] = tuple(map(int, chosen.seeds.split(",")))
    experiment = load_experiment(chosen.experiment)
    if chosen.examples is not None:
        more = {"benchmark.examples": chosen.examples}
        experiment = experiment.model_copy(update={"set": experiment.set | more})
    with ledger.section("resolving the cells"):
        models = Models(several=True)
        cells = expand(experiment, models=models, **options)
    with tempfile.TemporaryDirectory() as folder:
        for cell in cells:
            engine.run_cell(cell, RunFolder(Path(folder) / cell.id), models=models)
    with ledger.section("the end"):
        total = time.process_time()
    ledger.seconds["imports"] = total - sum(ledger.seconds.values())
    print(f"{len(cells)} cells, {total:.1f} s of the processor")
    for name, seconds in sorted(ledger.seconds.items(), key=lambda item: -item[1]):
        print(f"  {100 * seconds / total:5.1f} %  {name}")
    passes = ledger.seconds["forward passes"] + ledger.seconds["backward passes"]
    print(f"forward and backward passes: {100 * passes / total:.1f} %")
    return 0
