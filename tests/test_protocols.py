"""Every protocol from end to end: what is scored, counted, stored and said."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from typer.testing import CliRunner, Result

from ctta_bench.cli import app
from ctta_bench.config.cell import CellRequest, resolve
from ctta_bench.record.folder import RunFolder
from ctta_bench.registry import BENCHMARKS, load_plugin
from ctta_bench.run.engine import run_cell
from ctta_bench.stream import ArrayImages, CorruptionSettings, ImageSet
from ctta_bench.stream.settings import SETTINGS
from tests.conftest import TOY

PAGE = (Path(__file__).parents[1] / "docs" / "protocols.md").read_text(encoding="utf-8")
DOMAINS, EXAMPLES, BATCH = 2, 20, 8
WALK = 9  # visits to a domain in gradual
VISITS = {name: WALK if s.severity_schedule else 1 for name, s in SETTINGS.items()}
# Images of each domain that are scored; CoTTA's first domain only falls, from 5 to 1.
IMAGES = {name: [EXAMPLES * n] * DOMAINS for name, n in VISITS.items()} | {
    "gradual_cotta": [EXAMPLES * 5, EXAMPLES * 9],
    "label_shift": [35, 35],  # twice the 20 images, in 7 equal steps: there are 7 classes
    "reset_label_shift": [35, 35],
    # 7 states of 20 / 7 images in each domain, which therefore has a quota of 7 times 3.
    "markov": [21, 21],
}
MORE = {"markov": {"domain_correlation": 1.0}}  # a domain stays until its quota is used up


@pytest.fixture(autouse=True)
def toy_c() -> Iterator[None]:
    """The toy benchmark darkened and noised at five severities, as `toy_c`."""
    toy = load_plugin(str(TOY))

    class ToyC(toy.Toy):  # type: ignore[name-defined,misc]
        """Two domains of five severities."""

        class Settings(CorruptionSettings):
            labeller: str = "toy_vit"

        name = "toy_c"
        severities = (1, 2, 3, 4, 5)

        def domain_names(self) -> tuple[str, ...]:
            return ("dark", "noise")

        def domain(self, name: str, severity: int | None = None) -> ImageSet:
            severity = severity or self.settings.severity
            images, labels = toy.labelled(1, self.settings.labeller)
            if name == "dark":
                return ArrayImages((images * (1 - 0.15 * severity)).astype(np.uint8), labels)
            noise = np.random.RandomState(3).randint(-20 * severity, 20 * severity, images.shape)
            return ArrayImages(np.clip(images + noise, 0, 255).astype(np.uint8), labels)

    BENCHMARKS.register_module("toy_c")(ToyC)
    yield
    BENCHMARKS.forget(ToyC.__module__)


def run(folder: Path, method: str = "source", window: int = 0, **settings: Any) -> dict[str, Any]:
    values = {"examples": EXAMPLES, "batch_size": BATCH, "order": "shuffled"} | settings
    request = CellRequest(method=method, benchmark="toy_c", set=values, window=window)
    return run_cell(resolve(request), RunFolder(folder))


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "batches.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("setting", SETTINGS)
def test_every_setting_runs_to_its_end_and_counts_each_domain(setting: str, tmp_path: Path) -> None:
    result = run(tmp_path, "tent", setting=setting, **MORE.get(setting, {}))
    (found,) = result["rounds"]
    assert [(d["domain"], d["n"]) for d in found["domains"]] == list(
        zip(["dark", "noise"], IMAGES[setting], strict=True)
    )
    assert found["mean"] == pytest.approx(np.mean([d["error"] for d in found["domains"]]))
    assert result["counters"]["resets"] == (1 if SETTINGS[setting].resets else 0)
    assert sum(line["n"] for line in lines(tmp_path)) == sum(IMAGES[setting])
    assert yaml.safe_load((tmp_path / "cell.yaml").read_text())["benchmark"]["setting"] == setting


def test_a_model_that_does_not_adapt_has_one_error_whatever_the_order(tmp_path: Path) -> None:
    each_once = [
        name
        for name, s in SETTINGS.items()
        if not s.severity_schedule and s.labels not in ("shift", "markov")
    ]
    found = {
        tuple(d["errors"] for d in run(tmp_path / s, setting=s)["rounds"][0]["domains"])
        for s in each_once
    }
    assert len(found) == 1


def test_gradual_states_the_mean_at_each_severity(tmp_path: Path) -> None:
    result = run(tmp_path / "walk", setting="gradual")
    with np.load(tmp_path / "walk" / "predictions.npz", allow_pickle=False) as arrays:
        wrong = arrays["prediction"] != arrays["label"]
        severity, domain = arrays["severity"], arrays["domain"]
    (found,) = result["rounds"]
    assert [entry["severity"] for entry in found["severities"]] == [1, 2, 3, 4, 5]
    assert [entry["n"] for entry in found["severities"]] == [80, 80, 80, 80, 40]
    for entry in found["severities"]:
        here = severity == entry["severity"]
        errors = [100 * wrong[here & (domain == d)].mean() for d in range(DOMAINS)]
        assert entry["mean"] == pytest.approx(np.mean(errors))
    # The source model's mean at severity 5 is that of a stream at severity 5 alone.
    alone = run(tmp_path / "alone", severity=5)
    assert found["severities"][-1]["mean"] == pytest.approx(alone["mean"])
    assert "severities" not in alone["rounds"][0]


def test_the_line_of_a_batch_names_the_domain_of_most_of_its_images(tmp_path: Path) -> None:
    run(tmp_path, setting="ptta")  # 20 + 20 images in batches of 8 that cross
    assert [line["domain"] for line in lines(tmp_path)] == ["dark"] * 3 + ["noise"] * 2
    run(tmp_path / "mixed", setting="mixed")
    assert {line["domain"] for line in lines(tmp_path / "mixed")} == {"mixed"}


def test_blind_resets_are_counted_and_change_the_cell(tmp_path: Path) -> None:
    # Batches of 8, 8, 4 images in each domain begin at 0, 8, 16, 20, 28, 36: at 16, 20 and 36 the
    # next ten are full.
    result = run(tmp_path, "tent", reset_every=10)
    assert result["counters"]["resets"] == 3
    assert "reset_every" in (tmp_path / "cell.yaml").read_text()


def test_single_images_adapt_by_the_window(tmp_path: Path) -> None:
    result = run(tmp_path, "tent", window=5, batch_size=1, setting="smooth")
    assert len(lines(tmp_path)) == DOMAINS * EXAMPLES
    assert result["cost"]["backward_per_image"] == 1.0
    told = [line["batch"] for line in lines(tmp_path) if line["loss"] is not None]
    assert told[0] == 4


def test_defaults_spelt_out_are_the_same_cell() -> None:
    def identity(**values: Any) -> str:
        return resolve(CellRequest(method="source", benchmark="toy_c", set=values)).id

    assert identity() == identity(setting="continual", delta=None, domain_order=None)
    assert identity(setting="ptta") == identity(setting="ptta", delta=0.1)
    ids = [identity(setting=name) for name in SETTINGS]
    ids += [identity(setting="ptta", delta=0.2), identity(domain_order="random")]
    assert len(set(ids)) == len(ids)


# -- the command line


@pytest.fixture
def invoke(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """`ctta-bench` in this process, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return lambda *arguments: CliRunner().invoke(app, list(arguments))


