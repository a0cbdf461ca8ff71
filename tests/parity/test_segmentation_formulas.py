"""Segmentation on a small SegFormer, compared with references that are written here.

Code was published for TENT with hard labels, CoTTA and SVDP (the archive of CoTTA for ACDC, and
Anonymous-012/SVDP), but it needs another environment, and none of its outputs are recorded. The
references follow its formulas in plain torch, with nothing of the suite but the network.
"""

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from scipy.ndimage import zoom
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, interpolate

from ctta_bench.model import SourceModel
from ctta_bench.parts.segmentation import dropping
from ctta_bench.registry import METHODS, MODELS, load_plugin

SIDES, BATCHES = (64, 96), 3
LABELS = (128, 192)  # twice the images, as on ACDC
RATIOS = (0.5, 0.75, 1.0, 1.25, 1.5, 1.75, 2.0)


@pytest.fixture(scope="module")
def model() -> SourceModel:
    """An untrained SegFormer of narrow stages in float64."""
    pytest.importorskip("mmseg")
    load_plugin("tests.toy_maps")
    network = MODELS.get("toy_segformer")()
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    return SourceModel(network, name="toy_segformer").to(torch.float64).eval()


def stream() -> list[Tensor]:
    """Images of structure and noise [1, 3, 64, 96] in [0, 1], one per batch."""
    generator = torch.Generator().manual_seed(1)
    coarse = torch.rand(BATCHES, 3, 4, 6, generator=generator, dtype=torch.float64)
    fine = torch.rand(BATCHES, 3, *SIDES, generator=generator, dtype=torch.float64)
    images = 0.7 * interpolate(coarse, size=SIDES, mode="bilinear") + 0.3 * fine
    return [*images.split(1)]


def run(name: str, model: SourceModel, **settings: Any) -> tuple[Any, list[Tensor]]:
    """Our method on the stream, and its scored outputs."""
    kind = METHODS.get(name)
    hp = kind.Hyperparameters(**settings)
    method = kind(copy.deepcopy(model), hp, precision="float64")
    method.start(None)
    return method, [method(images) for images in stream()]


def restore(names: list[str], now: dict[str, Tensor], source: dict[str, Tensor]) -> None:
    """The stochastic restore, made deterministic: every seventh entry of each tensor."""
    with torch.no_grad():
        for name in names:
            now[name].view(-1)[::7] = source[name].view(-1)[::7]


def resized(maps: Tensor, size: tuple[int, int]) -> Tensor:
    return interpolate(maps, size=size, mode="bilinear", align_corners=False)


class Reference:
    """The network alone, with its normalisation, and copies of it."""

    def __init__(self, model: SourceModel) -> None:
        self.student: Any = copy.deepcopy(model.network).eval().requires_grad_(True)
        self.teacher: Any = copy.deepcopy(model.network).eval().requires_grad_(False)
        self.anchor: Any = copy.deepcopy(self.teacher)
        self.mean, self.std = model.mean, model.std
        self.shares: list[float] = []  # of pixels where the anchor is sure

    def normalised(self, images: Tensor) -> Tensor:
        return (images - self.mean) / self.std

    @torch.no_grad()
    def pseudo_labels(
        self, images: Tensor, prompt: Callable[[float], Tensor] = lambda ratio: torch.zeros(())
    ) -> Tensor:
        """Log-probabilities: the plain view where the anchor is sure, else the mean."""
        views = []
        for ratio in RATIOS:
            size = (round(SIDES[0] * ratio), round(SIDES[1] * ratio))
            shown = images if ratio == 1.0 else resized(images, size)
            shown = self.normalised(shown) + prompt(ratio)
            for flipped in (False, True):
                seen = self.teacher(shown.flip(-1) if flipped else shown)
                p = resized(seen, LABELS).softmax(1)
                views.append(p.flip(-1) if flipped else p)
        plain, mean = views[2 * RATIOS.index(1.0)], torch.stack(views).mean(0)
        sure = resized(self.anchor(self.normalised(images)), LABELS).softmax(1).amax(1) > THRESHOLD
        self.shares.append(float(sure.double().mean()))
        return torch.where(sure[:, None], plain, mean).log()


