"""Bases of the methods' hyper-parameters: strict, fixed; what optimisers and warm-ups need.

A field that joins a method later carries `json_schema_extra=NEWER`, and its default is what the
method did before: at its default it is left out of the record, so that cells from before it existed
keep their identity, and tables name it only where it is used.
"""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

NEWER: dict[str, Any] = {"newer": True}


class MethodHyperparameters(BaseModel):
    """Base of every method's hyper-parameters: unknown keys are refused, values are fixed."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @property
    def warms_up(self) -> bool:
        """Whether there is a warm-up on source data before the stream."""
        return False

    def record(self) -> dict[str, Any]:
        """Plain values for cell.yaml; of the newer fields those that are not at their defaults."""
        values = self.model_dump(mode="json")
        return {
            name: values[name]
            for name, field in type(self).model_fields.items()
            if field.json_schema_extra != NEWER or getattr(self, name) != field.default
        }


class OptimizerHyperparameters(MethodHyperparameters):
    """The optimiser of methods that take gradient steps."""

    optimizer: Literal["sgd", "adam", "adamw"] = Field("sgd", description="update rule")
    lr: float = Field(1e-3, ge=0, description="learning rate")
    momentum: float = Field(0.9, ge=0, lt=1, description="momentum of SGD")
    nesterov: bool = Field(False, description="Nesterov's momentum (SGD)")
    betas: tuple[float, float] = Field((0.9, 0.999), description="moment decays of Adam(W)")
    weight_decay: float = Field(0.0, ge=0, description="weight decay")


class WarmupHyperparameters(MethodHyperparameters):
    """The recipe of a warm-up, beside a method's other hyper-parameters; none by default."""

    warmup_epochs: int = Field(
        0, ge=0, description="epochs of the warm-up on source data", json_schema_extra=NEWER
    )
    warmup_iterations: int = Field(
        0, ge=0, description="its updates, in place of epochs", json_schema_extra=NEWER
    )
    warmup_batch_size: int = Field(
        128, ge=1, description="batch size of the warm-up", json_schema_extra=NEWER
    )
    warmup_optimizer: Literal["sgd", "adamw"] = Field(
        "adamw", description="its update rule; SGD has momentum 0.9", json_schema_extra=NEWER
    )
    warmup_lr: float = Field(
        1e-4, ge=0, description="learning rate of the warm-up", json_schema_extra=NEWER
    )
    warmup_schedule: Literal["constant", "cosine", "steps", "linear"] = Field(
        "constant",
        description="of its rate; cosine and steps rise through the first epoch, linear throughout",
        json_schema_extra=NEWER,
    )
    warmup_cosine_epochs: int = Field(
        5, ge=1, description="epochs until a cosine is at 0", json_schema_extra=NEWER
    )
    warmup_augmentation: Literal["none", "colour", "crop"] = Field(
        "none",
        description="colours, blur and grey, or crops and mirror images",
        json_schema_extra=NEWER,
    )

    @model_validator(mode="after")
    def _length_is_given_once(self) -> "WarmupHyperparameters":
        if self.warmup_epochs and self.warmup_iterations:
            raise ValueError("warmup_epochs and warmup_iterations exclude each other")
        return self

    @property
    def warms_up(self) -> bool:
        """Whether it has a length."""
        return bool(self.warmup_epochs or self.warmup_iterations)
