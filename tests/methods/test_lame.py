"""The invariants of LAME. p predictions, W kernel, Y assignments."""

from typing import Any

import pytest
import torch
from torch import Tensor

from ctta_bench.method import Method
from tests.methods import build, changed, pictures, snapshot, tensors, toy

DOUBLE = {"dtype": torch.float64, "precision": "float64"}
KERNELS = ("knn", "rbf", "linear")
# Five points on a line, their distances growing from 1 to 4.
LINE = torch.tensor([[0.0, 0.0], [1.0, 0.0], [3.0, 0.0], [6.0, 0.0], [10.0, 0.0]])


def double(**arguments: Any) -> Method:
    return build("lame", **DOUBLE, **arguments)


def softmax(method: Method, images: Tensor) -> Tensor:
    with torch.no_grad():
        return method.model(images).softmax(-1)


@pytest.mark.parametrize("affinity", KERNELS)
def test_without_agreement_the_predictions_stay(affinity: Any) -> None:
    method = double(affinity=affinity, weight=0.0)
    images = pictures(16).double()
    assignments = method(images).softmax(-1)
    torch.testing.assert_close(assignments, softmax(method, images), atol=1e-6, rtol=0)


@pytest.mark.parametrize("affinity", KERNELS)
def test_the_logits_are_log_assignments_and_faithful_returns_these(affinity: Any) -> None:
    ours, official = double(affinity=affinity), double(affinity=affinity, faithful=True)
    images = pictures(16).double()
    assignments = official(images)
    torch.testing.assert_close(assignments.sum(-1), torch.ones(16, dtype=torch.float64))
    torch.testing.assert_close(ours(images).exp(), assignments)
    torch.testing.assert_close(ours(images).softmax(-1), assignments)


@pytest.mark.parametrize("affinity", ["knn", "rbf"])
@pytest.mark.parametrize("symmetric", [True, False])
def test_assignments_are_a_fixed_point(affinity: Any, symmetric: bool) -> None:
    method = double(affinity=affinity, symmetric=symmetric, max_iterations=1000, weight=0.5)
    images = pictures(16).double()
    assignments = method(images).exp()
    with torch.no_grad():
        features = torch.nn.functional.normalize(method.model.features(images))
    agreement = 0.5 * method.kernel(features) @ assignments
    expected = ((softmax(method, images) + 1e-10).log() + agreement).softmax(-1)
    torch.testing.assert_close(assignments, expected, atol=1e-3, rtol=0)
    assert (assignments - softmax(method, images)).abs().max() > 0.01


@pytest.mark.parametrize("affinity", KERNELS)
def test_a_permuted_batch_gives_permuted_logits(affinity: Any) -> None:
    method, images = double(affinity=affinity), pictures(16).double()
    order = torch.randperm(16, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(method(images[order]), method(images)[order], atol=1e-8, rtol=0)


def test_assignments_depend_on_the_other_images_but_on_no_batch_before() -> None:
    method = build("lame")
    together = method(pictures(16))
    assert (method(pictures(16)[:4]) - together[:4]).abs().max() > 0.1
    assert torch.equal(method(pictures(16)), together)


# -- kernels ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("k", "n", "row"), [(1, 5, 1), (3, 5, 3), (5, 5, 4), (9, 5, 4), (3, 1, 0)])
def test_every_point_has_its_nearest_others_as_neighbours(k: int, n: int, row: int) -> None:
    kernel = build("lame", neighbours=k, symmetric=False).kernel(LINE[:n])
    assert kernel.sum(1).tolist() == [row] * n
    assert kernel.diagonal().tolist() == [0] * n


def test_the_nearest_are_chosen_by_distance() -> None:
    kernel = build("lame", neighbours=2, symmetric=False).kernel(LINE)
    neighbours = [row.nonzero().flatten().tolist() for row in kernel]
    assert neighbours == [[1, 2], [0, 2], [0, 1], [2, 4], [2, 3]]


def test_a_symmetric_kernel_is_the_mean_with_its_transpose() -> None:
    one_sided = build("lame", neighbours=2, symmetric=False).kernel(LINE)
    symmetric = build("lame", neighbours=2, symmetric=True).kernel(LINE)
    assert torch.equal(symmetric, 0.5 * one_sided + 0.5 * one_sided.T)
    assert not torch.equal(symmetric, one_sided)


def test_the_width_of_rbf_is_the_mean_distance_to_the_kth_point_itself_counted() -> None:
    kernel = build("lame", affinity="rbf", neighbours=2, symmetric=False).kernel(LINE)
    sigma = (1 + 1 + 2 + 3 + 4) / 5
    assert kernel[0, 2].item() == pytest.approx(2.718281828 ** -(9 / (2 * sigma**2)))
    assert kernel.diagonal().tolist() == [1] * 5


def test_the_linear_kernel_is_the_cosine() -> None:
    features = torch.tensor([[1.0, 0.0], [-0.6, 0.8]])
    kernel = build("lame", affinity="linear").kernel(features)
    torch.testing.assert_close(kernel, torch.tensor([[1.0, -0.6], [-0.6, 1.0]]))


# -- edge cases ------------------------------------------------------------------------------------


@pytest.mark.parametrize("affinity", ["knn", "rbf"])
def test_an_image_alone_stays_as_predicted(affinity: Any) -> None:
    method, image = double(affinity=affinity), pictures(1).double()
    torch.testing.assert_close(method(image).exp(), softmax(method, image), atol=1e-6, rtol=0)


def test_equal_images_make_only_faithful_rbf_nan() -> None:
    images = pictures(1).expand(40, -1, -1, -1)
    ours, official = (build("lame", affinity="rbf", faithful=f) for f in (False, True))
    torch.testing.assert_close(ours(images).exp(), softmax(ours, images), atol=1e-6, rtol=0)
    assert bool(official(images).isnan().all())


@pytest.mark.parametrize("limit", [1, 2, 100])
def test_the_number_of_iterations_is_at_most_the_limit_and_at_least_three(limit: int) -> None:
    # Without agreement the first assignments are the last: only the third may say so.
    method = double(weight=0.0, max_iterations=limit)
    asked = []
    kernel = torch.eye(4, dtype=torch.float64).as_subclass(Watched)
    kernel.asked = asked
    method.solve(torch.rand(4, 10, dtype=torch.float64), kernel)
    assert len(asked) == min(limit, 3)


class Watched(Tensor):
    """Counts the products that it takes part in."""

    asked: list[Any]

    def __rmul__(self, factor: Any) -> Tensor:
        self.asked.append(factor)
        return factor * self.as_subclass(Tensor)


def test_nothing_changes_and_nothing_is_kept() -> None:
    method = build("lame")
    before = tensors(method.model)
    method(pictures(8))
    assert changed(before, method.model) == set()
    assert snapshot(method) == {}
    assert method.extra_state_bytes == 0


def test_a_network_with_batchnorm_keeps_its_running_statistics() -> None:
    method = build("lame", "toy_cnn", weight=0.0)
    expected = softmax(build("source", "toy_cnn"), pictures(8))
    torch.testing.assert_close(method(pictures(8)).exp(), expected, atol=1e-6, rtol=0)


def test_a_window_predicts_from_all_it_holds() -> None:
    method, whole = build("lame", window=4), build("lame")
    images = pictures(4)
    for image in images[:3].split(1):
        method(image)
    torch.testing.assert_close(method(images[3:]), whole(images)[3:], atol=1e-5, rtol=0)
    assert whole(images).shape == (4, toy.CLASSES)
