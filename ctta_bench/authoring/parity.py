"""Parity cases: our methods compared with reference outputs of the authors' code.

A folder of cases has `cases/NAME.json` and `.safetensors`, two small models and one stream; the
format is described in tests/parity/README.md. The environment variable CTTA_BENCH_PARITY adds
folders, separated as in PATH. A plug-in has `cases/` and a translation, `official/METHOD.py`, next
to the file of its method.
"""

import csv
import functools
import importlib
import json
import math
import os
import pkgutil
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from ctta_bench.config.validation import validate
from ctta_bench.errors import ConfigError, DataError
from ctta_bench.method import Method
from ctta_bench.model import SourceModel
from ctta_bench.record.folder import atomic
from ctta_bench.registry import METHODS, import_file

ENVIRONMENT = "CTTA_BENCH_PARITY"
_REPOSITORY = Path(__file__).resolve().parents[2] / "tests" / "parity"
# A sentence among the `patches` of a case.
_STORED_WITH = re.compile(r"of the case (\w+) \(stored once\)")


@dataclass(frozen=True)
class CaseFile:
    """One case of reference outputs, and the folder of its models and stream."""

    name: str
    folder: Path

    @property
    def file(self) -> Path:
        """The file of the description."""
        return self.folder / "cases" / f"{self.name}.json"

    def read(self) -> dict[str, Any]:
        """The description of the case. Raises DataError if it is not one."""
        try:
            case: dict[str, Any] = json.loads(self.file.read_text(encoding="utf-8"))
        except ValueError as error:
            raise DataError(f"{self.file}: not a JSON file: {error}.") from None
        needed = {"source", "function", "hyper_parameters"}
        needed |= {"outputs"} if case.get("kind") == "function" else {"tolerance", "final"}
        missing = sorted(needed - set(case))
        if missing:
            raise DataError(f"{self.file}: no case of reference outputs: it lacks {missing[0]!r}.")
        return case

    def part(self, name: str) -> dict[str, Tensor]:
        """The tensors of a model or of the stream, by default those of the repository's cases."""
        own = self.folder / name
        return _tensors(own if own.is_file() else repository_cases() / name)

    def translation(self) -> Any:
        """The translation of the case; for a case of a plug-in, its own come first."""
        case = self.read()
        own = plugin_translations().get(self.folder, [])
        return next((t for t in own if t.matches(case)), None) or translate(case)

    def hyperparameters(self) -> dict[str, Any]:
        """Our hyper-parameters of the case. Raises DataError for a setting without counterpart."""
        translation = self.translation()
        try:
            found: dict[str, Any] = translation.settings(self.read())
        except DataError as error:
            raise DataError(f"{self.file}: {error}") from None
        return found

    def recorded(self) -> dict[str, Tensor]:
        """The recorded tensors of the case, with the start values that another case stores."""
        tensors = _tensors(self.file.with_suffix(".safetensors"))
        for other in _STORED_WITH.findall(" ".join(self.read().get("patches", []))):
            whole = _tensors(self.folder / "cases" / f"{other}.safetensors")
            tensors |= {k: v for k, v in whole.items() if k.startswith("aux/start/")}
        return tensors


def _tensors(file: Path) -> dict[str, Tensor]:
    """The tensors of a file. Raises DataError if it does not exist, or is damaged."""
    try:
        return load_file(file)
    except (OSError, SafetensorError) as error:
        raise DataError(f"{file}: cannot be read: {error}; record the case again.") from None


def repository_cases() -> Path:
    """The folder of cases in the repository that the package runs from.

    Raises ConfigError if it is installed without one.
    """
    if not _REPOSITORY.is_dir():
        raise ConfigError(
            "parity: this installation has no reference outputs; name a folder with --cases "
            "(tests/parity of the repository)."
        )
    return _REPOSITORY


def collect(folders: Iterable[Path], method: str | None = None) -> dict[str, CaseFile]:
    """Cases by name, of `folders` and of those in CTTA_BENCH_PARITY; of one method if given."""
    extra = [Path(p) for p in os.environ.get(ENVIRONMENT, "").split(os.pathsep) if p]
    found = {}
    for folder in [*folders, *extra]:
        if not (folder / "cases").is_dir():
            raise DataError(f"{folder}: no folder `cases` of reference outputs; check the path.")
        for file in sorted((folder / "cases").glob("*.json")):
            found[file.stem] = CaseFile(file.stem, folder)
    return {n: f for n, f in found.items() if method is None or _is_of(f, method)}


