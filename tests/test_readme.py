"""The README keeps its promises: its code runs, its files exist, its commands are commands."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ctta_bench.cli import app

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
PYTHON = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
SHELL = [
    line.partition("#")[0].strip()
    for block in re.findall(r"```sh\n(.*?)```", README, re.DOTALL)
    for line in block.splitlines()
]


def test_the_example_from_python_runs_and_prints_errors(tmp_path: Path) -> None:
    example = next(code for code in PYTHON if "evaluate" in code)
    assert len([line for line in example.splitlines() if line.strip()]) <= 10
    (tmp_path / "example.py").write_text(example)
    done = subprocess.run(
        [sys.executable, "example.py"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert re.search(r"mean error \d+\.\d %", done.stdout)
    assert "contrast" in done.stdout


def test_the_method_of_the_readme_runs_as_a_plugin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (code,) = (c for c in PYTHON if "register_module" in c)
    assert len([line for line in code.splitlines() if line.strip()]) <= 22
    monkeypatch.chdir(tmp_path)
    Path("my_method.py").write_text(code)
    (call,) = (line for line in SHELL if "my_method.py" in line)
    arguments = call.replace("examples=100", "examples=10").split()[1:]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output


def test_every_command_named_is_one() -> None:
    names = {line.split()[1] for line in SHELL if line.startswith("ctta-bench ")}
    known = {c.name or c.callback.__name__ for c in app.registered_commands if c.callback}
    assert names <= known


def test_every_make_target_named_is_one() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert {w for line in SHELL if line.startswith("make ") for w in line.split()[1:2]} <= targets


def test_every_file_linked_exists() -> None:
    links = re.findall(r"\]\(([^)]+)\)", README)
    for link in links:
        if not link.startswith("http"):
            assert (ROOT / link).exists(), link


def test_every_method_has_a_row() -> None:
    from ctta_bench.registry import METHODS

    folder = "ctta_bench.methods"
    names = [e.name for e in METHODS.entries().values() if e.module.startswith(folder)]
    firsts = [line.split("|")[1] for line in README.splitlines() if line.startswith("| `")]
    assert [n for n in names if not any(f"`{n}`" in first for first in firsts)] == []


# Which repository is whose: the authors', one that was written after them, or another library.
AUTHORS = {
    "DequanWang/tent", "mr-eggplant/SAR", "qinenergy/cotta", "BIT-DA/RoTTA", "Yangsenqiao/vida",
    "RanXu2000/continual-mae", "yhygao/DePT", "wangkunyu241/PAID", "Anonymous-012/SVDP",
    "Jhyun17/DeYO", "zybeich/DPCore", "mr-eggplant/FOA", "matsuolab/T3A",
}  # fmt: skip
OTHERS = {"mariodoebler/test-time-adaptation", "Lily-Le/EcoTTA", "huggingface/peft"}
# Of the second kind, but their own authors'.
OWN = {name: {"mariodoebler/test-time-adaptation"} for name in ("roid", "rmt")}


def test_what_a_method_is_said_to_be_checked_against_it_is_checked_against() -> None:
    from ctta_bench.authoring.parity import collect, repository_cases, translate
    from ctta_bench.registry import METHODS

    ours = [n for n, e in METHODS.entries().items() if e.module.startswith("ctta_bench.methods")]
    sources: dict[str, set[str]] = {name: set() for name in ours}
    for file in collect([repository_cases()]).values():
        case = file.read()
        if (translation := translate(case)) is not None and case["source"] != "-":
            sources[translation.method].add(case["source"])
    assert set().union(*sources.values()) <= AUTHORS | OTHERS
    rows = [line.split("|") for line in README.splitlines() if line.startswith("| `")]
    told = {n: row[-2] for row in rows for n in re.findall(r"`(\w+)`", row[1]) if n in sources}
    for name, found in sources.items():
        authors = AUTHORS | OWN.get(name, set())
        declared, official = METHODS.get(name).checked_against, bool(found & authors)
        assert ("official code" in declared) == official, name
        assert ("second implementation" in declared) == (bool(found) and not official), name
        if name in told and name not in ("eta", "eata"):  # whose row they share
            says = "official code" in told[name] and "no official" not in told[name]
            assert says == official, name
            more = re.search("second|more|community|peft", told[name])
            assert bool(more) == bool(found - authors or len(found) > 1), name


def test_the_readme_is_short() -> None:
    assert len(README.splitlines()) <= 210  # a row for each method
