"""The training loop of source models, with bit-identical resume; writes weights and model card.

Initial weights, order of the images and augmentation depend only on the seed. On one machine, an
interrupted and resumed training gives bit-identical weights.
"""

import hashlib
import io
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import numpy as np
import torch
from filelock import FileLock, Timeout
from timm.optim import create_optimizer_v2
from timm.scheduler import CosineLRScheduler
from torch import Tensor, nn

from ctta_bench.errors import ConfigError, RunError
from ctta_bench.model import SourceModel
from ctta_bench.record.folder import atomic, check_writable
from ctta_bench.run.allocator import reuse_freed_memory
from ctta_bench.run.checkpoint import DeferredInterrupt, Pace
from ctta_bench.stream import MapSet
from ctta_bench.training.batches import TrainingBatches
from ctta_bench.training.card import write_model
from ctta_bench.training.task import Task, first_model

# Called after each step with: step, steps, epoch, epochs, lr, loss, measure, ends_epoch. At the end
# of an epoch, loss is the mean of the epoch, and the key named by `measure` (accuracy or miou) has
# its value in % on the test images (None if there are none).
Report = Callable[[dict[str, Any]], None]
OPTIMISERS = {"adamw": "adamw", "sgd": "momentum", "nesterov": "sgd"}  # timm's sgd is Nesterov's
_DAMAGE = (OSError, RuntimeError, EOFError, ValueError, KeyError, TypeError, UnpicklingError)


@dataclass
class TrainingProgress:
    """Progress of a training: finished steps, sum of losses in the epoch, results of epochs."""

    step: int = 0
    loss_sum: float = 0.0
    history: list[dict[str, float | None]] = field(default_factory=list)


def train_source(
    task: Task,
    out: Path,
    *,
    device: str = "cpu",
    force: bool = False,
    report: Report = lambda facts: None,
    checkpoint_seconds: float = 60.0,
    checkpoint_steps: int | None = None,
) -> dict[str, Any]:
    """Train a source model, write `out` (.safetensors) and its card, and return its record.

    An interrupted training resumes from OUT's `.training.pt`, which is deleted at the end. Raises
    RunError if `out` exists (unless `force`) or if the loss is not finite. A KeyboardInterrupt is
    raised again after a checkpoint.
    """
    check_name(out)
    check_writable(out.parent)
    reuse_freed_memory()
    lock = FileLock(out.with_name(f".{out.stem}.lock"))  # not deleted, as in run folders
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise RunError(f"{out}: another process is training this model.") from None
    try:
        if out.exists() and not force:
            raise RunError(f"{out}: already exists; choose another --out or use --force.")
        training = Training(task, torch.device(device), out.with_suffix(".training.pt"))
        training.resume(force=force)
        training.run(report, Pace(checkpoint_seconds, checkpoint_steps))
        record = write_model(training.model, out, training.facts(), training.score)
        training.file.unlink(missing_ok=True)
        return record
    finally:
        lock.release()


def check_name(out: Path) -> None:
    """Raise ConfigError if a file name does not end in .safetensors."""
    if out.suffix != ".safetensors":
        raise ConfigError(f"--out {out}: the name must end in .safetensors.")


