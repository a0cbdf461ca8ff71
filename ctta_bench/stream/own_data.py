"""Your own data as a benchmark: domains of arrays, Datasets, ..., or clean images to corrupt.

`Benchmark.from_domains` and `Benchmark.from_clean` make it. Settings, rounds, orders, resume and
reports work as on the benchmarks of the suite; a fingerprint of the data is in a cell's identity.
"""

import functools
import hashlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from pydantic import ValidationError
from torch import Tensor

from ctta_bench.errors import ConfigError, DataError, did_you_mean
from ctta_bench.registry import CORRUPTION_SETS, canonical
from ctta_bench.stream.benchmark import CLEAN, Benchmark
from ctta_bench.stream.fingerprint import digest, digest_of, fingerprint
from ctta_bench.stream.image_sets import ImageSet, MapSet
from ctta_bench.stream.own_sets import highest_label, image_set, with_classes
from ctta_bench.stream.settings import (
    CorruptedMapSettings,
    CorruptionSettings,
    SegmentationSettings,
    StreamSettings,
)

Corruption = Callable[..., Any]
SMALL = 100  # pixels: below, built-in corruptions have the CIFAR parameters, from there ImageNet's
_LOOKED_AT = 4  # corrupted images of a function that its fingerprint is made of


class OwnData(Benchmark):
    """A benchmark of data that a user gave; see `Benchmark.from_domains` and `from_clean`."""

    published = False

    def __init__(
        self,
        name: str,
        domains: Mapping[str, ImageSet | Callable[[int], ImageSet]],
        settings: StreamSettings,
        *,
        source: ImageSet | None,
        clean: ImageSet | None = None,
        classes: Sequence[str] | int,
        same_images: bool,
        counted: bool = False,
        model: str = "",
    ) -> None:
        super().__init__(settings)
        self.name = canonical(name)
        self._domains, self._source, self._clean = dict(domains), source, clean
        self._classes, self._counted = classes, counted
        if same_images:
            _check_same_labels(self.name, domains)
        # Constants of other classes; what they are here depends on the data.
        of_maps = isinstance(self._any(), MapSet)
        for key, value in {
            "Settings": type(settings),
            "num_classes": classes if isinstance(classes, int) else len(classes),
            "class_names": () if isinstance(classes, int) else tuple(classes),
            "task": "segmentation" if of_maps else "classification",
            "fixed_classes": not counted,
            "same_images": same_images,
            "severities": (1, 2, 3, 4, 5) if isinstance(settings, CorruptionSettings) else (),
            "default_model": model,
            "display_name": name,
        }.items():
            setattr(self, key, value)

    def domain_names(self) -> tuple[str, ...]:
        """The domains in the order in which they were given."""
        return tuple(self._domains)

    def extra_domains(self) -> tuple[str, ...]:
        """The clean images, of a benchmark made from them."""
        return () if self._clean is None else (CLEAN,)

    def domain(self, name: str, severity: int | None = None) -> ImageSet:
        """The images of one domain, as they were given, or corrupted."""
        if name == CLEAN and self._clean is not None:
            return self._clean
        found = self._domains[name]
        return found(severity or self.settings.severity) if callable(found) else found

    def source(self) -> ImageSet | None:
        """The source images, if they were given."""
        return self._source

    def source_location(self) -> str:
        """Where to give source images."""
        return "source=... of Benchmark.from_domains or from_clean"

    def held_out_source(self) -> ImageSet | None:
        """The clean images, of a benchmark made from them."""
        return None if CLEAN in self.chosen_domains() else self._clean

    def with_settings(self, settings: StreamSettings) -> "OwnData":
        """The same data with other settings of the stream."""
        return OwnData(
            self.display_name,
            self._domains,
            settings,
            source=self._source,
            clean=self._clean,
            classes=self._classes,
            counted=self._counted,
            same_images=self.same_images,
            model=self.default_model,
        )

    def facts(self) -> dict[str, Any]:
        """The fingerprint of the data, which is part of a cell's identity."""
        return super().facts() | {"data": self._fingerprint}

    @functools.cached_property
    def _fingerprint(self) -> str:
        sets = {name: self.domain(name) for name in self._domains}
        found = {name: fingerprint(images) for name, images in sets.items()}
        return digest_of([found, None if self._source is None else fingerprint(self._source)])

    def _any(self) -> ImageSet:
        return self.domain(next(iter(self._domains)))


