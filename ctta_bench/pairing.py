"""Which method serves which model, and what it would update there; no weights and no data needed.

`ctta-bench list methods --model MODEL` prints it. A method that cannot serve a model says so when
it is built.
"""

import copy
from collections.abc import Iterator
from dataclasses import dataclass, field

from ctta_bench.config import preset_values, validate
from ctta_bench.errors import MethodError
from ctta_bench.model import SourceModel
from ctta_bench.registry import METHODS
from ctta_bench.source_models.preprocessing import recorded_preprocessing
from ctta_bench.source_models.pretrained import build


@dataclass(frozen=True)
class Pair:
    """A method on a model: the tensors it trains with their numbers of values, or why not.

    `scored` is the network whose logits are scored, always as it is before the batch's update.
    """

    method: str
    model: str
    refusal: str = ""
    trainable: dict[str, int] = field(default_factory=dict)
    scored: str = ""
    source_access: str = ""

    @property
    def parameters(self) -> int:
        """Trained values in all."""
        return sum(self.trainable.values())


def pairs(model: str, methods: list[str]) -> Iterator[Pair]:
    """Each of `methods`, with its default preset, on the model called `model`.

    Raises ConfigError for an unknown model.
    """
    network = build(model).eval()
    preprocessing = recorded_preprocessing(network, "true")
    for name in methods:
        fresh = SourceModel(copy.deepcopy(network), name=model, preprocessing=preprocessing)
        yield pair(name, fresh)


def pair(name: str, model: SourceModel) -> Pair:
    """The method called `name` on a model, which it changes."""
    entry = METHODS.get(name)
    values = preset_values(name, "default", "any")
    try:
        method = entry(model, validate(entry.Hyperparameters, values, f"method {name}"))
    except MethodError as error:
        return Pair(name, model.name, refusal=str(error))
    return Pair(
        name,
        model.name,
        trainable={key: p.numel() for key, p in method.trainable.items()},
        scored="model" if method.scored_model is method.model else "teacher",
        source_access=method.source_access,
    )
