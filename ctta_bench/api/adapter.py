"""A model that adapts while it is used: in a loop over a video, or behind a server."""

import contextlib
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ctta_bench.api.loading import load_method, load_model
from ctta_bench.errors import ConfigError, DataError, RunError
from ctta_bench.method import Method, Precision
from ctta_bench.record.folder import atomic
from ctta_bench.registry import METHODS, canonical
from ctta_bench.run.environment import chosen_device
from ctta_bench.run.export import plain_state, write_model
from ctta_bench.source_models.segformer_layouts import published
from ctta_bench.stream import SourceData, as_input
from ctta_bench.stream.own_sets import image_set

# One call at a time in a process: a method draws from torch's global generator, under its own seed.
_LOCK = threading.RLock()
_FORMAT = 1


class Adapter(nn.Module):
    """A method on its model, as a module: `logits = adapter(images)` predicts and adapts.

    Made by `adapt`. Calls from several threads are safe: they are handled one after another, in the
    order in which they come, for all adapters of the process. Every batch changes the model, so the
    order of requests decides the predictions; one adapter per client keeps clients apart.

    `method` is the method that it runs.
    """

    def __init__(self, method: Method) -> None:
        super().__init__()
        self.model = method.model
        self.method = method
        self.images_seen = 0

    def forward(self, images: Any) -> Tensor:
        """Logits of images, float [n, 3, H, W] in [0, 1] or uint8; adapts the model to them.

        A single image [3, H, W] gives logits [classes]; arrays are taken, too. In
        `with adapter.frozen():` nothing adapts. Raises DataError for another shape or range.
        """
        batch, single = self._batch(images)
        with _LOCK:
            logits = self.method(batch)
            self.images_seen += len(batch)
        return logits[0] if single else logits

    def predict(self, images: Any) -> Tensor:
        """The class of each image, int64 [n] (segmentation: maps [n, h, w]); adapts, too."""
        batch, single = self._batch(images)
        classes = self(batch).argmax(1)
        return classes[0] if single else classes

    def _batch(self, images: Any) -> tuple[Tensor, bool]:
        given = images if isinstance(images, Tensor) else torch.from_numpy(np.array(images))
        single = given.ndim == 3
        given = given[None] if single else given
        if given.ndim != 4 or given.shape[1] != 3 or not len(given):
            raise DataError(
                f"images of shape {list(given.shape)}; give [n, 3, H, W], or one image [3, H, W]."
            )
        if given.dtype != torch.uint8 and not given.is_floating_point():
            raise DataError(f"images of {given.dtype}; give uint8, or floats in [0, 1].")
        found = as_input(given.to(self.method.device)).to(self.model.mean.dtype)
        low, high = found.aminmax()
        if not (low >= 0 and high <= 1):  # also NaN
            raise DataError(
                f"images with values from {float(low):.3g} to {float(high):.3g}; give uint8, or "
                "floats in [0, 1] without normalisation, which is part of the model."
            )
        return found, single

    @contextlib.contextmanager
    def frozen(self) -> Iterator["Adapter"]:
        """Predict without adapting: `with adapter.frozen(): logits = adapter(images)`."""
        with _LOCK:
            before, self.method.adapts = self.method.adapts, False
            try:
                yield self
            finally:
                self.method.adapts = before

    def reset(self) -> None:
        """Return to the state before the first image, bit-identical."""
        with _LOCK:
            self.method.reset()
            self.images_seen = 0

    def save(self, file: Path | str) -> Path:
        """Write everything that changes: weights, optimiser, memories, random generator.

        `load` of an adapter that was made in the same way continues bit-identically.
        """
        path = Path(file).expanduser()
        with _LOCK, atomic(path) as temporary:
            content = {
                "format": _FORMAT,
                "made_with": json.dumps(self._made_with(), sort_keys=True),
                "images_seen": self.images_seen,
                "state": self.method.state_dict(),
            }
            torch.save(content, temporary)
        return path

    def load(self, file: Path | str) -> "Adapter":
        """Continue from a file of `save`; returns the adapter itself.

        Raises RunError for another file, or one of an adapter that was made in another way.
        """
        path = Path(file).expanduser()
        try:
            content = torch.load(path, map_location="cpu", weights_only=True)
            made_with, seen, state = (content[key] for key in ("made_with", "images_seen", "state"))
        except Exception as error:
            raise RunError(
                f"{path}: is no file of adapter.save ({type(error).__name__})."
            ) from None
        ours, theirs = self._made_with(), json.loads(made_with)
        differing = [key for key in ours if ours[key] != theirs.get(key)]
        if differing:
            raise RunError(
                f"{path}: was saved by an adapter with another {differing[0]} "
                f"({theirs.get(differing[0])}); make this one in the same way."
            )
        with _LOCK:
            self.method.load_state_dict(state)
            self.images_seen = int(seen)
        return self

    def _made_with(self) -> dict[str, Any]:
        method = self.method
        return {
            "method": METHODS.name_of(type(method)) or canonical(type(method).__name__),
            "hyperparameters": method.hp.model_dump(mode="json"),
            "model": self.model.name,
            "window": method.window,
        }

    def export(self, file: Path | str) -> Path:
        """Write the adapted weights as a plain network (.safetensors), adapters merged.

        The keys are those of the network without its method, so that its own code loads them.
        Raises MethodError if no plain network gives these predictions, as with statistics of each
        batch.
        """
        path = Path(file).expanduser()
        if path.suffix != ".safetensors":
            raise ConfigError(f"{path}: exports are .safetensors files; choose such a name.")
        with _LOCK:
            state = plain_state(self.method)
        metadata = {"method": str(self._made_with()["method"]), "model": self.model.name}
        write_model(path, published(state), metadata)
        return path

    def _apply(self, fn: Any, recurse: bool = True) -> "Adapter":
        raise ConfigError(
            "an adapter stays on its device and in its precision, as its optimiser does: "
            "adapt(..., device=, precision=)."
        )

    def train(self, mode: bool = True) -> "Adapter":
        """Nothing: the method decides which layers are in training mode."""
        return self

    def extra_repr(self) -> str:
        """What `print` shows."""
        return f"{self.method!r}, {self.images_seen:,} images seen"

    def __repr__(self) -> str:
        return f"Adapter({self.extra_repr()})"