def _is_of(file: CaseFile, method: str) -> bool:
    translation = file.translation()
    return translation is not None and translation.method == method


def plugin_cases(method: str | None = None) -> list[CaseFile]:
    """The cases next to loaded plug-ins that have a translation; of one method if given."""
    files = [
        CaseFile(file.stem, folder)
        for folder in plugin_translations()
        for file in sorted((folder / "cases").glob("*.json"))
    ]
    return [file for file in files if method is None or _is_of(file, method)]


def cases_for(folder: Path | None, method: str | None = None) -> list[CaseFile]:
    """The cases of `folder`, by default the repository's, and those of loaded plug-ins.

    Raises ConfigError if there is no folder of cases at all.
    """
    of_plugins = plugin_cases(method)
    if folder is None and of_plugins and not _REPOSITORY.is_dir():
        return [*collect([], method).values(), *of_plugins]
    return [*collect([folder or repository_cases()], method).values(), *of_plugins]


def translations() -> list[Any]:
    """All translations in `ctta_bench.methods.official`, then those of loaded plug-ins."""
    package = importlib.import_module("ctta_bench.methods.official")
    names = sorted(m.name for m in pkgutil.iter_modules(package.__path__))
    modules = [importlib.import_module(f"{package.__name__}.{name}") for name in names]
    ours = [t for module in modules for t in module.TRANSLATIONS]
    return [*ours, *(t for of_plugin in plugin_translations().values() for t in of_plugin)]


def plugin_translations() -> dict[Path, list[Any]]:
    """Translations by folder of the plug-in: `official/METHOD.py` next to the file of a method."""
    found: dict[Path, list[Any]] = {}
    for name in METHODS.names():
        folder = None if METHODS.is_of_package(name) else METHODS.folder(name)
        file = folder / "official" / f"{name}.py" if folder else None
        if folder and file and file.is_file():
            found.setdefault(folder, []).extend(_translations_in(file))
    return found


@functools.cache
def _translations_in(file: Path) -> tuple[Any, ...]:
    """TRANSLATIONS of a file. Raises ConfigError if it has none."""
    kind = importlib.import_module("ctta_bench.methods.official").Translation
    found = getattr(import_file(file), "TRANSLATIONS", None)
    if not isinstance(found, tuple | list) or not all(isinstance(t, kind) for t in found):
        raise ConfigError(
            f"{file}: TRANSLATIONS must be a tuple of `ctta_bench.methods.official.Translation`."
        )
    return tuple(found)


def translate(case: dict[str, Any]) -> Any:
    """The translation of `case` to a method of the suite, or None if there is none."""
    return next((t for t in translations() if t.matches(case)), None)


def tiny_vit() -> nn.Module:
    """The cases' ViT: width 48, depth 4, patch 8, 32-pixel images, 10 classes."""
    return VisionTransformer(
        img_size=32, patch_size=8, embed_dim=48, depth=4, num_heads=4, num_classes=10
    )


class TinyCNN(nn.Module):
    """The cases' BatchNorm network: three strided convolutions, pooling, one linear layer."""

    def __init__(self) -> None:
        super().__init__()
        for number, (before, after) in enumerate(((3, 16), (16, 32), (32, 48)), start=1):
            convolution = nn.Conv2d(before, after, 3, stride=2, padding=1, bias=False)
            block = nn.Sequential(convolution, nn.BatchNorm2d(after), nn.ReLU())
            self.add_module(f"block{number}", block)
        self.fc = nn.Linear(48, 10)

    def forward(self, images: Tensor) -> Tensor:
        """Images [n, 3, H, W] to logits [n, 10]."""
        for number in (1, 2, 3):
            images = self.get_submodule(f"block{number}")(images)
        return self.fc(nn.functional.adaptive_avg_pool2d(images, 1).flatten(1))


class CaseSource:
    """The case's 64 source images for `prepare`, in batches of 16, in order."""

    def __init__(self, images: Tensor, labels: Tensor) -> None:
        self._images, self._labels = images, labels

    def __len__(self) -> int:
        return len(self._images)

    def batches(self, batch_size: int = 16) -> list[Tensor]:
        """Images [16, 3, 32, 32] in [0, 1]."""
        return list(self._images.split(16))

    def labelled_batches(
        self, batch_size: int = 16, *, epoch: int = 0, first: int = 0
    ) -> list[tuple[Tensor, Tensor]]:
        """Images and labels int64 [16], in the same order in every epoch."""
        return list(zip(self._images.split(16), self._labels.split(16), strict=True))[first:]

    def once(
        self, what: str, facts: dict[str, Any], make: Callable[[], dict[str, Tensor]]
    ) -> dict[str, Tensor]:
        """The result of `make`; nothing is stored."""
        return make()


