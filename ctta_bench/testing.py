"""check_method: what every method owes, run on a tiny model within seconds.

    from ctta_bench.testing import check_method
    for outcome in check_method("tent"):
        assert outcome.passed, outcome

`ctta-bench check METHOD` prints the same. A method that cannot satisfy a check says why in its
class: `exempt = {"scored_logits": "scored logits average random augmentations"}`.
"""

import copy
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from ctta_bench.errors import MethodError
from ctta_bench.method import Method, Precision
from ctta_bench.model import SourceModel
from ctta_bench.registry import METHODS

CLASSES, SIDE, BATCH = 10, 16, 8


@dataclass(frozen=True)
class Outcome:
    """One check of one method: "passed", "failed" (with what was seen) or "exempt" (with why)."""

    method: str
    check: str
    state: str
    detail: str = ""

    @property
    def passed(self) -> bool:
        """Whether the method owes nothing here."""
        return self.state != "failed"


class Failure(AssertionError):
    """A check found what must not be."""


CHECKS: dict[str, Callable[["Bench"], None]] = {}


def check(function: Callable[["Bench"], None]) -> Callable[["Bench"], None]:
    """Register a check under its function's name."""
    CHECKS[function.__name__] = function
    return function


def check_method(name: str, **overrides: Any) -> Iterator[Outcome]:
    """Run every check on the method called `name`, with hyper-parameters overridden if given."""
    entry = METHODS.get(name)
    bench = Bench(entry, entry.checked_with | overrides)
    for check_name, function in CHECKS.items():
        why = entry.exempt.get(check_name)
        if why is not None:
            yield Outcome(name, check_name, "exempt", why)
            continue
        try:
            with torch.random.fork_rng(devices=[]):
                function(bench)
        except Exception as error:  # whatever an author's code raises is what is reported
            first = str(error).strip().partition("\n")[0]
            detail = first if isinstance(error, Failure) else f"{type(error).__name__}: {first}"
            yield Outcome(name, check_name, "failed", detail)
        else:
            yield Outcome(name, check_name, "passed")


def tiny_vit() -> nn.Module:
    """A ViT of width 24, depth 4 and fixed random weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        network = VisionTransformer(
            img_size=SIDE, patch_size=8, embed_dim=24, depth=4, num_heads=2, num_classes=CLASSES
        )
        for parameter in network.parameters():
            parameter.data.add_(0.3 * torch.randn_like(parameter))
    return network


def tiny_cnn() -> nn.Module:
    """Two convolutions with BatchNorm, fixed random weights, statistics of random images."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        network = nn.Sequential(
            nn.Conv2d(3, 12, 3, 2, bias=False),
            nn.BatchNorm2d(12),
            nn.ReLU(),
            nn.Conv2d(12, 24, 3, 2, bias=False),
            nn.BatchNorm2d(24),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(24 * 9, CLASSES),
        )
        network(torch.rand(64, 3, SIDE, SIDE))
    return network.eval()


class TinySource:
    """32 labelled random images; notes whether labels were asked for."""

    def __init__(self, dtype: torch.dtype) -> None:
        generator = torch.Generator().manual_seed(3)
        self.images = torch.rand(32, 3, SIDE, SIDE, generator=generator).to(dtype)
        self.labels = torch.arange(32) % CLASSES
        self.labels_read = False

    def __len__(self) -> int:
        return len(self.images)

    def batches(self, batch_size: int = 64) -> Iterator[Tensor]:
        """Images alone."""
        yield from self.images.split(batch_size)

    def labelled_batches(self, batch_size: int = 64) -> Iterator[tuple[Tensor, Tensor]]:
        """Images and labels."""
        self.labels_read = True
        yield from zip(self.images.split(batch_size), self.labels.split(batch_size), strict=True)


