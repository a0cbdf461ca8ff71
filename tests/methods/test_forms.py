"""Segmentation forms: which class stands for a method on a model of a task."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

from ctta_bench.method import Method
from ctta_bench.model import SourceModel
from ctta_bench.registry import METHODS
from ctta_bench.source_models.tiny import tiny_segmentor
from tests.methods import make, scenes, segmentor

FORMS = {
    name: METHODS.get(name).form("segmentation")
    for name in METHODS.names()
    if "segmentation" in METHODS.get(name).tasks
}
HAVE_FORMS = sorted(name for name, form in FORMS.items() if form is not METHODS.get(name))


def tent() -> Any:
    return METHODS.get("tent")


def test_the_methods_that_have_a_form_for_segmentation() -> None:
    expected = ["cmae", "cotta", "dept", "ecotta", "pseudo_label", "sar", "tent", "vdp", "vida"]
    assert expected == HAVE_FORMS


@pytest.mark.parametrize("name", HAVE_FORMS)
def test_a_form_is_no_other_method(name: str) -> None:
    entry, form = METHODS.get(name), FORMS[name]
    assert form.Hyperparameters is entry.Hyperparameters
    assert entry.form("classification") is entry
    assert form.form("segmentation") is form
    assert form.__name__ == f"{entry.__name__}Maps"
    depth = form.__mro__.index(Method)
    assert depth <= 2


def test_a_model_decides_the_class_and_a_copy_keeps_it() -> None:
    method, on_images = segmentor("tent"), make(tent())
    assert type(method) is FORMS["tent"]
    assert type(on_images) is tent()
    assert type(copy.deepcopy(method)) is FORMS["tent"]
    assert (method.title, on_images.title) == ("TENT", "TENT")


def test_a_users_subclass_goes_before_the_form() -> None:
    class Half(tent()):  # type: ignore[misc]
        """Half of the entropy."""

        def total_loss(self, logits: Tensor) -> Tensor:
            return super().total_loss(logits) / 2

    method = Half(SourceModel(tiny_segmentor()), Half.Hyperparameters(output_scale=1.0))
    plain = segmentor("tent", output_scale=1.0)
    images = scenes()
    assert method(images).shape == (2, 10, 32, 32)
    plain(images)
    assert torch.equal(method.loss, plain.loss / 2)
    assert (type(method).__name__, method.title) == ("Half", "Half")


def test_what_a_method_of_the_last_release_declares_on_segmentation_is_read() -> None:
    class Old(Method):
        """Declares it as in 0.1.0."""

        exempt = {"permutation": "on images"}
        passes_per_image = (1, 0)
        on_segmentation = {"exempt": {}}

    with pytest.warns(FutureWarning, match="Old declares exempt in on_segmentation"):
        assert Old.declared("exempt", "segmentation") == {}
    assert Old.declared("exempt", "classification") == {"permutation": "on images"}
    assert Old.declared("passes_per_image", "segmentation") == (1, 0)


def test_a_student_of_the_last_release_is_told_that_its_base_goes() -> None:
    from ctta_bench.parts.families.teaching import StudentMethod

    entry = METHODS.get("pseudo_label")
    with pytest.warns(FutureWarning, match="Student: StudentMethod will be removed"):

        class Student(StudentMethod):
            """Pulled to the mean of its own views."""

            class Hyperparameters(entry.Hyperparameters):  # type: ignore[misc, name-defined]
                views: int = 2
                loss: str = "symmetric"
                restore_probability: float = 1.0
                min_gradient_norm: float = 0.0
                faithful: bool = False

            def setup(self) -> None:
                self.adapt_only(self.model.norm_parameters())
                self.optimizer = self.build_optimizer()
                self.remember_source(self.trainable.values())

            def adapt(self, images: Tensor) -> Tensor:
                with torch.no_grad():
                    seen = torch.cat(list(self.over_views(images, self.model))).mean(0)
                logits = self.model(images)
                self.learn(self.objective(logits, seen))
                return logits

    method = make(Student)
    method(scenes()[..., :16, :16])
    moved = [p.detach().clone() for p in method.trainable.values()]
    assert any(not torch.equal(m, s) for m, s in zip(moved, method.source, strict=True))
    method.restore()
    assert all(map(torch.equal, method.trainable.values(), method.source))