THRESHOLD = 0.09  # of 19 classes: the untrained network is above it on half of the pixels


def test_tent_with_hard_labels(model: SourceModel) -> None:
    settings = {"optimizer": "adam", "lr": 1e-3, "loss": "hard", "output_scale": 2.0}
    _, ours = run("tent", model, **settings)
    reference = Reference(model)
    norms = [
        parameter
        for module in reference.student.modules()
        if isinstance(module, nn.LayerNorm | nn.BatchNorm2d)
        for parameter in module.parameters()
    ]
    optimizer = torch.optim.Adam(norms, lr=1e-3)
    for mine, images in zip(ours, stream(), strict=True):
        logits = resized(reference.student(reference.normalised(images)), LABELS)
        torch.testing.assert_close(mine, logits.detach(), atol=1e-9, rtol=0)
        optimizer.zero_grad()
        cross_entropy(logits, logits.argmax(1)).backward()
        optimizer.step()
    start = resized(reference.anchor(reference.normalised(stream()[-1])), LABELS)
    assert float((start - ours[-1]).abs().max()) > 1e-3


def test_cotta(model: SourceModel, monkeypatch: pytest.MonkeyPatch) -> None:
    kind = METHODS.get("cotta")

    def restored(method: Any) -> None:
        source = dict(method.anchor.network.named_parameters())
        restore(list(method.trainable), method.trainable, source)

    monkeypatch.setattr(kind, "stochastic_restore", restored)
    settings = {"lr": 1e-3, "views": 14, "confidence_threshold": THRESHOLD, "output_scale": 2.0}
    method, ours = run("cotta", model, teacher_momentum=0.9, **settings)
    reference = Reference(model)
    student = dict(reference.student.named_parameters())
    source = {name: parameter.detach().clone() for name, parameter in student.items()}
    names = [n for n in student if n.endswith(("weight", "bias"))]
    optimizer = torch.optim.Adam([student[name] for name in names], lr=1e-3)
    for mine, images in zip(ours, stream(), strict=True):
        labels = reference.pseudo_labels(images)
        torch.testing.assert_close(mine, labels, atol=1e-9, rtol=0)
        logits = resized(reference.student(reference.normalised(images)), LABELS)
        optimizer.zero_grad()
        cross_entropy(logits, labels.argmax(1)).backward()
        optimizer.step()
        with torch.no_grad():
            for name, slow in reference.teacher.named_parameters():
                slow.mul_(0.9).add_(student[name], alpha=0.1)
        restore(names, student, source)
    assert all(0.05 < share < 0.95 for share in reference.shares), "both labels are used"
    for name, parameter in method.trainable.items():
        torch.testing.assert_close(parameter, student[name], atol=1e-7, rtol=0)


