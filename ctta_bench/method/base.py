"""The base class of all methods: the method contract, and what every method inherits.

A method is a class with `setup` (choose parameters, build the optimiser), `prepare` (read source
data once, if it has access) and `adapt` (return the scored logits, and update). The base adds
reset, checkpoints with bit-identical resume, a guard against non-finite losses, a private random
stream, autocast, counts of passes, and window mode for single-image streams.
"""

import contextlib
import copy
import importlib
import warnings
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, ClassVar, Literal, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from ctta_bench.errors import MethodError
from ctta_bench.method import state
from ctta_bench.method.hyperparameters import MethodHyperparameters
from ctta_bench.method.warmup import Warmup, load_warmed
from ctta_bench.model import SourceModel, Task
from ctta_bench.names import OldNames

Precision = Literal["float64", "float32", "bfloat16", "float16"]
SourceAccess = Literal["none", "unlabelled", "labelled"]
M = TypeVar("M", bound="Method")
_ACCESS = ("none", "unlabelled", "labelled")

# Attributes that neither a reset nor a saved state may change.
_BASE = frozenset(
    {"hp", "window", "precision", "adapts", "norm_statistics", "_initial", "_started"}
)
_SURVIVES_RESET = _BASE | {"counters", "passes", "loss", "_rng"}


