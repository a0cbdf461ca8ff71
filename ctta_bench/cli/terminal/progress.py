"""Progress in a terminal: a bar while something runs, single lines where there is no terminal."""

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console, ConsoleOptions, RenderResult
from rich.filesize import decimal
from rich.measure import Measurement
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Column
from rich.text import Text

from ctta_bench.analysis.read.measure import metric_named, metric_of_task
from ctta_bench.cli.command import State, follow_up, print_error, printer
from ctta_bench.errors import counted
from ctta_bench.record.folder import RunFolder
from ctta_bench.record.schema import CellRecord, ResultRecord
from ctta_bench.run.loggers import Logger

if TYPE_CHECKING:
    from ctta_bench.launch.steps import Outcome, Step

MOST_BOARDS = 4  # leaderboards after a grid; `report` prints all
WIDE = 100  # columns from which a bar is long and shows all facts


class Shortened:
    """A text on one line; without room for all of it, its middle becomes an ellipsis."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(min(len(self.text), 8), len(self.text))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text(shorten(self.text, options.max_width), no_wrap=True)


def shorten(text: str, width: int) -> str:
    """A text of at most `width` characters: beginning, ellipsis, end."""
    if len(text) <= width:
        return text
    end = max(0, width - 1) // 2
    return f"{text[: max(0, width - 1 - end)]}…{text[len(text) - end :]}"


class NameColumn(ProgressColumn):
    """What a bar is about, shortened so that the other columns fit."""

    def render(self, task: Task) -> Shortened:
        """The name of a task."""
        return Shortened(task.description)


def transient_bar(console: Console, *facts: str) -> Progress:
    """A bar with name, `facts` and time left, removed at the end; nothing without a terminal."""
    return Progress(
        SpinnerColumn(table_column=Column(no_wrap=True)),
        NameColumn(),
        BarColumn(24 if console.width >= WIDE else 10, table_column=Column(no_wrap=True)),
        *(TextColumn(fact, markup=False) for fact in facts),
        TimeRemainingColumn(table_column=Column(no_wrap=True)),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )


class ConsoleProgress(Logger):
    """One bar for a cell: domain, running error, images per second, time left.

    `out_of` is e.g. "3/10 " in a grid. Without a terminal only messages are printed. Sentences in
    `noted` were printed for an earlier cell, and are not printed again.
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
            State.stop_bar = self.bar.stop
            self.bar.start()
            self.task = self.bar.add_task(self.name, total=total, facts="")
        return self.task

    def preparing(self, what: str, done: int, total: int) -> None:
        """Show how much of the data is made."""
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
        facts = f"{record['domain']}  error {self.metric.shown(mean)}"
        if self.console.width >= WIDE:
            facts += f"  {rate:.{0 if rate >= 10 else 1}f} img/s"
        self.bar.update(self.task, advance=1, facts=facts)

    def say(self, message: str) -> None:
        """Print a sentence above the bar."""
        self.console.print(message, style="dim", highlight=False, markup=False)

    def note(self, sentence: str) -> None:
        """Print a note once."""
        if sentence not in self.noted:
            self.noted.append(sentence)
            self.console.print(
                f"note: {sentence}", style="dim", highlight=False, markup=False, soft_wrap=True
            )

    def finish(self, result: ResultRecord | None) -> None:
        """Remove the bar."""
        self.bar.stop()


def state_printer(
    console: Console, total: int, directory: Path
) -> Callable[[int, "Step", str], None]:
    """A printer of one line per step of a grid: its state, and for a finished one error and time.

    Where a bar shows the running cell, only its end is printed.
    """

    def print_state(number: int, step: "Step", state: str) -> None:
        if console.is_terminal and state == "running":
            return
        State.stop_bar()  # of a cell that failed before its stream
        text = _finished(step, directory) if state == "done" else step.id
        line = f"[{number + 1}/{total}] {state:8s} {text}"
        console.print(line, highlight=False, markup=False, soft_wrap=True)

    return print_state


def _finished(step: "Step", directory: Path) -> str:
    """`tent fashion_c fashion_vit seed 0  error 30.4 %  12 s`."""
    cell = step.record
    of = (cell["method"]["name"], cell["benchmark"]["name"], cell["model"]["name"])
    name = f"{' '.join(of)} seed {cell['seed']}"
    result: Any = RunFolder(directory / step.id).result()
    if step.warms_up:
        return f"warm-up of {name}  {result['seconds']:.0f} s"
    metric, seconds = metric_named(result["metric"]), result.get("cost", {}).get("seconds")
    time = "" if seconds is None else f"  {seconds:.0f} s"
    return f"{name}  {metric.symbol} {metric.shown(result['mean'])}{time}"


class StepBar:
    """A bar that shows one step after another; a context manager, which always removes it."""

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
        """Show the bytes done of all bytes; total 0 if it is unknown."""
        of = f" of {decimal(total)}" if total else ""
        self._show(what, done, total, f"{decimal(done)}{of}")

    def counted(self, what: str) -> Callable[[int, int], None]:
        """A function that shows a number done of a total."""
        return lambda done, total: self._show(what, done, total, f"{done}/{total}")

    def named(self, what: str) -> None:
        """Show the current step, without numbers."""
        self._show(what, 0, 0, "")


class TrainingProgress:
    """A bar of steps with loss and learning rate, and a line per epoch."""

    def __init__(self, console: Console, name: str) -> None:
        self.console, self.name = console, name
        self.bar = transient_bar(
            console, "{task.completed:.0f}/{task.total:.0f}", "{task.fields[facts]}"
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


def print_results(directory: Path) -> None:
    """Print the leaderboard of each protocol; of many protocols the sentences alone."""
    from ctta_bench.analysis.read.collect import load
    from ctta_bench.analysis.report.headline import headline
    from ctta_bench.analysis.table.notes import title
    from ctta_bench.analysis.tables.leaderboard import leaderboard
    from ctta_bench.cli.terminal.console import print_leaderboards

    groups = load(directory, os.cpu_count() or 1).groups()
    sentences = [str(headline(group)) for group in groups]
    if len(groups) <= MOST_BOARDS:
        print_leaderboards([leaderboard(group) for group in groups], sentences)
        return
    for group, sentence in zip(groups, sentences, strict=True):
        printer().print(f"{title(group)}: {sentence}", highlight=False, markup=False)


def print_outcome(outcome: "Outcome", directory: Path, *, submitted: bool) -> None:
    """Print what became of the steps of a grid; exit with 1 if some failed or run elsewhere."""
    warmups = f"{counted(len(outcome.warmups), 'warm-up')} and " if outcome.warmups else ""
    elsewhere = f", {len(outcome.elsewhere)} run elsewhere" if outcome.elsewhere else ""
    if not submitted:
        typer.echo(
            f"{warmups}{counted(len(outcome.done), 'cell')} run, {len(outcome.kept)} were done "
            f"before, {len(outcome.failed)} failed{elsewhere}; tables and figures: "
            f"{follow_up('report', directory)}"
        )
    elif outcome.kept:
        typer.echo(f"{len(outcome.kept)} were done before")
    for cell_id, reason in outcome.failed.items():
        print_error(f"{cell_id}: {reason}", "failed")
    if outcome.failed or outcome.elsewhere:
        raise typer.Exit(1)
