"""The conformance checks: whether a method fulfils the method contract, on tiny models in seconds.

    from ctta_bench.testing import check_method
    for outcome in check_method("tent"):
        assert outcome.passed, outcome

`ctta-bench check METHOD` prints the same. A method that cannot satisfy a check gives the reason in
its class: `exempt = {"scored_logits": "scored logits average random augmentations"}`.
"""

import copy
import inspect
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ctta_bench.errors import MethodError
from ctta_bench.method import Method, Precision
from ctta_bench.model import BATCH_NORMS, SourceModel, Task
from ctta_bench.names import renamed, renamed_value
from ctta_bench.registry import METHODS
from ctta_bench.source_models.tiny import (
    CLASSES,
    SEGMENTED_SIDE,
    SIDE,
    tiny_cnn,
    tiny_group_norm_cnn,
    tiny_segmentor,
    tiny_vit,
)

if not TYPE_CHECKING:
    __getattr__ = renamed(__name__)

BATCH, SEGMENTED_BATCH = 8, 4
NETWORKS: dict[Task, tuple[Callable[[], nn.Module], ...]] = {
    "classification": (tiny_vit, tiny_cnn, tiny_group_norm_cnn),
    "segmentation": (tiny_segmentor,),
}
# Precisions that are checked, and the type of the images and logits.
PRECISIONS: dict[Precision, torch.dtype] = {
    "float64": torch.float64,
    "bfloat16": torch.float32,
    "float16": torch.float32,
}


@dataclass(frozen=True)
class Outcome:
    """The outcome of one check: "passed", "failed" (with the finding) or "exempt" (with why)."""

    method: str
    check: str
    state: str
    detail: str = ""

    @property
    def passed(self) -> bool:
        """Whether the check passed, or the method is exempt."""
        return self.state != "failed"


class Failure(AssertionError):
    """A check failed; the message says what was found."""


CHECKS: dict[str, Callable[["Bench"], None]] = {}


def check(function: Callable[["Bench"], None]) -> Callable[["Bench"], None]:
    """Register a check under its function's name."""
    CHECKS[function.__name__] = function
    return function


def check_method(name: str, **overrides: Any) -> Iterator[Outcome]:
    """Run all conformance checks on a registered method.

    Each check runs on every tiny network that the method supports: a ViT, networks with BatchNorm
    and with GroupNorm, and a segmentation network if the method is for segmentation.

        for outcome in check_method("tent", lr=1e-3):
            print(outcome.check, outcome.state, outcome.detail)

    `overrides` are hyper-parameters. Raises ConfigError for an unknown method, and MethodError if
    the method supports none of the networks of a task that it declares.
    """
    entry = METHODS.get(name)
    benches = supported_benches(entry, overrides)
    exempt = {bench.task: _exempt(entry, bench.task) for bench in benches}
    for check_name, function in CHECKS.items():
        why = {task: reasons.get(check_name, "") for task, reasons in exempt.items()}
        checked = [bench for bench in benches if not why[bench.task]]
        wrong = next(filter(None, (_fault(function, bench) for bench in checked)), "")
        if wrong or not checked:
            reason = next(filter(None, why.values()), "")
            state, detail = ("failed", wrong) if wrong else ("exempt", reason)
            yield Outcome(name, check_name, state, detail)
            continue
        reasons = [f"exempt on {task}: {reason}" for task, reason in why.items() if reason]
        yield Outcome(name, check_name, "passed", "; ".join(reasons))


def _exempt(entry: type[Method], task: Task) -> dict[str, str]:
    """The exemptions that a class declares, by the present names of checks."""
    declared = entry.declared("exempt", task)
    return {renamed_value("Method.exempt", check): why for check, why in declared.items()}


def _fault(function: Callable[["Bench"], None], bench: "Bench") -> str:
    """The failure that a check finds, and on which network; "" if there is none."""
    try:
        with torch.random.fork_rng(devices=[]):
            function(bench)
    except Exception as error:  # whatever the method's code raises is reported
        first = str(error).strip().partition("\n")[0]
        what = first if isinstance(error, Failure) else f"{type(error).__name__}: {first}"
        return f"{what} ({bench.network.__name__})"
    return ""