class Bench:
    """Builds started methods of one class on the first tiny model that serves it."""

    def __init__(self, entry: type[Method], overrides: dict[str, Any]) -> None:
        self.entry = entry
        self.overrides = overrides
        self.network = self._serving_network()

    def _serving_network(self) -> Callable[[], nn.Module]:
        for network in (tiny_vit, tiny_cnn):
            try:
                self.entry(SourceModel(network()), self.hyperparameters())
            except MethodError as error:
                refusal = error
            else:
                return network
        raise refusal

    def hyperparameters(self, **more: Any) -> Any:
        """The hyper-parameters under test; `source_samples` is cut to what the tiny source has."""
        values = self.overrides | more
        if "source_samples" in self.entry.Hyperparameters.model_fields:
            values = {"source_samples": 16} | values
        return self.entry.Hyperparameters(**values)

    def method(self, *, seed: int = 0, precision: Precision = "float32", **more: Any) -> Method:
        """A fresh, started method."""
        dtype = torch.float64 if precision == "float64" else torch.float32
        model = SourceModel(self.network()).to(dtype)
        method = self.entry(model, self.hyperparameters(**more), seed=seed, precision=precision)
        source = TinySource(dtype)
        method.start(source if method.source_access != "none" else None)
        if source.labels_read and method.source_access != "labelled":
            raise Failure("prepare() read labels without labelled source access")
        return method

    @staticmethod
    def batches(count: int = 4, size: int = BATCH, seed: int = 0) -> list[Tensor]:
        """Smooth random images, float32 [size, 3, 16, 16] in [0, 1], darker from batch to batch."""
        generator = torch.Generator().manual_seed(seed)
        coarse = torch.rand(count, size, 3, 4, 4, generator=generator)
        return [
            nn.functional.interpolate(c, size=SIDE, mode="bilinear") * 0.9**i
            for i, c in enumerate(coarse)
        ]

    @staticmethod
    def tensors(method: Method) -> dict[str, Tensor]:
        """Copies of all tensors of the network."""
        return {n: t.detach().clone() for n, t in method.model.network.state_dict().items()}


def expect(condition: bool, what: str) -> None:
    """Raise Failure saying `what` was seen unless the condition holds."""
    if not condition:
        raise Failure(what)


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> list[str]:
    """Names of tensors that differ in any bit (equal NaNs are equal)."""
    return [n for n in one if not torch.equal(one[n].nan_to_num(), other[n].nan_to_num())]


@check
def only_declared_tensors_change(bench: Bench) -> None:
    """Every tensor of the network but the trainable ones and BatchNorm's statistics stays."""
    method = bench.method()
    before = bench.tensors(method)
    for images in bench.batches():
        method(images)
    declared = {id(p) for p in method.trainable.values()}
    names = {n for n, p in method.model.network.named_parameters() if id(p) in declared}
    buffers = {n for n, _ in method.model.network.named_buffers()}
    changed = set(same(before, bench.tensors(method))) - names - buffers
    expect(not changed, f"changed without being declared trainable: {', '.join(sorted(changed))}")


@check
def scored_logits(bench: Bench) -> None:
    """What is returned is what `predict` gives before the update (the model's, or a teacher's)."""
    method = bench.method()
    for number, images in enumerate(bench.batches()):
        with torch.no_grad():
            predicted = copy.deepcopy(method).predict(images)
        difference = float((method(images) - predicted).abs().max())
        expect(difference <= 1e-4, f"batch {number}: off from predict() by {difference:.2g}")


@check
def labels_never_reach_it(bench: Bench) -> None:
    """`adapt` takes images alone, and `prepare` reads no labels that it did not declare."""
    parameters = list(inspect.signature(bench.entry.adapt).parameters)
    expect(len(parameters) == 2, f"adapt takes {', '.join(parameters[1:])}; it gets images alone")
    bench.method()


@check
def reset_restores_every_bit(bench: Bench) -> None:
    """After reset the same stream gives the same bits as at first."""
    method, batches = bench.method(), bench.batches()
    start = bench.tensors(method)
    state = method._rng.clone()
    first = [method(images) for images in batches]
    method.reset()
    expect(not same(start, bench.tensors(method)), "parameters differ from the start")
    method._rng = state
    again = [method(images) for images in batches]
    expect(all(map(torch.equal, first, again)), "the stream replayed after a reset differs")


@check
def resume_is_bit_same(bench: Bench) -> None:
    """State saved at any batch and loaded into a fresh method goes on to the same bits."""
    batches = bench.batches(5)
    whole = bench.method()
    expected = [whole(images) for images in batches]
    for stop in (0, 1, 3):
        first, second = bench.method(), bench.method()
        for images in batches[:stop]:
            first(images)
        second.load_state_dict(copy.deepcopy(first.state_dict()))
        rest = [second(images) for images in batches[stop:]]
        expect(all(map(torch.equal, expected[stop:], rest)), f"differs after a stop at {stop}")


def _stays_finite(method: Method, images: Tensor, what: str) -> None:
    method(images)
    bad = [n for n, t in Bench.tensors(method).items() if not bool(t.double().isfinite().all())]
    expect(not bad, f"{what}: {bad[0] if bad else ''} is not finite afterwards")


