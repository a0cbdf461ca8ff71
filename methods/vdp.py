"""VDP (Gan et al., AAAI 2023, arXiv:2212.04145): small prompts on the pixels, with a frozen model.

No code was ever published, and the paper gives no values for transformers: this is our reading of
its formulas, not a reproduction of its figures. Two prompts, the domain-specific ψ and the
domain-agnostic ω, each of three patches, are added to the image (in [0, 1], at the network's input
size, not clamped). Both learn from a teacher, whose prompts are their moving averages and whose
image has other colours, blur and noise. ω is penalised for leaving its value at the end of the last
domain, by λ Σ Λ_i (ω_i - ω*_i)², where Λ is the importance of its values along their path (as in
synaptic intelligence). A new domain is detected by a jump of the mean confidence. The scored logits
are those of the prompted image before the update.

On segmentation the steps are those of SVDP with these patches and a frozen network: the teacher's
prompts on the plain images give the scores and the hard labels of both prompts.
"""

import math
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import interpolate, pad

from ctta_bench.errors import MethodError
from ctta_bench.method import (
    Method,
    OptimizerHyperparameters,
    ema_update,
    soft_cross_entropy,
)
from ctta_bench.parts.importance import PathImportance
from ctta_bench.parts.segmentation.scales import MapHyperparameters, enlarged, hard_loss
from ctta_bench.parts.views.batch import NOISE, TAPS, blur, draw_view, jitter
from ctta_bench.registry import METHODS

PATCHES = 3  # per prompt
LARGEST_PATCH = 10  # pixels: 2 · 3 · 3 · 10² = 1,800 values, the published count
SEEN_BEFORE_A_SWITCH = 5  # batches of a domain before a new one is detected


