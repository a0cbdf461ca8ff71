"""The stored verdicts belong to the existing reference cases, and the page shows them."""

import json

import pandas as pd
import pytest

from ctta_bench.analysis.paper.verdicts import parity_summary, verdicts
from ctta_bench.api.discover import method_facts
from ctta_bench.authoring.parity import (
    Verdict,
    collect,
    repository_cases,
    translate,
    write_verdicts,
)
from ctta_bench.registry import METHODS


def test_a_verdict_is_stored_for_every_reference_case_and_no_other():
    """`ctta-bench parity --out analysis/reference/parity.csv` makes them."""
    found = set()
    for name, file in collect([repository_cases()]).items():
        case = file.read()
        found.add((translate(case).method, name, case["source"], case.get("commit", "-")))
    stored = verdicts()
    columns = ["method", "case", "source", "commit"]
    assert set(stored[columns].itertuples(index=False, name=None)) == found
    assert set(stored["verdict"]) == {"equal"}
    assert (stored["difference"] <= stored["tolerance"]).all()


def test_verdicts_are_written_by_method_and_case(tmp_path):
    rows = [
        Verdict("b", "tent", "A/B", "0123456789", 1e-12, 1e-9, True),
        Verdict("a", "tent", "A/B", "0123456789", 0.5, 1e-9, False),
        Verdict("z", "", "C/D", "-"),
    ]
    write_verdicts(rows, tmp_path / "parity.csv")
    stored = pd.read_csv(tmp_path / "parity.csv", keep_default_na=False)
    assert stored["case"].tolist() == ["z", "a", "b"]
    assert stored["verdict"].tolist() == ["not in the suite", "DIFFERS", "equal"]


@pytest.mark.parametrize(
    ("method", "words"),
    [
        ("tent", "cases recorded from DequanWang/tent (commit e9e926a), "),
        ("lora", "1 case recorded from huggingface/peft (0.21.2); equal, largest difference"),
        ("source", "a plain forward pass of the network"),
        ("finetune", "no reference outputs of an official implementation are recorded"),
    ],
)
def test_a_method_s_verdict_is_a_sentence(method, words):
    assert words in parity_summary(method)


def test_every_method_of_the_suite_has_one():
    facts = method_facts(METHODS.names())
    assert all(about["parity"] for about in facts.values())
    assert json.dumps(facts)
    assert facts["paid"]["parity"].startswith("9 cases recorded from wangkunyu241/PAID")