class Method(OldNames):
    """Base of all methods. Call it with images to get scored logits; it adapts on the way.

    Neither labels nor domain names of the stream ever reach a method. A subclass defines
    `Hyperparameters`, `setup`, `adapt` and, if `source_access` is not "none", `prepare`:

        @METHODS.register_module("entropy")
        class Entropy(Method):
            class Hyperparameters(OptimizerHyperparameters):
                pass

            def setup(self):
                self.adapt_only(self.model.norm_parameters())
                self.optimizer = self.build_optimizer()

            def adapt(self, images):  # float [n, 3, H, W] in [0, 1]
                logits = self.model(images)  # [n, classes]
                self.step(softmax_entropy(logits).mean())
                return logits

    Args:
        model: the source model; the method changes it.
        hyperparameters: an object of `Hyperparameters`; None takes the defaults.
        seed: seeds the method's own random stream.
        precision: "float64" and "float32" are those of the model; "bfloat16" and "float16" use
            autocast.
        window: images that are gathered before an update (single-image streams); 0 and 1 update
            with every batch.
        adapts: False only predicts.

    Raises MethodError if the method does not support the model or its task.
    """

    class Hyperparameters(MethodHyperparameters):
        """No hyper-parameters."""

    # -- declarations for the engine

    source_access: SourceAccess = "none"
    """What `prepare` may read: no source data, images, or images with labels. `setup` may lower it
    for hyper-parameters that need less. A warm-up raises it to `warmup_access`."""
    warmup_access: ClassVar[SourceAccess] = "none"
    """What a warm-up reads, if the hyper-parameters derive from `WarmupHyperparameters`."""
    warms_up_maps: ClassVar[bool] = False
    """Whether its warm-up supports segmentation: labels uint8 [n, H, W], 255: no class."""
    learns_labels: ClassVar[bool] = False
    """Whether the method trains a new head: the source model may have other classes."""
    stream_only: ClassVar[frozenset[str]] = frozenset()
    """Hyper-parameters without effect on the warm-up: cells that differ only in these share it."""
    tasks: ClassVar[frozenset[Task]] = frozenset({"classification"})
    """Tasks that the method supports. Segmentation logits are maps [n, classes, h, w], any size."""
    segmentation_form: ClassVar[str] = ""
    """The subclass for segmentation models: `Class` of the same module, or `module:Class` of a
    module in the same package. It has the same hyper-parameters."""
    batch_dependent: bool = False
    """Whether an image's logits depend on the other images of its batch (batch statistics)."""
    norm_statistics: str = ""
    """The statistics that BatchNorm layers use, for the record; "" reads them from the layers."""

    # -- declarations for lists, reports, estimates and `tune`: literals, read without an import

    display_name: ClassVar[str] = ""
    """What tables, figures and pages call it (`CoTTA`); the registry name if it is empty."""
    year: ClassVar[int] = 0
    """When it was published."""
    venue: ClassVar[str] = ""
    """Where it was published, e.g. "ICLR"."""
    citation: ClassVar[str] = ""
    """The key of its paper in methods/references.bib."""
    adapts_layers: ClassVar[str] = ""
    """What it adapts, in a few words: "norm layers"."""
    losses: ClassVar[str] = ""
    """What it minimises on the stream, in a few words: "entropy"."""
    extra_memory: ClassVar[str] = ""
    """What it keeps between batches, in addition to model, optimiser and the start for a reset."""
    needs_batch_norm: ClassVar[bool] = False
    """Whether it does nothing on a model without BatchNorm."""
    paper: ClassVar[str] = ""
    """The publication: a link, or a reference in words."""
    checked_against: ClassVar[str] = ""
    """The reference of the parity cases: the official code, a second implementation, ..."""
    passes_per_image: ClassVar[tuple[float, float] | None] = None
    """Forward and backward passes per image of the stream, with the defaults. It is checked."""
    search_space: ClassVar[Mapping[str, tuple[float, float] | list[Any]]] = {}
    """Search space of `ctta-bench tune`, by hyper-parameter: a list of values, or a range (low,
    high), on a log scale if low is above 0."""

    # -- declarations for the conformance checks of `ctta_bench.testing`

    checked_with: ClassVar[dict[str, Any]] = {}
    """Hyper-parameters of the checks, chosen so that every step of the method takes place."""
    exempt: ClassVar[dict[str, str]] = {}
    """Checks that the method cannot satisfy, each with the reason."""
    on_segmentation: ClassVar[dict[str, Any]] = {}
    """Deprecated: `passes_per_image`, `checked_with` or `exempt` for segmentation models. Declare
    them in the class that `segmentation_form` names."""

    # -- state

    source_used: int | None = None
    """Source images that `prepare` used; at most the hyper-parameter `source_samples`."""

    hp: Any
    optimizer: torch.optim.Optimizer

    def __new__(cls: type[M], model: SourceModel | None = None, *_: Any, **__: Any) -> M:
        """An object of the class for the model's task. Copies, made without a model, keep cls."""
        return object.__new__(cls if model is None else cls.form(model.task))

    def __init__(
        self,
        model: SourceModel,
        hyperparameters: MethodHyperparameters | None = None,
        *,
        seed: int = 0,
        precision: Precision = "float32",
        window: int = 0,
        adapts: bool = True,
    ) -> None:
        self.model = model
        self.hp = hyperparameters or self.Hyperparameters()
        self.precision = precision
        self.window = window
        self.adapts = adapts
        self.counters = {"skipped_updates": 0, "resets": 0}
        self.passes = model.passes
        self.loss: Tensor | None = None
        self.trainable: dict[str, nn.Parameter] = {}
        self._rng = torch.Generator().manual_seed(seed).get_state()
        self._recent: list[Tensor] = []
        self._initial: state.Node = {}
        self._started = False
        self._scaler = self._new_scaler()
        self._check_task()
        if self.hp.warms_up:
            self.source_access = max(self.source_access, self.warmup_access, key=_ACCESS.index)
        model.requires_grad_(False).eval()
        with self._own_randomness():
            self.setup()

    # -- hooks that a method defines

    def setup(self) -> None:
        """Choose the parameters to adapt and build optimiser, teacher and memory. Called once."""

    def prepare(self, source: Any) -> None:
        """Read source data, once before the stream.

        source: None, or a `SourceData` with `batches(size)`, images float [n, 3, H, W] in [0, 1],
        and, with labelled access, `labelled_batches(size)`, images and labels int64 [n].
        """

    def warmup_parameters(self) -> Mapping[str, nn.Parameter]:
        """The parameters that a warm-up trains, by name; by default all trainable ones."""
        return self.trainable

    def warmup_result(self) -> Mapping[str, Tensor]:
        """The tensors that a warm-up stores, by name: those it trains, and others (a teacher's)."""
        return self.warmup_parameters()

    def published_names(self) -> tuple[dict[str, str], dict[str, Tensor]]:
        """Names in the official code's file of a warm-up: of what it learnt, and of the rest.

        The first are those of `warmup_result` by the official name; the second the tensors of the
        source model by theirs, with which the file must agree. Raises MethodError if no official
        file of a warm-up is known.
        """
        raise MethodError(
            f"{self.title}: no published file of a warm-up is known; leave the import "
            "out, and the warm-up runs."
        )

    def warm_up(self, images: Tensor, labels: Tensor | None) -> None:
        """One update of a warm-up; by default on the cross-entropy.

        images: float [n, 3, H, W] in [0, 1]; labels: int64 [n], None without labelled access.
        """
        assert labels is not None
        self.step(cross_entropy(self.model(images), labels))

    def warmup_updated(self, done: int, total: int) -> None:
        """Called after each update of a warm-up, with their number so far and in all."""

    def warmed_up(self) -> None:
        """Called once after a warm-up, e.g. to copy the new weights to teachers and anchors."""

    def adapt(self, images: Tensor) -> Tensor:
        """Return the scored logits of a batch, and update on it.

        images: float [n, 3, H, W] in [0, 1]. Returns logits [n, classes]; for segmentation
        [n, classes, h, w] of any size.
        """
        raise MethodError(f"{self.title}: define the method adapt(self, images).")

    def predict(self, images: Tensor) -> Tensor:
        """Scored logits [n, classes] without an update, for window mode."""
        return self.model(images)

    @property
    def scored_model(self) -> SourceModel:
        """The network whose logits are scored, for exports: the model, or its teacher.

        Override it to raise MethodError if no single network gives the scored logits.
        """
        return self.model

    # -- called by the engine and by users

    def start(self, source: Any = None, warmed: Mapping[str, Tensor] | None = None) -> None:
        """Warm up, prepare on the source data, and record the state that `reset` returns to.

        `source` as in `prepare`; `warmed`: the result of an earlier warm-up of the same method,
        used in place of a new one. Raises MethodError if source data is needed and missing.
        """
        if self.source_access != "none" and source is None:
            raise MethodError(
                f"{self.title} reads {self.source_access} source data before the stream, "
                "but start() got none; pass the benchmark's source set to start()."
            )
        if self.hp.warms_up:
            load_warmed(self, self._run_warmup(source) if warmed is None else warmed)
            self._scaler, self.loss = self._new_scaler(), None
            self.warmed_up()
        with self._own_randomness(), self._autocast():
            self.prepare(source if self.source_access != "none" else None)
        self.optimizer_zero_grad()
        # Only the passes of the stream are counted.
        self.passes.forward_images = self.passes.backward_images = 0
        self._initial = state.capture(self, skip=_SURVIVES_RESET, frozen=self.model)
        self._started = True

    def __call__(self, images: Tensor) -> Tensor:
        """Adapt to images float [n, 3, H, W] in [0, 1] and return their scored logits.

        Logits [n, classes] (segmentation: [n, classes, h, w]) in float32 or float64, detached.
        """
        if not self._started:
            self.start()
        # Evaluation loops often use torch.no_grad(), but adaptation needs gradients.
        with torch.set_grad_enabled(self.adapts), self._own_randomness(), self._autocast():
            if not self.adapts:
                logits = self.predict(images)
            else:
                logits = self._in_window(images) if self.window > 1 else self.adapt(images)
        logits = logits.detach()
        return logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits

    def reset(self) -> None:
        """Return to the state before the stream: parameters, optimiser, memory, bit-identical.

        Counters and the random stream continue.
        """
        if self._started:
            state.load_state(self, self._initial, skip=_SURVIVES_RESET)
        self.counters["resets"] += 1

    def beside_weights(self) -> state.Node:
        """What `reset` sets back, except the model's tensors: optimiser, memories, averages.

        For a method that swaps several states of another one.
        """
        return state.capture(self, skip=_SURVIVES_RESET | {"model", "trainable"})

    def load_beside_weights(self, tree: state.Node) -> None:
        """Set back what `beside_weights` returned."""
        state.load_state(self, tree, skip=_SURVIVES_RESET | {"model", "trainable"})

    def state_dict(self) -> state.Node:
        """Everything that changes along the stream, as a tree for `torch.save`."""
        return state.capture(self, skip=_BASE, frozen=self.model)

    def load_state_dict(self, tree: state.Node) -> None:
        """Resume from a `state_dict` of a method that was built and started in the same way.

        Raises MethodError if the state belongs to another method or model.
        """
        if not self._started:  # so that `reset` does not return to the loaded state
            self.start()
        self._load_state(tree)

    def __repr__(self) -> str:
        values = {k: v for k, v in self.hp.model_dump().items() if v is not None}
        shown = "".join(f" {key}={value}," for key, value in values.items()).rstrip(",")
        count = sum(p.numel() for p in self.trainable.values())
        return (
            f"<{self.title} on {self.model.name}:{shown or ' no values'}; adapts {count:,} values>"
        )

    @property
    def started(self) -> bool:
        """Whether `start` was called: the method has been run."""
        return self._started

    @property
    def segments(self) -> bool:
        """Whether the model is for segmentation: a class per pixel, not per image."""
        return self.model.task == "segmentation"

    @classmethod
    def form(cls: type[M], task: Task) -> type[M]:
        """The class for models of a task: this one, or its segmentation form.

        For a subclass of a method with a segmentation form, the result derives from both; the
        subclass's definitions come first.
        """
        owner = next((c for c in cls.__mro__ if vars(c).get("segmentation_form")), None)
        if task != "segmentation" or owner is None:
            return cls
        module, _, name = vars(owner)["segmentation_form"].rpartition(":")
        home = owner.__module__
        if module:
            home = f"{home.rpartition('.')[0]}.{module}"
        found: type[M] = getattr(importlib.import_module(home), name)
        if cls is owner or issubclass(cls, found):
            return found if cls is owner else cls
        return type(cls.__name__, (cls, found), {"__module__": cls.__module__})

    @classmethod
    def declared(cls, what: str, task: Task) -> Any:
        """`passes_per_image`, `checked_with` or `exempt` on a model of this task."""
        own = getattr(cls.form(task), what)
        if task != "segmentation" or what not in cls.on_segmentation:
            return own
        warnings.warn(
            f"{cls.__name__} declares {what} in on_segmentation, which will be removed in 0.3.0; "
            "declare it in a subclass that segmentation_form names.",
            FutureWarning,
            stacklevel=2,
        )
        return cls.on_segmentation[what]

    @property
    def title(self) -> str:
        """The name in messages: the display name, else that of the class.

        A segmentation form has the name of its method.
        """
        kind = type(self)
        methods = (c for c in kind.__mro__[1:] if issubclass(c, Method))
        owner = next((c for c in methods if vars(c).get("segmentation_form")), kind)
        named = owner if owner.form("segmentation") is kind else kind
        return vars(named).get("display_name") or named.__name__

    @property
    def device(self) -> torch.device:
        """The device of the model."""
        return next(self.model.parameters()).device

    @property
    def extra_state_bytes(self) -> int:
        """Bytes of the tensors besides model and optimiser: teachers, memories, prompts."""
        skip = _SURVIVES_RESET | {"model", "trainable", "optimizer"}
        return _tensor_bytes(state.capture(self, skip=skip))

    # -- helpers for methods

    def adapt_only(self, parameters: dict[str, nn.Parameter]) -> None:
        """Make `parameters` (by name) trainable and freeze the rest of the model.

        Raises MethodError if `parameters` is empty.
        """
        if not parameters:
            raise MethodError(
                f"{self.title} finds nothing to adapt in {self.model.name}: the model has "
                "no layers of the kind that this method updates; choose another model."
            )
        self.model.requires_grad_(False)
        self.trainable = dict(parameters)
        for parameter in parameters.values():
            parameter.requires_grad_(True)

    def frozen_copy(self) -> SourceModel:
        """A copy of the model in its present state, without gradients: a teacher, or an anchor.

        Its passes count as the model's.
        """
        return copy.deepcopy(self.model).requires_grad_(False)

    def build_optimizer(
        self, parameters: Iterable[nn.Parameter] | None = None
    ) -> torch.optim.Optimizer:
        """The optimiser of `OptimizerHyperparameters`, by default over all trainable parameters."""
        hp = self.hp
        parameters = list(self.trainable.values() if parameters is None else parameters)
        if hp.optimizer == "sgd":
            return torch.optim.SGD(
                parameters, hp.lr, hp.momentum, weight_decay=hp.weight_decay, nesterov=hp.nesterov
            )
        kind = torch.optim.Adam if hp.optimizer == "adam" else torch.optim.AdamW
        return kind(parameters, hp.lr, hp.betas, weight_decay=hp.weight_decay)

    def step(self, loss: Tensor, *, guard: bool = True, least_norm: float = 0.0) -> bool:
        """Backward pass and one optimiser step.

        With `guard`, a loss or gradient that is not finite skips the step, which is counted. A
        gradient with a norm below `least_norm` is rounding noise: no step, and nothing counted.
        Returns False if the step was skipped as not finite: then skip the rest of the update, too.
        """
        if not self.backward(loss, guard=guard):
            return False
        if least_norm and bool(self.gradient_norm() < least_norm):
            self.optimizer_zero_grad()
            return True
        return self.optimizer_step(guard=guard)

    def backward(self, loss: Tensor, *, guard: bool = True) -> bool:
        """Add the gradient of `loss` to the parameters.

        Returns False, and counts a skipped update, if the loss is not finite.
        """
        self.loss = loss.detach()
        if guard and not bool(torch.isfinite(loss)):
            self.skip_update()
            return False
        self._scaler.scale(loss).backward()
        return True

    def optimizer_step(self, *, guard: bool = True) -> bool:
        """One step of `self.optimizer` with the accumulated gradients, then clear them.

        Returns False, and counts a skipped update, if a gradient is not finite.
        """
        optimizer = self.optimizer
        self._scaler.unscale_(optimizer)
        if guard and not self._gradients_are_finite():
            self._scaler.update()
            self.skip_update()
            return False
        self._scaler.step(optimizer)
        self._scaler.update()
        if torch.is_autocast_enabled(self.device.type):
            torch.clear_autocast_cache()  # it holds half-precision copies of the old weights
        self.optimizer_zero_grad()
        return True

    def skip_update(self) -> None:
        """Count a skipped update and drop its gradients."""
        self.counters["skipped_updates"] += 1
        self.optimizer_zero_grad()

    def optimizer_zero_grad(self) -> None:
        """Drop all accumulated gradients."""
        for parameter in self.trainable.values():
            parameter.grad = None

    def gradient_norm(self) -> Tensor:
        """Euclidean norm of all accumulated gradients together, a scalar; 0 without gradients."""
        gradients = [p.grad for p in self.trainable.values() if p.grad is not None]
        if not gradients:
            return torch.zeros((), device=self.device)
        return torch.stack(torch._foreach_norm(gradients)).norm() / self._scaler.get_scale()

    def _gradients_are_finite(self) -> bool:
        gradients = [p.grad for p in self.trainable.values() if p.grad is not None]
        if not gradients:
            return True
        return bool(torch.stack(torch._foreach_norm(gradients)).sum().isfinite())

    # -- internals

    def _check_task(self) -> None:
        name, task = self.title, self.model.task
        if task not in self.tasks:
            raise MethodError(
                f"{name} does not support {self.model.name}, a model for {task}; use a model for "
                f"{' or '.join(sorted(self.tasks))}."
            )
        if self.segments and self.hp.warms_up and not self.warms_up_maps:
            raise MethodError(
                f"{name} does not support a warm-up for segmentation, the task of "
                f"{self.model.name}; remove the warmup_... values."
            )

    def _load_state(self, tree: state.Node) -> None:
        state.load_state(self, tree, skip=_BASE)

    def _run_warmup(self, source: Any) -> dict[str, Tensor]:
        warmup = Warmup(self, source)
        for _ in warmup.updates():
            pass
        return warmup.finish()

    def _new_scaler(self) -> torch.amp.GradScaler:
        scales = self.precision == "float16" and self.device.type == "cuda"
        return torch.amp.GradScaler(self.device.type, enabled=scales)

    @contextlib.contextmanager
    def _own_randomness(self) -> Iterator[None]:
        """Run with the method's private random stream.

        A method may simply call torch.rand: other code in the process (loader workers, progress
        displays, other methods) does not change its draws, and checkpoints hold the stream.
        """
        outside = torch.get_rng_state()
        on_gpu = self.device.type == "cuda"
        outside_gpu = torch.cuda.get_rng_state(self.device) if on_gpu else None
        torch.set_rng_state(self._rng)
        if on_gpu:
            # The GPU is seeded from the host's stream: no second state to save.
            seed = int(torch.randint(2**62, (1,)))
            torch.cuda.manual_seed(seed)
        try:
            yield
        finally:
            self._rng = torch.get_rng_state()
            torch.set_rng_state(outside)
            if outside_gpu is not None:
                torch.cuda.set_rng_state(outside_gpu, self.device)

    def _autocast(self) -> contextlib.AbstractContextManager[Any]:
        if self.precision in ("float32", "float64"):
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, dtype=getattr(torch, self.precision))

    def _in_window(self, images: Tensor) -> Tensor:
        """Score images on arrival, and update when `window` new images have been gathered."""
        self._recent.append(images)
        gathered = torch.cat(self._recent)
        with torch.no_grad():
            if self.batch_dependent:
                logits = self.predict(gathered)[-len(images) :]
            else:
                logits = self.predict(images)
        if len(gathered) >= self.window:
            self._recent = []
            self.adapt(gathered)
        return logits


def _tensor_bytes(tree: Any) -> int:
    if isinstance(tree, Tensor):
        return tree.numel() * tree.element_size()
    if isinstance(tree, dict):
        return sum(map(_tensor_bytes, tree.values()))
    if isinstance(tree, list | tuple):
        return sum(map(_tensor_bytes, tree))
    return 0
