"""The arrows of docs/architecture.md: kept by the code, and broken by every import against them."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).parents[1]
SUBPACKAGES = ("methods", "datasets", "experiments", "analysis")
ONLY_SOURCES = shutil.ignore_patterns("__pycache__", "embedded", "reference", "templates")

# File, import against the arrows, and how import-linter names it.
AGAINST_THE_ARROWS = [
    ("methods/tent.py", "from ctta_bench.run import engine", "methods.tent -> ctta_bench.run"),
    ("methods/tent.py", "import ctta_bench.stream", "methods.tent -> ctta_bench.stream"),
    ("methods/tent.py", "import ctta_bench.methods.sar", "methods.tent -> ctta_bench.methods.sar"),
    ("methods/sar.py", "from ctta_bench import METHODS", "methods.sar -> ctta_bench (l."),
    ("datasets/fashion.py", "import ctta_bench.method", "datasets.fashion -> ctta_bench.method"),
    ("datasets/io/idx.py", "import ctta_bench.config", "datasets.io.idx -> ctta_bench.config"),
    ("analysis/table/rows.py", "import ctta_bench.run.engine", "rows -> ctta_bench.run.engine"),
    ("analysis/table/table.py", "import torch", "analysis.table.table -> torch"),
    (
        "analysis/tables/cost.py",
        "import ctta_bench.analysis.report.page",
        "analysis.tables.cost -> ctta_bench.analysis.report.page",
    ),
    ("run/engine.py", "import ctta_bench.methods.tent", "run.engine -> ctta_bench.methods.tent"),
    ("run/engine.py", "import ctta_bench.datasets.ccc", "run.engine -> ctta_bench.datasets.ccc"),
    ("stream/orders.py", "import ctta_bench.run.engine", "stream.orders -> ctta_bench.run.engine"),
    ("registry.py", "import torch", "registry -> torch"),
]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of the sources, in which a test may break the arrows."""
    shutil.copytree(ROOT / "ctta_bench", tmp_path / "ctta_bench", ignore=ONLY_SOURCES)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def lint_imports(tree: Path) -> subprocess.CompletedProcess[str]:
    call = [Path(sys.executable).with_name("lint-imports"), "--no-cache"]
    environment = os.environ | {"COLUMNS": "200", "PYTHONUTF8": "1"}
    return subprocess.run(
        call, cwd=tree, env=environment, capture_output=True, text=True, timeout=60, check=False
    )


def test_the_imports_keep_the_arrows(tree: Path) -> None:
    done = lint_imports(tree)

    assert done.returncode == 0, done.stdout
    assert " 0 broken" in done.stdout


def test_every_import_against_the_arrows_is_told(tree: Path) -> None:
    for file, line, _ in AGAINST_THE_ARROWS:
        with (tree / "ctta_bench" / file).open("a", encoding="utf-8") as source:
            source.write(f"{line}\n")

    told = lint_imports(tree).stdout

    assert [name for _, _, name in AGAINST_THE_ARROWS if name not in told] == []


def test_a_new_room_needs_its_place_among_the_floors(tree: Path) -> None:
    (tree / "ctta_bench" / "newcomer.py").write_text("", encoding="utf-8")

    done = lint_imports(tree)

    assert done.returncode == 1
    assert "- ctta_bench.newcomer" in done.stdout


def test_importing_the_package_loads_nothing_heavy() -> None:
    code = (
        "import sys, ctta_bench\n"
        "print([m for m in ('torch', 'numpy', 'pandas', 'mmengine') if m in sys.modules])"
    )

    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )

    assert done.stdout == "[]\n"


def test_every_import_of_a_top_level_folder_leads_to_its_file_in_the_checkout() -> None:
    for name in SUBPACKAGES:
        link = ROOT / "ctta_bench" / name

        assert link.resolve() == ROOT / name
        assert link.readlink() == Path("..") / name  # of a checkout in any place


def test_no_module_is_called_utils() -> None:
    folders = ("ctta_bench", *SUBPACKAGES, "tests", "scripts")

    assert [file for folder in folders for file in (ROOT / folder).rglob("*utils*.py")] == []


# -- a map that can be drawn


def rooms() -> set[str]:
    """What stands in `ctta_bench/`, but for the links to the top-level folders."""
    found = {entry for entry in (ROOT / "ctta_bench").iterdir() if not entry.is_symlink()}
    hidden = {entry for entry in found if entry.name.startswith("__") or entry.name == "py.typed"}
    return {entry.name for entry in found - hidden}


def test_the_package_has_at_most_twenty_rooms() -> None:
    assert len(rooms()) <= 20


def test_no_folder_has_more_than_fifteen_files_but_those_of_registered_entries() -> None:
    of_entries = {"methods", "datasets", "methods/official", "experiments", "analysis/tables"}
    counts = {
        folder.relative_to(ROOT).as_posix(): len([*folder.glob("[!_]*.py")])
        for top in ("ctta_bench", *SUBPACKAGES)
        for folder in [ROOT / top, *(ROOT / top).rglob("*/")]
        if not folder.is_symlink()
    }

    assert {f: n for f, n in counts.items() if n > 15 and f not in of_entries} == {}


def test_the_page_on_architecture_is_one_drawing_and_at_most_25_lines() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")

    assert page.count("![") == 1
    assert len(page.splitlines()) <= 25
    assert max(map(len, page.splitlines())) <= 120


def test_the_drawing_shows_every_room() -> None:
    drawing = ElementTree.parse(ROOT / "docs" / "architecture.svg")
    shown = {text.text for text in drawing.iter("{http://www.w3.org/2000/svg}text")}
    names = {name if name.endswith(".py") else f"{name}/" for name in rooms()}

    assert names - shown == set()
    assert {f"{name}/" for name in SUBPACKAGES} - shown == set()


def test_every_drawing_of_the_pages_is_well_formed() -> None:
    drawings = [*(ROOT / "docs").rglob("*.svg")]

    assert drawings
    for file in drawings:
        root = ElementTree.parse(file).getroot()  # raises ParseError where a browser shows nothing
        assert root.tag == "{http://www.w3.org/2000/svg}svg", file