@METHODS.register_module("vdp")
class VDP(Method):
    """Pixel prompts with a frozen network; one of them is regularised against forgetting."""

    display_name = "VDP"
    year = 2023
    venue = "AAAI"
    citation = "gan2023vdp"
    adapts_layers = "prompts on the image"
    losses = "consistency with a teacher's prompts, pull to old values"
    extra_memory = "a teacher's prompts and importances"
    paper = "https://arxiv.org/abs/2212.04145"
    checked_against = "the paper's formulas alone"
    tasks = frozenset({"classification", "segmentation"})
    segmentation_form = "VDPMaps"
    passes_per_image = (2, 1)
    search_space = {"lr": (1e-5, 1e-1)}
    checked_with = {"patch_size": 4}  # the images of the checks are small

    class Hyperparameters(OptimizerHyperparameters, MapHyperparameters):
        """Hyper-parameters of VDP."""

        optimizer: Literal["sgd", "adam", "adamw"] = Field("adam", description="update rule")
        patch_size: int | None = Field(
            None, ge=1, description="side in pixels; not given: 10, or a third of small images"
        )
        teacher_momentum: float = Field(0.999, ge=0, le=1, description="α of the teacher's prompts")
        homeostasis: float = Field(0.1, ge=0, description="λ of the penalty on changes of ω")
        damping: float = Field(1e-3, gt=0, description="ξ of the importance")
        switch_threshold: float = Field(
            0.1, ge=0, description="S: jump of the mean confidence at a new domain"
        )

    def setup(self) -> None:
        """Prompts of zeros, at positions drawn once; the network is frozen."""
        self.side = self.patch_side()
        shape = (3, PATCHES * self.side**2)
        zeros = self.model.mean.new_zeros(shape)
        self.specific, self.agnostic = nn.Parameter(zeros.clone()), nn.Parameter(zeros.clone())
        self.adapt_only({"specific": self.specific, "agnostic": self.agnostic})
        self.teacher = [zeros.clone(), zeros.clone()]
        self.optimizer = self.build_optimizer()
        self.importance = PathImportance(self.agnostic, self.hp.damping)
        self.places = int(
            torch.randint(2**31, ())
        )  # seed of the positions, as image sizes may vary
        self.seen, self.usual = 0, 0.0  # batches of the current domain, their mean confidence

    def patch_side(self) -> int:
        """Side of a patch. Raises MethodError if six do not fit next to each other."""
        size, wanted = self.model.preprocessing.size, self.hp.patch_size
        if size is None:
            return wanted or LARGEST_PATCH
        side = wanted or max(1, min(LARGEST_PATCH, min(size) // 3))
        self.check_room(size[0], size[1], side)
        return side

    def check_room(self, height: int, width: int, side: int) -> None:
        """Raise MethodError unless a grid of patches has a cell for each."""
        if (height // side) * (width // side) < 2 * PATCHES:
            raise MethodError(
                f"VDP has no room for {2 * PATCHES} patches of {side} pixels on the {height} x "
                f"{width} images of {self.model.name}; set a smaller patch_size."
            )

    def adapt(self, images: Tensor) -> Tensor:
        """One step of both prompts towards the teacher; returns the logits from before the step."""
        images = self.resized(images)
        target = self.target(images)
        logits = self.prompted(images, self.specific, self.agnostic)
        self.notice_domain(logits)
        self.update(soft_cross_entropy(logits, target).mean())
        return logits

    @torch.no_grad()
    def target(self, images: Tensor) -> Tensor:
        """The teacher's logits for the images in other colours."""
        return self.model(recoloured(images) + self.prompt_image(images, *self.teacher))

    def predict(self, images: Tensor) -> Tensor:
        """Logits of the prompted images."""
        images = self.resized(images)
        return self.prompted(images, self.specific, self.agnostic)

    def prompted(self, images: Tensor, specific: Tensor, agnostic: Tensor) -> Tensor:
        """Logits of images with two prompts."""
        return self.model(images + self.prompt_image(images, specific, agnostic))

    def resized(self, images: Tensor) -> Tensor:
        """Images at the network's input size: the prompts refer to its pixels."""
        size = self.model.preprocessing.size
        if size is None or tuple(images.shape[-2:]) == size:
            return images
        return interpolate(images, size=size, mode="bilinear", align_corners=False)

    def prompt_image(self, images: Tensor, specific: Tensor, agnostic: Tensor) -> Tensor:
        """Both prompts on an image of zeros [3, H, W]."""
        height, width = images.shape[-2:]
        canvas = specific.new_zeros(3, height * width)
        values = torch.cat([specific, agnostic], dim=1)
        return canvas.index_copy(1, self.pixels(height, width), values).view(3, height, width)

    def pixels(self, height: int, width: int) -> Tensor:
        """Flat positions of all values, in cells of a grid: no two patches overlap."""
        self.check_room(height, width, self.side)
        columns = width // self.side
        generator = torch.Generator().manual_seed(self.places)
        cells = torch.randperm((height // self.side) * columns, generator=generator)[: 2 * PATCHES]
        corners = (cells // columns * width + cells % columns) * self.side
        steps = torch.arange(self.side)
        within = steps[:, None] * width + steps
        return (corners[:, None] + within.flatten()).flatten().to(self.device)

    def update(self, loss: Tensor) -> None:
        """One step, then the teacher's EMA update and the importance of ω."""
        hold = self.importance.penalty(self.agnostic)
        if not self.backward(loss + self.hp.homeostasis * hold):
            return
        before = self.agnostic.detach().clone()
        gradient = self.gradient_of_the_loss_alone()
        if self.optimizer_step():
            ema_update(self.teacher, [self.specific, self.agnostic], self.hp.teacher_momentum)
            self.importance.accumulate(gradient, self.agnostic.detach() - before)

    def gradient_of_the_loss_alone(self) -> Tensor:
        """∂/∂ω of the loss without the penalty, whose gradient is known."""
        assert self.agnostic.grad is not None
        whole = self.agnostic.grad / self._scaler.get_scale()
        away = self.agnostic.detach() - self.importance.anchor
        return whole - 2 * self.hp.homeostasis * self.importance.importance * away

    def notice_domain(self, logits: Tensor) -> None:
        """Close the domain if the batch's mean confidence jumps by more than S."""
        confidence = float(logits.detach().float().softmax(-1).amax(-1).mean())
        if not math.isfinite(confidence):
            return
        jumped = abs(confidence - self.usual) > self.hp.switch_threshold
        if jumped and self.seen >= SEEN_BEFORE_A_SWITCH:
            self.importance.close_domain(self.agnostic)
            self.seen = 0
        self.usual = (self.seen * self.usual + confidence) / (self.seen + 1)
        self.seen += 1


class VDPMaps(VDP):
    """Segmentation: the teacher's prompts on the plain images give scores and labels."""

    def adapt(self, images: Tensor) -> Tensor:
        """One step on the teacher's most likely classes; returns its logits from before."""
        images = self.resized(images)
        target = self.target(images)
        logits = self.prompted(images, self.specific, self.agnostic)
        self.notice_domain(self.model.rows(logits))
        self.update(hard_loss(logits, target))
        return target

    @torch.no_grad()
    def target(self, images: Tensor) -> Tensor:
        """The teacher's logits [n, classes, h, w] at the size of `output_scale`."""
        return enlarged(self.prompted(images, *self.teacher), images, self.hp.output_scale)

    def predict(self, images: Tensor) -> Tensor:
        """The teacher's logits."""
        return self.target(self.resized(images))


def recoloured(images: Tensor) -> Tensor:
    """A view of images [n, 3, H, W] in [0, 1] that does not move any pixel."""
    view, edge = draw_view(*images.shape[-2:]), TAPS // 2
    images = jitter(images.clamp(0, 1), view)
    images = blur(pad(images, (edge,) * 4, mode="replicate"), view.sigma)
    return (images + NOISE * torch.randn_like(images)).clamp(0, 1)