@dataclass
class ReplayedCase:
    """A case that was replayed with our method: its logits and final tensors."""

    case: dict[str, Any]
    recorded: dict[str, Tensor]
    method: Method
    logits: list[Tensor]
    tensors: dict[str, Tensor]
    after_batch: list[dict[str, Any]] = field(default_factory=list)


def replay_case(file: CaseFile, dtype: torch.dtype) -> ReplayedCase:
    """Run our method, with the settings of a case, on its stream."""
    case, recorded, translation = file.read(), file.recorded(), file.translation()
    assert translation is not None, f"{file.name}: no method of the suite for this case"
    networks: dict[str, Callable[[], nn.Module]] = {"tiny_vit": tiny_vit, "tiny_cnn": TinyCNN}
    if case.get("model") not in networks:
        known = " or ".join(networks)
        raise DataError(f"{file.file}: the model {case.get('model')!r} must be {known}.")
    network = networks[case["model"]]()
    network.load_state_dict(file.part(f"model/{case['model']}.safetensors"))
    stream = file.part("stream/stream.safetensors")
    source = CaseSource(stream["source_images"].to(dtype) / 255, stream["source_labels"].long())
    entry = METHODS.get(translation.method)
    method: Method = entry(
        SourceModel(network).to(dtype),
        validate(entry.Hyperparameters, file.hyperparameters(), str(file.file)),
        precision="float64" if dtype == torch.float64 else "float32",
    )
    method.start(source if method.source_access != "none" else None)
    # Some official codes start with a memory of source images.
    images = stream["source_images"].to(dtype) / 255
    translation.set_initial_state(method, case, recorded | {"source_images": images})
    replayed = ReplayedCase(case, recorded, method, [], {})
    for number in range(sum(key.startswith("logits_") for key in recorded)):
        replayed.logits.append(method(stream[f"images_{number}"].to(dtype) / 255))
        replayed.after_batch.append(dict(method.counters))
    replayed.tensors = translation.tensors(method)
    return replayed


@dataclass(frozen=True)
class Verdict:
    """The result of a case: the difference in float64, and whether everything recorded agrees.

    `method` is "" and `agrees` None for a case of a method that is not in the suite.
    """

    case: str
    method: str
    source: str
    commit: str
    difference: float = math.nan
    tolerance: float = math.nan
    agrees: bool | None = None
    detail: str = ""

    @property
    def words(self) -> str:
        """The verdict as text."""
        return {True: "equal", False: "DIFFERS", None: "not in the suite"}[self.agrees]


def verdict(file: CaseFile) -> Verdict:
    """Replay a case in float64 and float32, and compare everything that was recorded."""
    case = file.read()
    translation, commit = file.translation(), case.get("commit", "-")
    if translation is None or translation.method not in METHODS.names():
        return Verdict(file.name, "", case["source"], commit)
    about = (file.name, translation.method, case["source"])
    if case.get("kind") == "function":
        file.hyperparameters()  # refuses settings that nothing reads
        wrong = [w for t in (torch.float64, torch.float32) for w in function_mismatches(file, t)]
        worst, limit = function_difference(file)
        return Verdict(*about, commit, worst, limit, not wrong, "; ".join(wrong))
    exact, single, limits = (
        replay_case(file, torch.float64),
        replay_case(file, torch.float32),
        case["tolerance"],
    )
    if not exact.logits:
        worst, limit = statistics_difference(single), limits["logits_abs"]
        return Verdict(*about, commit, worst, limit, worst <= limit)
    worst, limit = largest_difference(exact, "logits64_"), limits["logits64_abs"]
    wrong = tensor_mismatches(single)
    wrong += ["logits in float64"] * (worst > limit)
    wrong += ["logits in float32"] * (largest_difference(single, "logits_") > limits["logits_abs"])
    return Verdict(*about, commit, worst, limit, not wrong, "; ".join(wrong))


def write_verdicts(verdicts: Iterable[Verdict], out: Path) -> None:
    """Write the verdicts as CSV, sorted by method and case, for the page of a report."""
    rows = sorted(verdicts, key=lambda verdict: (verdict.method, verdict.case))
    fields = ("method", "case", "source", "commit", "difference", "tolerance", "words")
    with atomic(out) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([*fields[:-1], "verdict"])
        for row in rows:
            numbers = (f"{row.difference:.3g}", f"{row.tolerance:.3g}")
            writer.writerow([*(getattr(row, name) for name in fields[:4]), *numbers, row.words])