def from_domains(
    domains: Mapping[str, Any],
    *,
    source: Any = None,
    classes: Sequence[str] | int | None = None,
    name: str = "own_data",
    columns: tuple[Any, Any] | None = None,
    size: int | None = None,
    same_images: bool = False,
    model: str = "",
    **settings: Any,
) -> OwnData:
    """See `Benchmark.from_domains`."""
    if not isinstance(domains, Mapping) or not domains:
        raise ConfigError(
            f"{name}: domains must be a mapping of names to data, e.g. "
            '{"fog": dataset, "night": dataset}.'
        )
    read = functools.partial(image_set, columns=columns, size=size)
    given = {str(key): read(data, f"domain {key}") for key, data in domains.items()}
    given_source = None if source is None else read(source, "source")
    everything = given if given_source is None else {**given, "source": given_source}
    named = _classes(everything, classes)
    if not isinstance(named, int):
        sets = {key: with_classes(one, named, key) for key, one in everything.items()}
    else:
        sets = {key: one.images for key, one in everything.items()}
    images = {key: sets[key] for key in given}
    kinds = {isinstance(one, MapSet) for one in sets.values() if one is not None}
    if len(kinds) > 1:
        raise DataError(f"{name}: some domains have label maps and some have class numbers.")
    kind = SegmentationSettings if kinds == {True} else StreamSettings
    if counted := named == 0:
        named = 1 + max(highest_label(one) for one in sets.values())
    _check_labels(sets, named)
    own = OwnData(
        name,
        images,
        _settings(kind, settings, name),
        source=sets["source"] if given_source is not None else None,
        classes=named,
        counted=counted,
        same_images=same_images,
        model=model,
    )
    own.chosen_domains()  # a misspelt one fails now
    return own


def from_clean(
    images: Any,
    *,
    corruptions: Sequence[str] | Mapping[str, Corruption | None] = (),
    severity: int = 5,
    source: Any = None,
    classes: Sequence[str] | int | None = None,
    name: str = "own_corruptions",
    columns: tuple[Any, Any] | None = None,
    size: int | None = None,
    model: str = "",
    **settings: Any,
) -> OwnData:
    """See `Benchmark.from_clean`."""
    plain = from_domains(
        {CLEAN: images}, source=source, classes=classes, name=name, columns=columns, size=size
    )
    clean, with_maps = plain.domain(CLEAN), plain.task == "segmentation"
    built_in = CORRUPTION_SETS.get("hendrycks")
    if isinstance(corruptions, str):
        raise ConfigError(f"{name}: corruptions={corruptions!r}: write a list, [{corruptions!r}].")
    wanted = (
        corruptions
        if isinstance(corruptions, Mapping)
        else dict.fromkeys(corruptions or _fitting(built_in, with_maps))
    )
    if CLEAN in wanted:
        raise ConfigError(f"{name}: {CLEAN!r} is the name of the images without a corruption.")
    for key, function in wanted.items():
        if function is None and key not in built_in.known:
            hint = did_you_mean(key, built_in.known) or f"; there are {', '.join(built_in.known)}."
            raise ConfigError(f"{name}: there is no built-in corruption {key!r}{hint}")
        if function is None and with_maps and key in built_in.moves_pixels:
            raise ConfigError(
                f"{name}: {key} moves pixels, so that label maps do not fit the images; leave it "
                "out, or give images and maps of your own to Benchmark.from_domains."
            )
        if function is not None and not callable(function):
            raise ConfigError(
                f"{name}: the corruption {key!r} must be a function of an image, or None for the "
                "built-in one of that name."
            )
    graded = all(f is None or _parameters(f) > 1 for f in wanted.values())
    corrupted = _CorruptedMaps if with_maps else _Corrupted
    parameters = "cifar" if min(clean.load(np.array([0])).shape[-2:]) < SMALL else "imagenet"

    def at(key: str, function: Corruption | None, level: int) -> ImageSet:
        made = functools.partial(built_in.corrupt, corruption=key, parameters=parameters)
        return corrupted(clean, key, level, made if function is None else function, built_in)

    domains: dict[str, Any] = {
        key: functools.partial(at, key, function) if graded else at(key, function, severity)
        for key, function in wanted.items()
    }
    plain_kind, graded_kind = (
        (SegmentationSettings, CorruptedMapSettings)
        if with_maps
        else (StreamSettings, CorruptionSettings)
    )
    kind = graded_kind if graded else plain_kind
    given = settings | ({"severity": severity} if graded else {})
    chosen = _settings(kind, given, name)
    for key in wanted:
        found = domains[key]
        (found(severity) if callable(found) else found).load(np.array([0]))  # a wrong one fails now
    own = OwnData(
        name,
        domains,
        chosen,
        source=plain.source(),
        clean=clean,
        classes=plain._classes,
        counted=plain._counted,
        same_images=True,
        model=model,
    )
    own.chosen_domains()  # a misspelt one fails now
    return own


