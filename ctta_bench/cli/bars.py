"""One bar on stderr for long steps; nothing where nobody watches."""

from collections.abc import Callable
from types import TracebackType

from rich.console import Console
from rich.filesize import decimal
from rich.progress import TaskID

from ctta_bench.cli.console import passing_bar


class StepBar:
    """A bar that shows one step after another; a context manager, so that it always goes away."""

    def __init__(self, *, quiet: bool) -> None:
        console = Console(stderr=True, quiet=quiet)
        self._bar = passing_bar(console, "{task.fields[amount]}")
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
