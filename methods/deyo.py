"""DeYO (Lee et al., ICLR 2024, arXiv:2403.07366): entropy minimisation on images whose prediction
depends on the shape of the object.

Official code: Jhyun17/DeYO. An image is used if its entropy is low and if the probability of its
predicted class drops by more than τ_P when the object is destroyed (PLPD). Its weight grows with
its confidence and with the drop. Differs from the official code: layers are skipped by position,
not by name, and a reset works (theirs raises an error; its figures come from a new model for every
corruption). A batch without a used image makes no update, as in theirs. On BatchNorm the destroyed
images are normalised by their own batch, which consists of the reliable images only.
"""

import math
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import interpolate

from ctta_bench.errors import MethodError
from ctta_bench.method import NEWER, Method, OptimizerHyperparameters, softmax_entropy
from ctta_bench.parts.views.batch import resized
from ctta_bench.registry import METHODS

OCCLUDED = 0.5  # relative side of the rectangle, unless its size is given: 112 of 224 pixels


def draw_orders(rows: int, length: int) -> Tensor:
    """Random permutations int64 [rows, length], drawn on the CPU for every device."""
    return torch.rand(rows, length).argsort(-1)


def reordered_blocks(images: Tensor, orders: Tensor, per_side: int) -> Tensor:
    """Images [n, 3, H, W] whose block j of `per_side` x `per_side` is their block `orders[i, j]`.

    Blocks are counted row by row. Images whose sides the blocks do not divide are resized to sides
    that they divide, and back.
    """
    size = (images.shape[-2], images.shape[-1])
    height, width = (side - side % per_side or per_side for side in size)
    cut = _resized(images, (height, width))
    cut = cut.unflatten(-1, (per_side, -1)).unflatten(-3, (per_side, -1))  # n, 3, i, h, j, w
    blocks = cut.permute(0, 2, 4, 1, 3, 5).flatten(1, 2)
    rows = torch.arange(len(images), device=images.device)[:, None]
    blocks = blocks[rows, orders.to(images.device)].unflatten(1, (per_side, per_side))
    whole = blocks.permute(0, 3, 1, 4, 2, 5).reshape(*images.shape[:2], height, width)
    return _resized(whole, size)


def reordered_pixels(images: Tensor, order: Tensor) -> Tensor:
    """Images [n, 3, H, W] with their pixels in the order [H·W], the same for all images."""
    return images.flatten(-2)[..., order.to(images.device)].view_as(images)


