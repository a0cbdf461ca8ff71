"""Batches of a training: order of the images, augmentation and targets."""

import math

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from ctta_bench.source_models.pretrained import load_source_model
from ctta_bench.stream import as_input, labels_of
from ctta_bench.training.objectives import objective_of
from ctta_bench.training.task import Task

IMAGES_PER_PASS = 500  # per forward pass of the teacher


class TrainingBatches:
    """Order and augmentation of a task's images, drawn from one generator with the task's seed.

    Checkpoints contain `state`. The teacher's probabilities are computed once, at creation.
    """

    def __init__(self, task: Task, device: torch.device) -> None:
        self.task, self.recipe, self.device = task, task.recipe, device
        self.objective = objective_of(task.train, task.num_classes, task.recipe)
        self.images = len(task.train.labels)
        self.steps_per_epoch = math.ceil(self.images / task.recipe.batch_size)
        self.generator = torch.Generator().manual_seed(task.seed)
        self.epoch_start = self.generator.get_state()
        self.soft_targets = self._soft_targets()

    @property
    def state(self) -> list[Tensor]:
        """State of the generator now, and before the order of this epoch was drawn."""
        return [self.generator.get_state(), self.epoch_start]

    @state.setter
    def state(self, state: list[Tensor]) -> None:
        now, self.epoch_start = state
        self.generator.set_state(now)

    def rest_of_epoch(self, step: int) -> list[Tensor]:
        """Numbers of the images of each step, from step `step` to the end of its epoch."""
        done = step % self.steps_per_epoch
        current = self.generator.get_state()
        if done == 0:
            self.epoch_start = current
        self.generator.set_state(self.epoch_start)
        order = torch.randperm(self.images, generator=self.generator)
        if done:  # resumed: the permutation was drawn before the interruption
            self.generator.set_state(current)
        return list(order.split(self.recipe.batch_size))[done:]

    def batch(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """Augmented images in [0, 1] and their targets, on the device."""
        images = as_input(self.task.train.load(index.numpy()))
        mirrored = torch.zeros(len(index), dtype=torch.bool)
        if self.recipe.augmentation != "none":
            mirrored = torch.rand(len(index), generator=self.generator) < 0.5
            images = torch.where(mirrored[:, None, None, None], images.flip(-1), images)
        if self.recipe.augmentation == "crop_flip":
            images = shift(images, self.generator)
        targets = self.objective.targets(labels_of(self.task.train, index.numpy()), mirrored)
        if self.soft_targets is not None:
            targets = (targets + self.soft_targets[mirrored.long(), index]) / 2
        if self.recipe.mixup:
            images, targets = mix(images, targets, self.recipe.mixup, self.generator)
        return images.to(self.device), targets.to(self.device)

    @torch.no_grad()
    def _soft_targets(self) -> Tensor | None:
        """The teacher's probabilities [2, n, classes] of the images and their mirror images."""
        if not self.recipe.teacher:
            return None
        teacher = load_source_model(
            self.recipe.teacher, num_classes=self.task.num_classes, root=self.task.root
        )
        teacher = teacher.to(self.device).eval()
        views: list[list[Tensor]] = [[], []]
        for chunk in torch.arange(len(self.task.train.labels)).split(IMAGES_PER_PASS):
            images = as_input(self.task.train.load(chunk.numpy())).to(self.device)
            for view, shown in zip(views, (images, images.flip(-1)), strict=True):
                view.append(teacher(shown).softmax(-1).cpu())
        return torch.stack([torch.cat(view) for view in views])


def mix(
    images: Tensor, targets: Tensor, parameter: float, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Mixup: each image and target with those of another image, all with one share.

    images: [n, c, H, W]; targets: float [n, classes]. The share has a beta distribution with twice
    the same parameter.
    """
    drawn = int(torch.randint(2**31, (), generator=generator))
    share = np.random.RandomState(drawn).beta(parameter, parameter)
    other = torch.randperm(len(images), generator=generator)
    return (
        share * images + (1 - share) * images[other],
        share * targets + (1 - share) * targets[other],
    )


def shift(images: Tensor, generator: torch.Generator) -> Tensor:
    """Images [n, c, H, W], each shifted by up to an eighth of its height and zero-padded."""
    height, width = images.shape[-2:]
    reach = height // 8
    corners = torch.randint(0, 2 * reach + 1, (2, len(images)), generator=generator)
    padded = pad(images, (reach,) * 4)
    rows = corners[0][:, None] + torch.arange(height)
    columns = corners[1][:, None] + torch.arange(width)
    number = torch.arange(len(images))
    # With advanced indices on both sides of the channel axis, numpy-style indexing puts it last.
    return padded[number[:, None, None], :, rows[:, :, None], columns[:, None, :]].movedim(-1, 1)
