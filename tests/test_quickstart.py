"""The demo gives the table that the README shows."""

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ctta_bench.cli import app
from tests.test_results import SCRIPT

NUMBER = r"[+−]?\d+\.\d|–"


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_demo_gives_the_readme_s_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def value(text: str) -> float:
    return float(text.replace("−", "-"))
