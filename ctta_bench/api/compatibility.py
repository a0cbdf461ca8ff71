"""Compatibility of methods and models, and what a method would update; without weights or data.

`check_model` shows it, and `ctta-bench list methods --model MODEL` prints it. A method that does
not support a model raises MethodError when it is built.
"""

import copy
import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torch import nn

from ctta_bench.api.loading import load_model
from ctta_bench.config.presets import preset_values
from ctta_bench.config.validation import validate
from ctta_bench.errors import MethodError
from ctta_bench.method import Method
from ctta_bench.model import SourceModel, Task
from ctta_bench.model.preprocessing import recorded_preprocessing
from ctta_bench.registry import METHODS
from ctta_bench.source_models.pretrained import build

if TYPE_CHECKING:
    import pandas as pd

# The benchmark of the presets for models of a task.
PRESETS_FOR: dict[Task, str] = {"classification": "any", "segmentation": "cityscapes_acdc"}


@dataclass(frozen=True)
class Compatibility:
    """A method on a model: the numbers of values of the tensors that it trains, or `refusal`.

    `refusal` is the message of the method's MethodError. `scored` is "model" or "teacher": the
    network whose logits are scored, before the update on the batch.
    """

    method: str
    model: str
    refusal: str = ""
    trainable: dict[str, int] = field(default_factory=dict)
    scored: str = ""
    source_access: str = ""

    @property
    def parameters(self) -> int:
        """Number of trained values."""
        return sum(self.trainable.values())


class Checked(list[Compatibility]):
    """What each method would do with a model, shown as a table.

    `supported` and `refused`: names of methods, refused ones with the reason.
    """

    @property
    def supported(self) -> list[str]:
        """The methods that run on the model."""
        return [one.method for one in self if not one.refusal]

    @property
    def refused(self) -> dict[str, str]:
        """Why the others do not."""
        return {one.method: one.refusal for one in self if one.refusal}

    def to_frame(self) -> "pd.DataFrame":
        """One row per method: supported, trained values, source data, reason."""
        import pandas as pd

        return pd.DataFrame(
            {
                "method": one.method,
                "supported": not one.refusal,
                "adapts": one.parameters,
                "source_data": one.source_access,
                "reason": one.refusal,
            }
            for one in self
        ).set_index("method")

    def __repr__(self) -> str:
        from tabulate import tabulate

        rows = [
            [
                one.method,
                f"{one.parameters:,}" if not one.refusal else "no",
                textwrap.fill(one.refusal, 60),
            ]
            for one in self
        ]
        return tabulate(
            rows,
            ["method", "adapts", "why not"],
            "simple",
            disable_numparse=True,
        )

    def _repr_html_(self) -> str:
        return self.to_frame().reset_index().to_html(index=False)


def check_model(
    model: str | nn.Module, methods: Iterable[str] | None = None, **options: Any
) -> Checked:
    """Which methods support a model, what each would adapt, and why others do not.

        check_model(network, mean=0.5, std=0.5).supported
        check_model("timm:resnet50.a1_in1k", ["tent", "dept"]).refused["dept"]

    model: a name, which needs no weights here, or a module, which is not changed. methods: by
    default all. options: as those of `load_model`, for a module.
    """
    chosen = METHODS.names() if methods is None else [METHODS.find(name).name for name in methods]
    if isinstance(model, str) and not options:
        return Checked(compatibilities(model, chosen))
    prepared = load_model(model, **options)
    return Checked(compatibility(name, copy.deepcopy(prepared)) for name in chosen)


def compatibilities(model: str, methods: list[str]) -> Iterator[Compatibility]:
    """The compatibility of each of `methods`, with its default preset, and the model `model`.

    Raises ConfigError for an unknown model.
    """
    network = build(model).eval()
    preprocessing = recorded_preprocessing(network, "true")
    for name in methods:
        fresh = SourceModel(copy.deepcopy(network), name=model, preprocessing=preprocessing)
        yield compatibility(name, fresh)


def compatibility(name: str, model: SourceModel) -> Compatibility:
    """The compatibility of the method `name` and a model, which is changed."""
    entry = METHODS.get(name)
    values = preset_values(name, "default", PRESETS_FOR[model.task])
    try:
        method = entry(model, validate(entry.Hyperparameters, values, f"method {name}"))
    except MethodError as error:
        return Compatibility(name, model.name, refusal=str(error))
    return Compatibility(
        name,
        model.name,
        trainable={key: p.numel() for key, p in method.trainable.items()},
        scored=_scored(method),
        source_access=method.source_access,
    )


def _scored(method: Method) -> str:
    try:
        return "model" if method.scored_model is method.model else "teacher"
    except MethodError:  # a teacher with prompts, which is not a plain network
        return "teacher"
