"""Base classes of the methods' hyper-parameters, with the fields of optimisers and warm-ups.

A field that is added to a released method has `json_schema_extra=NEWER` and a default that leaves
the method unchanged. At its default it is not recorded, so that older cells keep their identity.
"""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

NEWER: dict[str, Any] = {"newer": True}


class MethodHyperparameters(BaseModel):
    """Base of every method's hyper-parameters: unknown keys are errors, objects are immutable.

    class Hyperparameters(MethodHyperparameters):
        margin: float = Field(0.4, gt=0, description="entropy in nats below which images count")
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @property
    def warms_up(self) -> bool:
        """Whether the method trains on source data before the stream."""
        return False

    def record(self) -> dict[str, Any]:
        """Plain values for cell.yaml, without `NEWER` fields at their defaults."""
        values = self.model_dump(mode="json")
        return {
            name: values[name]
            for name, field in type(self).model_fields.items()
            if field.json_schema_extra != NEWER or getattr(self, name) != field.default
        }


class OptimizerHyperparameters(MethodHyperparameters):
    """The optimiser of methods that take gradient steps (`Method.build_optimizer`)."""

    optimizer: Literal["sgd", "adam", "adamw"] = Field("sgd", description="update rule")
    lr: float = Field(1e-3, ge=0, description="learning rate")
    momentum: float = Field(0.9, ge=0, lt=1, description="momentum of SGD")
    nesterov: bool = Field(False, description="Nesterov's momentum (SGD)")
    betas: tuple[float, float] = Field((0.9, 0.999), description="moment decays of Adam(W)")
    weight_decay: float = Field(0.0, ge=0, description="weight decay")


class WarmupHyperparameters(MethodHyperparameters):
    """The recipe of a warm-up, added to a method's other hyper-parameters; none by default."""

    warmup_epochs: int = Field(
        0, ge=0, description="epochs of the warm-up on source data", json_schema_extra=NEWER
    )
    warmup_iterations: int = Field(
        0, ge=0, description="updates of the warm-up, instead of epochs", json_schema_extra=NEWER
    )
    warmup_batch_size: int = Field(
        128, ge=1, description="batch size of the warm-up", json_schema_extra=NEWER
    )
    warmup_optimizer: Literal["sgd", "adamw"] = Field(
        "adamw", description="its optimiser; SGD with momentum 0.9", json_schema_extra=NEWER
    )
    warmup_lr: float = Field(
        1e-4, ge=0, description="learning rate of the warm-up", json_schema_extra=NEWER
    )
    warmup_schedule: Literal["constant", "cosine", "steps", "linear", "swag"] = Field(
        "constant",
        description="learning rate: cosine and steps rise in the first epoch, linear to the end, "
        "swag from 8 % in three fifths",
        json_schema_extra=NEWER,
    )
    warmup_cosine_epochs: int = Field(
        5, ge=1, description="epochs until the cosine schedule reaches 0", json_schema_extra=NEWER
    )
    warmup_augmentation: Literal["none", "colour", "crop"] = Field(
        "none",
        description="colour: jitter, blur and grey; crop: crops and mirror images",
        json_schema_extra=NEWER,
    )

    @model_validator(mode="after")
    def _length_is_given_once(self) -> "WarmupHyperparameters":
        if self.warmup_epochs and self.warmup_iterations:
            raise ValueError("set warmup_epochs or warmup_iterations, not both")
        return self

    @property
    def warms_up(self) -> bool:
        """Whether the length of the warm-up is above 0."""
        return bool(self.warmup_epochs or self.warmup_iterations)
