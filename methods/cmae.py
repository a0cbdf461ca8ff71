"""Continual-MAE (Liu et al., CVPR 2024, arXiv:2312.12480): with uncertain patches masked, the
network learns its own prediction of the clean image and reconstructs histograms of oriented
gradients (HOG).

Official code: RanXu2000/continual-mae, which has the CIFAR-10 form only. Masked are the patches
whose final token varies most over augmented views; a mask token replaces their embedding. On the
masked tokens a linear projection reconstructs the HOG of the unmasked image. Only tensors named
weight or bias learn and are restored, so a ViT's class token and position table stay fixed;
projection and mask token learn and are never restored. The teacher is not an average but a copy of
the student after its restoration, that is the student before the next step: no second network is
stored.

The form for segmentation is in cmae_maps.py.

The projection starts at random and the mask token at zero, as in the official code. Only with
`warmup_iterations` do both learn on unlabelled source images first, with the network frozen.

Differs from the official code, unless `faithful: true`: a reset also returns projection and mask
token to their start; and a gradient that is rounding noise makes no step (without mask and HOG the
gradient of the cross-entropy is zero, and Adam would turn it into full steps).
"""

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import interpolate, mse_loss

from ctta_bench.errors import MethodError
from ctta_bench.method import (
    Method,
    OptimizerHyperparameters,
    WarmupHyperparameters,
    soft_cross_entropy,
    stochastic_restore,
)
from ctta_bench.model import SourceModel
from ctta_bench.parts.hog import CELLS, TARGETS, oriented_gradients, patch_targets
from ctta_bench.parts.views.batch import random_view
from ctta_bench.parts.views.passes import Augment, over_views
from ctta_bench.registry import METHODS


