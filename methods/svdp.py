"""SVDP (Yang et al., AAAI 2024, arXiv:2303.09792): sparse prompts on uncertain pixels, and hard
labels of a teacher over views. For segmentation only: no form for classification was ever defined.

Official code: Anonymous-012/SVDP. Its prompt is checked; its loop needs SegFormer and ACDC and is
reproduced from its description. In it the prompted image is built without gradients, so its prompts
never learn and stay the noise they start as. `train_prompt: false`, the default, does the same, as
the published figures were made with it; `true` is the method of the paper.

Differs from the code: the optimiser is made once (theirs: a new one at every domain and round,
whose boundaries a method must not see), and every view is predicted as a whole (theirs: in windows
of 1,024 pixels). Labels and scores have `output_scale` times the size of the images, as there:
pictures of 1,080 x 1,920 are given as 540 x 960.
"""

import torch
from pydantic import Field
from torch import Tensor, nn

from ctta_bench.errors import MethodError
from ctta_bench.method import (
    Method,
    MethodHyperparameters,
    ema_update,
    stochastic_restore,
)
from ctta_bench.model import SourceModel
from ctta_bench.parts.prompts.placed import (
    dropout_uncertainty,
    most_uncertain,
    prompt_count,
    prompt_image,
    prompt_momentum,
)
from ctta_bench.parts.segmentation.dropping import check_dropout, dropping
from ctta_bench.parts.segmentation.scales import (
    averaged,
    confident,
    hard_loss,
    rescaled,
    resized,
    scaled_size,
    select_log_probabilities,
    view_probabilities,
    views_at,
)
from ctta_bench.registry import METHODS


