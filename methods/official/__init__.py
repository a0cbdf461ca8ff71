"""Translations of the settings of official codes to ours, one file per method.

A parity case (tests/parity) names its repository and function. The first translation that matches
both is used; the names of cases have no effect.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ctta_bench.method import Method

Case = dict[str, Any]
Recorded = dict[str, Tensor]


def keep_initial_state(method: Method, case: Case, recorded: Recorded) -> None:
    """Leave the method in its initial state."""


def same_names(method: Method) -> dict[str, Tensor]:
    """Adapted tensors by our names."""
    return {name: tensor.detach() for name, tensor in method.trainable.items()}


@dataclass(frozen=True)
class Translation:
    """One official implementation of one of our methods.

    repository, words: the case's `source`, and a text that its `function` contains.
    method: the registered name. hyperparameters: makes them from the case.
    set_initial_state: sets recorded random values (start weights, augmentation, restored entries)
    in a started method. tensors: the adapted tensors by the official names.
    run_function: the outputs of a case of kind "function", from its inputs.
    """

    repository: str
    words: str
    method: str
    hyperparameters: Callable[[Case], dict[str, Any]]
    set_initial_state: Callable[[Method, Case, Recorded], None] = keep_initial_state
    tensors: Callable[[Method], dict[str, Tensor]] = same_names
    run_function: Callable[[Case, Recorded], dict[str, Tensor]] | None = None

    def matches(self, case: Case) -> bool:
        """Whether `case` comes from this implementation."""
        return case["source"] == self.repository and self.words in case["function"]


class RecordedAugmentation:
    """The cases' replacement of random augmentation: call k flips for even k, else 0.9 x + 0.05."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, images: Tensor, *settings: Any) -> Tensor:
        """The next view of images [n, 3, H, W]."""
        self.calls += 1
        return images.flip(-1) if self.calls % 2 else 0.9 * images + 0.05


class RecordedRestore:
    """The cases' stochastic restore: recorded rows of tensor number and flat index, per batch.

    `parameters` are set to their values in `source`; both by the names of `restore_order`.
    """

    def __init__(
        self,
        parameters: dict[str, Tensor],
        source: dict[str, Tensor],
        case: Case,
        recorded: Recorded,
    ) -> None:
        self.pairs = [(parameters[name], source[name]) for name in case["restore_order"]]
        self.rows = recorded
        self.batch = 0

    @torch.no_grad()
    def __call__(self) -> None:
        """Restore the entries that were recorded for this batch."""
        rows = self.rows[f"aux/restore_{self.batch}"].long()
        self.batch += 1
        for number, (parameter, value) in enumerate(self.pairs):
            chosen = rows[rows[:, 0] == number, 1]
            parameter.view(-1)[chosen] = value.view(-1)[chosen]


def optimizer(settings: dict[str, Any]) -> dict[str, Any]:
    """Our hyper-parameters of a recorded optimiser."""
    values = {k: v for k, v in settings.items() if k != "name"}
    return values | {"optimizer": settings["name"].lower()}


def mario_optimizer(cfg: dict[str, Any]) -> dict[str, Any]:
    """Our hyper-parameters for the optimiser keys of mariodoebler/test-time-adaptation."""
    return {
        "optimizer": cfg["OPTIM.METHOD"].lower(),
        "lr": cfg["OPTIM.LR"],
        "nesterov": cfg.get("OPTIM.NESTEROV", False),
    }
