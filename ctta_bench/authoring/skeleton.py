"""`ctta-bench new method NAME` and `new benchmark NAME`: working skeletons, and their tests."""

import re
from pathlib import Path

from ctta_bench.errors import ConfigError
from ctta_bench.record.folder import atomic
from ctta_bench.registry import BENCHMARKS, METHODS, Registry, canonical

METHOD = '''"""{title}: the paper, its code, and how this file differs from it."""

from pydantic import Field

from ctta_bench.method import Method, OptimizerHyperparameters, softmax_entropy
from ctta_bench.registry import METHODS


@METHODS.register_module("{name}")
class {title}(Method):
    """One line for `ctta-bench list methods`."""

    paper = ""
    checked_against = "the paper's formulas alone"
    source_access = "none"  # or "unlabelled", "labelled": access of prepare(source)
    passes_per_image = (1, 1)  # forward, backward
    search_space = {{"lr": (1e-5, 1e-1)}}  # what `ctta-bench tune` searches

    class Hyperparameters(OptimizerHyperparameters):
        """Hyper-parameters of {title}."""

        weight: float = Field(1.0, ge=0, description="weight of the loss")

    def setup(self):
        """Choose the parameters to adapt; build optimiser, teachers and memories."""
        self.adapt_only(self.model.norm_parameters())
        self.optimizer = self.build_optimizer()

    def adapt(self, images):
        """Update on images [n, 3, H, W] in [0, 1] and return their scored logits [n, classes]."""
        logits = self.model(images)
        self.step(self.hp.weight * softmax_entropy(logits).mean())
        return logits  # from before the update
'''

TEST = '''"""The conformance checks of {title}; add tests of the equations of its paper."""

from pathlib import Path

import pytest

from ctta_bench.registry import load_plugin
from ctta_bench.testing import CHECKS, check_method

load_plugin(str(Path(__file__).with_name("{name}.py")))
OUTCOMES = {{outcome.check: outcome for outcome in check_method("{name}")}}


@pytest.mark.parametrize("check", CHECKS)
def test_check(check):
    assert OUTCOMES[check].passed, OUTCOMES[check].detail
'''


BENCHMARK = '''"""{name}: what the images are, their licence, and the layout of the data on disk."""

import numpy as np
from ctta_bench.registry import BENCHMARKS
from ctta_bench.stream import ArrayImages, Benchmark


@BENCHMARKS.register_module("{name}")
class {title}(Benchmark):
    """One line for `ctta-bench list benchmarks`."""

    name = "{name}"
    num_classes = 10
    class_names = ()  # in the order of class numbers, if they have names
    default_model = "fashion_vit"  # the source model that was trained on these classes
    same_images = True  # False if an index is another photograph in each domain

    def domain_names(self):
        """The domains in the order of the stream."""
        return ("day", "night")

    def domain(self, name, severity=None):
        """Labelled images of a domain, the same for every call; self.root is --data-root."""
        images, labels = pictures(seed=1)
        return ArrayImages(images // 3 if name == "night" else images, labels)

    def source(self):
        """Labelled source images, none of which is in the stream; None if there are none."""
        return ArrayImages(*pictures(seed=2))

    def problems(self):
        """What is missing, a sentence each: what, where, and what to do."""
        return []


def pictures(seed):
    """Random images in place of yours: uint8 [n, 3, H, W], and class numbers int64 [n]."""
    random = np.random.default_rng(seed)
    return random.integers(256, size=(100, 3, 32, 32), dtype=np.uint8), np.arange(100) % 10
'''

BENCHMARK_TEST = '''"""The conformance checks of {name}; add tests of how its files are read."""

from pathlib import Path

import pytest

from ctta_bench.authoring.benchmark_checks import CHECKS, check_benchmark
from ctta_bench.registry import load_plugin

load_plugin(str(Path(__file__).with_name("{name}.py")))
OUTCOMES = {{outcome.check: outcome for outcome in check_benchmark("{name}")}}


@pytest.mark.parametrize("check", CHECKS)
def test_check(check):
    assert OUTCOMES[check].passed, OUTCOMES[check].detail
'''


def new_method(name: str, folder: Path) -> tuple[Path, Path]:
    """Write NAME.py and test_NAME.py to `folder`; returns both paths.

    Raises ConfigError for a name that is taken or not a Python name, and if a file exists.
    """
    return _written(name, folder, METHODS, METHOD, TEST)


def new_benchmark(name: str, folder: Path) -> tuple[Path, Path]:
    """The same for a benchmark."""
    return _written(name, folder, BENCHMARKS, BENCHMARK, BENCHMARK_TEST)


def _written(
    name: str, folder: Path, registry: Registry, entry: str, test: str
) -> tuple[Path, Path]:
    name, kind = canonical(name), registry.kind
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        raise ConfigError(f"{kind} name {name!r}: use lower-case letters, digits and underscores.")
    if name in registry.names():
        raise ConfigError(f"{kind} name {name!r} is taken; choose another.")
    files = folder / f"{name}.py", folder / f"test_{name}.py"
    for file in files:
        if file.exists():
            raise ConfigError(f"{file}: exists already; choose another name or folder.")
    title = "".join(word.capitalize() for word in name.split("_"))
    folder.mkdir(parents=True, exist_ok=True)
    for file, template in zip(files, (entry, test), strict=True):
        with atomic(file) as temporary:
            temporary.write_text(template.format(name=name, title=title), encoding="utf-8")
    return files
