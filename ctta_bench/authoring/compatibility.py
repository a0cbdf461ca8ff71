"""Compatibility of methods and models, and what a method would update; without weights or data.

`ctta-bench list methods --model MODEL` prints it. A method that does not support a model raises
MethodError when it is built.
"""

import copy
from collections.abc import Iterator
from dataclasses import dataclass, field

from ctta_bench.config.presets import preset_values
from ctta_bench.config.validation import validate
from ctta_bench.errors import MethodError
from ctta_bench.method import Method
from ctta_bench.model import SourceModel, Task
from ctta_bench.model.preprocessing import recorded_preprocessing
from ctta_bench.registry import METHODS
from ctta_bench.source_models.pretrained import build

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
