"""Progress of an evaluation in a terminal or a notebook, and callbacks by batch."""

import importlib.util
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from ctta_bench.record.schema import CellRecord, ResultRecord
from ctta_bench.run.loggers import Logger

Callback = Callable[[Mapping[str, Any]], None]


def is_shown(progress: bool | None) -> bool:
    """Whether to show a bar: as asked, by default in a notebook and in a terminal."""
    if progress is not None:
        return progress
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return sys.stderr.isatty() or type(shell).__name__ == "ZMQInteractiveShell"


class Bar(Logger):
    """A bar with the domain and the running share of errors; messages above it.

    Where it cannot move (a pipe, or a notebook without ipywidgets), one line per domain.
    """

    def __init__(self, name: str) -> None:
        self.bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(24),
            TextColumn("{task.completed:.0f}/{task.total:.0f} {task.fields[facts]}"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        self.name, self.errors, self.scored, self.domain = name, 0, 0, ""
        console = self.bar.console
        widgets = console.is_jupyter and importlib.util.find_spec("ipywidgets") is not None
        self.moves = widgets or (console.is_terminal and not console.is_jupyter)
        self.task = self.bar.add_task(name, total=1, facts="")

    def preparing(self, what: str, done: int, total: int) -> None:
        """Show how much of the data is made."""
        if self.moves:
            self.bar.start()
        self.bar.update(self.task, completed=done, total=total, description=what)

    def start(self, folder: Path, cell: CellRecord, done: int, total: int) -> None:
        """Show the bar of the stream."""
        if self.moves:
            self.bar.start()
        self.bar.reset(self.task, total=total, completed=done, description=self.name)

    def batch(self, record: Mapping[str, Any]) -> None:
        """Move the bar by one batch."""
        self.errors += record["errors"]
        self.scored += record.get("pixels", record["n"])
        share = 100 * self.errors / max(self.scored, 1)
        facts = f"{record['domain']}, error {share:.1f} %"
        self.bar.update(self.task, advance=1, facts=facts)
        if not self.moves and record["domain"] != self.domain:
            self.domain = record["domain"]
            self.bar.console.print(f"{self.name}: {facts}", markup=False)

    def say(self, message: str) -> None:
        """Print a message above the bar."""
        self.bar.console.print(message, markup=False)

    def finish(self, result: ResultRecord | None) -> None:
        """Remove the bar."""
        if self.moves:
            self.bar.stop()


class Callbacks(Logger):
    """Calls functions with the line of every batch."""

    def __init__(self, functions: Sequence[Callback]) -> None:
        self.functions = functions

    def batch(self, record: Mapping[str, Any]) -> None:
        """Call each function."""
        for function in self.functions:
            function(record)
