"""The arrows of docs/architecture.md: kept by the code, and broken by every import against them."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SUBPACKAGES = ("methods", "datasets", "experiments", "analysis")
ONLY_SOURCES = shutil.ignore_patterns("__pycache__", "embedded", "reference", "templates")

# File, import against the arrows, and how import-linter names it.
AGAINST_THE_ARROWS = [
    ("methods/tent.py", "from ctta_bench import engine", "methods.tent -> ctta_bench.run.engine"),
    ("methods/tent.py", "import ctta_bench.stream", "methods.tent -> ctta_bench.stream"),
    ("methods/tent.py", "import ctta_bench.methods.sar", "methods.tent -> ctta_bench.methods.sar"),
    ("methods/sar.py", "from ctta_bench import METHODS", "methods.sar -> ctta_bench (l."),
    ("datasets/fashion.py", "import ctta_bench.method", "datasets.fashion -> ctta_bench.method"),
    (
        "datasets/cache.py",
        "import ctta_bench.config.cell",
        "datasets.cache -> ctta_bench.config.cell",
    ),
    (
        "analysis/table.py",
        "import ctta_bench.record.folder",
        "analysis.table -> ctta_bench.record.folder",
    ),
    ("analysis/table.py", "import torch", "analysis.table -> torch"),
    ("engine.py", "import ctta_bench.methods.tent", "engine -> ctta_bench.methods.tent"),
    ("engine.py", "import ctta_bench.datasets.fashion", "engine -> ctta_bench.datasets.fashion"),
    (
        "launch/plan.py",
        "import ctta_bench.analysis.read.status",
        "launch.plan -> ctta_bench.analysis",
    ),
    ("stream.py", "import ctta_bench.run.engine", "stream -> ctta_bench.run.engine"),
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


def test_a_new_module_of_the_engine_needs_its_place_among_the_layers(tree: Path) -> None:
    (tree / "ctta_bench" / "newcomer.py").write_text("", encoding="utf-8")

    done = lint_imports(tree)

    assert done.returncode == 1
    assert "- ctta_bench.newcomer" in done.stdout


def test_geometry_and_attention_may_look_into_networks(tree: Path) -> None:
    for name in ("geometry", "attention"):
        (tree / "ctta_bench/analysis" / f"{name}.py").write_text("import torch\n", encoding="utf-8")

    assert lint_imports(tree).returncode == 0


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


def test_the_page_on_architecture_names_every_module_of_the_engine() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    modules = [file.name for file in (ROOT / "ctta_bench").glob("[!_]*.py")]

    assert [name for name in modules if f"`{name}`" not in page] == []
