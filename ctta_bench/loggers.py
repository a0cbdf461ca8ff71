"""Where a run's progress goes: JSON lines always, others by name (`--log tensorboard`)."""

import json
from pathlib import Path
from typing import Any

from ctta_bench.errors import ConfigError
from ctta_bench.record import RunFolder
from ctta_bench.registry import Registry

LOGGERS = Registry("logger", "LOGGERS", "ctta_bench")


class Logger:
    """Base of all loggers: every call is optional. Loggers never change a result."""

    def preparing(self, what: str, done: int, total: int) -> None:
        """Data is being made before a run."""

    def start(self, folder: Path, cell: dict[str, Any], done: int, total: int) -> None:
        """A run begins, `done` of `total` batches lie behind."""

    def batch(self, record: dict[str, Any]) -> None:
        """A batch was scored; `record` is its line of batches.jsonl."""

    def say(self, message: str) -> None:
        """Something that a user should read, a sentence."""

    def note(self, sentence: str) -> None:
        """Something to know beside the cell's numbers, such as whose preset it takes."""

    def finish(self, result: dict[str, Any] | None) -> None:
        """The run ended: with its result, or None if it was interrupted or failed."""


class JsonLines(Logger):
    """batches.jsonl in the run folder, a line a batch; every run has it."""

    def start(self, folder: Path, cell: dict[str, Any], done: int, total: int) -> None:
        """Open the file behind the `done` lines that the engine has laid there."""
        self.file = (folder / "batches.jsonl").open("a", encoding="utf-8")

    def batch(self, record: dict[str, Any]) -> None:
        """Append one line and hand it to the system."""
        self.file.write(json.dumps(record) + "\n")
        self.file.flush()

    def finish(self, result: dict[str, Any] | None) -> None:
        """Close the file."""
        self.file.close()


@LOGGERS.register_module("tensorboard")
class TensorBoard(Logger):
    """Running error and loss for TensorBoard (extra `tensorboard`), in RUN/tensorboard."""

    def start(self, folder: Path, cell: dict[str, Any], done: int, total: int) -> None:
        """Open the writer. Raises ConfigError if TensorBoard is not installed."""
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise ConfigError(
                "--log tensorboard needs the extra: pip install 'ctta-bench[tensorboard]'."
            ) from error
        self.writer = SummaryWriter(str(folder / "tensorboard"), purge_step=done)

    def batch(self, record: dict[str, Any]) -> None:
        """Error of the batch in %, and the loss."""
        step = record["batch"]
        scored = max(1, record.get("pixels", record["n"]))
        self.writer.add_scalar("error/batch", 100 * record["errors"] / scored, step)
        if record["loss"] is not None:
            self.writer.add_scalar("loss", record["loss"], step)

    def finish(self, result: dict[str, Any] | None) -> None:
        """Add the error or mIoU of each domain and close."""
        metric = result["metric"] if result else ""
        for entry in result["rounds"] if result else ():
            for number, domain in enumerate(entry["domains"]):
                if domain[metric] is not None:
                    self.writer.add_scalar(
                        f"{metric}/round{entry['round']}", domain[metric], number
                    )
        self.writer.close()


def make_loggers(names: tuple[str, ...]) -> list[Logger]:
    """The named loggers, each once. Raises ConfigError for an unknown name."""
    return [LOGGERS.get(name)() for name in dict.fromkeys(names)]


def lay_lines(folder: RunFolder, lines: list[dict[str, Any]]) -> int:
    """Make batches.jsonl hold exactly `lines`; returns how many lines were there before.

    The checkpoint is the truth: what was appended after it is played again, what a crash cut off
    is written anew.
    """
    file = folder.file("batches.jsonl")
    before = file.read_bytes().count(b"\n") if file.exists() else 0
    text = "".join(json.dumps(line) + "\n" for line in lines)
    file.write_text(text, encoding="utf-8")
    return before
