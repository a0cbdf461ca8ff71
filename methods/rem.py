"""REM (Han, Na and Hwang, ICML 2025, arXiv:2505.16441): ranked entropy minimisation. Parts of the
image that the model attends to are masked, more and more; the predictions of all views agree, and
those with less masked are the surer ones.

Official code: pilsHan/rem. The first view is the whole image. Its class token's attention in the
last block, the mean over heads, ranks the patches. View i is without the share i·m of them with the
highest attention: their tokens are removed after the positions were added. Only norm layers learn,
except the final one and those of the last blocks. The logits of the whole image are scored, from
before the step.

Differs from the official code, unless `faithful: true`: the margin is a share of ln C (theirs for
ImageNet: of ln 1000, whatever C). In both its value is 0, where this has no effect. Always: the
number of patches is that of the model (theirs is written for 224 and 384 pixels), and layers are
chosen by position. The official script for CIFAR also adapts the final norm, as a wrapper changes
the names by which it chooses (`final_norm: true`).
"""

import itertools
import math
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from ctta_bench.errors import MethodError
from ctta_bench.method import Method, OptimizerHyperparameters, soft_cross_entropy, softmax_entropy
from ctta_bench.registry import METHODS


@METHODS.register_module("rem")
class REM(Method):
    """Views with more and more of the attended patches masked agree, and keep their rank."""

    display_name = "REM"
    year = 2025
    venue = "ICML"
    citation = "han2025rem"
    adapts_layers = "norm layers, except the last ones"
    losses = "consistency of masked views, ranking of their entropies"
    extra_memory = "nothing"
    paper = "https://arxiv.org/abs/2505.16441"
    checked_against = "official code"
    passes_per_image = (3, 3)  # two of them of shorter sequences
    search_space = {"lr": (1e-5, 1e-2), "mask_step": [0.05, 0.1, 0.2]}

    class Hyperparameters(OptimizerHyperparameters):
        """Hyper-parameters of REM."""

        optimizer: Literal["sgd", "adam", "adamw"] = Field("adam", description="update rule")
        views: int = Field(3, ge=1, description="n, views of an image; the first is not masked")
        mask_step: float = Field(
            0.1, ge=0, lt=1, description="m, share of patches that a view masks beyond the last one"
        )
        margin: float = Field(
            0.0, ge=0, description="τ as a share of ln C: by how much entropies should differ"
        )
        rank_weight: float = Field(1.0, ge=0, description="λ of the ranking loss")
        skip_last_blocks: int | None = Field(
            None, ge=0, description="last blocks with frozen norms; a quarter if not given"
        )
        final_norm: bool = Field(False, description="adapt the final norm, too")
        faithful: bool = Field(False, description="τ as a share of ln 1000, as in the code")

    def setup(self) -> None:
        """Adapt the norm layers, except those of the last blocks and the final one."""
        self.model.require_tokens(class_token=True, asked_by=self.title)
        patches = self.model.network.patch_embed.num_patches
        if not self.kept(patches, self.hp.views - 1):
            raise MethodError(
                f"REM: the last of {self.hp.views} views masks all {patches} patches of "
                f"{self.model.name}; lower mask_step ({self.hp.mask_step:g}) or views."
            )
        self.adapt_only(
            self.model.early_norm_parameters(
                self.hp.skip_last_blocks, skip_final=not self.hp.final_norm
            )
        )
        self.optimizer = self.build_optimizer()
        classes = 1000 if self.hp.faithful else self.model.num_classes
        self.margin = self.hp.margin * math.log(classes)

    def adapt(self, images: Tensor) -> Tensor:
        """One step on consistency and ranking; returns the whole images' logits from before."""
        views = self.views(images)
        self.step(self.total_loss(views))
        return views[0]

    def views(self, images: Tensor) -> list[Tensor]:
        """Logits [n, classes] of every view, the whole image first."""
        with self.model.attention(layers=(-1,)) as matrices:
            whole = self.model(images)
        prefix = self.model.prefix_tokens
        attended = matrices[0].detach()[:, :, 0, prefix:].mean(1)  # [n, patches]
        ranking = attended.argsort(dim=1, stable=True)  # the least attended first
        found = [whole]
        for number in range(1, self.hp.views):
            keep = ranking[:, : self.kept(ranking.shape[1], number)].sort(dim=1).values
            with self.model.drop_tokens(keep=keep):
                found.append(self.model(images))
        return found

    def kept(self, patches: int, number: int) -> int:
        """How many of all patches view `number` (from 0) keeps."""
        return max(0, int(patches * (1 - self.hp.mask_step * number)))

    def total_loss(self, views: list[Tensor]) -> Tensor:
        """Cross-entropy to the less masked view, and λ times by how much that one is less sure.

        Only the more masked view learns to agree, and only the less masked one to be surer.
        """
        entropies = [softmax_entropy(logits) for logits in views]
        consistency = ranking = torch.zeros_like(entropies[0]) * entropies[0]
        for less, more in itertools.combinations(range(len(views)), 2):
            consistency = consistency + soft_cross_entropy(views[more], views[less].detach())
            excess = entropies[less] - entropies[more].detach() + self.margin
            ranking = ranking + excess.relu()
        return consistency.mean() + self.hp.rank_weight * ranking.mean()
