"""The example package of docs/plugin is built and installed, and counts as the suite's own."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ctta_bench.registry import METHODS, load_plugin, references, short_reference

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "docs" / "plugin"
# Typed in one process; "OUT" is a folder.
COMMANDS = """
list methods
list benchmarks
check confident
check gratings
parity confident
run confident gratings --preset paper --set examples=20 --out OUT --quiet
run source gratings --set examples=20 --out OUT --quiet
report OUT --citations
"""
TYPED = """
import sys
from typer.testing import CliRunner
from ctta_bench.cli import app

for line in sys.argv[1].splitlines():
    done = CliRunner().invoke(app, line.split())
    print(line, done.output)
    if done.exit_code:
        sys.exit(f"{line}: {done.output}")
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the package is installed, from a copy: a build writes next to its files."""
    import shutil

    copy, target = (tmp_path_factory.mktemp(name) for name in ("copy", "site"))
    shutil.copytree(PACKAGE, copy / "plugin", ignore=shutil.ignore_patterns("__pycache__"))
    call = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    call += ["--no-build-isolation", "--target", str(target), str(copy / "plugin")]
    done = subprocess.run(call, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return target


@pytest.mark.slow
def test_an_installed_package_counts_as_the_suite_s_own(installed: Path, tmp_path: Path) -> None:
    out = tmp_path / "runs"
    path = os.pathsep.join([str(installed), str(ROOT), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", TYPED, COMMANDS.strip().replace("OUT", str(out))],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": path, "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Example and Sample, 2026" in done.stdout  # its reference in the list
    assert "Gratings" in done.stdout and "1 equal" in done.stdout
    record = next(out.glob("confident-*/cell.yaml")).read_text("utf-8")
    assert "share: 0.4" in record and "lr: 0.001" in record
    environment = json.loads(next(out.glob("confident-*/env.json")).read_text("utf-8"))
    assert "ctta_confident/confident.py" in environment["plugin_files"]
    assert "example2026confident" in (out / "report/tables/references.bib").read_text("utf-8")


@pytest.mark.slow
def test_its_pages_are_on_the_site(installed: Path, tmp_path: Path) -> None:
    pytest.importorskip("mkdocstrings")
    code = (
        "import sys; sys.path[:0] = ['scripts']\n"
        "import docs_site\n"
        "from ctta_bench.registry import METHODS\n"
        "print(docs_site.method_page('confident', METHODS.page('confident').read_text()))"
    )
    path = os.pathsep.join([str(installed), str(ROOT)])
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "TENT learns from every image" in done.stdout and "## Cite" in done.stdout
    assert "an example: there is no paper" in done.stdout and "`confident`" in done.stdout


def test_a_plugin_is_cited_by_its_own_file() -> None:
    load_plugin(str(PACKAGE / "src" / "ctta_confident" / "confident.py"))
    assert short_reference(METHODS.citation("confident")) == "Example and Sample, 2026"
    assert "wang2021tent" in references()
    page = METHODS.page("confident")
    assert page is not None and page.name == "confident.md"
    METHODS.forget(METHODS.find("confident").module)
    assert "example2026confident" not in references()


def test_the_reference_outputs_are_those_that_the_script_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch
    from safetensors.torch import load_file

    monkeypatch.syspath_prepend(PACKAGE)
    import record  # type: ignore[import-not-found]

    monkeypatch.setattr(record, "CASES", tmp_path)
    record.main()
    stored = PACKAGE / "src" / "ctta_confident" / "cases"
    ours, theirs = (load_file(f / "confident.safetensors") for f in (tmp_path, stored))
    assert ours.keys() == theirs.keys()
    for key, value in ours.items():
        assert torch.allclose(value, theirs[key], atol=1e-9 if "64" in key else 1e-4), key
    source = (tmp_path / "confident.json").read_text(), (stored / "confident.json").read_text()
    assert [json.loads(text)["hyper_parameters"] for text in source] == [record.SETTINGS] * 2
