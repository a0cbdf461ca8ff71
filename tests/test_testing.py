"""The safety net of method authors: every method passes it, and each fault is caught by a check."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner

from ctta_bench.cli import app
from ctta_bench.method import Method, OptimizerHyperparameters, softmax_entropy
from ctta_bench.registry import METHODS
from ctta_bench.testing import CHECKS, check_method


@pytest.mark.parametrize("name", METHODS.names())
def test_every_method_passes_every_check(name: str) -> None:
    outcomes = list(check_method(name))
    assert [o for o in outcomes if not o.passed] == []
    assert {o.check for o in outcomes} == set(CHECKS)


@pytest.mark.parametrize("name", METHODS.names())
def test_an_exemption_names_a_check_and_says_why(name: str) -> None:
    for check, why in METHODS.get(name).exempt.items():
        assert check in CHECKS
        assert len(why.split()) >= 4


class Sound(Method):
    """TENT in few lines, to be broken one fault at a time."""

    passes_per_image = (1, 1)

    class Hyperparameters(OptimizerHyperparameters):
        pass

    def setup(self) -> None:
        self.adapt_only(self.model.norm_parameters())
        self.optimizer = self.build_optimizer()

    def adapt(self, images: Tensor) -> Tensor:
        logits = self.model(images)
        self.step(softmax_entropy(logits).mean())
        return logits


class ChangesTheHead(Sound):
    def adapt(self, images: Tensor) -> Tensor:
        logits = super().adapt(images)
        self.model.classifier.bias.data.add_(0.01)
        return logits


class ScoresAfterTheUpdate(Sound):
    class Hyperparameters(OptimizerHyperparameters):
        lr: float = 0.1

    def adapt(self, images: Tensor) -> Tensor:
        super().adapt(images)
        return self.model(images)


class AsksForLabels(Sound):
    def adapt(self, images: Tensor, labels: Tensor | None = None) -> Tensor:
        return super().adapt(images)


class ReadsSourceLabels(Sound):
    source_access = "unlabelled"

    def prepare(self, source: Any) -> None:
        next(source.labelled_batches())


COUNT = [0]


class KeepsStateOutside(Sound):
    """Its state is where neither reset nor a checkpoint reaches."""

    def adapt(self, images: Tensor) -> Tensor:
        COUNT[0] += 1
        return super().adapt(images) + COUNT[0]


class DividesByTheBatchMinusOne(Sound):
    def adapt(self, images: Tensor) -> Tensor:
        return super().adapt(images) / (len(images) - 1)


class StepsUnguarded(Sound):
    def adapt(self, images: Tensor) -> Tensor:
        logits = self.model(images)
        self.backward(softmax_entropy(logits).mean(), guard=False)
        self.optimizer_step(guard=False)
        return logits


class MovesWithoutALearningRate(Sound):
    def adapt(self, images: Tensor) -> Tensor:
        logits = super().adapt(images)
        with torch.no_grad():
            next(iter(self.trainable.values())).add_(0.1)
        return logits


class DependsOnThePlace(Sound):
    def adapt(self, images: Tensor) -> Tensor:
        return super().adapt(images) + torch.arange(len(images)).unsqueeze(1)


class ForwardsTwice(Sound):
    def adapt(self, images: Tensor) -> Tensor:
        self.model(images)
        return super().adapt(images)


class RoundsToSingle(Sound):
    def adapt(self, images: Tensor) -> Tensor:
        return super().adapt(images).float()


FAULTS: dict[type[Method], str] = {
    ChangesTheHead: "only_declared_tensors_change",
    ScoresAfterTheUpdate: "scored_logits",
    AsksForLabels: "labels_never_reach_it",
    ReadsSourceLabels: "labels_never_reach_it",
    KeepsStateOutside: "resume_is_bit_same",
    DividesByTheBatchMinusOne: "small_batches",
    StepsUnguarded: "nan_images",
    MovesWithoutALearningRate: "learning_rate_zero_is_source",
    DependsOnThePlace: "permutation",
    ForwardsTwice: "declared_passes",
    RoundsToSingle: "precisions",
}


@pytest.fixture
def register(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[type[Method]], None]]:
    """Let METHODS.get hand out a class that is registered nowhere."""
    yield lambda kind: monkeypatch.setattr(METHODS, "get", lambda name: kind)


def test_a_sound_method_passes(register: Callable[[type[Method]], None]) -> None:
    register(Sound)
    assert [o for o in check_method("sound") if not o.passed] == []


@pytest.mark.parametrize("kind", FAULTS, ids=lambda kind: kind.__name__)
def test_a_fault_is_caught_by_its_check(
    kind: type[Method], register: Callable[[type[Method]], None]
) -> None:
    register(kind)
    COUNT[0] = 0
    failed = {o.check for o in check_method("faulty") if not o.passed}
    assert FAULTS[kind] in failed


def test_an_exempt_check_is_not_run_and_its_reason_is_told(
    register: Callable[[type[Method]], None],
) -> None:
    class Exempt(ForwardsTwice):
        exempt = {"declared_passes": "the second pass is for the example"}

    register(Exempt)
    (outcome,) = (o for o in check_method("x") if o.check == "declared_passes")
    assert (outcome.state, outcome.detail) == ("exempt", "the second pass is for the example")


def test_the_command_prints_a_table_and_fails_with_a_failing_method(tmp_path: Any) -> None:
    good = CliRunner().invoke(app, ["check", "tent"])
    assert good.exit_code == 0 and "reset restores every bit" in good.stdout
    file = tmp_path / "bad.py"
    file.write_text(
        "from ctta_bench.method import Method\nfrom ctta_bench.registry import METHODS\n"
        '@METHODS.register_module("bad_one")\nclass Bad(Method):\n    """Bad."""\n'
        "    def adapt(self, images):\n        return self.model(images[:1])\n"
    )
    bad = CliRunner().invoke(app, ["check", "bad_one", "--plugin", str(file)])
    assert bad.exit_code == 1 and "checks failed" in bad.stderr
    assert CliRunner().invoke(app, ["check"]).exit_code == 2
