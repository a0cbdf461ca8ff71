"""The notebooks run, with fewer images, and store outputs that name no machine."""

import importlib
import json
import re
from pathlib import Path
from typing import Any

import pytest

from ctta_bench.registry import METHODS

DOCS = Path(__file__).parents[1] / "docs"
NOTEBOOKS = sorted((DOCS / "notebooks").glob("*.ipynb"))
SMALLER = {
    "examples=100": "examples=20",
    "np.arange(200)": "np.arange(40)",
    "labels[:200]": "labels[:40]",
    '"gaussian_noise", "defocus_blur", "fog", "contrast"': '"fog", "contrast"',
    "seeds=[0, 1]": "seeds=[0]",
}


def read(file: Path, smaller: bool = False) -> dict[str, Any]:
    text = file.read_text("utf-8")
    found: dict[str, Any] = json.loads(text)
    for cell in found["cells"] if smaller else ():
        source = "".join(cell["source"])
        for before, after in SMALLER.items():
            source = source.replace(before, after)
        cell["source"] = [source]
    return found


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(DOCS.parent / "scripts")
    return importlib.import_module("notebooks")


@pytest.mark.slow
@pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: file.stem)
@pytest.mark.filterwarnings("ignore")
def test_a_notebook_runs_from_top_to_bottom(
    file: Path, script: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "__main__"}
    notebook = read(file, smaller=True)
    outputs = [*script.run(notebook, names)]
    stored = [cell["outputs"] for cell in notebook["cells"] if cell["cell_type"] == "code"]
    # The same kinds of outputs, cell by cell, as those that are shown.
    assert [[kinds(one) for one in cell] for cell in outputs] == [
        [kinds(one) for one in cell] for cell in stored
    ]
    for name in [n for n in METHODS.names() if METHODS.find(n).module == "__main__"]:
        METHODS._plugin_entries.pop(name)


def kinds(output: dict[str, Any]) -> list[str]:
    return sorted(output.get("data", {"text": ""}))


@pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: file.stem)
def test_stored_outputs_name_no_folder_of_a_machine(file: Path) -> None:
    cells = [cell for cell in read(file)["cells"] if cell["cell_type"] == "code"]
    assert any(cell["outputs"] for cell in cells)
    texts = [
        "".join(output.get("text", [])) + "".join(output.get("data", {}).get("text/html", []))
        for cell in cells
        for output in cell["outputs"]
    ]
    assert not re.search(r"/(home|tmp|root|work|Users)/", "".join(texts))


def test_every_notebook_is_in_the_navigation_and_has_a_picture_or_a_table() -> None:
    site = (DOCS.parent / "mkdocs.yml").read_text("utf-8")
    for file in NOTEBOOKS:
        assert f"notebooks/{file.stem}.md" in site
        shown = [
            kind
            for cell in read(file)["cells"]
            for output in cell.get("outputs", [])
            for kind in output.get("data", {})
        ]
        assert {"image/png", "text/html"} & set(shown)
