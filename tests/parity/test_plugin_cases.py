"""A plug-in brings translations, presets and reference outputs as the methods of the suite do."""

import json
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from ctta_bench.authoring.parity import CaseFile, plugin_cases
from ctta_bench.cli import app
from ctta_bench.config.presets import preset_values, presets_of
from ctta_bench.errors import ConfigError, DataError
from ctta_bench.registry import METHODS, load_plugin
from tests.conftest import TOY
from tests.parity.test_parity import HERE

METHOD = """
from ctta_bench.method import Method, OptimizerHyperparameters, softmax_entropy
from ctta_bench.registry import METHODS


@METHODS.register_module("NAME")
class Calm(Method):
    "Entropy minimisation."

    class Hyperparameters(OptimizerHyperparameters):
        "Hyper-parameters."

    def setup(self):
        self.adapt_only(self.model.norm_parameters())
        self.optimizer = self.build_optimizer()

    def adapt(self, images):
        logits = self.model(images)
        self.step(softmax_entropy(logits).mean())
        return logits
"""
TRANSLATION = """
from ctta_bench.methods.official import Translation, optimizer


def official(case):
    return optimizer(case["hyper_parameters"]["optimizer"])


# The same repository and function as for `tent`: for its own case, this translation comes first.
TRANSLATIONS = (Translation("mr-eggplant/SAR", "tent.py: Tent", "NAME", official),)
"""
PRESETS = (
    "paper:\n  any: {optimizer: adam, lr: 0.25}\n  toy: {lr: 0.5}\ndefault:\n  any: {lr: 0.125}\n"
)


