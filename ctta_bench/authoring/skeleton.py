"""`ctta-bench new method NAME`: a working skeleton of a method, and its test."""

import re
from pathlib import Path

from ctta_bench.errors import ConfigError
from ctta_bench.record.folder import atomic
from ctta_bench.registry import METHODS, canonical

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


def new_method(name: str, folder: Path) -> tuple[Path, Path]:
    """Write NAME.py and test_NAME.py to `folder`; returns both paths.

    Raises ConfigError for a name that is taken or not a Python name, and if a file exists.
    """
    name = canonical(name)
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        raise ConfigError(f"method name {name!r}: use lower-case letters, digits and underscores.")
    if name in METHODS.names():
        raise ConfigError(f"method name {name!r} is taken; choose another.")
    files = folder / f"{name}.py", folder / f"test_{name}.py"
    for file in files:
        if file.exists():
            raise ConfigError(f"{file}: exists already; choose another name or folder.")
    title = "".join(word.capitalize() for word in name.split("_"))
    folder.mkdir(parents=True, exist_ok=True)
    for file, template in zip(files, (METHOD, TEST), strict=True):
        with atomic(file) as temporary:
            temporary.write_text(template.format(name=name, title=title), encoding="utf-8")
    return files