@pytest.mark.parametrize("train_prompt", [False, True], ids=["as published", "as in the paper"])
def test_svdp(model: SourceModel, monkeypatch: pytest.MonkeyPatch, train_prompt: bool) -> None:
    from ctta_bench.methods import svdp

    calls = [0]

    def drop(values: Tensor, share: float, training: bool = True) -> Tensor:
        generator = torch.Generator().manual_seed(calls[0])
        calls[0] += 1
        kept = torch.rand(values.shape, generator=generator, dtype=values.dtype) >= share
        return values * kept / (1 - share)

    def restored(now: list[Tensor], then: list[Tensor], probability: float) -> None:
        both = [dict(enumerate(now)), dict(enumerate(then))]
        restore(list(both[0]), *both)  # type: ignore[arg-type]

    monkeypatch.setattr(dropping, "dropout", drop)
    monkeypatch.setattr(svdp, "stochastic_restore", restored)
    settings = {"image_size": SIDES, "density": 0.004, "anchor_confidence": THRESHOLD}
    rates = {"lr": 1e-3, "lr_prompt": 1e-2, "teacher_momentum": 0.9, "uncertainty_rate": 0.1}
    kind = METHODS.get("svdp")
    hp = kind.Hyperparameters(train_prompt=train_prompt, **settings, **rates)
    method = kind(copy.deepcopy(model), hp, precision="float64")
    method.start(None)
    prompt = method.prompt.detach().clone().requires_grad_(train_prompt)
    assert len(prompt) == int(64 * 96 * 0.004) == 24
    ours = [method(images) for images in stream()]

    calls[0] = 0
    reference = Reference(model)
    slow_prompt = prompt.detach().clone()
    student = dict(reference.student.named_parameters())
    source = {name: parameter.detach().clone() for name, parameter in student.items()}
    groups: list[dict[str, Any]] = [{"params": list(student.values())}]
    groups += [{"params": [prompt], "lr": 1e-2}] if train_prompt else []
    optimizer = torch.optim.Adam(groups, lr=1e-3)
    for mine, images in zip(ours, stream(), strict=True):
        uncertainty = dropout_variance(reference, images, drop)

        labels = reference.pseudo_labels(images, partial(placed, slow_prompt, uncertainty))
        torch.testing.assert_close(mine, labels, atol=1e-9, rtol=0)
        logits = resized(
            reference.student(reference.normalised(images) + placed(prompt, uncertainty, 1.0)),
            LABELS,
        )
        optimizer.zero_grad()
        cross_entropy(logits, labels.argmax(1)).backward()
        optimizer.step()
        with torch.no_grad():
            for name, slow in reference.teacher.named_parameters():
                slow.mul_(0.9).add_(student[name], alpha=0.1)
            share = 0.999 - 0.1 * float(uncertainty.mean())
            slow_prompt = share * slow_prompt + (1 - share) * prompt.detach()
        restore([n for n in student if n.endswith(("weight", "bias"))], student, source)
    assert all(0.05 < share < 0.95 for share in reference.shares), "both labels are used"
    torch.testing.assert_close(method.prompt.detach(), prompt.detach(), atol=1e-7, rtol=0)


def placed(vectors: Tensor, uncertainty: Tensor, ratio: float) -> Tensor:
    """An image [1, 3, h, w] of a scale with vectors [k, 3] at its k most uncertain pixels.

    The last vector is at the most uncertain one.
    """
    size = (round(SIDES[0] * ratio), round(SIDES[1] * ratio))
    factors = (size[0] / uncertainty.shape[0], size[1] / uncertainty.shape[1])
    order = zoom(uncertainty.numpy(), factors, order=3).argsort(axis=None, kind="stable")
    chosen = torch.from_numpy(np.ascontiguousarray(order[-len(vectors) :]))
    image = torch.zeros(3, size[0] * size[1], dtype=torch.float64)
    return image.index_add(1, chosen, vectors.T).view(1, 3, *size)


@torch.no_grad()
def dropout_variance(reference: Reference, images: Tensor, drop: Any) -> Tensor:
    """Variance over ten passes of the head, summed over the classes: [H, W]."""
    network = reference.teacher
    drops = [m for m in network.decode_head.modules() if isinstance(m, nn.Dropout | nn.Dropout2d)]
    handles = [
        module.register_forward_hook(lambda m, inputs, output: drop(inputs[0], 0.5))
        for module in drops
    ]
    try:  # whole passes: in eval mode the encoder gives the same maps in each
        passes = [
            resized(network(reference.normalised(images)), LABELS).softmax(1) for _ in range(10)
        ]
    finally:
        for handle in handles:
            handle.remove()
    return torch.stack(passes).var(0, correction=0).sum(1)[0]