@pytest.fixture
def plugin(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """The file of a plug-in with one case; its method has the name of the test."""
    name = request.node.name.partition("[")[0]
    for part in ("official", "presets", "cases"):
        (tmp_path / part).mkdir()
    file = tmp_path / "my_plugin.py"
    file.write_text(METHOD.replace("NAME", name))
    (tmp_path / "official" / f"{name}.py").write_text(TRANSLATION.replace("NAME", name))
    (tmp_path / "presets" / f"{name}.yaml").write_text(PRESETS)
    for suffix in (".json", ".safetensors"):
        source = HERE / "cases" / f"tent_ln_sgd{suffix}"
        shutil.copy(source, tmp_path / "cases" / f"quiet{suffix}")
    yield file
    for module in [m for m in sys.modules if m.startswith("ctta_bench_plugin_my_plugin_")]:
        METHODS.forget(module)


def test_the_translation_of_the_page_reads_its_settings() -> None:
    page = (HERE.parents[1] / "docs" / "adding-a-method.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```py\n(.*?)```", page, re.DOTALL)
    (code,) = (block for block in blocks if "TRANSLATIONS" in block)
    found: dict[str, Any] = {}
    exec(code, found)
    (translation,) = found["TRANSLATIONS"]
    settings = {"optimizer": {"name": "SGD", "lr": 0.1}, "ema": 0.5}
    assert translation.settings({"hyper_parameters": settings}) == {
        "optimizer": "sgd",
        "lr": 0.1,
        "decay": 0.5,
    }


def invoke(*arguments: Any) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_parity_lists_the_case_of_a_plugin(plugin: Path) -> None:
    name = "test_parity_lists_the_case_of_a_plugin"
    result = invoke("parity", name, "--plugin", plugin, "--format", "json")
    assert result.exit_code == 0, result.output
    (row,) = json.loads(result.stdout)
    assert (row["case"], row["method"], row["verdict"]) == ("quiet", name, "equal")
    assert 0 <= row["difference"] <= row["tolerance"] == 1e-9
    # The suite's own case of the same code stays a case of `tent`.
    cases = [row["case"] for row in json.loads(invoke("parity", "tent", "--format", "json").stdout)]
    assert "tent_ln_sgd" in cases and "quiet" not in cases


def test_a_case_of_a_plugin_that_differs_is_told(plugin: Path) -> None:
    name = "test_a_case_of_a_plugin_that_differs_is_told"
    file = plugin.parent / "cases" / "quiet.json"
    file.write_text(file.read_text().replace('"lr": 0.001', '"lr": 0.002'))
    result = invoke("parity", name, "--plugin", plugin, "--format", "json")
    assert result.exit_code == 1
    assert json.loads(result.stdout)[0]["verdict"] == "DIFFERS"
    case = json.loads(file.read_text())
    case["hyper_parameters"]["warp_factor"] = 9
    file.write_text(json.dumps(case))
    result = invoke("parity", name, "--plugin", plugin)
    assert result.exit_code == 2
    assert f"{file}: the setting 'warp_factor' (9) has no counterpart" in result.stderr


def test_a_plugin_may_bring_models_and_a_stream(plugin: Path) -> None:
    name = "test_a_plugin_may_bring_models_and_a_stream"
    load_plugin(str(plugin))
    (case,) = plugin_cases(name)
    assert case == CaseFile("quiet", plugin.parent.resolve())
    of_repository = case.part("stream/stream.safetensors")
    (plugin.parent / "stream").mkdir()
    shutil.copy(case.file.with_suffix(".safetensors"), plugin.parent / "stream/stream.safetensors")
    assert set(case.part("stream/stream.safetensors")) != set(of_repository)


def test_presets_of_a_plugin(plugin: Path, tmp_path: Path) -> None:
    name = "test_presets_of_a_plugin"
    load_plugin(str(plugin))
    assert preset_values(name, "paper", "toy") == {"optimizer": "adam", "lr": 0.5}
    assert preset_values(name, "default", "toy") == {"lr": 0.125}
    plugins = ("--plugin", TOY, "--plugin", plugin)
    cells = tmp_path / "runs"
    for preset in ("paper", "default"):
        result = invoke(
            *("run", name, "toy", *plugins, "--preset", preset, "--set", "examples=8"),
            *("--out", cells),
        )
        assert result.exit_code == 0, result.output
    written = " ".join(file.read_text() for file in cells.rglob("cell.yaml"))
    assert "optimizer: adam" in written and "lr: 0.5" in written and "lr: 0.125" in written
    result = invoke("run", name, "toy", *plugins, "--preset", "papre")
    assert result.exit_code == 2 and "did you mean 'paper'?" in result.stderr


def test_tuned_presets_of_a_plugin(plugin: Path) -> None:
    name, folder = "test_tuned_presets_of_a_plugin", plugin.parent / "presets" / "tuned"
    folder.mkdir()
    entry = "{values: {lr: 0.75}, published: {lr: 0.25}}"
    (folder / "toy.yaml").write_text(f"{name}: {{toy: {entry}}}\n")
    load_plugin(str(plugin))
    assert preset_values(name, "tuned", "toy") == {"lr": 0.75}
    assert preset_values(name, "default", "toy") == {"lr": 0.75}
    assert "tuned" not in presets_of("tent") or "toy" not in presets_of("tent")["tuned"]


@pytest.mark.parametrize("text", ["paper: [1, 2]\n", "paper: {any: 3}\n"])
def test_broken_presets(plugin: Path, text: str) -> None:
    (plugin.parent / "presets" / "test_broken_presets.yaml").write_text(text)
    load_plugin(str(plugin))
    with pytest.raises(ConfigError, match=r"test_broken_presets\.yaml: paper"):
        presets_of("test_broken_presets")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("TRANSLATIONS = 3\n", "TRANSLATIONS must be a tuple of"),
        ("1 / 0\n", "does not load: ZeroDivisionError"),
    ],
)
def test_broken_translations(plugin: Path, text: str, words: str) -> None:
    (plugin.parent / "official" / "test_broken_translations.py").write_text(text)
    result = invoke("parity", "test_broken_translations", "--plugin", plugin)
    assert result.exit_code == 2
    assert words in result.stderr and "test_broken_translations.py" in result.stderr


@pytest.mark.parametrize(
    ("text", "words"),
    [("{", "not a JSON file"), ("{}", "it lacks 'final'"), (None, "cannot be read")],
)
def test_broken_cases(plugin: Path, text: str | None, words: str) -> None:
    load_plugin(str(plugin))
    file = plugin.parent / "cases" / "quiet.json"
    if text is None:
        file.with_suffix(".safetensors").unlink()
    else:
        file.write_text(text)
    case = CaseFile("quiet", plugin.parent.resolve())
    with pytest.raises(DataError, match=words):
        case.read()
        case.recorded()