def without_the_middle(
    images: Tensor, size: int | None = None, row: int | None = None, column: int | None = None
) -> Tensor:
    """Images [n, 3, H, W], each with its mean colour in a rectangle.

    It is a square of side `size`, or has half the sides of the images; its first row and column are
    given, or it is in the middle. Raises MethodError if it is not within the images.
    """
    sides = images.shape[-2:]
    inside = [round(OCCLUDED * side) if size is None else size for side in sides]
    middle = [(side - part) // 2 for side, part in zip(sides, inside, strict=True)]
    top, left = (m if s is None else s for m, s in zip(middle, (row, column), strict=True))
    if top < 0 or left < 0 or top + inside[0] > sides[0] or left + inside[1] > sides[1]:
        raise MethodError(
            f"DeYO cannot cover rows {top} to {top + inside[0] - 1} and columns {left} to "
            f"{left + inside[1] - 1} of images of {sides[0]} x {sides[1]} pixels; choose a smaller "
            "occlusion_size, occlusion_row or occlusion_column."
        )
    covered = images.clone()
    covered[..., top : top + inside[0], left : left + inside[1]] = images.mean((-2, -1), True)
    return covered


def _resized(images: Tensor, size: tuple[int, int]) -> Tensor:
    if tuple(images.shape[-2:]) == size:
        return images
    return interpolate(images, size=size, mode="bilinear", antialias=True)


@METHODS.register_module("deyo")
class DeYO(Method):
    """Weighted entropy minimisation on reliable images whose prediction depends on shape."""

    display_name = "DeYO"
    year = 2024
    venue = "ICLR"
    citation = "lee2024deyo"
    adapts_layers = "norm layers, except the last ones"
    losses = "entropy of images that depend on shape, weighted"
    extra_memory = "nothing"
    paper = "https://arxiv.org/abs/2403.07366"
    checked_against = "official code and one more"
    passes_per_image = (2, 1)  # if all images are reliable
    search_space = {"lr": (1e-5, 1e-1), "min_drop": [0.2, 0.3, 0.5]}
    checked_with = {"max_entropy": 10.0, "min_drop": -1.0}  # every image is used

    class Hyperparameters(OptimizerHyperparameters):
        """Hyper-parameters of DeYO."""

        max_entropy: float = Field(
            0.5, ge=0, description="τ_E as a share of ln C: reliable below it"
        )
        margin: float = Field(0.4, ge=0, description="E0 of the weights, as a share of ln C")
        min_drop: float = Field(
            0.2, ge=-1, le=1, description="τ_P: used if the class's probability drops by more"
        )
        destruction: Literal["blocks", "pixels", "middle"] = Field(
            "blocks", description="shuffle blocks, shuffle pixels, or cover the middle"
        )
        blocks_per_side: int = Field(4, ge=1, description="blocks in a row, and in a column")
        occlusion_size: int | None = Field(
            None,
            ge=1,
            description="side of the covered square in pixels; half the sides if not given",
            json_schema_extra=NEWER,
        )
        occlusion_row: int | None = Field(
            None, ge=0, description="its first row; centred if not given", json_schema_extra=NEWER
        )
        occlusion_column: int | None = Field(
            None,
            ge=0,
            description="its first column; centred if not given",
            json_schema_extra=NEWER,
        )
        weigh_by_entropy: bool = Field(
            True, description="weights grow with certainty", json_schema_extra=NEWER
        )
        weigh_by_drop: bool = Field(
            True, description="weights grow with the drop", json_schema_extra=NEWER
        )
        skip_last_blocks: int | None = Field(
            None, ge=0, description="last blocks with frozen norms; a quarter if not given"
        )

        def model_post_init(self, _: Any) -> None:
            """Raises ValueError for a rectangle that is not used."""
            given = [self.occlusion_size, self.occlusion_row, self.occlusion_column]
            if self.destruction != "middle" and given != [None, None, None]:
                raise ValueError(
                    "occlusion_size, occlusion_row and occlusion_column need destruction: middle"
                )

    def setup(self) -> None:
        """Adapt the norm layers, except those of the last blocks and the final one."""
        self.batch_dependent = self.model.use_batch_statistics()
        self.adapt_only(self.model.early_norm_parameters(self.hp.skip_last_blocks))
        self.optimizer = self.build_optimizer()
        largest = math.log(self.model.num_classes)
        self.max_entropy, self.margin = self.hp.max_entropy * largest, self.hp.margin * largest
        self.draw_orders = draw_orders

    def adapt(self, images: Tensor) -> Tensor:
        """One step on the used images; returns the logits from before the step."""
        logits = self.model(images)
        entropy = softmax_entropy(logits)
        reliable = entropy < self.max_entropy
        if not bool(reliable.any()):
            self.skip_update()
            return logits
        drop = self.drop(images[reliable], logits.detach()[reliable])
        used = drop > self.hp.min_drop
        self.step(self.weigh(entropy[reliable][used], drop[used]).mean())  # no step if none is used
        return logits

    @torch.no_grad()
    def drop(self, images: Tensor, logits: Tensor) -> Tensor:
        """PLPD [n] in [-1, 1]: drop of the predicted class's probability by the destruction."""
        destroyed = self.model(self.destroyed(resized(images, self.model.preprocessing.size)))
        precise = torch.promote_types(logits.dtype, torch.float32)
        classes = logits.argmax(-1, keepdim=True)
        before, after = (z.softmax(-1, dtype=precise) for z in (logits, destroyed))
        return (before.gather(-1, classes) - after.gather(-1, classes)).squeeze(-1)

    def destroyed(self, images: Tensor) -> Tensor:
        """Images [n, 3, H, W] with their objects destroyed."""
        if self.hp.destruction == "middle":
            hp = self.hp
            return without_the_middle(
                images, hp.occlusion_size, hp.occlusion_row, hp.occlusion_column
            )
        if self.hp.destruction == "pixels":
            pixels = images.shape[-2] * images.shape[-1]
            return reordered_pixels(images, self.draw_orders(1, pixels)[0])
        count = self.hp.blocks_per_side
        return reordered_blocks(images, self.draw_orders(len(images), count**2), count)

    def weigh(self, entropy: Tensor, drop: Tensor) -> Tensor:
        """Entropies [n] times exp(E0 - H) + exp(PLPD); the factors have no gradient.

        Each term can be switched off; without both the weights are 1.
        """
        terms = [(self.margin - entropy.detach()).exp()] if self.hp.weigh_by_entropy else []
        terms += [drop.exp()] if self.hp.weigh_by_drop else []
        return (
            (terms[0] if len(terms) == 1 else terms[0] + terms[1]) * entropy if terms else entropy
        )
