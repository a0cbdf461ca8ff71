"""The examples in the docstrings of what users call run, in a namespace of small data."""

import inspect
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import ctta_bench
from ctta_bench.api import adapter as adapters
from ctta_bench.registry import load_plugin
from ctta_bench.stream import Benchmark
from tests.api.test_own_model import Cosine
from tests.conftest import TOY

pytestmark = pytest.mark.usefixtures("undrawn")

toy: Any = load_plugin(str(TOY))
IMAGES, LABELS = toy.labelled(1, "toy_vit")
CALLED: dict[str, Any] = {
    **{name: getattr(ctta_bench, name) for name in ctta_bench.__all__ if name != "__version__"},
    "from_domains": Benchmark.from_domains,
    "from_clean": Benchmark.from_clean,
    "Adapter": adapters.Adapter,
}
NOT_CALLED = {"BENCHMARKS", "METHODS", "MODELS", "Benchmark", "Method"}
# Written for a user's files or larger data, and replaced by small ones.
INSTEAD = {
    "scenes_c": "toy",
    "scenes_vit": "toy_vit",
    "timm:resnet50.a1_in1k": "timm:resnet18.a1_in1k",
    "examples=100": "examples=10",
    "examples=50": "examples=10",
    "seeds=range(3)": "seeds=range(2)",
}


def examples(target: Any) -> list[str]:
    """The code of a docstring: blocks that are indented, and what follows `Example:`."""
    text = inspect.getdoc(target) or ""
    text = re.split(r"^(?:Args|Raises):?\n", text, flags=re.MULTILINE)[0]
    blocks = re.findall(r"^\n((?:    .*\n|\n(?=    ))+)", text + "\n", re.MULTILINE)
    inline = re.findall(r"(?:Example: |\n|: )`([a-z_]+\(.*?\)(?:\.\w+(?:\(.*?\))?)*)`", text)
    return [textwrap.dedent(block) for block in blocks] + inline


@pytest.fixture(scope="module")
def results() -> dict[str, ctta_bench.Result]:
    """What examples compare, save and report."""
    return {name: ctta_bench.evaluate(name, "toy", examples=10) for name in ("source", "tent")}


@pytest.fixture
def names(
    results: dict[str, ctta_bench.Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[dict[str, Any]]:
    monkeypatch.chdir(tmp_path)
    for domain, label in (("day", "a"), ("day", "b"), ("night", "a")):
        (tmp_path / "photos" / domain / label).mkdir(parents=True, exist_ok=True)
        toy_image = torch.tensor(IMAGES[0]).permute(1, 2, 0).numpy()
        from PIL import Image

        Image.fromarray(toy_image).save(tmp_path / "photos" / domain / label / "1.png")
    data = TensorDataset(torch.tensor(IMAGES), torch.tensor(LABELS))
    network, encoder = toy.toy_vit(), toy.toy_vit()
    encoder.head = nn.Identity()
    results["source"].save("runs/quickstart")
    found = {
        **{name: getattr(ctta_bench, name) for name in ctta_bench.__all__},
        "Benchmark": Benchmark,
        "Path": Path,
        "images": IMAGES,
        "labels": LABELS,
        "dataset": data,
        "loader": DataLoader(data, 8),
        "source_set": (IMAGES, LABELS),
        "network": network,
        "model": ctta_bench.load_model("toy_vit"),
        "encoder": encoder,
        "zero_shot_head": Cosine(),
        "camera": [IMAGES[:4], IMAGES[4:8]],
        **results,
        "FOLDER": results["source"].save("runs/one"),
        "ctta_bench": ctta_bench,
        "print": lambda *values: None,
    }
    yield found


@pytest.mark.parametrize("name", sorted(set(CALLED) - NOT_CALLED))
def test_the_examples_of_a_docstring_run(name: str, names: dict[str, Any]) -> None:
    found = examples(CALLED[name])
    if name not in ("Adapter", "Comparison", "Results"):  # returned, not called
        assert found, f"{name}: has no example"
    for code in found:
        for written, small in INSTEAD.items():
            code = code.replace(written, small)
        exec(compile(code, name, "exec"), names)