@check
def small_batches(bench: Bench) -> None:
    """A batch of one and a short last batch give finite logits and leave the model finite."""
    method = bench.method()
    for size in (BATCH, 1, 3, 1):
        (images,) = bench.batches(1, size)
        logits = method(images)
        expect(tuple(logits.shape) == (size, CLASSES), f"logits of shape {tuple(logits.shape)}")
        expect(bool(logits.isfinite().all()), f"logits of a batch of {size} are not finite")
        _stays_finite(method, images, f"batch of {size}")


@check
def constant_images(bench: Bench) -> None:
    """All-zero, all-one and repeated images leave the model finite."""
    method = bench.method()
    (image,) = bench.batches(1, 1)
    for what, images in {
        "zeros": torch.zeros(BATCH, 3, SIDE, SIDE),
        "ones": torch.ones(BATCH, 3, SIDE, SIDE),
        "one image repeated": image.expand(BATCH, -1, -1, -1),
    }.items():
        _stays_finite(method, images, what)


@check
def nan_images(bench: Bench) -> None:
    """NaN images leave the model finite, are counted if it updates, and it goes on afterwards."""
    method, batches = bench.method(), bench.batches(3)
    method(batches[0])
    skipped = method.counters["skipped_updates"]
    _stays_finite(method, torch.full_like(batches[0], torch.nan), "NaN images")
    if method.trainable:
        counted = method.counters["skipped_updates"] - skipped
        expect(counted >= 1, "the update that was left out is not counted")
    expect(bool(method(batches[1]).isfinite().all()), "logits after NaN images are not finite")


@check
def learning_rate_zero_is_source(bench: Bench) -> None:
    """With lr 0 no parameter moves, and on a network without BatchNorm the logits are Source's."""
    if "lr" not in bench.entry.Hyperparameters.model_fields:
        return
    method = bench.method(lr=0.0)
    start = bench.tensors(method)
    source = SourceModel(bench.network()).eval()
    for images in bench.batches():
        logits = method(images)
        with torch.no_grad():
            difference = float((logits - source(images)).abs().max())
        if not method.batch_dependent:
            expect(difference <= 1e-4, f"logits are off Source's by {difference:.2g}")
    names = {n for n, _ in method.model.network.named_parameters()}
    changed = set(same(start, bench.tensors(method))) & names
    expect(not changed, f"lr 0 moves {', '.join(sorted(changed)[:3])}")


@check
def permutation(bench: Bench) -> None:
    """Permuting a batch permutes its logits."""
    (images,) = bench.batches(1)
    order = torch.randperm(BATCH, generator=torch.Generator().manual_seed(1))
    plain, permuted = bench.method()(images), bench.method()(images[order])
    difference = float((plain[order] - permuted).abs().max())
    expect(difference <= 1e-4, f"logits differ by {difference:.2g}")


@check
def declared_passes(bench: Bench) -> None:
    """Counted forward and backward passes an image equal those that the class declares."""
    declared = bench.entry.passes_per_image
    if declared is None:
        raise Failure("the class declares no passes_per_image = (forward, backward)")
    method, batches = bench.method(), bench.batches()
    for images in batches:
        method(images)
    images_seen = sum(map(len, batches))
    counted = (
        method.passes.forward_images / images_seen,
        method.passes.backward_images / images_seen,
    )
    expect(counted == declared, f"declared {declared}, counted {counted}")


@check
def same_seed_same_bits(bench: Bench) -> None:
    """Two methods of one seed agree, whatever is drawn outside between their batches."""
    one, other = bench.method(seed=5), bench.method(seed=5)
    for images in bench.batches():
        left = one(images)
        torch.rand(3)
        expect(torch.equal(left, other(images)), "the same seed gives other bits")


@check
def precisions(bench: Bench) -> None:
    """float64 and bfloat16 autocast give finite logits, in float64 and float32."""
    for precision, dtype in (("float64", torch.float64), ("bfloat16", torch.float32)):
        method = bench.method(precision=precision)  # type: ignore[arg-type]
        inputs = torch.float64 if precision == "float64" else torch.float32
        for images in bench.batches(2):
            logits = method(images.to(inputs))
            expect(logits.dtype == dtype, f"{precision}: logits are {logits.dtype}")
            expect(bool(logits.isfinite().all()), f"{precision}: logits are not finite")
