"""Loggers of a run's progress: JSON lines always, others by name (`--log tensorboard`)."""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ctta_bench.errors import ConfigError
from ctta_bench.record.folder import RunFolder
from ctta_bench.record.schema import BATCHES_FILE, BatchLine, CellRecord, ResultRecord
from ctta_bench.registry import Registry

LOGGERS = Registry("logger", "LOGGERS", "ctta_bench", plain=True)


class Logger:
    """Base class of loggers; override the calls that you need. Loggers never change a result."""

    def preparing(self, what: str, done: int, total: int) -> None:
        """Preparation before the stream: `done` of `total` steps of `what` are done."""

    def start(self, folder: Path, cell: CellRecord, done: int, total: int) -> None:
        """A run starts; `done` of its `total` batches were done before."""

    def batch(self, record: BatchLine) -> None:
        """A batch was scored; `record` is its line in batches.jsonl."""

    def say(self, message: str) -> None:
        """Show the user a message, one sentence."""

    def note(self, sentence: str) -> None:
        """A note about the cell's results, such as a preset made for another model."""

    def finish(self, result: ResultRecord | None) -> None:
        """The run ended, with its result, or None if it was interrupted or failed."""


class JsonLines(Logger):
    """batches.jsonl in the run folder, one line per batch; every run has it."""

    def start(self, folder: Path, cell: CellRecord, done: int, total: int) -> None:
        """Open the file after the `done` lines that the engine has written there."""
        self.file = (folder / BATCHES_FILE).open("a", encoding="utf-8")

    def batch(self, record: Mapping[str, Any]) -> None:
        """Append one line and flush it."""
        self.file.write(json.dumps(record) + "\n")
        self.file.flush()

    def finish(self, result: ResultRecord | None) -> None:
        """Close the file."""
        self.file.close()


@LOGGERS.register_module("tensorboard")
class TensorBoard(Logger):
    """Running error and loss for TensorBoard (extra `tensorboard`), in RUN/tensorboard."""

    def start(self, folder: Path, cell: CellRecord, done: int, total: int) -> None:
        """Open the writer. Raises ConfigError if TensorBoard is not installed."""
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise ConfigError(
                "--log tensorboard needs the extra: pip install 'ctta-bench[tensorboard]'."
            ) from error
        self.writer = SummaryWriter(str(folder / "tensorboard"), purge_step=done)

    def batch(self, record: BatchLine) -> None:
        """Error of the batch in %, and the loss."""
        for name, value in _of_batch(record).items():
            self.writer.add_scalar(name, value, record["batch"])

    def finish(self, result: ResultRecord | None) -> None:
        """Add the error or mIoU of each domain and close."""
        for name, value, number in _of_domains(result):
            self.writer.add_scalar(name, value, number)
        self.writer.close()


@LOGGERS.register_module("wandb")
class WeightsAndBiases(Logger):
    """Weights & Biases (extra `wandb`), in RUN/wandb.

    Offline unless WANDB_MODE is set; `wandb sync RUN/wandb/offline-run-*` uploads it later.
    """

    def start(self, folder: Path, cell: CellRecord, done: int, total: int) -> None:
        """Open an offline run. Raises ConfigError if wandb is not installed."""
        try:
            import wandb
        except ImportError as error:
            raise ConfigError(
                "--log wandb needs the extra: pip install 'ctta-bench[wandb]'."
            ) from error
        mode: Any = os.environ.get("WANDB_MODE", "offline")
        self.run = wandb.init(
            dir=str(folder), project="ctta-bench", name=folder.name, config=cell, mode=mode
        )

    def batch(self, record: BatchLine) -> None:
        """Error of the batch in %, and the loss."""
        self.run.log(_of_batch(record), step=record["batch"])

    def finish(self, result: ResultRecord | None) -> None:
        """Put the error or mIoU of each domain, and the mean, into the summary, and close."""
        for name, value, number in _of_domains(result):
            self.run.summary[f"{name}/{number}"] = value
        if result:
            self.run.summary["mean"] = result["mean"]
        self.run.finish(exit_code=0 if result else 1)


@LOGGERS.register_module("mlflow")
class MLflow(Logger):
    """MLflow (extra `mlflow`), in RUN/mlflow.db, or at MLFLOW_TRACKING_URI if it is set."""

    def start(self, folder: Path, cell: CellRecord, done: int, total: int) -> None:
        """Open a run. Raises ConfigError if MLflow is not installed."""
        try:
            from mlflow.tracking import MlflowClient
        except ImportError as error:
            raise ConfigError(
                "--log mlflow needs the extra: pip install 'ctta-bench[mlflow]'."
            ) from error
        local = f"sqlite:///{(folder / 'mlflow.db').resolve()}"
        self.client = MlflowClient(os.environ.get("MLFLOW_TRACKING_URI", local))
        name = str(cell.get("experiment", "ctta-bench"))
        known = self.client.get_experiment_by_name(name)
        experiment = known.experiment_id if known else self.client.create_experiment(name)
        self.run_id = self.client.create_run(experiment, run_name=folder.name).info.run_id
        self.client.log_param(self.run_id, "cell", folder.name)

    def batch(self, record: BatchLine) -> None:
        """Error of the batch in %, and the loss."""
        for name, value in _of_batch(record).items():
            self.client.log_metric(self.run_id, name, value, step=record["batch"])

    def finish(self, result: ResultRecord | None) -> None:
        """Add the error or mIoU of each domain, and close."""
        for name, value, number in _of_domains(result):
            self.client.log_metric(self.run_id, name, value, step=number)
        self.client.set_terminated(self.run_id, "FINISHED" if result else "FAILED")


def _of_batch(record: BatchLine) -> dict[str, float]:
    """Error of a batch in %, and its loss if it has one."""
    scored = max(1, record.get("pixels", record["n"]))
    values: dict[str, float] = {"error/batch": 100 * record["errors"] / scored}
    return values if record["loss"] is None else values | {"loss": record["loss"]}


def _of_domains(result: ResultRecord | None) -> Iterator[tuple[str, float, int]]:
    """Name, value in % and position of the metric for each domain of each round."""
    metric = result["metric"] if result else ""
    for entry in result["rounds"] if result else ():
        for number, domain in enumerate(entry["domains"]):
            if domain[metric] is not None:
                yield f"{metric}/round{entry['round']}", domain[metric], number


def make_loggers(names: tuple[str, ...]) -> list[Logger]:
    """Create the named loggers, each once. Raises ConfigError for an unknown name."""
    return [LOGGERS.get(name)() for name in dict.fromkeys(names)]


def rewrite_lines(folder: RunFolder, lines: Sequence[Mapping[str, Any]]) -> None:
    """Rewrite batches.jsonl with exactly the `lines` of the checkpoint.

    Batches after the checkpoint are run again; this removes their lines, and incomplete ones.
    """
    text = "".join(json.dumps(line) + "\n" for line in lines)
    folder.file(BATCHES_FILE).write_text(text, encoding="utf-8")
