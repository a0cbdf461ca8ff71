"""The README: its code runs, its files and commands exist, its counts are those of the code."""

import csv
import re
from pathlib import Path

import pytest

from ctta_bench.cli import app

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
PYTHON = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
SHELL = [
    line.partition("#")[0].strip()
    for block in re.findall(r"```sh\n(.*?)```", README, re.DOTALL)
    for line in block.splitlines()
]


def test_the_example_from_python_is_five_lines_that_print_errors(
    capsys: pytest.CaptureFixture[str],
) -> None:
    (example,) = PYTHON
    assert len([line for line in example.splitlines() if line.strip()]) == 5
    exec(compile(example, "README.md", "exec"), {})
    assert re.search(r"'fog': \d+\.\d.*, 'contrast': \d+\.\d", capsys.readouterr().out)


def test_every_command_named_is_one() -> None:
    names = {line.split()[1] for line in SHELL if line.startswith("ctta-bench ")}
    known = {c.name or c.callback.__name__ for c in app.registered_commands if c.callback}
    assert names <= known


def test_every_make_target_named_is_one() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert {w for line in SHELL if line.startswith("make ") for w in line.split()[1:2]} <= targets


def test_every_file_linked_exists() -> None:
    links = re.findall(r"\]\(([^)#]+)", README)
    for link in links:
        if not link.startswith("http"):
            assert (ROOT / link).exists(), link


# Which repository is whose: the authors', one that was written after them, or another library.
AUTHORS = {
    "DequanWang/tent", "mr-eggplant/SAR", "qinenergy/cotta", "BIT-DA/RoTTA", "Yangsenqiao/vida",
    "RanXu2000/continual-mae", "yhygao/DePT", "wangkunyu241/PAID", "Anonymous-012/SVDP",
    "Jhyun17/DeYO", "zybeich/DPCore", "mr-eggplant/FOA", "matsuolab/T3A",
    "BlueWhaleLab/COME", "pilsHan/rem", "sarthaxxxxx/PALM", "dhanajitb/petal", "mr-eggplant/SPA",
    "YonseiML/asr",
    "zhoujiahuan1991/NeurIPS2025-KFF",
    "LTS5/ReservoirTTA",
    "daeunni/becotta",
}  # fmt: skip
OTHERS = {"mariodoebler/test-time-adaptation", "Lily-Le/EcoTTA", "huggingface/peft"}
# Of the second kind, but their own authors'.
OWN = {name: {"mariodoebler/test-time-adaptation"} for name in ("roid", "rmt")}


def methods_by_reference() -> dict[str, set[str]]:
    """Our methods, and the repositories whose recorded outputs each is compared with."""
    from ctta_bench.authoring.parity import collect, repository_cases, translate
    from ctta_bench.registry import METHODS

    entries = METHODS.entries().items()
    sources: dict[str, set[str]] = {
        name: set() for name, entry in entries if entry.module.startswith("ctta_bench.methods")
    }
    for file in collect([repository_cases()]).values():
        case = file.read()
        if (translation := translate(case)) is not None and case["source"] != "-":
            sources[translation.method].add(case["source"])
    return sources


def test_a_method_declares_the_references_that_it_is_compared_with() -> None:
    from ctta_bench.registry import METHODS

    sources = methods_by_reference()
    assert set().union(*sources.values()) <= AUTHORS | OTHERS
    for name, found in sources.items():
        declared, official = METHODS.get(name).checked_against, has_official(name, found)
        assert ("official code" in declared) == official, name
        assert ("second implementation" in declared) == (bool(found) and not official), name


def has_official(name: str, sources: set[str]) -> bool:
    return bool(sources & (AUTHORS | OWN.get(name, set())))


def test_the_first_claim_has_the_counts_of_the_code() -> None:
    sources = methods_by_reference()
    official = sum(has_official(name, found) for name, found in sources.items())
    others = sum(bool(found) for found in sources.values()) - official
    text = (ROOT / "analysis" / "reference" / "parity.csv").read_text(encoding="utf-8")
    cases = list(csv.DictReader(text.splitlines()))
    close = [case for case in cases if float(case["difference"]) <= 1e-9]

    assert {case["verdict"] for case in cases} == {"equal"}
    words = " ".join(README.split())
    assert f"Of {len(sources)} methods, {official} give the outputs of their authors' code" in words
    assert f"and {others} more those of another published implementation" in words
    assert f"within 1e-9 in float64 in {len(close)} recorded cases" in words
    assert f"within 2e-7 in float32 in {len(cases) - len(close)} more" in words
    assert max(float(case["difference"]) for case in cases) <= 2e-7


def test_the_second_claim_has_the_count_of_settings() -> None:
    from ctta_bench.stream.settings import SETTINGS

    assert f"[{len(SETTINGS)} settings]" in " ".join(README.split())


def test_the_table_of_the_demo_has_its_methods_in_at_most_eight_rows() -> None:
    table = re.search(r"<!-- results: quickstart -->\n(.*?)<!-- /results -->", README, re.DOTALL)
    assert table is not None
    rows = [line.split(" | ") for line in table[1].splitlines()[2:]]
    assert 5 <= len(rows) <= 8
    assert all(len(row) == 7 for row in rows)


def test_the_readme_is_short() -> None:
    assert len(README.splitlines()) <= 120