@METHODS.register_module("cmae")
class ContinualMAE(Method):
    """Uncertain patches are masked: consistent predictions, and HOG features reconstructed."""

    display_name = "C-MAE"
    year = 2024
    venue = "CVPR"
    citation = "liu2024cmae"
    adapts_layers = "all weights, by masked reconstruction"
    losses = "cross-entropy to the clean image's prediction, reconstruction of HOG"
    extra_memory = "a projection and a mask token"
    paper = "https://arxiv.org/abs/2312.12480"
    checked_against = "official code"
    warmup_access = "unlabelled"
    stream_only = frozenset({"restore_probability", "min_gradient_norm", "faithful"})
    tasks = frozenset({"classification", "segmentation"})
    passes_per_image = (12, 1)  # ten views, masked, clean
    search_space = {"lr": (1e-7, 1e-3)}
    segmentation_form = "cmae_maps:ContinualMAEMaps"

    class Hyperparameters(OptimizerHyperparameters, WarmupHyperparameters):
        """Hyper-parameters of Continual-MAE."""

        optimizer: Literal["sgd", "adam", "adamw"] = Field("adam", description="update rule")
        lr: float = Field(1e-5, ge=0, description="learning rate")
        views: int = Field(
            10, ge=2, description="n, views (segmentation: passes of the head) per uncertainty"
        )
        score: Literal["channel_mean", "logit", "feature_variance"] = Field(
            "channel_mean", description="whose variance over the views is a token's uncertainty"
        )
        mask_ratio: float = Field(0.5, ge=0, le=1, description="ρ, share of masked patches")
        hog_ratio: float = Field(0.5, ge=0, description="weight of the reconstruction; 0: none")
        restore_probability: float = Field(0.01, ge=0, le=1, description="p of the restoration")
        min_gradient_norm: float = Field(1e-6, ge=0, description="no step below this norm")
        warmup_iterations: int = Field(
            0, ge=0, description="warm-up steps of projection and mask token on source images"
        )
        warmup_lr: float = Field(1e-3, ge=0, description="AdamW's learning rate in the warm-up")
        warmup_batch_size: int = Field(64, ge=1, description="batch size of the warm-up")
        faithful: bool = Field(False, description="reset and step as the official code does")

        @property
        def warms_up(self) -> bool:
            """False without reconstruction: then there is nothing to train."""
            return super().warms_up and self.hog_ratio > 0

    augment: Augment = staticmethod(random_view)

    def setup(self) -> None:
        """Adapt every weight and bias of the network, and a projection and a mask token."""
        side, width = patch_side(self.model, asked_by=self.title), self.model.network.embed_dim
        self.adapt_with(side // CELLS, embedded=width, seen=width)

    def adapt_with(self, cell: int, *, embedded: int, seen: int) -> None:
        """Adapt the network; reconstruct histograms of cells with a side of `cell` pixels.

        `embedded` is the width of the masked tokens, `seen` the width of the projection's input.
        """
        self.cell = cell
        weights = self.model.weight_parameters()
        self.restored = list(weights.values())
        self.source = [weight.detach().clone() for weight in self.restored]
        self.beside = self.reconstruction(embedded, seen)
        self.adapt_only(weights | self.beside)
        self.optimizer = self.build_optimizer()

    def reconstruction(self, embedded: int, seen: int) -> dict[str, nn.Parameter]:
        """The mask token and, if there is a HOG loss, the projection."""
        like = self.model.mean
        self.mask_token = nn.Parameter(like.new_zeros(1, 1, embedded))
        found = {"mask_token": self.mask_token}
        if self.hp.hog_ratio:
            self.projection = nn.Linear(seen, TARGETS)
            nn.init.trunc_normal_(self.projection.weight, std=0.02)
            nn.init.zeros_(self.projection.bias)
            self.projection.to(like)
            named = self.projection.named_parameters()
            found |= {f"projection.{name}": parameter for name, parameter in named}
        return found

    def warmup_parameters(self) -> dict[str, nn.Parameter]:
        """Mask token and projection; the network is frozen."""
        return self.beside

    def warm_up(self, images: Tensor, labels: Tensor | None) -> None:
        """One step on the reconstruction loss only, masked as on the stream."""
        images = self.resized(images)
        mask = self.mask(images)
        _, tokens = self.masked_pass(images, mask)
        self.step(self.reconstruction_loss(tokens, images, mask))

    def adapt(self, images: Tensor) -> Tensor:
        """One step of the masked prediction towards the clean one; returns the clean logits."""
        images = self.resized(images)
        target, mask = self.target_and_mask(images)
        logits, tokens = self.masked_pass(images, mask)
        loss = self.consistency(logits, target)
        if self.hp.hog_ratio and bool(mask.any()):
            loss = loss + self.hp.hog_ratio * self.reconstruction_loss(tokens, images, mask)
        if self.step(loss, least_norm=0.0 if self.hp.faithful else self.hp.min_gradient_norm):
            self.stochastic_restore()  # the next batch's teacher is the restored student
        return target

    def resized(self, images: Tensor) -> Tensor:
        """Images at the network's input size: mask and histograms refer to its patches."""
        size = self.model.preprocessing.size
        if size is None or tuple(images.shape[-2:]) == size:
            return images
        return interpolate(images, size=size, mode="bilinear", align_corners=False)

    @torch.no_grad()
    def target_and_mask(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """The logits of the clean images, and the mask."""
        mask = self.mask(images)
        return self.model(images), mask

    def consistency(self, logits: Tensor, target: Tensor) -> Tensor:
        """Mean cross-entropy of logits [n, classes] against the clean prediction."""
        return soft_cross_entropy(logits, target).mean()

    @torch.no_grad()
    def mask(self, images: Tensor) -> Tensor:
        """The most uncertain patches of each image, int(ρ N) of N, as bool [n, N]."""
        return self.most(self.uncertainty(images))

    def most(self, uncertainty: Tensor) -> Tensor:
        """The int(ρ N) largest entries of each row of [n, N], as bool."""
        count = int(self.hp.mask_ratio * uncertainty.shape[1])
        chosen = uncertainty.argsort(dim=1, descending=True, stable=True)[:, :count]
        return torch.zeros_like(uncertainty, dtype=torch.bool).scatter_(1, chosen, True)

    def uncertainty(self, images: Tensor) -> Tensor:
        """Variance [n, N] of each position's score over the views, which are not aligned again."""
        scores = over_views(
            images,
            lambda views: self.scored(self.forward(views)[1]).to(images.dtype),
            self.hp.views,
            size=self.model.preprocessing.size,
            augment=self.augment,
        )
        return torch.cat(list(scores)).var(0).mean(-1)

    def scored(self, tokens: Tensor) -> Tensor:
        """The values [n, N, values] of the tokens [n, N, d] whose variance is measured."""
        if self.hp.score == "channel_mean":
            # After a norm layer this depends on the norm's weights only; used as published.
            return tokens.mean(-1, keepdim=True)
        return self.model.classifier(tokens) if self.hp.score == "logit" else tokens

    def masked_pass(self, images: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """`forward`, with the mask token in place of the embeddings of masked patches [n, N]."""

        def hide(embedded: Tensor) -> Tensor:
            hidden = mask.view(*embedded.shape[:-1], 1)  # before the position is added
            return torch.where(hidden, self.mask_token.to(embedded.dtype), embedded)

        # Autocast would reuse half-precision weights that were made without gradients.
        torch.clear_autocast_cache()
        with self.model.change_patch_embeddings(hide):
            return self.forward(images)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Logits [n, classes] and the patches' tokens [n, N, d] after the final norm.

        The tokens have the images' precision, also where the network computes in half of it.
        """
        tokens, logits = self.model.tokens_and_logits(images)
        return logits, tokens[:, self.model.prefix_tokens :].to(images.dtype)

    def reconstruction_loss(self, tokens: Tensor, images: Tensor, mask: Tensor) -> Tensor:
        """Mean squared error between projected masked tokens and their patches' histograms."""
        target = patch_targets(oriented_gradients(images, self.cell))[mask]
        return mse_loss(self.projection(tokens[mask]).to(target.dtype), target)

    def stochastic_restore(self) -> None:
        """Set a random share p of the weights' scalars back to the source."""
        stochastic_restore(self.restored, self.source, self.hp.restore_probability)

    def reset(self) -> None:
        """Return to the start; the official code does not reset projection and mask token."""
        last = [parameter.detach().clone() for parameter in self.beside.values()]
        super().reset()
        if self.hp.faithful:
            for parameter, value in zip(self.beside.values(), last, strict=True):
                parameter.data.copy_(value)


def patch_side(model: SourceModel, *, asked_by: str) -> int:
    """Side in pixels of a ViT's patches. Raises MethodError if the model is not supported."""
    model.require_tokens(asked_by=asked_by)
    height, width = model.network.patch_embed.patch_size
    if height != width or height % CELLS:
        raise MethodError(
            f"{asked_by} does not support {model.name}: the cells of its histograms need square "
            f"patches of an even side, not {height} x {width}; choose another ViT."
        )
    return height