class Training:
    """One training: model, optimiser, schedule, random generators and progress."""

    def __init__(self, task: Task, device: torch.device, file: Path) -> None:
        self.task, self.recipe, self.device, self.file = task, task.recipe, device, file
        torch.manual_seed(task.seed)  # for initial weights and dropout
        # Before the network: a teacher draws from the same generator, as for the shipped weights.
        self.batches = TrainingBatches(task, device)
        self.objective = self.batches.objective
        self.model = first_model(task).to(device)
        self.optimizer = create_optimizer_v2(
            self.model.network.parameters(),
            opt=OPTIMISERS[self.recipe.optimizer],
            lr=self.recipe.lr,
            weight_decay=self.recipe.weight_decay,
            momentum=self.recipe.momentum,
        )
        self.steps = self.batches.steps_per_epoch * self.recipe.epochs
        self.warm_up = math.floor(self.steps * self.recipe.warmup + 1e-6)
        self.schedule = CosineLRScheduler(
            self.optimizer,
            t_initial=max(1, self.steps - self.warm_up),
            warmup_t=self.warm_up,
            warmup_prefix=True,
            t_in_epochs=False,
        )
        self.scaler = torch.amp.GradScaler(
            device.type, enabled=self.recipe.precision == "float16" and device.type == "cuda"
        )
        self.progress = TrainingProgress()

    def run(self, report: Report, pace: Pace) -> None:
        """Do the remaining steps, with checkpoints at `pace` and before an interruption."""
        with DeferredInterrupt() as interrupt:
            while self.progress.step < self.steps:
                for index in self.batches.rest_of_epoch(self.progress.step):
                    loss = self.step(index)
                    self.progress.step += 1
                    facts = self._facts(loss)
                    if facts["ends_epoch"]:
                        facts |= self._end_epoch()
                    report(facts)
                    if interrupt.signal_name or pace.due(self.progress.step):
                        self.save()
                    if interrupt.signal_name and self.progress.step < self.steps:
                        raise KeyboardInterrupt

    def step(self, index: Tensor) -> float:
        """One update on the images of these numbers; returns the loss."""
        done, rising = self.progress.step, self.progress.step < self.warm_up
        # The first step of the warm-up has a learning rate above 0, the last one the full rate.
        self.schedule.step_update(done + 1 if rising else done)
        self.model.train()
        images, targets = self.batches.batch(index)
        dtype = getattr(torch, self.recipe.precision)
        with torch.autocast(self.device.type, dtype, enabled=dtype != torch.float32):
            loss = self.objective.loss(self.model(images), targets, self.recipe.label_smoothing)
        self.optimizer.zero_grad()
        self.scaler.scale(loss).backward()
        if self.recipe.clip:
            self.scaler.unscale_(self.optimizer)
            nn.utils.clip_grad_norm_(self.model.parameters(), self.recipe.clip)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        value = float(loss.detach())
        if not math.isfinite(value):
            raise RunError(f"{self.file}: the loss is {value} at step {done}; lower lr.")
        self.progress.loss_sum += value * len(index)
        return value

    @torch.no_grad()
    def score(self, model: SourceModel) -> float:
        """The measure in % on the test images, or on the training images if there are none."""
        images = self.task.test if self.task.test is not None else self.task.train
        return self.objective.score(model.eval(), images, self.recipe.batch_size)

    def facts(self) -> dict[str, Any]:
        """The values of the model card about the training."""
        test = self.task.test
        return {
            "benchmark": self.task.benchmark,
            "data": {"train": self.batches.images, "test": 0 if test is None else len(test.labels)},
            "recipe": self.recipe.model_dump(),
            "seed": self.task.seed,
            "measure": self.objective.measure,
            "history": self.progress.history,
        }

    # -- epochs and checkpoints

    def _facts(self, loss: float) -> dict[str, Any]:
        step = self.progress.step
        return {
            "step": step,
            "steps": self.steps,
            "epoch": math.ceil(step / self.batches.steps_per_epoch),
            "epochs": self.recipe.epochs,
            "loss": loss,
            "lr": self.optimizer.param_groups[0]["lr"],
            "measure": self.objective.measure,
            "ends_epoch": step % self.batches.steps_per_epoch == 0,
        }

    def _end_epoch(self) -> dict[str, float | None]:
        """Record and return the mean loss of the epoch and the measure on the test images."""
        tested = None if self.task.test is None else self.score(self.model)
        loss = self.progress.loss_sum / self.batches.images
        found = {"loss": loss, self.objective.measure: tested}
        self.progress.history.append(found)
        self.progress.loss_sum = 0.0
        return found

    def identity(self) -> str:
        """Hash of everything that decides the weights; a checkpoint must have the same."""
        task, labels = self.task, np.asarray(self.task.train.labels, np.int64)
        first = np.arange(min(16, len(labels)))
        facts = (task.benchmark, task.model, task.recipe.model_dump_json(), task.seed, task.regime)
        digest = hashlib.sha256(repr(facts).encode() + labels.tobytes())
        digest.update(task.train.load(first).contiguous().numpy().tobytes())
        if isinstance(task.train, MapSet):
            digest.update(task.train.maps(first).contiguous().numpy().tobytes())
        return digest.hexdigest()

    def save(self) -> None:
        """Write the checkpoint, atomically."""
        cuda = torch.cuda.get_rng_state_all() if self.device.type == "cuda" else []
        content = {
            "identity": self.identity(),
            "network": self.model.network.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scaler": self.scaler.state_dict(),
            "course": vars(self.progress),
            "random": [torch.get_rng_state(), *self.batches.state, *cuda],
        }
        buffer = io.BytesIO()
        torch.save(content, buffer)
        with atomic(self.file) as temporary:
            temporary.write_bytes(buffer.getbuffer())

    def resume(self, *, force: bool = False) -> None:
        """Load the checkpoint, if there is one.

        Raises RunError if it is damaged or of another training; with `force` it is ignored instead.
        """
        if not self.file.exists():
            return
        try:
            content = torch.load(self.file, map_location="cpu", weights_only=True)
            if content["identity"] != self.identity():
                raise RunError(
                    f"{self.file}: belongs to a training with another recipe, seed or data; choose "
                    "another --out, or start again with --force."
                )
        except (RunError, *_DAMAGE) as error:
            if force:
                return
            if isinstance(error, RunError):
                raise
            raise RunError(
                f"{self.file}: is damaged ({error}); start again with --force."
            ) from error
        self.model.network.load_state_dict(content["network"])
        self.optimizer.load_state_dict(content["optimizer"])
        self.scaler.load_state_dict(content["scaler"])
        self.progress = TrainingProgress(**content["course"])
        everywhere, now, epoch_start, *cuda = content["random"]
        torch.set_rng_state(everywhere)
        self.batches.state = [now, epoch_start]
        if cuda:
            torch.cuda.set_rng_state_all(cuda)
