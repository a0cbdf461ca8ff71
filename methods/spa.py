"""SPA (Niu et al., ICML 2025, arXiv:2504.08010): predictions of deteriorated images learn from
those of the images themselves. Alone, or with the loss of TENT, ETA or EATA.

Official code: mr-eggplant/SPA. One view loses low frequencies, the other gains noise whose strength
per patch is trained against the model. Both are made of the normalised image, at the size of the
model's input. Their features pass a linear layer, the identity at the start, before the head. An
image teaches a view only if its prediction is surer. The scored logits are those of the images,
from before the step.

Differs from the official code, unless `faithful: true`: the first batch has the configured noise
ratio (theirs always has 0.4). A view from which nothing is learnt has a loss of 0 (theirs: NaN,
with the same gradient). Theirs rolls images and channels before the masks are applied, which
matters for recorded masks only. On BatchNorm, which the paper does not use, each view is normalised
by its own batch.
"""

import contextlib
import math
from typing import Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn

from ctta_bench.method import Method, MethodHyperparameters, softmax_entropy
from ctta_bench.parts.fisher import fisher_of_source, weighted_drift
from ctta_bench.parts.selection import Selection
from ctta_bench.parts.views.batch import resized
from ctta_bench.registry import METHODS

LOW = 0.2  # side of the square of low frequencies, as a share of the image's
HOST = 0.1  # weight of the host's loss
FIRST = 0.4  # noise ratio of the first batch in the official code


