"""Pages of docs/: the walk-through runs, tables are as the code has them, links lead somewhere."""

import importlib
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ctta_bench.cli import app
from ctta_bench.registry import BENCHMARKS, METHODS

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
        few = "examples=10 --set domains=[fog]"
        arguments = line.replace("examples=50", few).split()[1:]
        result = CliRunner().invoke(app, arguments)
        assert result.exit_code == 0, result.output
    METHODS.forget(METHODS.find("twice_sure").module)  # other tests walk over all methods


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
    assert sorted(made) == sorted(docs_tables.TABLES)


OURS = {
    registry.kind: sorted(
        n for n, e in registry.entries().items() if e.module.startswith("ctta_bench.")
    )
    for registry in (METHODS, BENCHMARKS)
}
PAGES = sorted(page for page in (ROOT / "docs").rglob("*.md") if "src" not in page.parts)
MADE_BY_THE_SITE = re.compile(r"notebook\.md|reference/|about/")


def test_every_file_and_heading_that_the_docs_link_exists() -> None:
    for page in PAGES:
        for link, anchor in re.findall(
            r"\]\(([^)#\s]*)(?:#([\w-]+))?\)", page.read_text(encoding="utf-8")
        ):
            if link.startswith("http") or MADE_BY_THE_SITE.search(link):
                continue
            target = page.parent / link if link else page
            assert target.exists(), f"{page.name}: {link}"
            if anchor:
                headings = re.findall(r"^#+ (.*)$", target.read_text("utf-8"), re.MULTILINE)
                names = [re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings]
                assert anchor in names, f"{page.name}: {link}#{anchor}"


def test_prose_is_at_most_100_characters_wide() -> None:
    for page in PAGES:
        text = re.sub(r"```.*?```", "", page.read_text("utf-8"), flags=re.DOTALL)
        for line in text.splitlines():
            free = line.startswith(("|", "#", "$$", "![", "<")) or " " not in line.strip()
            assert free or len(line) <= 100, f"{page.name}: {line}"


@pytest.mark.parametrize("name", OURS["method"])
def test_a_method_has_its_idea_in_five_sentences_and_an_equation(name: str) -> None:
    page = ROOT / "docs" / "methods" / f"{name}.md"
    text = page.read_text(encoding="utf-8")
    idea, *equations = re.split(r"\n\n(?=\$\$)", text.strip())
    assert len(text.splitlines()) <= 12
    assert len(re.findall(r"[.!?](?:\s|$)", idea)) == 5
    assert len(equations) == 1
    assert re.fullmatch(r"\$\$ .+ \$\$", equations[0])


def test_a_benchmark_has_its_licence_and_citation() -> None:
    for name in OURS["benchmark"]:
        text = (ROOT / "docs" / "benchmarks" / f"{name}.md").read_text(encoding="utf-8")
        assert text.startswith("**Licence.**")
        assert "**Citation.**" in text


def test_every_page_of_the_docs_is_in_the_navigation() -> None:
    site = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    named = {str(page.relative_to(ROOT / "docs")) for page in PAGES}
    entries = {f"methods/{name}.md" for name in OURS["method"]}
    entries |= {f"benchmarks/{name}.md" for name in OURS["benchmark"]}
    assert {page for page in named - entries if page not in site} == set()


def test_the_example_of_the_start_page_runs(capsys: pytest.CaptureFixture[str]) -> None:
    start = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", start, re.DOTALL)
    exec(compile(code.replace("examples=50", "examples=10"), "index.md", "exec"), {})
    assert re.search(r"mean error \d+\.\d %", capsys.readouterr().out)


def test_commands_of_the_start_page_are_commands() -> None:
    start = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    blocks = "".join(re.findall(r"```sh\n(.*?)```", start, re.DOTALL))
    names = set(re.findall(r"^ctta-bench (\S+)", blocks, re.MULTILINE))
    assert names <= {c.name or c.callback.__name__ for c in app.registered_commands if c.callback}
