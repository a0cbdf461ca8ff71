"""Recipes of `train-source`: what a training run is told, and the defaults of each model."""

import functools
from importlib import resources
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from ctta_bench.config.validation import validate
from ctta_bench.config.yaml import parse_yaml
from ctta_bench.registry import canonical


class Recipe(BaseModel):
    """How a source model is trained."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    epochs: int = Field(20, ge=1, description="times the training images are seen")
    batch_size: int = Field(128, ge=1, description="images a step")
    optimizer: Literal["adamw", "sgd", "nesterov"] = Field(
        "adamw", description="timm's of the name"
    )
    lr: float = Field(1e-3, gt=0, description="learning rate at the end of the warm-up")
    momentum: float = Field(0.9, ge=0, lt=1, description="of sgd and nesterov")
    weight_decay: float = Field(0.02, ge=0, description="on every parameter")
    warmup: float = Field(0.05, ge=0, lt=1, description="share of the steps with a rising rate")
    clip: float = Field(1.0, ge=0, description="largest norm of the gradient; 0: any")
    augmentation: Literal["none", "flip", "crop_flip"] = Field(
        "flip", description="mirroring; crop: shifts of up to an eighth of the side, zero-padded"
    )
    label_smoothing: float = Field(0.0, ge=0, lt=1, description="share of the uniform target")
    teacher: str = Field("", description="a model whose probabilities are half of the target")
    start: str = Field("", description="a model whose weights, but the head, are the first ones")
    precision: Literal["float32", "bfloat16", "float16"] = Field(
        "float32", description="of the forward pass, by autocast"
    )
    stored: Literal["float32", "float16"] = Field(
        "float32", description="type of the file's values"
    )

    @model_validator(mode="after")
    def _views_of_the_teacher(self) -> "Recipe":
        if self.teacher and self.augmentation == "crop_flip":
            raise ValueError("a teacher tells of images and their mirror images: no crop_flip")
        return self


@functools.cache
def _stored_recipes() -> dict[str, Any]:
    file = resources.files("ctta_bench.datasets") / "recipes.yaml"
    return parse_yaml(file.read_text(encoding="utf-8"), "recipes.yaml")


def recipe_for(model: str, overrides: dict[str, Any] | None = None) -> Recipe:
    """The recipe of a model with some values changed. Raises ConfigError for a wrong key or value.

    A timm model without an entry starts from its own weights.
    """
    own = {"start": model} if model.startswith("timm:") else {}
    values = own | _stored_recipes().get(canonical(model), {}) | (overrides or {})
    return validate(Recipe, values, f"recipe of {model}")
