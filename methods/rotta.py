"""RoTTA (Yuan et al., CVPR 2023, arXiv:2303.13899): a memory that is balanced over the predicted
classes, and an averaged teacher that is scored.

Official code: BIT-DA/RoTTA, which supports BatchNorm only: α updates its statistics with those of
the memory, and a norm uses the updated ones. The LayerNorm form is that of
mariodoebler/test-time-adaptation. Updates are made after a fixed number of images, also within a
batch; they never change the logits of the current batch. Images whose logits are not finite do not
enter the memory, which they damage in the official code.
"""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ctta_bench.method import Method, OptimizerHyperparameters, ema_update, soft_cross_entropy
from ctta_bench.model import BATCH_NORMS, SourceModel
from ctta_bench.parts.views.batch import random_view
from ctta_bench.registry import METHODS


@dataclass
class Item:
    """An image [3, H, W] of the memory, its predicted class, its uncertainty, and its age."""

    image: Tensor
    label: int
    uncertainty: float
    age: int = 0


class RobustNorm(nn.Module):
    """A BatchNorm that in training mode updates its statistics by α and uses the updated ones."""

    def __init__(self, norm: _BatchNorm, rate: float) -> None:
        super().__init__()
        self.mean: Tensor
        self.var: Tensor
        self.rate, self.eps = rate, norm.eps
        self.weight, self.bias = norm.weight, norm.bias
        self.register_buffer("mean", norm.get_buffer("running_mean").clone())
        self.register_buffer("var", norm.get_buffer("running_var").clone())
        # timm's BatchNorm may carry the activation that follows it.
        followers = [getattr(norm, name, None) for name in ("drop", "act")]
        self.after = nn.Sequential(*[f for f in followers if f is not None])

    def forward(self, x: Tensor) -> Tensor:
        """x [n, channels, ...] normalised; the gradient passes through the batch's statistics."""
        mean, var = self.mean, self.var
        if self.training:
            axes = [axis for axis in range(x.ndim) if axis != 1]
            batch_var, batch_mean = torch.var_mean(x.to(mean.dtype), axes, correction=0)
            mean = (1 - self.rate) * mean + self.rate * batch_mean
            var = (1 - self.rate) * var + self.rate * batch_var
            self.mean.copy_(mean.detach())
            self.var.copy_(var.detach())
        shape = (1, -1) + (1,) * (x.ndim - 2)
        scale = self.weight / (var + self.eps).sqrt()
        shift = self.bias - mean * scale
        return self.after(x * scale.view(shape) + shift.view(shape))


def make_robust(network: nn.Module, rate: float) -> bool:
    """Replace every BatchNorm that has statistics and a scale by a RobustNorm.

    Returns whether there was any.
    """
    found = {
        name: module
        for name, module in network.named_modules()
        if isinstance(module, BATCH_NORMS) and module.affine and module.track_running_stats
    }
    for name, module in found.items():
        network.set_submodule(name, RobustNorm(module, rate).train(module.training))
    return bool(found)