def statistics_difference(replayed: ReplayedCase) -> float:
    """Largest difference of source statistics from the recorded ones; inf without any."""
    pairs = [(ours, replayed.recorded.get(name)) for name, ours in replayed.tensors.items()]
    return max((_difference(o, t) for o, t in pairs if t is not None), default=math.inf)


def function_difference(file: CaseFile) -> tuple[float, float]:
    """Largest difference of a function's outputs in float64, and the tolerance of that output."""
    case, recorded = file.read(), file.recorded()
    ours = file.translation().run_function(case, _inputs(recorded, torch.float64))
    found = []
    for name, facts in case["outputs"].items():
        theirs = recorded[f"out/{name}" if facts.get("exact") else f"out64/{name}"]
        limit = 0.0 if facts.get("exact") else float(facts["tolerance64"])
        found.append((_difference(ours.get(name), theirs), limit))
    return max(found)


def _inputs(recorded: dict[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    """The inputs of a function case, floats in `dtype`."""
    return {
        key.removeprefix("in/"): value.to(dtype) if value.is_floating_point() else value
        for key, value in recorded.items()
        if key.startswith("in/")
    }


def function_mismatches(file: CaseFile, dtype: torch.dtype) -> list[str]:
    """The outputs of a case of kind "function" that differ from ours, a phrase each.

    The translation's `run_function` computes ours in `dtype` (float32 or float64).
    """
    case, recorded, translation = file.read(), file.recorded(), file.translation()
    assert translation is not None, f"{file.name}: no method of the suite for this case"
    prefix, tolerance = (
        ("out64/", "tolerance64") if dtype == torch.float64 else ("out/", "tolerance")
    )
    ours = translation.run_function(case, _inputs(recorded, dtype))
    # Whole numbers are recorded once: they are the same in both precisions.
    theirs = {
        name: recorded[f"out/{name}" if facts.get("exact") else f"{prefix}{name}"]
        for name, facts in case["outputs"].items()
    }
    return [
        f"{name}: {difference:.3g}"
        for name, facts in case["outputs"].items()
        if not (difference := _difference(ours.get(name), theirs[name]))
        <= (0 if facts.get("exact") else facts[tolerance])
    ]


def _difference(ours: Tensor | None, theirs: Tensor) -> float:
    """Largest difference of any entry; inf for a missing tensor, another shape, or NaN."""
    if ours is None or ours.shape != theirs.shape:
        return math.inf
    difference = float((ours.double() - theirs.double()).abs().max())
    return difference if math.isfinite(difference) else math.inf


def largest_difference(replayed: ReplayedCase, prefix: str) -> float:
    """Largest difference of any scored logit from those recorded as `prefix`; inf for NaN."""
    differences = [
        float((ours - replayed.recorded[f"{prefix}{number}"]).abs().max())
        for number, ours in enumerate(replayed.logits)
    ]
    return max((d if math.isfinite(d) else math.inf for d in differences), default=math.inf)


def tensor_mismatches(replayed: ReplayedCase) -> list[str]:
    """Differences of the final adapted tensors from the recorded figures, a phrase each."""
    found = []
    for name, facts in replayed.case["final"].get("student", {}).items():
        ours, tolerance = replayed.tensors.get(name), facts["tolerance"]
        if ours is None or list(ours.shape) != facts["shape"]:
            found.append(f"{name}: missing or of another shape")
            continue
        size = ours.numel()
        figures = [
            ("sum", float(ours.sum()), facts["sum"], tolerance * size),
            ("norm", float(ours.norm()), facts["l2"], tolerance * size**0.5),
        ]
        first = facts.get("first8", [])
        figures += [
            (f"value {i}", float(v), first[i], tolerance)
            for i, v in enumerate(ours.flatten()[: len(first)])
        ]
        whole = replayed.recorded.get(f"final/student/{name}")
        if whole is not None:
            # One figure: the largest deviation of any entry; NaNs count as equal.
            both = torch.isnan(whole) & torch.isnan(ours)
            worst = torch.where(both, 0.0, (ours - whole).abs()).max()
            figures.append(("entries", float(worst), 0.0, tolerance))
        found += [f"{name}: {what}" for what, *values in figures if not _close(*values)]
    return found


def _close(ours: float, theirs: Any, tolerance: float) -> bool:
    expected = math.nan if theirs == "nan" else float(theirs)
    if math.isnan(expected):
        return math.isnan(ours)
    return abs(ours - expected) <= tolerance
