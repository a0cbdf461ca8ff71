"""The warm-up of a method: training on source data before the stream.

It is supervised by default, and it is not adaptation: `ctta-bench` stores it in a folder of its
own, which all cells with the same warm-up share, and reports the warmed-up model in a row of its
own. A method defines what is trained (`warmup_parameters`), the update on one batch (`warm_up`) and
what follows (`warmed_up`). The recipe is in its hyper-parameters (`WarmupHyperparameters`).
"""

import functools
import math
from collections.abc import Iterator, Mapping
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor
from torchvision.transforms import v2

from ctta_bench.errors import MethodError

Method: TypeAlias = Any  # of base.py, which imports this module
MILESTONES, DECAY = (3, 6, 8), 0.2  # of the schedule `steps`, in epochs
RANDOM_STATE = "random_state"  # stored with the parameters: the stream continues it


def warmup_rate(
    schedule: Literal["constant", "cosine", "steps", "linear", "swag"],
    lr: float,
    update: int,
    per_epoch: int,
    cosine_epochs: int = 5,
    total: int = 1,
) -> float:
    """Learning rate of update number `update` (from 0) of `total`, `per_epoch` updates an epoch.

    "cosine" and "steps" are the schedules of the official code of PAID and of the community's
    EcoTTA: the rate rises from 0 in the first epoch. Later epochs have constant rates, which fall
    by half a cosine, or to a fifth after 3, 6 and 8 epochs. "linear", RMT's, rises to the end;
    "swag", PETAL's, rises from 8 % of the rate in the first three fifths.
    """
    epoch, inside = divmod(update, per_epoch)
    if schedule == "constant":
        return lr
    if schedule == "linear":
        return lr * (update + 1) / total
    if schedule == "swag":
        return lr * (0.08 + 0.92 * min(1.0, update / (0.6 * total)))
    if epoch == 0:
        return lr * inside / per_epoch
    if schedule == "steps":
        return lr * DECAY ** sum(epoch >= milestone for milestone in MILESTONES)
    return lr * (1 + math.cos(math.pi * min(epoch / cosine_epochs, 1.0))) / 2


@functools.cache
def _transform(kind: Literal["colour", "crop"], height: int, width: int) -> Any:
    if kind == "crop":
        margins = (width // 8, height // 8)  # 4 pixels of 32
        return v2.Compose([v2.RandomCrop((height, width), margins), v2.RandomHorizontalFlip()])
    return v2.Compose(
        [
            v2.RandomApply([v2.ColorJitter(0.4, 0.4, 0.4, 0.1)], p=0.4),
            v2.RandomApply([v2.GaussianBlur(3, (0.1, 2.0))], p=0.2),
            v2.RandomGrayscale(p=0.1),
        ]
    )


def augmented(images: Tensor, kind: Literal["none", "colour", "crop"]) -> Tensor:
    """Augmented images [n, 3, H, W] in [0, 1], with random draws per image."""
    if kind == "none":
        return images
    transform = _transform(kind, images.shape[-2], images.shape[-1])
    return torch.stack([transform(image) for image in images])


class Warmup:
    """The warm-up of one method, update by update; `finish` returns the trained tensors."""

    def __init__(self, method: Method, source: Any) -> None:
        self.method, self.source, self.hp = method, source, method.hp
        self.per_epoch = -(-len(source) // self.hp.warmup_batch_size)
        self.total = self.hp.warmup_iterations or self.hp.warmup_epochs * self.per_epoch
        self.done = 0
        self.skipped = method.counters["skipped_updates"]
        self._of_stream = method.trainable, method.optimizer
        self.parameters = dict(method.warmup_parameters())
        method.adapt_only(self.parameters)
        method.optimizer = self._optimizer()

    def _optimizer(self) -> torch.optim.Optimizer:
        parameters, lr = self.parameters.values(), self.hp.warmup_lr
        if self.hp.warmup_optimizer == "sgd":
            return torch.optim.SGD(parameters, lr, momentum=0.9)
        return torch.optim.AdamW(parameters, lr, weight_decay=0.0)

    def updates(self) -> Iterator[dict[str, Any]]:
        """Make the remaining updates; yields number, epoch, learning rate and loss of each."""
        while self.done < self.total:
            epoch, first = divmod(self.done, self.per_epoch)
            for images, labels in self._batches(epoch, first):
                yield self._update(images, labels) | {"epoch": epoch}
                if self.done == self.total:
                    return

    def _batches(self, epoch: int, first: int) -> Iterator[tuple[Tensor, Tensor | None]]:
        size = self.hp.warmup_batch_size
        if self.method.warmup_access == "labelled":
            yield from self.source.labelled_batches(size, epoch=epoch, first=first)
        else:
            for images in self.source.batches(size, epoch=epoch, first=first):
                yield images, None

    def _update(self, images: Tensor, labels: Tensor | None) -> dict[str, Any]:
        method, hp = self.method, self.hp
        rate = warmup_rate(
            hp.warmup_schedule,
            hp.warmup_lr,
            self.done,
            self.per_epoch,
            hp.warmup_cosine_epochs,
            self.total,
        )
        for group in method.optimizer.param_groups:
            group["lr"] = rate
        with torch.enable_grad(), method._own_randomness(), method._autocast():
            method.warm_up(augmented(images, hp.warmup_augmentation), labels)
        loss = float("nan") if method.loss is None else float(method.loss)
        line = {"batch": self.done, "lr": rate, "loss": loss if math.isfinite(loss) else None}
        self.done += 1
        method.warmup_updated(self.done, self.total)
        return line

    def state_dict(self) -> dict[str, Any]:
        """The state of the warm-up, as a tree for `torch.save`."""
        return {"done": self.done, "method": self.method.state_dict()}

    def load_state_dict(self, tree: dict[str, Any]) -> None:
        """Resume from a `state_dict` of a warm-up of the same method."""
        self.method._load_state(tree["method"])
        self.done = tree["done"]

    def finish(self) -> dict[str, Tensor]:
        """Prepare the method for the stream; returns the trained tensors for `load_warmed`."""
        method = self.method
        method.optimizer_zero_grad()
        trainable, method.optimizer = self._of_stream
        method.adapt_only(trainable)
        self.skipped = method.counters["skipped_updates"] - self.skipped
        method.counters["skipped_updates"] -= self.skipped  # the stream counts its own
        result = method.warmup_result()
        learnt = {name: value.detach().clone() for name, value in result.items()}
        return learnt | {RANDOM_STATE: method._rng.clone()}


@torch.no_grad()
def load_warmed(method: Method, warmed: Mapping[str, Tensor]) -> None:
    """Load the trained tensors of a warm-up into another object of the same method.

    Raises MethodError if they belong to another method or model.
    """
    tensors = dict(method.warmup_result())
    shapes = {name: value.shape for name, value in tensors.items()}
    found = {name: value.shape for name, value in warmed.items() if name != RANDOM_STATE}
    if found != shapes or RANDOM_STATE not in warmed:
        odd = sorted(k for k in shapes | found if shapes.get(k) != found.get(k)) or [RANDOM_STATE]
        raise MethodError(
            f"{type(method).__name__}: the stored warm-up belongs to another method or model "
            f"({odd[0]} does not fit {method.model.name}); rerun the warm-up with this model."
        )
    for name, tensor in tensors.items():
        tensor.copy_(warmed[name])
    method._rng = warmed[RANDOM_STATE].cpu().clone()