@METHODS.register_module("rotta")
class RoTTA(Method):
    """Self-training on a balanced, up-to-date memory with an averaged teacher."""

    display_name = "RoTTA"
    year = 2023
    venue = "CVPR"
    citation = "yuan2023rotta"
    adapts_layers = "norm layers, with a memory and a teacher"
    losses = "cross-entropy to the teacher, weighted by age"
    extra_memory = "teacher and 64 images"
    paper = "https://arxiv.org/abs/2303.13899"
    checked_against = "official code and one more (LayerNorm)"
    passes_per_image = (3, 1)  # with a full memory
    search_space = {"lr": (1e-5, 1e-1), "teacher_rate": [0.001, 0.01, 0.05]}
    checked_with = {"memory_size": 1, "update_every": 1}  # full from the first image on

    class Hyperparameters(OptimizerHyperparameters):
        """Hyper-parameters of RoTTA."""

        optimizer: Literal["sgd", "adam", "adamw"] = Field("adam", description="update rule")
        memory_size: int = Field(64, ge=1, description="N, images in the memory")
        update_every: int = Field(64, ge=1, description="images between two updates")
        teacher_rate: float = Field(0.001, ge=0, le=1, description="ν, rate of the teacher's EMA")
        statistics_rate: float = Field(0.05, ge=0, le=1, description="α of BatchNorm's statistics")
        age_weight: float = Field(1.0, ge=0, description="λ_t of an image's age")
        uncertainty_weight: float = Field(1.0, ge=0, description="λ_u of an image's uncertainty")

    def setup(self) -> None:
        """Adapt the affine parameters of every norm layer; copy the teacher; an empty memory."""
        self.adapt_only(self.model.norm_parameters())
        if make_robust(self.model.network, self.hp.statistics_rate):
            self.norm_statistics = "moving"
        self.optimizer = self.build_optimizer()
        self.teacher = self.frozen_copy()
        self.augment = random_view
        self.memory: list[Item] = []
        self.seen = 0

    def adapt(self, images: Tensor) -> Tensor:
        """Add the images to the memory one by one, with updates; returns the teacher's logits."""
        logits = self.predict(images)
        p = logits.softmax(-1, dtype=torch.promote_types(logits.dtype, torch.float32))
        uncertainties = -(p * (p + 1e-6).log()).sum(-1)
        if not bool(uncertainties.isfinite().all()):
            self.skip_update()
        labels = p.argmax(-1).tolist()
        for image, label, value in zip(images, labels, uncertainties.tolist(), strict=True):
            self.insert(image, label, value)
            self.seen += 1
            if self.seen % self.hp.update_every == 0:
                self.update()
        return logits

    @property
    def scored_model(self) -> SourceModel:
        """The teacher."""
        return self.teacher

    @torch.no_grad()
    def predict(self, images: Tensor) -> Tensor:
        """The teacher's logits."""
        return self.teacher(images)

    # -- memory

    def insert(self, image: Tensor, label: int, uncertainty: float) -> None:
        """Add the image if there is room or a worse one to replace; then increase all ages."""
        if math.isfinite(uncertainty) and self.make_room(label, self.score(0, uncertainty)):
            self.memory.append(Item(image.clone(), label, uncertainty))
        for item in self.memory:
            item.age += 1

    def make_room(self, label: int, score: float) -> bool:
        """Whether an image of this class and score may enter; removes the one that it replaces."""
        counts = [0] * self.model.num_classes
        for item in self.memory:
            counts[item.label] += 1
        if counts[label] < self.hp.memory_size / len(counts):
            if len(self.memory) < self.hp.memory_size:
                return True
            largest = max(counts)
            candidates = [item for item in self.memory if counts[item.label] == largest]
        else:
            candidates = [item for item in self.memory if item.label == label]
        # Of equals the last one, class by class, as in the official loop.
        candidates.sort(key=lambda item: item.label)
        worst = max(reversed(candidates), key=lambda item: self.score(item.age, item.uncertainty))
        if self.score(worst.age, worst.uncertainty) <= score:
            return False
        self.memory = [item for item in self.memory if item is not worst]
        return True

    def score(self, age: int, uncertainty: float) -> float:
        """λ_t / (1 + e^(-A/N)) + λ_u U / ln C; images with a high score are replaced first."""
        timeliness = 1 / (1 + math.exp(-age / self.hp.memory_size))
        relative = uncertainty / math.log(self.model.num_classes)
        return self.hp.age_weight * timeliness + self.hp.uncertainty_weight * relative

    # -- update

    def update(self) -> None:
        """One step of the student on the memory, then the teacher's EMA update by ν."""
        if not self.memory:
            return
        images = torch.stack([item.image for item in self.memory])
        self.model.train()
        self.teacher.train()
        stepped = self.step(self.total_loss(images))
        self.model.eval()
        self.teacher.eval()
        if stepped:
            teacher, student = self.teacher.parameters(), self.model.parameters()
            ema_update(teacher, student, 1 - self.hp.teacher_rate)

    def total_loss(self, images: Tensor) -> Tensor:
        """The student's cross-entropy on one view to the teacher; younger images weigh more."""
        with torch.no_grad():
            target = self.teacher(images)
        logits = self.model(self.augment(images, self.model.preprocessing.size))
        return (self.sample_weights().to(images.device) * soft_cross_entropy(logits, target)).mean()

    def sample_weights(self) -> Tensor:
        """e^(-A/N) / (1 + e^(-A/N)) of each image, in (0, 1/2]."""
        # In float32 for every precision of the run, as in both official codes: a comparison in
        # float64 would show the difference.
        ages = torch.tensor([item.age / self.hp.memory_size for item in self.memory])
        decay = (-ages.float()).exp()
        return decay / (1 + decay)
