"""FOA, its shift alone, and its form with gradients: mr-eggplant/FOA, with recorded candidates."""

from typing import Any

import torch
from torch import Tensor

from ctta_bench.methods.official import Case, Recorded, Translation, optimizer
from ctta_bench.parts.evolution import EvolutionStrategy


class RecordedCandidates(EvolutionStrategy):
    """A search that draws the recorded candidates."""

    def __init__(self, settings: Case, recorded: Recorded) -> None:
        dimensions = recorded["aux/candidates_0"].shape[1]
        super().__init__(dimensions, settings["popsize"], 1.0)
        self.recorded, self.batch = recorded, 0

    def ask(self) -> Tensor:
        """The candidates of the next batch."""
        self.batch += 1
        return self.recorded[f"aux/candidates_{self.batch - 1}"].double()

    def tell(self, asked: Tensor, injected: Tensor, fitness: Tensor) -> bool:
        """Move the mean as usual; store injected candidates and fitness."""
        self.injected, self.fitness = injected.clone(), fitness.tolist()
        return super().tell(asked, injected, fitness)


def official(case: Case) -> dict[str, Any]:
    """Settings of the official code, which uses all source images."""
    settings = case["hyper_parameters"]
    return {
        "prompts": settings["num_prompts"],
        "candidates": settings["popsize"],
        "distance_weight": settings["fitness_lambda"],
    }


def shift_alone(case: Case) -> dict[str, Any]:
    """Settings of the shift: it has no prompts."""
    case["hyper_parameters"].require({"num_prompts": 0})
    return {}


def with_gradients(case: Case) -> dict[str, Any]:
    """Settings of the form with gradients."""
    settings = case["hyper_parameters"]
    settings.require({"num_prompts": 0})
    return optimizer(settings["optimizer"]) | {"distance_weight": settings["fitness_lambda"]}


@torch.no_grad()
def set_initial_state(method: Any, case: Case, recorded: Recorded) -> None:
    """Recorded initial prompts and candidates."""
    method.prompts.copy_(recorded["aux/start_prompts"][0])
    method.search = RecordedCandidates(case["hyper_parameters"], recorded)


def last_candidate(method: Any) -> dict[str, Tensor]:
    """The prompts that the official code leaves in the network: the last candidate, injected."""
    return {"prompts": method.search.injected.view_as(method.prompts)[None]}


TRANSLATIONS = (
    Translation(
        "mr-eggplant/FOA",
        "foa.py: FOA",
        "foa",
        official,
        set_initial_state,
        last_candidate,
        facts=frozenset({"prompt_seed", "prompt_bound", "cma_seed", "cma_version"}),
    ),
    Translation("mr-eggplant/FOA", "foa_shift.py: Shift", "foa_shift", shift_alone),
    Translation("mr-eggplant/FOA", "foa_bp.py: FOA_BP", "foa_bp", with_gradients),
)
