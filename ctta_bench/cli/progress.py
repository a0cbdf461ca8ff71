"""What a terminal shows while something runs: a bar, or single lines where nobody watches."""

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.filesize import decimal
from rich.progress import (
    BarColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)

from ctta_bench.analysis.read.measure import metric_named, metric_of_task
from ctta_bench.record.schema import CellRecord, ResultRecord
from ctta_bench.run.loggers import Logger


def transient_bar(console: Console, *facts: str) -> Progress:
    """A bar that goes away in the end: what is done, `facts`, time left; nothing off a terminal."""
    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=24),
        *(TextColumn(fact) for fact in facts),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )


class ConsoleProgress(Logger):
    """One bar for a cell: domain, running error, images per second, time left.

    `out_of` is e.g. "3/10 " in a grid. On a console that is no terminal it prints messages alone.
    Notes in `noted` were said before, by the bar of another cell, and are not said again.
    """

    def __init__(
        self, console: Console, name: str, out_of: str = "", noted: list[str] | None = None
    ) -> None:
        self.console = console
        self.noted = [] if noted is None else noted
        self.name = f"{out_of}{name}"
        self.errors = self.images = 0
        self.bar = transient_bar(
            console, "{task.completed:.0f}/{task.total:.0f}", "{task.fields[facts]}"
        )
        self.task: TaskID | None = None

    def _task(self, total: int) -> TaskID:
        if self.task is None:
            self.bar.start()
            self.task = self.bar.add_task(self.name, total=total, facts="")
        return self.task

    def preparing(self, what: str, done: int, total: int) -> None:
        """Show how far the making of data is."""
        task = self._task(total)
        self.bar.update(task, completed=done, total=total, description=what)

    def start(self, folder: Path, cell: CellRecord, done: int, total: int) -> None:
        """Show the bar of the stream."""
        task = self._task(total)
        self.bar.reset(task, total=total, completed=done, description=self.name)
        self.errors = self.images = self.scored = 0
        self.metric = metric_named(metric_of_task(cell["benchmark"]))
        self.began = time.monotonic()

    def batch(self, record: Mapping[str, Any]) -> None:
        """Move the bar by one batch."""
        self.errors += record["errors"]
        self.scored += record[self.metric.count_key]
        self.images += record["n"]
        if self.bar.disable or self.task is None:
            return
        rate = self.images / max(time.monotonic() - self.began, 1e-9)
        mean = self.metric.factor * self.errors / max(1, self.scored)
        error = f"error {self.metric.shown(mean)}"
        facts = f"{record['domain']}  {error}  {rate:.{0 if rate >= 10 else 1}f} img/s"
        self.bar.update(self.task, advance=1, facts=facts)

    def say(self, message: str) -> None:
        """Print a sentence above the bar."""
        self.console.print(message, style="dim", highlight=False)

    def note(self, sentence: str) -> None:
        """Print a note once."""
        if sentence not in self.noted:
            self.noted.append(sentence)
            self.console.print(
                f"note: {sentence}", style="dim", highlight=False, markup=False, soft_wrap=True
            )

    def finish(self, result: ResultRecord | None) -> None:
        """Take the bar away."""
        self.bar.stop()


def state_printer(console: Console, total: int) -> Callable[[int, str, str], None]:
    """A printer of one line a cell for consoles that show no bar."""

    def print_state(number: int, cell: str, state: str) -> None:
        if not (console.is_terminal and state == "running"):
            console.print(
                f"[{number + 1}/{total}] {state:8s} {cell}", highlight=False, markup=False
            )

    return print_state


class StepBar:
    """A bar that shows one step after another; a context manager, so that it always goes away."""

    def __init__(self, *, quiet: bool) -> None:
        console = Console(stderr=True, quiet=quiet)
        self._bar = transient_bar(console, "{task.fields[amount]}")
        self._task: TaskID | None = None
        self._what = ""

    def __enter__(self) -> "StepBar":
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._bar.stop()

    def _show(self, what: str, done: int, total: int, amount: str) -> None:
        if self._bar.disable:
            return
        if self._task is None or what != self._what:
            if self._task is not None:
                self._bar.remove_task(self._task)
            self._task, self._what = self._bar.add_task(what, total=total or None, amount=""), what
        self._bar.update(self._task, completed=done, total=total or None, amount=amount)

    def bytes(self, what: str, done: int, total: int) -> None:
        """Show bytes done of all bytes; total 0 if nobody knows."""
        of = f" of {decimal(total)}" if total else ""
        self._show(what, done, total, f"{decimal(done)}{of}")

    def counted(self, what: str) -> Callable[[int, int], None]:
        """A reporter of things done, of things in all."""
        return lambda done, total: self._show(what, done, total, f"{done}/{total}")

    def named(self, what: str) -> None:
        """Show what is being worked on."""
        self._show(what, 0, 0, "")


class TrainingProgress:
    """A bar of steps with loss and rate, and a line an epoch."""

    def __init__(self, console: Console, name: str) -> None:
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        self.console, self.name = console, name
        self.bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("{task.completed:.0f}/{task.total:.0f}  {task.fields[facts]}"),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self.line = self.bar.add_task(name, total=None, facts="")

    def __enter__(self) -> "TrainingProgress":
        self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.stop()

    def __call__(self, facts: dict[str, Any]) -> None:
        """Show one step."""
        text = f"epoch {facts['epoch']}/{facts['epochs']}  loss {facts['loss']:.3f}"
        self.bar.update(
            self.line,
            completed=facts["step"],
            total=facts["steps"],
            facts=f"{text}  lr {facts['lr']:.2g}",
        )
        if facts["ends_epoch"]:
            from ctta_bench.training.card import TITLES

            tested, title = facts[facts["measure"]], TITLES[facts["measure"]]
            score = "" if tested is None else f"  test {title} {tested:.2f} %"
            self.console.print(f"{self.name}: {text}{score}", highlight=False)
