"""Training a source model where a user has none: resumable to the bit, written with its card.

The first weights, the order of the images and their augmentation depend on the seed alone; on one
machine an interrupted training ends with the bits of one that was not.
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

# Called after each step with: step, steps, epoch, epochs, lr, loss, ends_epoch; at an epoch's end
# loss is the epoch's mean, and what `measure` names (accuracy, miou) is that on the test images, in
# % (None if there are none).
Report = Callable[[dict[str, Any]], None]
OPTIMISERS = {"adamw": "adamw", "sgd": "momentum", "nesterov": "sgd"}  # timm's sgd is Nesterov's
_DAMAGE = (OSError, RuntimeError, EOFError, ValueError, KeyError, TypeError, UnpicklingError)


@dataclass
class TrainingProgress:
    """How far a training is: steps done, the running loss of the epoch, and what epochs gave."""

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
    """Train a source model and write `out` (.safetensors) with its card; returns the card's record.

    An interrupted training goes on from OUT's `.training.pt`, which is gone at the end. Raises
    RunError if `out` is there and not `force`, or if the loss stops being a number;
    KeyboardInterrupt passes after a checkpoint.
    """
    check_name(out)
    check_writable(out.parent)
    reuse_freed_memory()
    lock = FileLock(out.with_name(f".{out.stem}.lock"))  # stays, as a run folder's does
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise RunError(f"{out}: another process is training it.") from None
    try:
        if out.exists() and not force:
            raise RunError(f"{out}: is there already; choose another --out or use --force.")
        training = Training(task, torch.device(device), out.with_suffix(".training.pt"))
        training.resume(force=force)
        training.run(report, Pace(checkpoint_seconds, checkpoint_steps))
        record = write_model(training.model, out, training.facts(), training.score)
        training.file.unlink(missing_ok=True)
        return record
    finally:
        lock.release()


def check_name(out: Path) -> None:
    """Raise ConfigError for the name of a file that weights are not written to."""
    if out.suffix != ".safetensors":
        raise ConfigError(f"--out {out}: name a .safetensors file.")


class Training:
    """One training: model, optimiser, schedule, randomness, and how far it is."""

    def __init__(self, task: Task, device: torch.device, file: Path) -> None:
        self.task, self.recipe, self.device, self.file = task, task.recipe, device, file
        torch.manual_seed(task.seed)  # of the first weights, and of dropout
        # Before the network: a teacher draws from that generator too, as for the shipped weights.
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
        """Take the remaining steps; checkpoints at `pace`, and before an interrupt passes."""
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
        # The first step of a warm-up is not at rate 0, and the last one is at the full rate.
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
            raise RunError(f"{self.file}: the loss is {value} at step {done}; lower the rate (lr).")
        self.progress.loss_sum += value * len(index)
        return value

    @torch.no_grad()
    def score(self, model: SourceModel) -> float:
        """The objective's measure in % on the test images, else on the training images."""
        images = self.task.test if self.task.test is not None else self.task.train
        return self.objective.score(model.eval(), images, self.recipe.batch_size)

    def facts(self) -> dict[str, Any]:
        """What the model's card tells of the training."""
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
        """Mean loss of the epoch and the measure on the test images, kept and returned."""
        tested = None if self.task.test is None else self.score(self.model)
        loss = self.progress.loss_sum / self.batches.images
        found = {"loss": loss, self.objective.measure: tested}
        self.progress.history.append(found)
        self.progress.loss_sum = 0.0
        return found

    def identity(self) -> str:
        """Hash of what decides the bits of the weights; a checkpoint of another one is refused."""
        task, labels = self.task, np.asarray(self.task.train.labels, np.int64)
        first = np.arange(min(16, len(labels)))
        parts = (task.benchmark, task.model, task.recipe.model_dump_json(), task.seed, task.regime)
        digest = hashlib.sha256(repr(parts).encode() + labels.tobytes())
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
        """Go on from the checkpoint, if there is one.

        One that is damaged or of another training is left aside with `force`, else a RunError.
        """
        if not self.file.exists():
            return
        try:
            content = torch.load(self.file, map_location="cpu", weights_only=True)
            if content["identity"] != self.identity():
                raise RunError(
                    f"{self.file}: belongs to a training with another recipe, seed or data; choose "
                    "another --out, or begin anew with --force."
                )
        except (RunError, *_DAMAGE) as error:
            if force:
                return
            if isinstance(error, RunError):
                raise
            raise RunError(
                f"{self.file}: is damaged ({error}); begin anew with --force."
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
