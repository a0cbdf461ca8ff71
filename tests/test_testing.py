"""The conformance checks: every method passes them, and each fault is found by a check."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner

from ctta_bench.cli import app
from ctta_bench.method import Method, OptimizerHyperparameters, softmax_entropy
from ctta_bench.registry import METHODS
from ctta_bench.testing import CHECKS, check_method


# The same properties of every method are tested one by one in test_method.py and in
# methods/test_segmentation.py; the command, below, checks tent.
@pytest.mark.slow
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


class ChangesAFrozenWeightLate(Sound):
    def setup(self) -> None:
        super().setup()
        self.seen = 0

    def adapt(self, images: Tensor) -> Tensor:
        self.seen += 1
        if self.seen == 4:
            self.model.classifier.weight.data[0, 0] += 1e-6
        return super().adapt(images)


class PreparesByChangingAFrozenWeight(Sound):
    def prepare(self, source: Any) -> None:
        self.model.classifier.weight.data.mul_(1.01)


class OptimisesMoreThanItDeclares(Sound):
    def setup(self) -> None:
        super().setup()
        self.model.classifier.requires_grad_(True)
        self.optimizer = self.build_optimizer(self.model.parameters())


class AsksForGradientsOfTheWholeNetwork(Sound):
    def setup(self) -> None:
        super().setup()
        self.model.network.requires_grad_(True)


class ChangesTheNormalisation(Sound):
    def adapt(self, images: Tensor) -> Tensor:
        self.model.mean.add_(1e-4)
        return super().adapt(images)


class DeclaresMoreThanItTrains(Sound):
    def setup(self) -> None:
        super().setup()
        self.optimizer = self.build_optimizer(list(self.trainable.values())[1:])


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


class KeepsItsMomentumOverAReset(Sound):
    def reset(self) -> None:
        momentum = self.optimizer.state_dict()
        super().reset()
        self.optimizer.load_state_dict(momentum)


class KeepsItsMemoryOverAReset(Sound):
    def setup(self) -> None:
        super().setup()
        self.seen = 0

    def adapt(self, images: Tensor) -> Tensor:
        self.seen += len(images)
        return super().adapt(images) + 1e-3 * self.seen

    def reset(self) -> None:
        seen = self.seen
        super().reset()
        self.seen = seen


class SavesNoMemory(Sound):
    """Counts, and leaves its counter out of what is saved."""

    def setup(self) -> None:
        super().setup()
        self.seen = 0

    def adapt(self, images: Tensor) -> Tensor:
        self.seen += 1
        return super().adapt(images) * self.seen

    def state_dict(self) -> Any:
        return super().state_dict() | {"seen": {"kind": "value", "value": 0}}


class DividesByTheBatchMinusOne(Sound):
    def adapt(self, images: Tensor) -> Tensor:
        return super().adapt(images) / (len(images) - 1)


class StepsUnguarded(Sound):
    def adapt(self, images: Tensor) -> Tensor:
        logits = self.model(images)
        self.backward(softmax_entropy(logits).mean(), guard=False)
        self.optimizer_step(guard=False)
        return logits


class DividesByTheSpreadOfTheBatch(Sound):
    """Finite on any batch with two images that differ."""

    def adapt(self, images: Tensor) -> Tensor:
        logits = self.model(images)
        spread = images.std((0, 2, 3), correction=0).min()
        self.backward(softmax_entropy(logits).mean() / spread, guard=False)
        self.optimizer_step(guard=False)
        return logits


class SkipsWithoutCounting(Sound):
    def skip_update(self) -> None:
        self.optimizer_zero_grad()


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


class BackwardsTwice(Sound):
    def adapt(self, images: Tensor) -> Tensor:
        super().adapt(images)
        return super().adapt(images)


class DrawsFromNumpy(Sound):
    def adapt(self, images: Tensor) -> Tensor:
        return super().adapt(images) + float(np.random.rand())


class UnderflowsInHalfPrecision(Sound):
    """An epsilon that is zero in half precision, as of a normalised vector."""

    def adapt(self, images: Tensor) -> Tensor:
        logits = super().adapt(images)
        flat = images.half().flatten(1) if self.precision == "float16" else images.flatten(1)
        scale = flat.norm(dim=1, keepdim=True).clamp_min(1e-12).to(flat.dtype)
        return logits + (flat / scale).sum(1, keepdim=True)


class RoundsToSingle(Sound):
    def adapt(self, images: Tensor) -> Tensor:
        return super().adapt(images).float()


FAULTS: dict[type[Method], str] = {
    ChangesTheHead: "only_declared_tensors_change",
    ChangesAFrozenWeightLate: "only_declared_tensors_change",
    PreparesByChangingAFrozenWeight: "only_declared_tensors_change",
    OptimisesMoreThanItDeclares: "only_declared_tensors_change",
    AsksForGradientsOfTheWholeNetwork: "only_declared_tensors_change",
    ChangesTheNormalisation: "only_declared_tensors_change",
    DeclaresMoreThanItTrains: "every_declared_tensor_changes",
    ScoresAfterTheUpdate: "scored_logits",
    AsksForLabels: "labels_are_not_read",
    ReadsSourceLabels: "labels_are_not_read",
    KeepsItsMomentumOverAReset: "reset_is_bit_identical",
    KeepsItsMemoryOverAReset: "reset_is_bit_identical",
    KeepsStateOutside: "resume_is_bit_identical",
    SavesNoMemory: "resume_is_bit_identical",
    DividesByTheBatchMinusOne: "small_batches",
    DividesByTheSpreadOfTheBatch: "constant_images",
    StepsUnguarded: "nan_images",
    SkipsWithoutCounting: "nan_images",
    MovesWithoutALearningRate: "learning_rate_zero_is_source",
    DependsOnThePlace: "permutation",
    ForwardsTwice: "declared_passes",
    BackwardsTwice: "declared_passes",
    DrawsFromNumpy: "same_seed_is_bit_identical",
    UnderflowsInHalfPrecision: "precisions",
    RoundsToSingle: "precisions",
}


@pytest.fixture
def register(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[type[Method]], None]]:
    """Let METHODS.get hand out a class that is registered nowhere."""
    yield lambda kind: monkeypatch.setattr(METHODS, "get", lambda name: kind)


def test_a_sound_method_passes(register: Callable[[type[Method]], None]) -> None:
    register(Sound)
    assert [o for o in check_method("sound") if not o.passed] == []


def test_every_check_is_there_for_a_fault() -> None:
    assert set(FAULTS.values()) == set(CHECKS)


@pytest.mark.parametrize("kind", FAULTS, ids=lambda kind: kind.__name__)
def test_a_fault_is_caught_by_its_check(
    kind: type[Method], register: Callable[[type[Method]], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    register(kind)
    COUNT[0] = 0
    monkeypatch.setattr("ctta_bench.testing.CHECKS", {FAULTS[kind]: CHECKS[FAULTS[kind]]})
    (outcome,) = check_method("faulty")
    assert not outcome.passed


def test_an_exempt_check_is_not_run_and_its_reason_is_told(
    register: Callable[[type[Method]], None],
) -> None:
    class Exempt(ForwardsTwice):
        exempt = {"declared_passes": "the second pass is for the example"}

    register(Exempt)
    (outcome,) = (o for o in check_method("x") if o.check == "declared_passes")
    assert (outcome.state, outcome.detail) == ("exempt", "the second pass is for the example")


def test_an_exemption_by_the_old_name_of_a_check_counts(
    register: Callable[[type[Method]], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Exempt(SavesNoMemory):
        exempt = {"resume_is_bit_same": "its memory is not saved"}

    register(Exempt)
    new = "resume_is_bit_identical"
    monkeypatch.setattr("ctta_bench.testing.CHECKS", {new: CHECKS[new]})
    with pytest.warns(FutureWarning, match=f"'resume_is_bit_same' is called '{new}'"):
        (outcome,) = check_method("x")
    assert outcome.state == "exempt"


def test_the_command_prints_a_table_and_fails_with_a_failing_method(tmp_path: Any) -> None:
    good = CliRunner().invoke(app, ["check", "tent"])
    assert good.exit_code == 0 and "reset is bit identical" in good.stdout
    file = tmp_path / "bad.py"
    file.write_text(
        "from ctta_bench.method import Method\nfrom ctta_bench.registry import METHODS\n"
        '@METHODS.register_module("bad_one")\nclass Bad(Method):\n    """Bad."""\n'
        "    def adapt(self, images):\n        return self.model(images[:1])\n"
    )
    bad = CliRunner().invoke(app, ["check", "bad_one", "--plugin", str(file)])
    assert bad.exit_code == 1 and "checks failed" in bad.stderr
    assert CliRunner().invoke(app, ["check"]).exit_code == 2
