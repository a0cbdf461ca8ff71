"""Recipes of `train-source`: the options of a training, with defaults by model."""

import functools
from importlib import resources
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from ctta_bench.config.validation import validate
from ctta_bench.config.yaml import parse_yaml
from ctta_bench.registry import canonical


class Recipe(BaseModel):
    """Options of training a source model."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    epochs: int = Field(20, ge=1, description="passes over the training images")
    batch_size: int = Field(128, ge=1, description="images per step")
    optimizer: Literal["adamw", "sgd", "nesterov"] = Field(
        "adamw", description="optimiser of timm; nesterov: SGD with Nesterov momentum"
    )
    lr: float = Field(1e-3, gt=0, description="learning rate at the end of the warm-up")
    momentum: float = Field(0.9, ge=0, lt=1, description="momentum of sgd and nesterov")
    weight_decay: float = Field(0.02, ge=0, description="weight decay of every parameter")
    warmup: float = Field(
        0.05, ge=0, lt=1, description="share of the steps in which the learning rate rises"
    )
    clip: float = Field(1.0, ge=0, description="largest norm of the gradient; 0: no clipping")
    augmentation: Literal["none", "flip", "crop_flip"] = Field(
        "flip",
        description="flip: random mirroring; crop_flip: also shifts of up to an eighth of the "
        "side, zero-padded",
    )
    label_smoothing: float = Field(
        0.0, ge=0, lt=1, description="share of the uniform distribution in the target"
    )
    mixup: float = Field(
        0.0,
        ge=0,
        description="parameter of the beta distribution of mixup's shares; 0: none "
        "(Zhang et al., 2018, arXiv:1710.09412)",
    )
    teacher: str = Field("", description="model whose probabilities are half of the target")
    start: str = Field("", description="model whose weights, except the head, are the initial ones")
    precision: Literal["float32", "bfloat16", "float16"] = Field(
        "float32", description="precision of the forward pass, by autocast"
    )
    stored: Literal["float32", "float16"] = Field(
        "float32", description="precision of the stored weights"
    )

    @model_validator(mode="after")
    def _views_of_the_teacher(self) -> "Recipe":
        if self.teacher and self.augmentation == "crop_flip":
            raise ValueError(
                "a teacher supports only the augmentations none and flip, not crop_flip"
            )
        return self


@functools.cache
def _stored_recipes() -> dict[str, Any]:
    file = resources.files("ctta_bench.datasets") / "recipes.yaml"
    return parse_yaml(file.read_text(encoding="utf-8"), "recipes.yaml")


def recipe_for(model: str, overrides: dict[str, Any] | None = None) -> Recipe:
    """The recipe of a model, with some values changed. Raises ConfigError for wrong keys or values.

    A timm model without its own recipe starts from its pretrained weights.
    """
    own = {"start": model} if model.startswith("timm:") else {}
    values = own | _stored_recipes().get(canonical(model), {}) | (overrides or {})
    return validate(Recipe, values, f"recipe of {model}")