class TinySource:
    """32 labelled random images of `side` pixels; records whether labels were read."""

    def __init__(self, dtype: torch.dtype, side: int = SIDE) -> None:
        generator = torch.Generator().manual_seed(3)
        self.images = torch.rand(32, 3, side, side, generator=generator).to(dtype)
        self.labels = torch.arange(32) % CLASSES
        self.labels_read = False

    def __len__(self) -> int:
        return len(self.images)

    def batches(self, batch_size: int = 64, *, epoch: int = 0, first: int = 0) -> Iterator[Tensor]:
        """Images without labels, in the same order in every epoch."""
        yield from self.images.split(batch_size)[first:]

    def labelled_batches(
        self, batch_size: int = 64, *, epoch: int = 0, first: int = 0
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Images and labels."""
        self.labels_read = True
        both = zip(self.images.split(batch_size), self.labels.split(batch_size), strict=True)
        yield from itertools.islice(both, first, None)

    def once(
        self, what: str, facts: dict[str, Any], make: Callable[[], dict[str, Tensor]]
    ) -> dict[str, Tensor]:
        """The result of `make`; nothing is stored."""
        return make()


class Bench:
    """Builds and starts methods of one class on a tiny network."""

    def __init__(
        self, entry: type[Method], overrides: dict[str, Any], network: Callable[[], nn.Module]
    ) -> None:
        self.entry = entry
        self.network = network
        self.task = SourceModel(network()).task
        segments = self.task == "segmentation"
        self.side = SEGMENTED_SIDE if segments else SIDE
        self.size = SEGMENTED_BATCH if segments else BATCH
        self.overrides = entry.declared("checked_with", self.task) | overrides

    def hyperparameters(self, **more: Any) -> Any:
        """The hyper-parameters of the checks; `source_samples` is 16 unless overridden."""
        values = self.overrides | more
        if "source_samples" in self.entry.Hyperparameters.model_fields:
            values = {"source_samples": 16} | values
        return self.entry.Hyperparameters(**values)

    def method(self, *, seed: int = 0, precision: Precision = "float32", **more: Any) -> Method:
        """A new method, started."""
        dtype = torch.float64 if precision == "float64" else torch.float32
        model = SourceModel(self.network()).to(dtype)
        method = self.entry(model, self.hyperparameters(**more), seed=seed, precision=precision)
        source = TinySource(dtype, self.side)
        method.start(source if method.source_access != "none" else None)
        if source.labels_read and method.source_access != "labelled":
            raise Failure("prepare() reads labels, but source_access is not 'labelled'")
        return method

    def batches(self, count: int = 4, size: int | None = None, seed: int = 0) -> list[Tensor]:
        """Smooth random images, float32 [size, 3, H, W] in [0, 1], darker from batch to batch."""
        generator = torch.Generator().manual_seed(seed)
        coarse = torch.rand(count, size or self.size, 3, 4, 4, generator=generator)
        return [
            nn.functional.interpolate(c, size=self.side, mode="bilinear") * 0.9**i
            for i, c in enumerate(coarse)
        ]

    @staticmethod
    def tensors(model: nn.Module) -> dict[str, Tensor]:
        """Copies of all tensors of a model, non-persistent buffers included."""
        named = dict(model.named_parameters()) | dict(model.named_buffers())
        return {name: tensor.detach().clone() for name, tensor in named.items()}

    @staticmethod
    def statistics(model: nn.Module) -> set[str]:
        """Names of the buffers of norm layers, which a method may change without declaring it."""
        return {
            f"{name}.{key}"
            for name, module in model.named_modules()
            if isinstance(module, BATCH_NORMS) or "Norm" in type(module).__name__
            for key, _ in module.named_buffers(recurse=False)
        }


def supported_benches(entry: type[Method], overrides: dict[str, Any]) -> list[Bench]:
    """A bench for every tiny network that the method supports, for each task that it declares.

    Raises the method's MethodError if it supports none of a task.
    """
    benches = []
    for task in sorted(entry.tasks):
        supported, refusal = [], None
        for network in NETWORKS[task]:
            bench = Bench(entry, overrides, network)
            try:
                entry(SourceModel(network()), bench.hyperparameters())
            except MethodError as error:
                refusal = error
            else:
                supported.append(bench)
        if refusal is not None and not supported:
            raise refusal
        benches += supported
    return benches


def expect(condition: bool, what: str) -> None:
    """Raise Failure with the message `what` if the condition is false."""
    if not condition:
        raise Failure(what)


def differing(one: dict[str, Tensor], other: dict[str, Tensor]) -> set[str]:
    """Names of the tensors of both that are not bit-identical (NaNs count as equal)."""
    common = one.keys() & other.keys()
    return {n for n in common if not torch.equal(one[n].nan_to_num(), other[n].nan_to_num())}


def declared(method: Method) -> set[str]:
    """Names in the model of the method's trainable parameters."""
    ours = {id(p) for p in method.trainable.values()}
    return {name for name, p in method.model.named_parameters() if id(p) in ours}


def listed(names: set[str]) -> str:
    """The first three names, for a message."""
    shown = sorted(names)[:3]
    return ", ".join(shown) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


@check
def only_declared_tensors_change(bench: Bench) -> None:
    """Only trainable parameters and norm statistics differ from the source model's.

    No other parameter requires a gradient: it would cost time and accumulate.
    """
    method = bench.method()
    source = bench.tensors(SourceModel(bench.network()))
    before = source | bench.tensors(method.model) | source  # also after setup and prepare
    for images in bench.batches():
        method(images)
    ours = declared(method)
    changed = differing(before, bench.tensors(method.model))
    changed -= ours | bench.statistics(method.model)
    expect(not changed, f"changed, but not declared trainable: {listed(changed)}")
    asking = {n for n, p in method.model.named_parameters() if p.requires_grad} - ours
    expect(not asking, f"requires a gradient, but not declared trainable: {listed(asking)}")


@check
def every_declared_tensor_changes(bench: Bench) -> None:
    """Every trainable parameter has changed after four batches."""
    method = bench.method()
    before = {name: p.detach().clone() for name, p in method.trainable.items()}
    for images in bench.batches():
        method(images)
    idle = before.keys() - differing(before, dict(method.trainable))
    expect(not idle, f"declared trainable, but never changed: {listed(set(idle))}")


@check
def scored_logits(bench: Bench) -> None:
    """The returned logits are those of `predict` before the update (the model's or a teacher's)."""
    method = bench.method()
    for number, images in enumerate(bench.batches()):
        with torch.no_grad():
            predicted = copy.deepcopy(method).predict(images)
        difference = float((method(images) - predicted).abs().max())
        expect(difference <= 1e-4, f"batch {number}: differs from predict() by {difference:.2g}")


@check
def labels_are_not_read(bench: Bench) -> None:
    """`adapt` takes images only, and `prepare` reads labels only with labelled source access."""
    parameters = list(inspect.signature(bench.entry.adapt).parameters)
    expect(len(parameters) == 2, f"adapt takes {', '.join(parameters[1:])}; it gets images only")
    bench.method()


@check
def reset_is_bit_identical(bench: Bench) -> None:
    """After a reset, the same stream gives bit-identical logits."""
    method, batches = bench.method(), bench.batches()
    start = bench.tensors(method.model)
    state = method._rng.clone()
    first = [method(images) for images in batches]
    method.reset()
    left = differing(start, bench.tensors(method.model))
    expect(not left, f"not reset: {listed(left)}")
    method._rng = state
    again = [method(images) for images in batches]
    expect(all(map(torch.equal, first, again)), "logits after a reset differ")


@check
def resume_is_bit_identical(bench: Bench) -> None:
    """A state saved at any batch and loaded into a new method gives bit-identical logits."""
    batches, whole = bench.batches(5), bench.method()
    saved, expected = [], []
    for images in batches:
        saved.append(copy.deepcopy(whole.state_dict()))
        expected.append(whole(images))
    for stop in (0, 1, 3):
        fresh = bench.method()
        fresh.load_state_dict(saved[stop])
        rest = [fresh(images) for images in batches[stop:]]
        expect(all(map(torch.equal, expected[stop:], rest)), f"logits differ from batch {stop} on")


def _stays_finite(method: Method, images: Tensor, what: str) -> Tensor:
    """Logits of images; checks that the model stays finite and a non-finite loss is counted."""
    skipped = method.counters["skipped_updates"]
    method.loss = torch.zeros(())
    logits = method(images)
    tensors = Bench.tensors(method.model)
    bad = {n for n, t in tensors.items() if not bool(t.double().isfinite().all())}
    expect(not bad, f"{what}: not finite afterwards: {listed(bad)}")
    lost = not bool(torch.as_tensor(method.loss).isfinite().all())
    counted = method.counters["skipped_updates"] > skipped
    expect(counted or not lost, f"{what}: the skipped update is not counted")
    return logits


@check
def small_batches(bench: Bench) -> None:
    """Batches of one and of three images give finite logits and leave the model finite."""
    method = bench.method()
    for size in (bench.size, 1, 3, 1):
        (images,) = bench.batches(1, size)
        logits = _stays_finite(method, images, f"batch of {size}")
        shape = tuple(logits.shape)
        expect(shape[:2] == (size, CLASSES), f"logits of shape {shape}")
        expect(bool(logits.isfinite().all()), f"logits of a batch of {size} are not finite")


def flat_batches(bench: Bench) -> dict[str, Tensor]:
    """Batches in which all pixels, or all images, are equal."""
    (image,) = bench.batches(1, 1)
    return {
        "zeros": torch.zeros(bench.size, 3, bench.side, bench.side),
        "ones": torch.ones(bench.size, 3, bench.side, bench.side),
        "one image repeated": image.expand(bench.size, -1, -1, -1),
    }


@check
def constant_images(bench: Bench) -> None:
    """Images of zeros, of ones, and one repeated image leave the model finite."""
    method = bench.method()
    for what, images in flat_batches(bench).items():
        _stays_finite(method, images, what)


@check
def nan_images(bench: Bench) -> None:
    """NaN images leave the model finite, count as a skipped update, and do not stop the method."""
    method, batches = bench.method(), bench.batches(3)
    method(batches[0])
    skipped = method.counters["skipped_updates"]
    _stays_finite(method, torch.full_like(batches[0], torch.nan), "NaN images")
    if method.trainable:
        counted = method.counters["skipped_updates"] - skipped
        expect(counted >= 1, "the skipped update is not counted")
    one = batches[2].clone()
    one[3] = torch.inf
    _stays_finite(method, one, "one infinite image in a batch")
    expect(bool(method(batches[1]).isfinite().all()), "logits after NaN images are not finite")


@check
def learning_rate_zero_is_source(bench: Bench) -> None:
    """With a learning rate of 0, no parameter changes and the logits are the source model's.

    With BatchNorm the source model uses the same norm mode; logits are not compared if the method
    updates norm statistics.
    """
    if "lr" not in bench.entry.Hyperparameters.model_fields:
        return
    method = bench.method(lr=0.0)
    start = bench.tensors(method.model)
    source = SourceModel(bench.network()).eval()
    if method.batch_dependent:
        source.use_batch_statistics()
    for images in bench.batches():
        logits = method(images)
        with torch.no_grad():
            ours, theirs = (_comparable(bench, values) for values in (logits, source(images)))
        difference = float((ours - theirs).abs().max())
        if not differing(start, bench.tensors(method.model)) & bench.statistics(method.model):
            expect(difference <= 1e-4, f"logits differ from the source model's by {difference:.2g}")
    changed = differing(start, bench.tensors(method.model)) - bench.statistics(method.model)
    expect(not changed, f"changed with lr 0: {listed(changed)}")


def _comparable(bench: Bench, logits: Tensor) -> Tensor:
    """Logits, or log-probabilities for segmentation, where scores may be either."""
    return logits.log_softmax(1) if bench.task == "segmentation" else logits


@check
def permutation(bench: Bench) -> None:
    """A permuted batch gives permuted logits."""
    (images,) = bench.batches(1)
    order = torch.randperm(bench.size, generator=torch.Generator().manual_seed(1))
    plain, permuted = bench.method()(images), bench.method()(images[order])
    difference = float((plain[order] - permuted).abs().max())
    expect(difference <= 1e-4, f"logits differ by {difference:.2g}")


@check
def declared_passes(bench: Bench) -> None:
    """Forward and backward passes per image equal those that the class declares."""
    declared = bench.entry.declared("passes_per_image", bench.task)
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
def same_seed_is_bit_identical(bench: Bench) -> None:
    """Equal seeds give bit-identical logits, whatever else draws random numbers."""
    one, other = bench.method(seed=5), bench.method(seed=5)
    for images in bench.batches():
        left = one(images)
        torch.rand(3)
        expect(torch.equal(left, other(images)), "logits of equal seeds differ")


@check
def precisions(bench: Bench) -> None:
    """Logits are finite in float64, and in autocast to bfloat16 and float16 (as float32).

    Also on constant images, where small numbers underflow; the model stays finite.
    """
    for precision, dtype in PRECISIONS.items():
        method = bench.method(precision=precision)
        for images in (*bench.batches(1), *flat_batches(bench).values()):
            logits = _stays_finite(method, images.to(dtype), precision)
            expect(logits.dtype == dtype, f"{precision}: logits are {logits.dtype}")
            expect(bool(logits.isfinite().all()), f"{precision}: logits are not finite")
