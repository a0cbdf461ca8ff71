import json
import re
from pathlib import Path

import pytest

import ctta_bench.analysis
from ctta_bench.analysis.read import collect

DOCS = Path(__file__).parents[2] / "docs"
NOTEBOOK = json.loads((DOCS / "analysis.ipynb").read_text("utf-8"))


@pytest.fixture
def some_runs(cell, tmp_path, monkeypatch):
    for seed in (0, 1):
        for place, method in enumerate(("source", "tent", "cotta")):
            rates = {"fog": 0.5 - 0.1 * place, "snow": 0.4}
            cell(method, rates, seed=seed, experiment="quickstart")
    monkeypatch.chdir(tmp_path)


def test_the_notebook_runs_from_top_to_bottom(some_runs, capsys):
    names = {}
    for part in NOTEBOOK["cells"]:
        code = "".join(part["source"]) if part["cell_type"] == "code" else ""
        exec(compile(code, "analysis.ipynb", "exec"), names)
    assert set(names["values"]["method"]) == {"source", "tent", "cotta"}
    assert names["by_seed"]["tent"].tolist() == pytest.approx([40, 40])
    assert "| CoTTA |" in capsys.readouterr().out


def test_the_examples_of_the_page_run(some_runs, capsys):
    names = {}
    for code in re.findall(r"```python\n(.*?)```", (DOCS / "analysis.md").read_text(), re.DOTALL):
        exec(compile(code, "analysis.md", "exec"), names)
    printed = capsys.readouterr().out
    assert "cotta" in printed and re.search(r"-?\d+\.\d points \[", printed)


def test_the_notebook_stores_the_outputs_of_a_run_and_no_path_of_its_machine():
    assert all(part["outputs"] for part in NOTEBOOK["cells"] if part["cell_type"] == "code")
    stored = json.dumps([part.get("outputs") for part in NOTEBOOK["cells"]])
    assert not re.search(r"/(home|tmp|root|work|Users)/", stored)


def test_every_column_is_described():
    described = set(re.findall(r"`([a-z_0-9]+)`", (DOCS / "analysis.md").read_text()))
    columns = {*collect.CELL_COLUMNS, *collect.RESULT_COLUMNS, *collect.DOMAIN_COLUMNS}
    assert columns <= described


def test_load_is_at_hand():
    assert ctta_bench.analysis.load is collect.load
    with pytest.raises(AttributeError, match="has no attribute 'lode'"):
        ctta_bench.analysis.lode  # noqa: B018
