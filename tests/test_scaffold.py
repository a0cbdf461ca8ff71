"""A skeleton that runs before a line of it is changed."""

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ctta_bench.cli import app


@pytest.mark.slow
def test_a_new_method_passes_its_test_and_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert CliRunner().invoke(app, ["new", "method", "My-Idea"]).exit_code == 0
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_my_idea.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    checked = CliRunner().invoke(app, ["check", "my_idea", "--plugin", "my_idea.py"])
    assert checked.exit_code == 0, checked.output


@pytest.mark.parametrize(
    ("name", "words"), [("tent", "taken"), ("2fast", "lower-case"), ("a b", "lower-case")]
)
def test_a_bad_name_is_refused(
    name: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["new", "method", name])
    assert result.exit_code == 2 and words in result.stderr
    assert not list(tmp_path.iterdir())


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "test_mine.py").write_text("keep")
    result = CliRunner().invoke(app, ["new", "method", "mine", "--out", str(tmp_path)])
    assert result.exit_code == 2 and "exists already" in result.stderr
    assert [f.name for f in tmp_path.iterdir()] == ["test_mine.py"]