def adapt(
    model: str | nn.Module,
    method: str = "tent",
    *,
    source: Any = None,
    preset: str | None = None,
    benchmark: str = "any",
    seed: int = 0,
    precision: Precision = "float32",
    window: int = 0,
    device: str | None = None,
    **hyperparameters: Any,
) -> Adapter:
    """A model that adapts to the images that it predicts.

        adapter = ctta_bench.adapt("scenes_vit", "tent", lr=1e-3)
        for images in camera:  # uint8 or floats in [0, 1], [n, 3, H, W]
            logits = adapter(images)
        adapter.save("state.pt"); adapter.reset(); adapter.export("adapted.safetensors")

    Args:
        model: a name, or a module with its weights from normalised images to logits; it is changed.
            `load_model(module, mean=..., std=...)` states its pre-processing.
        method: a registered name (`list_methods()`).
        source: source images, for methods that read them, in a form that `Benchmark.from_domains`
            takes for a domain.
        preset, benchmark: the values that are not given; see `load_method`.
        seed: seeds the method's own random generator.
        precision: "float32", "bfloat16" or "float16" (autocast), or "float64".
        window: images that are gathered before an update, for single images.
        device: by default a GPU if there is one.
        hyperparameters: of the method.

    Raises ConfigError for an unknown name, MethodError if the method does not support the model or
    needs source data.
    """
    if isinstance(model, str) and model in METHODS.names():
        raise ConfigError(
            f"adapt: {model!r} is a method; the model is first: adapt(MODEL, METHOD)."
        )
    prepared = load_model(model).to(chosen_device(device)).eval()
    if precision == "float64":
        prepared = prepared.double()
    built = load_method(
        method,
        prepared,
        preset=preset,
        benchmark=benchmark,
        seed=seed,
        precision=precision,
        window=window,
        **hyperparameters,
    )
    data = None
    if source is not None and built.source_access != "none":
        data = SourceData(
            image_set(source, "source").images,
            labelled=built.source_access == "labelled",
            seed=seed,
            device=built.device,
            dtype=prepared.mean.dtype,
        )
    built.start(data)
    return Adapter(built)