def draw_masks(count: int, height: int, width: int, ratio: float) -> Tensor:
    """Masks of 0 and 1 for amplitudes with the mean in the middle, float32 [count, 3, H, W].

    Each low frequency is 0 with probability `ratio`, together with its mirror image, so that masked
    images stay real; the mean of a channel, at [H // 2, W // 2], is one of them. Drawn on the CPU
    for every device.
    """
    masks = torch.ones(count, 3, height, width)
    sides = [int(side * LOW) for side in (height, width)]
    top, left = ((side - low) // 2 for side, low in zip((height, width), sides, strict=True))
    square = masks[..., top : top + sides[0], left : left + sides[1]]
    square.copy_(torch.rand(square.shape) >= ratio)
    middle, centre = height // 2, width // 2
    masks[..., middle + 1 :, :] = 1
    masks[..., middle, :centre] = 1
    # The mirror image of index i is 2 · middle - i, around the edge for even sides.
    mirrored = masks.flip(-1, -2).roll((1 - height % 2, 1 - width % 2), (-2, -1))
    return masks * mirrored


def draw_noise(height: int, width: int) -> Tensor:
    """Normal noise, float32 [3, height, width], drawn on the CPU for every device."""
    return torch.randn(3, height, width)


def without_frequencies(images: Tensor, masks: Tensor) -> Tensor:
    """Images [n, 3, H, W] whose spectra are multiplied by symmetric masks (see `draw_masks`)."""
    height, width = images.shape[-2:]
    kept = torch.fft.ifftshift(masks.to(images), (-2, -1))[..., : width // 2 + 1]
    return torch.fft.irfft2(torch.fft.rfft2(images) * kept, (height, width))


def with_noise(images: Tensor, noise: Tensor, shares: Tensor, patch: int) -> Tensor:
    """(1 - a) x + a v for images x [n, 3, H, W], clipped to [-1, 1].

    noise: v [3, H, W]; shares: a in [0, 1] per patch of `patch` pixels a side, [patches], row by
    row. Patches at the right and lower rim may be smaller.
    """
    height, width = images.shape[-2:]
    grid = shares.view(-(-height // patch), -(-width // patch))
    a = grid.repeat_interleave(patch, 0)[:height].repeat_interleave(patch, 1)[:, :width]
    return ((1 - a) * images + a * noise.to(images)).clamp(-1, 1)


@METHODS.register_module("spa")
class SPA(Method):
    """Learning to predict deteriorated images as the images themselves."""

    display_name = "SPA"
    year = 2025
    venue = "ICML"
    citation = "niu2025spa"
    adapts_layers = "norm layers, and a linear layer on the features of views"
    losses = "cross-entropy of views to the image's prediction"
    extra_memory = "nothing"
    paper = "https://arxiv.org/abs/2504.08010"
    checked_against = "official code"
    passes_per_image = (3, 2)
    search_space = {"lr": (1e-4, 1e-1), "noise_ratio": [0.1, 0.4]}

    class Hyperparameters(MethodHyperparameters):
        """Hyper-parameters of SPA."""

        lr: float = Field(0.01, ge=0, description="learning rate of the norm layers (SGD)")
        predictor_lr: float = Field(0.05, ge=0, description="learning rate of the linear layer W")
        momentum: float = Field(0.9, ge=0, lt=1, description="momentum of all steps")
        mask_ratio: float = Field(0.2, ge=0, le=1, description="share of low frequencies to lose")
        noise_ratio: float = Field(0.4, ge=0, le=1, description="mean of α², the shares of noise")
        noise_patch: int = Field(
            16, ge=1, description="side in pixels of the patches that have an α of their own"
        )
        faithful: bool = Field(False, description="the first batch has a noise ratio of 0.4")

    has_host: ClassVar[bool] = False
    """Whether there is a host, whose loss needs a gradient through the images' own pass."""

    def setup(self) -> None:
        """Adapt the norm layers and the linear layer W, the identity at the start."""
        self.model.require_features(asked_by=self.title)
        self.batch_dependent = self.model.use_batch_statistics()
        width = self.model.classifier.in_features
        self.predictor = nn.Linear(width, width, bias=False).to(self.model.mean)
        nn.init.eye_(self.predictor.weight)
        norms = self.model.norm_parameters()
        self.adapt_only(norms | dict(self.predictor.named_parameters("predictor")))
        groups = [
            {"params": [*norms.values()], "lr": self.hp.lr},
            {"params": [self.predictor.weight], "lr": self.hp.predictor_lr},
        ]
        self.optimizer = torch.optim.SGD(groups, momentum=self.hp.momentum)
        self.draw_masks, self.draw_noise = draw_masks, draw_noise
        self.strengths: Tensor | None = None  # α per patch; the first batch shows how many
        self.velocity: Tensor | None = None  # of α

    def adapt(self, images: Tensor) -> Tensor:
        """One step on both views, and one of the noise against it; logits from before."""
        with contextlib.nullcontext() if self.has_host else torch.no_grad():
            logits = self.model(images)
        inputs = resized(images, self.model.preprocessing.size) - self.model.mean
        inputs, (height, width) = inputs / self.model.std, inputs.shape[-2:]
        masks = self.draw_masks(len(inputs), height, width, self.hp.mask_ratio)
        strengths = self.start_strengths(height, width).requires_grad_()
        noise = self.draw_noise(height, width)
        dimmed = without_frequencies(inputs, masks)
        noisy = with_noise(inputs, noise, strengths.square(), self.hp.noise_patch)
        loss = self.distance(logits.detach(), dimmed) + self.distance(logits.detach(), noisy)
        if self.has_host:
            loss = loss + HOST * self.host_loss(logits)
        scale = self._scaler.get_scale()
        if self.step(loss) and strengths.grad is not None:
            self.strengthen(strengths.detach(), strengths.grad / scale)
        return logits

    def distance(self, logits: Tensor, view: Tensor) -> Tensor:
        """Mean divergence of a view's prediction from that of its image, over surer images.

        logits: [n, classes] of the images; view: normalised, [n, 3, H, W]. 0 if no image is surer.
        """
        features = self.model.features(view * self.model.std + self.model.mean)
        found = self.model.head(self.predictor(features))
        precise = torch.promote_types(logits.dtype, torch.float32)
        log_p, log_q = (z.log_softmax(-1, dtype=precise) for z in (logits, found))
        surer = log_p.amax(-1) > log_q.detach().amax(-1)
        divergence = (log_p.exp() * (log_p - log_q)).sum(-1)
        return divergence[surer].sum() / max(int(surer.sum()), 1)

    def host_loss(self, logits: Tensor) -> Tensor:
        """The host's loss on logits [n, classes]."""
        return logits.new_zeros(())

    def start_strengths(self, height: int, width: int) -> Tensor:
        """α of every patch of an image; √noise_ratio before the first batch."""
        side = self.hp.noise_patch
        patches = -(-height // side) * -(-width // side)
        if self.strengths is None or len(self.strengths) != patches:
            ratio = FIRST if self.hp.faithful else self.hp.noise_ratio
            self.strengths = self.model.mean.new_full((patches,), math.sqrt(ratio))
            self.velocity = torch.zeros_like(self.strengths)
        return self.strengths.clone()

    def strengthen(self, strengths: Tensor, gradient: Tensor) -> None:
        """One ascent of α with learning rate 1, scaled to the noise ratio, then within [-1, 1]."""
        if not bool(gradient.isfinite().all()):
            return
        assert self.velocity is not None
        self.velocity = self.hp.momentum * self.velocity + gradient
        raised = strengths + self.velocity
        mean = raised.square().mean().clamp(min=torch.finfo(raised.dtype).tiny)
        self.strengths = (raised / (mean / self.hp.noise_ratio).sqrt()).clamp(-1, 1)


@METHODS.register_module("spa_tent")
class SPATent(SPA):
    """SPA with a tenth of TENT's loss."""

    display_name = "SPA (TENT)"
    year = 2025
    venue = "ICML"
    citation = "niu2025spa"
    adapts_layers = "norm layers, and a linear layer on the features of views"
    losses = "as SPA, and entropy"
    extra_memory = "nothing"
    paper = "https://arxiv.org/abs/2504.08010"
    checked_against = "official code"
    passes_per_image = (3, 3)
    has_host = True

    class Hyperparameters(SPA.Hyperparameters):
        """Hyper-parameters of SPA with TENT."""

    def host_loss(self, logits: Tensor) -> Tensor:
        """Mean entropy of the images."""
        return softmax_entropy(logits).mean()


class SelectionHyperparameters(SPA.Hyperparameters):
    """Hyper-parameters of SPA with a host that selects images."""

    margin: float = Field(0.4, ge=0, description="E0 as a share of ln C: reliable below it")
    max_similarity: float = Field(
        0.05, ge=0, description="ε: redundant if more similar (cosine) to the average prediction"
    )


def weighted_entropy(selection: Selection, logits: Tensor) -> Tensor:
    """ETA's loss on logits [n, classes], 0 if none is selected; moves the average prediction."""
    entropy = softmax_entropy(logits)
    predictions = logits.detach().softmax(-1, dtype=entropy.dtype)
    selected = selection.choose(entropy.detach(), predictions)
    if not bool(selected.any()):
        return entropy.new_zeros(())
    selection.update_average(predictions[selected])
    return selection.weigh(entropy[selected])


@METHODS.register_module("spa_eta")
class SPAETA(SPA):
    """SPA with a tenth of ETA's loss."""

    display_name = "SPA (ETA)"
    year = 2025
    venue = "ICML"
    citation = "niu2025spa"
    adapts_layers = "norm layers, and a linear layer on the features of views"
    losses = "as SPA, and as ETA"
    extra_memory = "an average prediction"
    paper = "https://arxiv.org/abs/2504.08010"
    checked_against = "official code"
    passes_per_image = (3, 3)
    search_space = {"lr": (1e-4, 1e-1), "max_similarity": [0.05, 0.1, 0.4]}
    checked_with = {"margin": 1.0, "max_similarity": 2.0}  # every image is selected
    has_host = True

    class Hyperparameters(SelectionHyperparameters):
        """Hyper-parameters of SPA with ETA."""

    def setup(self) -> None:
        """As SPA; the average prediction of ETA is empty."""
        super().setup()
        self.selection = Selection(self.hp.margin, self.hp.max_similarity, self.model.num_classes)

    def host_loss(self, logits: Tensor) -> Tensor:
        """Weighted entropy of the selected images."""
        return weighted_entropy(self.selection, logits)


@METHODS.register_module("spa_eata")
class SPAEATA(SPA):
    """SPA with a tenth of EATA's loss."""

    display_name = "SPA (EATA)"
    year = 2025
    venue = "ICML"
    citation = "niu2025spa"
    adapts_layers = "norm layers, and a linear layer on the features of views"
    losses = "as SPA, and as EATA"
    extra_memory = "an average prediction and the Fisher information"
    paper = "https://arxiv.org/abs/2504.08010"
    checked_against = "the formula alone"
    passes_per_image = (3, 3)
    search_space = {"lr": (1e-4, 1e-1), "max_similarity": [0.05, 0.1, 0.4]}
    checked_with = {"margin": 1.0, "max_similarity": 2.0}  # every image is selected
    source_access = "unlabelled"
    has_host = True

    class Hyperparameters(SelectionHyperparameters):
        """Hyper-parameters of SPA with EATA."""

        fisher_weight: float = Field(2000.0, ge=0, description="β of the Fisher term")
        source_samples: int = Field(
            2000, ge=1, description="source images for the Fisher information"
        )
        fisher_batch_size: int = Field(64, ge=1, description="images per squared gradient")

    def setup(self) -> None:
        """As SPA; the average prediction of EATA is empty."""
        super().setup()
        self.selection = Selection(self.hp.margin, self.hp.max_similarity, self.model.num_classes)
        self.norms = [*self.model.norm_parameters().values()]

    def prepare(self, source: Any) -> None:
        """Fisher information F of the norm layers, for the model's own predictions."""
        self.start_values = [p.detach().clone() for p in self.norms]
        self.fisher, self.source_used = fisher_of_source(
            self.model, self.norms, source, self.hp, asked_by=self.title, instead="spa_eta"
        )

    def host_loss(self, logits: Tensor) -> Tensor:
        """Weighted entropy of the selected images, plus β Σ F (θ - θ_source)²."""
        drift = weighted_drift(self.fisher, self.norms, self.start_values)
        return weighted_entropy(self.selection, logits) + self.hp.fisher_weight * drift