@METHODS.register_module("svdp")
class SVDP(Method):
    """Segmentation: prompts on uncertain pixels, and a teacher's hard labels, multi-scale."""

    display_name = "SVDP"
    year = 2024
    venue = "AAAI"
    citation = "yang2024svdp"
    adapts_layers = "all weights, and prompts on uncertain pixels"
    losses = "hard labels of the teacher over views"
    extra_memory = "teacher and source model"
    paper = "https://arxiv.org/abs/2303.09792"
    checked_against = "official code (the prompt)"
    tasks = frozenset({"segmentation"})
    # Uncertainty, four views of the teacher (14 by default), anchor, student.
    passes_per_image = (7, 1)
    search_space = {"lr": (1e-6, 1e-3)}
    checked_with = {
        "image_size": (32, 32),
        "scales": (1.0, 1.5),
        "output_scale": 0.5,
        "density": 0.02,
        "train_prompt": True,
        "lr": 1e-3,
        "lr_prompt": 1e-3,
    }
    exempt = {
        "scored_logits": "dropout, drawn again in every call, places the teacher's prompts",
        "permutation": "dropout, drawn in the order of the batch, places the prompts",
        "learning_rate_zero_is_source": "the prompts are on the images from the start",
    }

    class Hyperparameters(MethodHyperparameters):
        """Hyper-parameters of SVDP."""

        lr: float = Field(1e-4, ge=0, description="learning rate of the network (Adam)")
        lr_prompt: float = Field(1e-4, ge=0, description="learning rate of the prompt (Adam)")
        train_prompt: bool = Field(False, description="the prompt learns, as in the paper")
        image_size: tuple[int, int] = Field((540, 960), description="height, width of the images")
        output_scale: float = Field(2.0, gt=0, description="size of labels relative to the images")
        density: float = Field(1e-3, gt=0, le=0.25, description="ρ, share of prompted pixels")
        scales: tuple[float, ...] = Field(
            (0.5, 0.75, 1.0, 1.25, 1.5, 1.75, 2.0), min_length=1, description="scales of the views"
        )
        dropout_passes: int = Field(10, ge=2, description="passes of the head per uncertainty")
        dropout: float = Field(
            0.5, ge=0, lt=1, description="share of dropped values in these passes"
        )
        anchor_confidence: float = Field(
            0.69, ge=0, le=1, description="above it the teacher's plain view is the label"
        )
        teacher_momentum: float = Field(0.999, ge=0, le=1, description="α of the network's EMA")
        uncertainty_rate: float = Field(
            0.1, ge=0, description="of the prompt's EMA: α = 0.999 - rate · mean uncertainty"
        )
        restore_probability: float = Field(
            0.01, ge=0, le=1, description="p of the stochastic restore"
        )

    def setup(self) -> None:
        """Adapt the whole network and, with `train_prompt`, the prompt; copy teacher and anchor."""
        self.check_network()
        weights = dict(self.model.network.named_parameters())
        self.prompt = nn.Parameter(torch.randn(self.prompted_pixels, 3).to(self.model.mean))
        self.teacher, self.anchor = self.frozen_copy(), self.frozen_copy()
        learning = {"prompt": self.prompt} if self.hp.train_prompt else {}
        self.adapt_only(weights | learning)
        self.prompt.requires_grad_(self.hp.train_prompt)
        self.teacher_prompt = self.prompt.detach().clone()
        groups = [{"params": list(weights.values())}]
        groups += [{"params": [self.prompt], "lr": self.hp.lr_prompt}] if learning else []
        self.optimizer = torch.optim.Adam(groups, self.hp.lr)

    @property
    def prompted_pixels(self) -> int:
        """k, number of prompted pixels."""
        height, width = self.hp.image_size
        return prompt_count(height, width, self.hp.density)

    def check_network(self) -> None:
        """Raise MethodError without dropout or prompted pixels, or with a fixed input size."""
        check_dropout(self.model, asked_by=self.title)
        if self.model.preprocessing.size is not None:
            raise MethodError(
                f"SVDP needs images at several scales, but {self.model.name} resizes all to one "
                "size; build it without an input size."
            )
        if 1.0 not in self.hp.scales or not self.prompted_pixels:
            raise MethodError(
                "SVDP needs 1.0 among `scales`, and a `density` that prompts at least one pixel of "
                "`image_size`."
            )

    def adapt(self, images: Tensor) -> Tensor:
        """One step on the teacher's labels; returns its log-probabilities [n, classes, H, W]."""
        uncertainty = self.uncertainty(images)
        logits = self.teacher_log_probabilities(images, uncertainty)
        shown = images + self.prompts(self.prompt, uncertainty, 1.0)
        if self.step(hard_loss(self.model(shown), logits)):
            self.ema_update_and_restore(uncertainty)
        return logits

    def predict(self, images: Tensor) -> Tensor:
        """The teacher's log-probabilities over the views."""
        return self.teacher_log_probabilities(images, self.uncertainty(images))

    @property
    def scored_model(self) -> SourceModel:
        """Raises MethodError: the predictions need a prompt on the pixels."""
        raise MethodError(
            "SVDP has no plain network to store or export, as it predicts with a prompt on the "
            "pixels; run it with keep_models: none."
        )

    @torch.no_grad()
    def ema_update_and_restore(self, uncertainty: Tensor) -> None:
        """EMA updates of the teacher and its prompt, then stochastic restore of the student."""
        ema_update(self.teacher.parameters(), self.model.parameters(), self.hp.teacher_momentum)
        momentum = prompt_momentum(uncertainty, self.hp.uncertainty_rate)
        ema_update([self.teacher_prompt], [self.prompt.detach()], momentum)
        named, source = dict(self.model.named_parameters()), dict(self.anchor.named_parameters())
        names = [name for name in named if name.endswith(("weight", "bias"))]
        now, then = [named[name] for name in names], [source[name] for name in names]
        stochastic_restore(now, then, self.hp.restore_probability)

    @torch.no_grad()
    def uncertainty(self, images: Tensor) -> Tensor:
        """Uncertainty [n, H, W] of the teacher's unprompted prediction, by dropout.

        Raises MethodError for images of another size than the prompt was made for.
        """
        if tuple(images.shape[-2:]) != self.hp.image_size:
            raise MethodError(
                f"SVDP got images of {images.shape[-2]} x {images.shape[-1]} pixels, but its "
                f"prompt is for {self.hp.image_size[0]} x {self.hp.image_size[1]}; set image_size."
            )
        maps, size = self.teacher.feature_maps(images), self.size(self.hp.output_scale)
        with dropping(self.teacher, self.hp.dropout):
            return dropout_uncertainty(
                resized(self.teacher.decode(maps), size).softmax(1)
                for _ in range(self.hp.dropout_passes)
            )

    @torch.no_grad()
    def teacher_log_probabilities(self, images: Tensor, uncertainty: Tensor) -> Tensor:
        """Log-probabilities: of the plain view where the anchor is sure, else of all views."""
        size = self.size(self.hp.output_scale)

        def show(scale: float) -> Tensor:
            return rescaled(images, scale) + self.prompts(self.teacher_prompt, uncertainty, scale)

        over = averaged(view_probabilities(views_at(self.hp.scales), show, self.teacher, size))
        return select_log_probabilities(
            over, confident(self.anchor(images), size, self.hp.anchor_confidence)
        )

    def prompts(self, prompt: Tensor, uncertainty: Tensor, scale: float) -> Tensor:
        """The prompts as images [n, 3, h, w] to add at a scale; prompt: in normalised values."""
        height, width = self.size(scale)
        placed = [
            prompt_image(prompt, most_uncertain(u, height, width, len(prompt)), height, width)
            for u in uncertainty
        ]
        return torch.stack(placed) * self.model.std

    def size(self, scale: float) -> tuple[int, int]:
        """Height and width of the images at a scale."""
        return scaled_size(self.hp.image_size, scale)
