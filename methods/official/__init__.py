"""Translations of the settings of official codes to ours, one file per method.

A parity case (tests/parity) names its repository and function. The first translation that matches
both is used; the names of cases have no effect.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ctta_bench.errors import DataError
from ctta_bench.method import Method

Case = dict[str, Any]
Recorded = dict[str, Tensor]
# What a case may state next to its settings: the model, and seeds of values that it records.
FACTS = frozenset({"model", "MODEL.ARCH", "seed", "rand_seed", "init_seed"})
# Settings that most of our methods lack, and the value at which they have no effect.
WITHOUT_EFFECT = {
    **{"steps": 1, "episodic": False, "dampening": 0},
    **{"OPTIM.STEPS": 1, "MODEL.EPISODIC": False, "OPTIM.DAMPENING": 0},
    "MODEL.RESET_AFTER_NUM_UPDATES": 0,
}


class Settings(dict[str, Any]):
    """Recorded settings by their official names; a translation must read each of them."""

    def __init__(self, values: dict[str, Any]) -> None:
        nested = {k: Settings(v) if isinstance(v, dict) else v for k, v in values.items()}
        super().__init__(nested)
        self.read: set[str] = set()

    def __getitem__(self, name: str) -> Any:
        if name not in self:
            raise DataError(f"the setting {name!r} is missing.")
        self.read.add(name)
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        """A setting, or the default of the official code where the case does not state it."""
        if name not in self:
            return default
        return self[name]

    def require(self, allowed: dict[str, Any]) -> None:
        """Raise DataError if a setting has another value than the one that our method has."""
        for name, value in allowed.items():
            if name in self and self[name] != value:
                raise DataError(f"the setting {name!r} is {self[name]!r}; only {value!r} is known.")

    def choose(self, name: str, options: dict[str, Any]) -> Any:
        """Our value for a setting that is a name. Raises DataError for another name."""
        if self[name] not in options:
            known = ", ".join(map(repr, options))
            raise DataError(f"the setting {name!r} is {self[name]!r}; known are {known}.")
        return options[self[name]]

    def unread(self) -> Iterator[tuple[str, Any]]:
        """Settings that nothing has read, with those of groups of settings."""
        for name, value in self.items():
            if name not in self.read:
                yield name, value
            elif isinstance(value, Settings):
                yield from value.unread()


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
    facts: settings that are no hyper-parameters, as start values; other settings must be read.
    """

    repository: str
    words: str
    method: str
    hyperparameters: Callable[[Case], dict[str, Any]]
    set_initial_state: Callable[[Method, Case, Recorded], None] = keep_initial_state
    tensors: Callable[[Method], dict[str, Tensor]] = same_names
    run_function: Callable[[Case, Recorded], dict[str, Tensor]] | None = None
    facts: frozenset[str] = frozenset()

    def settings(self, case: Case) -> dict[str, Any]:
        """Our hyper-parameters of a case.

        Raises DataError, with its name, for a setting that is missing or has no counterpart.
        """
        given = Settings(case["hyper_parameters"])
        found = self.hyperparameters(case | {"hyper_parameters": given})
        for name, value in given.unread():
            effect = name not in WITHOUT_EFFECT or WITHOUT_EFFECT[name] != value
            if effect and name not in FACTS | self.facts:
                raise DataError(
                    f"the setting {name!r} ({value!r}) has no counterpart in {self.method!r}; "
                    "translate it in official/ of the method, or remove it from the case."
                )
        return found

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


def optimizer(settings: Settings) -> dict[str, Any]:
    """Our hyper-parameters of a recorded optimiser."""
    names = ("lr", "momentum", "nesterov", "betas", "weight_decay")
    values = {name: settings[name] for name in names if name in settings}
    return values | {"optimizer": settings["name"].lower()}


def mario_optimizer(cfg: Settings) -> dict[str, Any]:
    """Our hyper-parameters for the optimiser keys of mariodoebler/test-time-adaptation."""
    values = given(cfg, {"OPTIM.MOMENTUM": "momentum", "OPTIM.WD": "weight_decay"})
    if "OPTIM.BETA" in cfg:
        values["betas"] = (cfg["OPTIM.BETA"], 0.999)
    return values | {
        "optimizer": cfg.get("OPTIM.METHOD", "Adam").lower(),
        "lr": cfg.get("OPTIM.LR", 1e-3),
        "nesterov": cfg.get("OPTIM.NESTEROV", True),
    }


def given(settings: Settings, names: dict[str, str]) -> dict[str, Any]:
    """Settings by our names, where the case states them: {theirs: ours}."""
    return {ours: settings[theirs] for theirs, ours in names.items() if theirs in settings}