def test_the_option_setting_chooses_the_protocol(invoke: Callable[..., Result]) -> None:
    result = invoke(
        "run",
        "source",
        "toy_c",
        "--setting",
        "gradual",
        "--set",
        "examples=5",
        "--set",
        "severity=2",
    )
    assert result.exit_code == 0, result.output
    assert "source-toy_c-gradual-toy_vit-seed0-" in result.stdout
    assert "mean at severity 2" in result.stdout


def test_settings_that_do_not_fit_are_refused_in_a_sentence(invoke: Callable[..., Result]) -> None:
    for arguments, words in [
        (("toy_c", "--setting", "gradul"), "'gradul': input should be 'continual', 'reset'"),
        (
            ("toy", "--setting", "gradual"),
            "setting gradual needs severities, which this benchmark does not",
        ),
        (("toy_c", "--set", "domain_order=cotta0"), "without dark, noise"),
        (("toy_c", "--set", "severity=6"), "severity: 6: input should be less than or equal to 5"),
    ]:
        result = invoke("run", "source", *arguments)
        assert result.exit_code == 2
        assert result.stderr.startswith("error: ")
        assert words in result.stderr


def test_the_settings_are_listed_with_definition_and_source(invoke: Callable[..., Result]) -> None:
    listed = json.loads(invoke("list", "settings", "--format", "json").stdout)
    assert [entry["name"] for entry in listed] == list(SETTINGS)
    assert all(entry["description"] and entry["source"] for entry in listed)
    assert "delta=1 slots=3" in invoke("list", "settings").stdout


# -- the page


def test_the_page_defines_every_setting_and_parameter() -> None:
    parameters = {key for s in SETTINGS.values() for key in s.parameters}
    for name in (*SETTINGS, *parameters, "domain_order", "reset_every", "alike"):
        assert f"`{name}`" in PAGE, name
