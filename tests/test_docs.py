"""The walk-through of docs/adding-a-method.md, walked; tables and links of all pages."""

import importlib
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ctta_bench.cli import app

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "adding-a-method.md").read_text(encoding="utf-8")


def test_the_method_of_the_page_is_checked_and_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    Path("twice_sure.py").write_text(code)
    _, *commands = re.search(r"```sh\n(.*?)```", PAGE, re.DOTALL)[1].splitlines()  # type: ignore[index]
    assert len(commands) == 2
    for line in commands:
        arguments = line.replace("examples=50", "examples=10").split()[1:]
        result = CliRunner().invoke(app, arguments)
        assert result.exit_code == 0, result.output


def test_tables_that_are_made_from_the_code_are_as_the_code_has_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(ROOT / "scripts")
    docs_tables = importlib.import_module("docs_tables")
    made = []
    for page in docs_tables.PAGES:
        text = page.read_text(encoding="utf-8")
        made += [name for _, name, _ in docs_tables.PLACE.findall(text)]
        assert docs_tables.filled(text) == text, f"{page}: run scripts/docs_tables.py"
    assert {*made, "methods"} == set(docs_tables.TABLES)


def test_every_file_that_the_docs_link_exists() -> None:
    for page in (ROOT / "docs").glob("*.md"):
        for link in re.findall(r"\]\(([^)#]+)", page.read_text(encoding="utf-8")):
            if not link.startswith("http"):
                assert (page.parent / link).exists(), f"{page.name}: {link}"


def test_every_heading_that_the_docs_link_exists() -> None:
    for page in (ROOT / "docs").rglob("*.md"):
        for link, anchor in re.findall(r"\]\(([^)#\s]*)#([\w-]+)\)", page.read_text("utf-8")):
            if not link.startswith("http"):
                target = (page.parent / link) if link else page
                headings = re.findall(r"^#+ (.*)$", target.read_text("utf-8"), re.MULTILINE)
                names = [re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings]
                assert anchor in names, f"{page.name}: {link}#{anchor}"
