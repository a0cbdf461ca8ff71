"""Every experiment file of the paper and of its controls, on the embedded benchmark to its report.

A few images of two corruptions replace the streams; cells, sweeps, warm-ups, kept models, tables
and figures are those of the files.
"""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ctta_bench.cli import app
from ctta_bench.config.experiment import experiment_files, load_experiment
from ctta_bench.datasets import fashion_rotation, streets_acdc
from tests.conftest import TOY

# Segmentation has an embedded benchmark of its own, and a test below.
OF_SEGMENTATION = {"paper/main_acdc"}
NAMES = {n for n in experiment_files() if n.startswith(("paper/", "controls/"))} - OF_SEGMENTATION
# What a page must contain in addition to its table of methods, in lower case.
NEEDED = {
    "paper/geometry": ["geometry of adapted weights", "by construction"],
    "paper/attention": ["attention of fashion_vit"],
    "paper/settings": ["settings by domain"],
    "paper/rank": ["mean over rank"],
    "paper/lambda": ["mean over std weight"],
    "paper/batch_size": ["mean over batch size"],
    "paper/source_samples": ["mean over source samples"],
    "paper/ten_rounds": ["round 10"],
    "paper/cost": ["relative to tent"],
    "controls/adapter_rate": ["mean over lr"],
    "controls/settings_rate": ["mean over lr"],
    "controls/geometry_fashion": ["geometry of adapted weights", "semantic, through paid"],
    "controls/geometry_imagenet": ["geometry of adapted weights", "semantic, through paid"],
    "controls/warmup": ["paid (with warm-up)", "paid (warm-up only)"],
    "controls/wrong_side": ["paid (side=output)"],
    "controls/precision": ["bfloat16", "float64"],
    "controls/preprocessing": ["the checkpoint&#39;s own", "as in earlier papers"],
}


@pytest.mark.slow
@pytest.mark.timeout(1800)  # up to 45 cells, on a busy machine
@pytest.mark.parametrize("name", sorted(NAMES))
def test_the_experiment_runs_to_its_report(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    # 25 images at four turns are enough to fine-tune on.
    read = fashion_rotation.read
    monkeypatch.setattr(fashion_rotation, "read", lambda split: [a[:25] for a in read(split)])
    result = CliRunner().invoke(
        app,
        [
            *("grid", name, "--benchmark", "fashion_c", "--preset", "default", "--seeds", "0"),
            *("--set", "benchmark.domains=[fog,contrast]", "--set", "benchmark.examples=4"),
            *("--device", "cpu", "--workers", "0", "--quiet"),
        ],
    )
    assert result.exit_code == 0, result.output
    (directory,) = (tmp_path / "runs").iterdir()
    folders = [f.parent for f in directory.glob("*/cell.yaml")]
    assert all((folder / "result.json").is_file() for folder in folders)
    report = CliRunner().invoke(app, ["report", str(directory)])
    assert report.exit_code == 0, report.output
    (page,) = directory.rglob("*.html")
    text = page.read_text(encoding="utf-8")
    methods = {f.name.split("-")[0] for f in folders} - {"warmup", "finetune"}
    assert [m for m in methods if m not in text] == []
    assert [word for word in NEEDED.get(name, ()) if word not in text.lower()] == []


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", ["streets", "paper/main_acdc"])
def test_an_experiment_of_segmentation_runs_three_rounds_on_the_embedded_streets_to_its_report(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(streets_acdc, "SOURCE_IMAGES", 4)
    words = ["grid", name, "--benchmark", "streets_acdc", "--preset", "default", "--seeds", "0"]
    few = ["--set", "benchmark.examples=2", "--device", "cpu", "--workers", "0", "--quiet"]
    result = CliRunner().invoke(app, [*words, *few])
    assert result.exit_code == 0, result.output
    runs = Path("runs") / Path(name).name
    entries = load_experiment(name).methods
    methods = {entry.name for entry in entries}
    results = {
        file.parent.name: json.loads(file.read_text(encoding="utf-8"))
        for file in runs.glob("*/result.json")
    }
    extra = ("warmup-", "-noadapt-")  # of a method that is trained before the stream
    scored = {cell: r for cell, r in results.items() if not any(word in cell for word in extra)}
    assert len(scored) == len(entries)
    assert {cell.split("-")[0] for cell in scored} == methods
    for result in scored.values():
        assert result["metric"] == "miou"
        rounds = [[entry["domain"] for entry in part["domains"]] for part in result["rounds"]]
        assert rounds == [["fog", "night", "rain", "snow"]] * 3
        assert 0 < result["mean"] < 100
    report = CliRunner().invoke(app, ["report", str(runs)])
    assert report.exit_code == 0, report.output
    (page,) = Path("runs").rglob("*.html")
    text = page.read_text(encoding="utf-8")
    assert [method for method in methods if method not in text] == []
    pictures = sorted(file.stem for file in Path("runs").rglob("*-pictures-*.png"))
    assert [name.split("-")[-1] for name in pictures] == ["fog", "night", "rain", "snow"]


def test_fewer_source_images_than_requested_are_noted_in_run_and_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["run", "paid", "toy", "--plugin", str(TOY), "--device", "cpu"]
    many = ["--set", "source_samples=3000"]
    result = CliRunner().invoke(app, [*words, *many])
    assert result.exit_code == 0, result.output
    sentence = "3,000 source images requested, 40 available"
    assert f"note: {sentence}" in result.stderr
    page = CliRunner().invoke(app, ["report", "runs/single"])
    assert page.exit_code == 0
    assert f"PAID: {sentence}." in next(Path("runs").rglob("*.html")).read_text(encoding="utf-8")
    limit = ["--set", "entropy_filter=true", "--set", "entropy_limit=1.4"]
    filtered = CliRunner().invoke(app, [*words, *many, *limit])
    assert f"{sentence}, of which " in filtered.stderr
    enough = CliRunner().invoke(app, [*words, "--set", "source_samples=40"])
    assert enough.exit_code == 0
    assert "source images" not in enough.stderr
