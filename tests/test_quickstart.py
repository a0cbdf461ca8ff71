"""The demo shows adaptation helping, by margins whose intervals exclude zero."""

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ctta_bench.analysis.read.collect import load
from ctta_bench.analysis.read.statistics import paired_difference
from ctta_bench.cli import app
from tests.test_results import SCRIPT

NUMBER = r"[+−]?\d+\.\d|–"


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_demo_gives_the_readme_s_table_and_gains_over_three_seeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    runs = tmp_path / "runs" / "quickstart"
    for command in (["grid", "quickstart"], ["report", str(runs)]):
        assert CliRunner().invoke(app, command).exit_code == 0
    shown = SCRIPT.README.read_text("utf-8").partition("<!-- results: quickstart -->\n")[2]
    lines = shown.partition("\n<!-- /results -->")[0].splitlines()
    table = SCRIPT.demo_table(runs / "report").splitlines()
    for printed, made in zip(lines, table, strict=True):
        assert re.sub(NUMBER, "", printed) == re.sub(NUMBER, "", made)
        for was, now in zip(re.findall(NUMBER, printed), re.findall(NUMBER, made), strict=True):
            assert was == now or abs(value(was) - value(now)) <= 0.2  # other processors round so

    assert CliRunner().invoke(app, ["grid", "quickstart", "--seeds", "0,1,2"]).exit_code == 0
    cells = load(runs).cells

    def folders(method: str, model: str) -> list[Path]:
        chosen = cells[(cells["method"] == method) & (cells["model"] == model)]
        return [Path(path) for path in chosen["path"]]

    # Entropy needs BatchNorm's help here, and PAID needs attention's layers (README).
    for method, model in (("tent", "fashion_cnn"), ("sar", "fashion_cnn"), ("paid", "fashion_vit")):
        assert len(folders(method, model)) == 3
        found = paired_difference(folders(method, model), folders("source", model))
        assert found.high < 0, (method, found)
        assert found.p < 0.01


def value(text: str) -> float:
    return float(text.replace("−", "-"))