@dataclass(frozen=True, repr=False)
class _Corrupted:
    """Clean images with one corruption, computed when they are read; the same for every reading."""

    clean: ImageSet
    name: str
    severity: int
    function: Corruption
    built_in: Any

    def __repr__(self) -> str:
        return f"<{self.name}, severity {self.severity}, of {self.clean!r}>"

    @property
    def labels(self) -> np.ndarray:
        return self.clean.labels

    def load(self, index: np.ndarray) -> Tensor:
        """uint8 [k, 3, H, W]."""
        images = self.clean.load(index)
        if images.dtype != torch.uint8:
            images = (images * 255).round().byte()
        pictures = np.ascontiguousarray(images.numpy().transpose(0, 2, 3, 1))
        found = [self._one(picture, int(n)) for picture, n in zip(pictures, index, strict=True)]
        return torch.from_numpy(np.stack(found).transpose(0, 3, 1, 2).copy())

    def _one(self, picture: np.ndarray, number: int) -> np.ndarray:
        if isinstance(self.function, functools.partial):  # built-in
            made: np.ndarray = self.function(picture, severity=self.severity, seed=0, index=number)
            return made
        text = f"{self.name}/{self.severity}/{number}".encode()
        seed = int.from_bytes(hashlib.sha256(text).digest()[:4], "little")
        arguments = (picture.copy(), self.severity, np.random.default_rng(seed))
        found = np.asarray(self.function(*arguments[: _parameters(self.function)]))
        if found.dtype != np.uint8 or found.shape != picture.shape:
            raise DataError(
                f"corruption {self.name}: returns {found.dtype} {list(found.shape)}; return uint8 "
                f"{list(picture.shape)} as it gets it (height, width, RGB)."
            )
        return found

    def fingerprint(self, count: int) -> dict[str, str]:
        """The clean images and the corruption; of a function, some corrupted images."""
        if isinstance(self.function, functools.partial):
            how = [self.name, self.severity, self.built_in.version, self.function.keywords]
        else:
            some = np.unique(np.linspace(0, count - 1, _LOOKED_AT).astype(np.int64))
            how = [self.name, self.severity, digest(self.load(some).numpy().tobytes())]
        return {"contents": digest_of([fingerprint(self.clean), how])}


class _CorruptedMaps(_Corrupted):
    """The same for segmentation: the label maps are those of the clean images."""

    clean: MapSet

    def maps(self, index: np.ndarray) -> Tensor:
        """uint8 [k, H_l, W_l]."""
        return self.clean.maps(index)


def _fitting(built_in: Any, with_maps: bool) -> list[str]:
    """The built-in corruptions; with label maps those that leave every pixel at its place."""
    return [name for name in built_in.names if not (with_maps and name in built_in.moves_pixels)]


def _parameters(function: Corruption) -> int:
    """How many of image, severity and generator a corruption takes."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    try:
        taken = [p for p in inspect.signature(function).parameters.values() if p.kind in kinds]
    except ValueError:  # of a built-in function
        return 1
    return min(3, len([p for p in taken if p.default is inspect.Parameter.empty]) or len(taken))


def _classes(given: Mapping[str, Any], classes: Sequence[str] | int | None) -> Sequence[str] | int:
    """The names of the classes; their number where they have no names; 0 where it is not known."""
    if isinstance(classes, int):
        return classes
    if classes is not None:
        return [str(name) for name in classes]
    known = {key: one.classes for key, one in given.items() if one.classes}
    if not known:
        return 0
    (first, names), *others = known.items()
    for key, theirs in others:
        if theirs != names:
            raise DataError(
                f"{first} and {key} have different classes ({', '.join(names[:4])}, ... and "
                f"{', '.join(theirs[:4])}, ...); name them all, in the order of the model's "
                "logits: classes=[...]."
            )
    return names


def _check_labels(sets: Mapping[str, ImageSet], classes: Sequence[str] | int) -> None:
    count = classes if isinstance(classes, int) else len(classes)
    for key, images in sets.items():
        if not isinstance(images, MapSet) and (highest := highest_label(images)) >= count:
            raise DataError(
                f"{key}: has the label {highest}, but there are {count} classes, 0 to {count - 1}."
            )


def _check_same_labels(name: str, domains: Mapping[str, Any]) -> None:
    sets = {key: one for key, one in domains.items() if not callable(one)}
    for key, images in sets.items():
        first = next(iter(sets))
        if not np.array_equal(images.labels, sets[first].labels):
            raise DataError(
                f"{name}: same_images=True, but {key} has other labels than {first}; leave it out, "
                "or give the same photographs in the same order."
            )


def _settings(kind: type[StreamSettings], values: Mapping[str, Any], name: str) -> StreamSettings:
    """Checked settings of the stream. Raises ConfigError in one sentence."""
    try:
        return kind(**values)
    except ValidationError as error:
        problem = error.errors()[0]
        key = ".".join(map(str, problem["loc"]))
        if problem["type"] == "extra_forbidden":
            hint = did_you_mean(key, kind.model_fields) or (
                f"; its settings are {', '.join(kind.model_fields)}."
            )
            raise ConfigError(f"{name}: unknown setting {key!r}{hint}") from None
        message = problem["msg"].removeprefix("Value error, ")
        raise ConfigError(f"{name}{f'.{key}' if key else ''}: {message}.") from None
