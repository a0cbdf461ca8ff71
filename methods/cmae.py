"""Continual-MAE (Liu et al., CVPR 2024, arXiv:2312.12480): the network learns its own clean
prediction, and histograms of oriented gradients (HOG), from images without their uncertain patches.

Official code: RanXu2000/continual-mae, its CIFAR-10 form alone. Masked are the patches whose final
token varies most over augmented views; a mask token stands in for their embedding. On the masked
tokens a linear projection reconstructs the HOG of the image itself. Only tensors named weight or
bias learn and are restored, so a ViT's class token and position table stay; projection and mask
token learn and are never restored. The teacher is no average but a copy of the student after its
restoration, and so the student itself before the next step: no second network is kept.

The official projection starts at random and the mask token at zero, without warm-up, and so do ours
unless `warmup_iterations` is set: then both learn on source images, without labels, before a frozen
network.

Differs from the official code, unless `faithful: true`: a reset returns projection and mask token
to their start, too, and a gradient that is rounding noise takes no step (without mask and HOG that
of the cross-entropy is zero, and Adam would make full steps of it).
"""

import contextlib
import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any, Literal

import torch
from pydantic import Field
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn
from torch.nn.functional import interpolate, mse_loss, normalize, pad

from ctta_bench.augment import random_view
from ctta_bench.errors import MethodError
from ctta_bench.method import (
    Method,
    OptimizerHyperparameters,
    SourceAccess,
    soft_cross_entropy,
    stochastic_restore,
)
from ctta_bench.model import SourceModel
from ctta_bench.registry import METHODS

IMAGES_PER_PASS = 64  # views of small batches go through the network together
BINS = 9
CELLS = 2  # of the histograms, along each side of a patch
TARGETS = 3 * BINS * CELLS**2  # 108 values a patch


