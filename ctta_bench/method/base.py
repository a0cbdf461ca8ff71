"""The contract of a method, and what every method gets without a line in its own file.

A method is a class with `setup` (choose parameters, build the optimiser), `prepare` (read source
data once, if it may) and `adapt` (return the logits that are scored, and update). The base adds:
reset, checkpoints that resume to the same bits, a guard against non-finite losses, private
randomness, autocast, counting of passes, and window mode for single-sample streams.
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

# Bookkeeping that neither a reset nor the saved state of the algorithm may touch.
_BASE = frozenset(
    {"hp", "window", "precision", "adapts", "norm_statistics", "_initial", "_started"}
)
_SURVIVES_RESET = _BASE | {"counters", "passes", "loss", "_rng"}


class Method(OldNames):
    """Base of all methods; call it with images float [n, 3, H, W] in [0, 1], get scored logits.

    Neither labels nor domain names ever reach a method. Subclasses define `Hyperparameters`,
    `setup`, `adapt` and, if `source_access` is not "none", `prepare`.
    """

    class Hyperparameters(MethodHyperparameters):
        """No hyper-parameters."""

    # -- what the engine goes by

    source_access: SourceAccess = "none"
    """What `prepare` may read of the source data; `setup` may lower it for hyper-parameters that
    need less. A warm-up raises it to `warmup_access`."""
    warmup_access: ClassVar[SourceAccess] = "none"
    """What a warm-up reads, where the hyper-parameters (`WarmupHyperparameters`) have one."""
    learns_labels: ClassVar[bool] = False
    """Whether it learns the benchmark's labels itself: the source model need not know them."""
    stream_only: ClassVar[frozenset[str]] = frozenset()
    """Hyper-parameters that a warm-up never sees: cells that differ in these alone share one."""
    tasks: ClassVar[frozenset[Task]] = frozenset({"classification"})
    """What it is defined for; in segmentation logits are maps [n, classes, h, w] of any size."""
    segmentation_form: ClassVar[str] = ""
    """The subclass that a model which segments gets in its place: `Class` of the same module, or
    `module:Class` of a module beside it. It has the same hyper-parameters."""
    batch_dependent: bool = False
    """Whether an image's logits depend on the others of its batch (batch statistics)."""
    norm_statistics: str = ""
    """What BatchNorms normalise by, for the record, where the layers do not tell it themselves."""

    # -- for the catalogue alone (lists, reports, estimates, `tune`); literals, read as text

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
    needs_batch_norm: ClassVar[bool] = False
    """Whether it does nothing on a model without BatchNorm."""
    paper: ClassVar[str] = ""
    """Where it was published: a link, or a reference in words."""
    checked_against: ClassVar[str] = ""
    """What its outputs were compared with: the official code, a second implementation, ..."""
    passes_per_image: ClassVar[tuple[float, float] | None] = None
    """Forward and backward passes an image of the stream costs, with the defaults; a check, too."""
    search_space: ClassVar[Mapping[str, tuple[float, float] | list[Any]]] = {}
    """What `ctta-bench tune` searches, by hyper-parameter: (low, high), on a log scale where low is
    above 0, or a list of values."""

    # -- for the checks of `ctta_bench.testing` alone

    checked_with: ClassVar[dict[str, Any]] = {}
    """Hyper-parameters under which the checks see every part at work."""
    exempt: ClassVar[dict[str, str]] = {}
    """Checks that the method cannot satisfy, and why."""
    on_segmentation: ClassVar[dict[str, Any]] = {}
    """As written for 0.1.0, goes with the next release: what `passes_per_image`, `checked_with` or
    `exempt` is where a model segments. A `segmentation_form` declares its own."""

    # -- state

    source_used: int | None = None
    """Source images that `prepare` found for the `source_samples` that it was to read."""

    hp: Any
    optimizer: torch.optim.Optimizer

    def __new__(cls: type[M], model: SourceModel | None = None, *_: Any, **__: Any) -> M:
        """An object of the form for the model's task; copies are made without a model, of cls."""
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

    # -- what a method writes

    def setup(self) -> None:
        """Choose the parameters to adapt and build optimiser, teacher, memory; once."""

    def prepare(self, source: Any) -> None:
        """Read the source data once before the stream, within `source_access`."""

    def warmup_parameters(self) -> Mapping[str, nn.Parameter]:
        """What a warm-up trains, by name; all trainable parameters unless a method says less."""
        return self.trainable

    def warmup_result(self) -> Mapping[str, Tensor]:
        """What a warm-up leaves, by name: what it trains, and what a method adds (a teacher)."""
        return self.warmup_parameters()

    def warm_up(self, images: Tensor, labels: Tensor | None) -> None:
        """One update of a warm-up; labels int64 [n] come with labelled `warmup_access` alone."""
        assert labels is not None
        self.step(cross_entropy(self.model(images), labels))

    def warmed_up(self) -> None:
        """What follows a warm-up, once: teachers and anchors become copies of what it left."""

    def adapt(self, images: Tensor) -> Tensor:
        """Return the scored logits [n, classes] of `images` and update; each method's own.

        On segmentation [n, classes, h, w], of any size.
        """
        raise MethodError(f"{type(self).__name__} defines no adapt(images).")

    def predict(self, images: Tensor) -> Tensor:
        """Logits [n, classes] without an update, as window mode scores them."""
        return self.model(images)

    @property
    def scored_model(self) -> SourceModel:
        """The network whose logits are scored, as exports keep it: the model, or its teacher."""
        return self.model

    # -- what the engine and users call

    def start(self, source: Any = None, warmed: Mapping[str, Tensor] | None = None) -> None:
        """Warm up, prepare from the source data, remember the state that `reset` returns to.

        `warmed`: what a warm-up of a like method has learnt, in place of one here.
        """
        if self.source_access != "none" and source is None:
            raise MethodError(
                f"{type(self).__name__} reads {self.source_access} source data before the stream, "
                "but none was given; pass the benchmark's source set to start()."
            )
        if self.hp.warms_up:
            load_warmed(self, self._run_warmup(source) if warmed is None else warmed)
            self._scaler, self.loss = self._new_scaler(), None
            self.warmed_up()
        with self._own_randomness(), self._autocast():
            self.prepare(source if self.source_access != "none" else None)
        self.optimizer_zero_grad()
        # What is counted is the cost of the stream; preparation is paid once.
        self.passes.forward_images = self.passes.backward_images = 0
        self._initial = state.capture(self, skip=_SURVIVES_RESET, frozen=self.model)
        self._started = True

    def __call__(self, images: Tensor) -> Tensor:
        """Scored logits [n, classes] of images [n, 3, H, W] in [0, 1]; has adapted on return."""
        if not self._started:
            self.start()
        # Evaluation loops often stand in torch.no_grad(): adaptation needs gradients all the same.
        with torch.set_grad_enabled(self.adapts), self._own_randomness(), self._autocast():
            if not self.adapts:
                logits = self.predict(images)
            else:
                logits = self._in_window(images) if self.window > 1 else self.adapt(images)
        logits = logits.detach()
        return logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits

    def reset(self) -> None:
        """Back to the state before the stream: parameters, optimiser, memory, to the bit.

        Counters and the random stream go on. Before the first batch there is nothing to undo.
        """
        if self._started:
            state.load_state(self, self._initial, skip=_SURVIVES_RESET)
        self.counters["resets"] += 1

    def state_dict(self) -> state.Node:
        """Everything that changes along the stream, as a tree that `torch.save` takes."""
        return state.capture(self, skip=_BASE, frozen=self.model)

    def load_state_dict(self, tree: state.Node) -> None:
        """Go on from a `state_dict` of a method built and started in the same way."""
        if not self._started:  # or else the loaded state would be what `reset` returns to
            self.start()
        self._load_state(tree)

    @property
    def segments(self) -> bool:
        """Whether the model predicts a class for each pixel, not one for the image."""
        return self.model.task == "segmentation"

    @classmethod
    def form(cls: type[M], task: Task) -> type[M]:
        """The class for models of a task: itself, or its segmentation form.

        A subclass of a method with such a form gets both: its own definitions before the form's.
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
            f"{cls.__name__} declares {what} in on_segmentation, which goes with the next release; "
            "declare it in a subclass that segmentation_form names.",
            FutureWarning,
            stacklevel=2,
        )
        return cls.on_segmentation[what]

    @property
    def title(self) -> str:
        """The name in messages: that of the class, of a segmentation form that of its method."""
        kind = type(self)
        methods = (c for c in kind.__mro__[1:] if issubclass(c, Method))
        owner = next((c for c in methods if vars(c).get("segmentation_form")), kind)
        return owner.__name__ if owner.form("segmentation") is kind else kind.__name__

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return next(self.model.parameters()).device

    @property
    def extra_state_bytes(self) -> int:
        """Bytes of tensors kept beside the model and its optimiser: teachers, memories, prompts."""
        skip = _SURVIVES_RESET | {"model", "trainable", "optimizer"}
        return _tensor_bytes(state.capture(self, skip=skip))

    # -- what methods use

    def adapt_only(self, parameters: dict[str, nn.Parameter]) -> None:
        """Make `parameters` (by name) the trainable ones and freeze the rest of the model.

        Raises MethodError if there are none.
        """
        if not parameters:
            raise MethodError(
                f"{type(self).__name__} finds nothing to adapt in {self.model.name}: the model has "
                "no layers of the kind that this method updates."
            )
        self.model.requires_grad_(False)
        self.trainable = dict(parameters)
        for parameter in parameters.values():
            parameter.requires_grad_(True)

    def frozen_copy(self) -> SourceModel:
        """A copy of the model as it is now, without gradients: a teacher, or an anchor that stays.

        Its passes are counted with the model's.
        """
        return copy.deepcopy(self.model).requires_grad_(False)

    def build_optimizer(
        self, parameters: Iterable[nn.Parameter] | None = None
    ) -> torch.optim.Optimizer:
        """The optimiser that the hyper-parameters describe, over the trainable parameters."""
        hp = self.hp
        parameters = list(self.trainable.values() if parameters is None else parameters)
        if hp.optimizer == "sgd":
            return torch.optim.SGD(
                parameters, hp.lr, hp.momentum, weight_decay=hp.weight_decay, nesterov=hp.nesterov
            )
        kind = torch.optim.Adam if hp.optimizer == "adam" else torch.optim.AdamW
        return kind(parameters, hp.lr, hp.betas, weight_decay=hp.weight_decay)

    def step(self, loss: Tensor, *, guard: bool = True, least_norm: float = 0.0) -> bool:
        """Backward and one optimiser step; skipped and counted if loss or gradients are not finite.

        A gradient of a norm below `least_norm` is rounding noise: no step is made of it, and none
        is missed. Returns False if the update is to be left out as a whole.
        """
        if not self.backward(loss, guard=guard):
            return False
        if least_norm and bool(self.gradient_norm() < least_norm):
            self.optimizer_zero_grad()
            return True
        return self.optimizer_step(guard=guard)

    def backward(self, loss: Tensor, *, guard: bool = True) -> bool:
        """Add the gradient of `loss` to the parameters; False, and counted, if it is not finite."""
        self.loss = loss.detach()
        if guard and not bool(torch.isfinite(loss)):
            self.skip_update()
            return False
        self._scaler.scale(loss).backward()
        return True

    def optimizer_step(self, *, guard: bool = True) -> bool:
        """One step of `self.optimizer` with the gathered gradients, then clear them."""
        optimizer = self.optimizer
        self._scaler.unscale_(optimizer)
        if guard and not self._gradients_are_finite():
            self._scaler.update()
            self.skip_update()
            return False
        self._scaler.step(optimizer)
        self._scaler.update()
        if torch.is_autocast_enabled(self.device.type):
            torch.clear_autocast_cache()  # else half precision goes on with the old weights
        self.optimizer_zero_grad()
        return True

    def skip_update(self) -> None:
        """Leave this batch's update out, drop its gradients and count it."""
        self.counters["skipped_updates"] += 1
        self.optimizer_zero_grad()

    def optimizer_zero_grad(self) -> None:
        """Drop all gathered gradients."""
        for parameter in self.trainable.values():
            parameter.grad = None

    def gradient_norm(self) -> Tensor:
        """Euclidean norm of all gathered gradients together, a scalar; 0 if there are none."""
        gradients = [p.grad for p in self.trainable.values() if p.grad is not None]
        if not gradients:
            return torch.zeros((), device=self.device)
        return torch.stack(torch._foreach_norm(gradients)).norm() / self._scaler.get_scale()

    def _gradients_are_finite(self) -> bool:
        gradients = [p.grad for p in self.trainable.values() if p.grad is not None]
        if not gradients:
            return True
        return bool(torch.stack(torch._foreach_norm(gradients)).sum().isfinite())

    # -- how the base does it

    def _check_task(self) -> None:
        name, task = self.title, self.model.task
        if task not in self.tasks:
            raise MethodError(
                f"{name} is not defined for {task} and cannot serve {self.model.name}; it is a "
                f"method for {' and '.join(sorted(self.tasks))}."
            )
        if self.segments and self.hp.warms_up:
            raise MethodError(
                f"{name} has no warm-up that is defined for segmentation, the task of "
                f"{self.model.name}; leave the warmup_... values out."
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
        """Run with the method's private random stream, so that nothing outside moves it.

        A method may simply call torch.rand: loader workers, progress displays or other methods in
        the process do not change what it draws, and checkpoints carry the stream.
        """
        outside = torch.get_rng_state()
        on_gpu = self.device.type == "cuda"
        outside_gpu = torch.cuda.get_rng_state(self.device) if on_gpu else None
        torch.set_rng_state(self._rng)
        if on_gpu:
            # One seed for both devices: drawn from the host's stream, it needs no second state.
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
        """Score every image at once, update only when `window` new images have gathered."""
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