@METHODS.register_module("cmae")
class ContinualMAE(Method):
    """Consistency with the clean prediction, and reconstruction of HOG, under an uncertain mask."""

    paper = "https://arxiv.org/abs/2312.12480"
    checked_against = "official code"
    source_access: SourceAccess = "unlabelled"
    passes_per_image = (12, 1)  # ten views, masked, clean

    class Hyperparameters(OptimizerHyperparameters):
        """Hyper-parameters of Continual-MAE."""

        optimizer: Literal["sgd", "adam", "adamw"] = Field("adam", description="update rule")
        lr: float = Field(1e-5, ge=0, description="learning rate")
        views: int = Field(10, ge=2, description="n, augmented views that show the uncertainty")
        score: Literal["channel_mean", "logit", "feature_variance"] = Field(
            "channel_mean", description="whose variance over the views is a token's uncertainty"
        )
        mask_ratio: float = Field(0.5, ge=0, le=1, description="ρ, share of patches masked")
        hog_ratio: float = Field(0.5, ge=0, description="weight of the reconstruction; 0: none")
        restore_probability: float = Field(0.01, ge=0, le=1, description="p of a restoration")
        min_gradient_norm: float = Field(1e-6, ge=0, description="no step below this norm")
        warmup_iterations: int = Field(
            0, ge=0, description="steps of projection and mask token on source images"
        )
        warmup_lr: float = Field(1e-3, ge=0, description="AdamW's learning rate in the warm-up")
        warmup_batch_size: int = Field(64, ge=1, description="batch size of the warm-up")
        faithful: bool = Field(False, description="resets and steps as in the official code")

    augment: Callable[[Tensor, tuple[int, int] | None], Tensor]

    def setup(self) -> None:
        """Adapt every weight and bias, with a projection and a mask token beside the network."""
        if not self.hp.warmup_iterations:
            self.source_access = "none"  # only a warm-up reads
        self.cell = patch_side(self.model) // CELLS
        named = self.model.network.named_parameters()
        weights = {n: p for n, p in named if n.rpartition(".")[2] in ("weight", "bias")}
        self.weights = list(weights.values())
        self.source = [parameter.detach().clone() for parameter in self.weights]
        self.beside = self.reconstruction()
        self.adapt_only(weights | self.beside)
        self.optimizer = self.build_optimizer()
        self.augment = random_view

    def reconstruction(self) -> dict[str, nn.Parameter]:
        """The mask token and, unless HOG is left out, the projection."""
        width, like = self.model.network.embed_dim, self.model.mean
        self.mask_token = nn.Parameter(like.new_zeros(1, 1, width))
        found = {"mask_token": self.mask_token}
        if self.hp.hog_ratio:
            self.projection = nn.Linear(width, TARGETS)
            nn.init.trunc_normal_(self.projection.weight, std=0.02)
            nn.init.zeros_(self.projection.bias)
            self.projection.to(like)
            named = self.projection.named_parameters()
            found |= {f"projection.{name}": parameter for name, parameter in named}
        return found

    def prepare(self, source: Any) -> None:
        """Train projection and mask token on source images, if there is a warm-up."""
        if self.hp.warmup_iterations and self.hp.hog_ratio:
            self.warm_up(source)

    @torch.enable_grad()
    def warm_up(self, source: Any) -> None:
        """Reconstruction alone, masked as on the stream, by AdamW; the network stays."""
        everything, optimizer = self.trainable, self.optimizer
        self.adapt_only(self.beside)
        self.optimizer = torch.optim.AdamW(
            self.beside.values(), self.hp.warmup_lr, weight_decay=0.0
        )
        epochs = (source.batches(self.hp.warmup_batch_size) for _ in itertools.count())
        stream = itertools.chain.from_iterable(epochs)
        for images in itertools.islice(stream, self.hp.warmup_iterations):
            images = self.resized(images)
            mask = self.mask(images)
            _, tokens = self.masked_pass(images, mask)
            self.step(self.reconstruction_loss(tokens, images, mask))
        self.adapt_only(everything)
        self.optimizer, self.loss = optimizer, None

    def adapt(self, images: Tensor) -> Tensor:
        """One step from the masked images towards the clean prediction, which is returned."""
        images = self.resized(images)
        mask = self.mask(images)
        with torch.no_grad():
            target = self.model(images)
        logits, tokens = self.masked_pass(images, mask)
        loss = soft_cross_entropy(logits, target).mean()
        if self.hp.hog_ratio and bool(mask.any()):
            loss = loss + self.hp.hog_ratio * self.reconstruction_loss(tokens, images, mask)
        if self.learn(loss):
            self.restore()  # the next batch's teacher is the restored student
        return target

    def resized(self, images: Tensor) -> Tensor:
        """Images at the network's input size, to whose patches mask and histograms belong."""
        size = self.model.preprocessing.size
        if size is None or tuple(images.shape[-2:]) == size:
            return images
        return interpolate(images, size=size, mode="bilinear", align_corners=False)

    @torch.no_grad()
    def mask(self, images: Tensor) -> Tensor:
        """The most uncertain patches of each image, int(ρ N) of N, as bool [n, N]."""
        uncertainty = self.uncertainty(images)
        count = int(self.hp.mask_ratio * uncertainty.shape[1])
        chosen = uncertainty.argsort(dim=1, descending=True, stable=True)[:, :count]
        return torch.zeros_like(uncertainty, dtype=torch.bool).scatter_(1, chosen, True)

    def uncertainty(self, images: Tensor) -> Tensor:
        """Variance [n, N] of each place's score over the views, which are not moved back."""
        together = max(1, IMAGES_PER_PASS // len(images))
        scores = []
        for first in range(0, self.hp.views, together):
            count = min(together, self.hp.views - first)
            size = self.model.preprocessing.size
            views = torch.cat([self.augment(images, size) for _ in range(count)])
            _, tokens = self.forward(views)
            scores.append(self.scored(tokens).to(images.dtype).unflatten(0, (count, -1)))
        return torch.cat(scores).var(0).mean(-1)

    def scored(self, tokens: Tensor) -> Tensor:
        """What of the tokens [n, N, d] is compared over the views, [n, N, values]."""
        if self.hp.score == "channel_mean":
            # After a norm it carries only what the norm's weights leave: taken as published.
            return tokens.mean(-1, keepdim=True)
        return self.model.classifier(tokens) if self.hp.score == "logit" else tokens

    def masked_pass(self, images: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """`forward` with the mask token for the embedding of masked patches [n, N]."""

        def hide(module: nn.Module, inputs: Any, embedded: Tensor) -> Tensor:
            hidden = mask.view(*embedded.shape[:-1], 1)  # before the position is added
            return torch.where(hidden, self.mask_token.to(embedded.dtype), embedded)

        # Half precision would go on with copies of the weights that were made without gradients.
        torch.clear_autocast_cache()
        with hooked(self.model.network.patch_embed, hide):
            return self.forward(images)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Logits [n, classes] and the patches' tokens [n, N, d] after the final norm.

        The tokens are of the images' precision, also where half of it is computed in.
        """
        seen: list[Tensor] = []
        with hooked(self.model.network.norm, lambda module, inputs, tokens: seen.append(tokens)):
            logits = self.model(images)
        return logits, seen[0][:, self.model.network.num_prefix_tokens :].to(images.dtype)

    def reconstruction_loss(self, tokens: Tensor, images: Tensor, mask: Tensor) -> Tensor:
        """Mean square error of the projected masked tokens against their patches' histograms."""
        target = self.patch_targets(self.hog(images, self.cell))[mask]
        return mse_loss(self.projection(tokens[mask]).to(target.dtype), target)

    @staticmethod
    @torch.no_grad()
    def hog(images: Tensor, cell: int) -> Tensor:
        """Histograms of oriented gradients [n, 3, 9, H / cell, W / cell] of images [n, 3, H, W].

        Nine bins of unsigned direction, weighted by magnitude without interpolation; each histogram
        has length 1, or 0 where nothing changes.
        """
        # Slices rather than a convolution, which autocast and TF32 would round to few bits; and
        # differences before sums, so that equal pixels give exactly zero.
        padded = pad(images, (1, 1, 1, 1), mode="reflect")
        across = padded[..., :-2] - padded[..., 2:]
        along = padded[..., :-2, :] - padded[..., 2:, :]
        dx = across[..., :-2, :] + 2 * across[..., 1:-1, :] + across[..., 2:, :]
        dy = along[..., :-2] + 2 * along[..., 1:-1] + along[..., 2:]
        turns = torch.atan2(dx, dy) / math.pi * BINS
        bins = turns.nan_to_num().floor().long() % BINS
        magnitude = torch.hypot(dx, dy).unsqueeze(2)
        shape = (*images.shape[:2], BINS, *images.shape[2:])
        votes = images.new_zeros(shape).scatter_(2, bins.unsqueeze(2), magnitude)
        sums = votes.unflatten(-1, (-1, cell)).sum(-1).unflatten(-2, (-1, cell)).sum(-2)
        return normalize(sums, dim=2)

    @staticmethod
    def patch_targets(histograms: Tensor) -> Tensor:
        """What each patch is to give, [n, N, 108], from `hog`.

        Of its 2 x 2 cells, at index ((colour · 9 + bin) · 2 + row) · 2 + column.
        """
        cells = histograms.unflatten(-1, (-1, CELLS)).unflatten(-3, (-1, CELLS))
        return cells.permute(0, 3, 5, 1, 2, 4, 6).flatten(3).flatten(1, 2)

    def learn(self, loss: Tensor) -> bool:
        """One step, or none on rounding noise; False if the update is to be left out as a whole."""
        if not self.backward(loss):
            return False
        if not self.hp.faithful and bool(self.gradient_norm() < self.hp.min_gradient_norm):
            self.optimizer_zero_grad()
            return True
        return self.optimizer_step()

    def restore(self) -> None:
        """Set a random share p of the network's adapted scalars back to the source."""
        stochastic_restore(self.weights, self.source, self.hp.restore_probability)

    def reset(self) -> None:
        """Back to the start; the official code keeps projection and mask token."""
        last = [parameter.detach().clone() for parameter in self.beside.values()]
        super().reset()
        if self.hp.faithful:
            for parameter, value in zip(self.beside.values(), last, strict=True):
                parameter.data.copy_(value)


def patch_side(model: SourceModel) -> int:
    """Side in pixels of a ViT's patches. Raises MethodError if they or the network do not serve."""
    if not isinstance(model.network, VisionTransformer):
        raise MethodError(
            f"Continual-MAE cannot serve {model.name}: it masks the patch embedding of a timm "
            "VisionTransformer, which this model is not."
        )
    height, width = model.network.patch_embed.patch_size
    if height != width or height % CELLS:
        raise MethodError(
            f"Continual-MAE cannot serve {model.name}: it needs square patches of an even side "
            f"for the cells of its histograms, not {height} x {width}."
        )
    return height


@contextlib.contextmanager
def hooked(module: nn.Module, hook: Callable[..., Any]) -> Iterator[None]:
    """Within the block `hook` sees, and may replace, what `module` gives."""
    handle = module.register_forward_hook(hook)
    try:
        yield
    finally:
        handle.remove()
