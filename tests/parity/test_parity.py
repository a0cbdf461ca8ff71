"""Ours compared with the reference outputs of the official implementations (see README.md)."""

import math
from pathlib import Path

import pytest
import torch

from ctta_bench.authoring.parity import (
    CaseFile,
    collect,
    function_mismatches,
    largest_difference,
    replay_case,
    statistics_difference,
    tensor_mismatches,
    translate,
)

HERE = Path(__file__).parent
CASES = collect([HERE])
SERVED = {name: file.read() for name, file in CASES.items() if translate(file.read()) is not None}
RUNS = [n for n, c in SERVED.items() if c.get("kind") != "function" and c["per_batch"]]
STATISTICS = [n for n, c in SERVED.items() if c.get("kind") != "function" and not c["per_batch"]]
FUNCTIONS = [name for name, case in SERVED.items() if case.get("kind") == "function"]


@pytest.mark.parametrize("name", RUNS)
def test_logits_and_adapted_tensors_equal_the_official_ones_in_float64(name: str) -> None:
    replayed = replay_case(CASES[name], torch.float64)
    assert largest_difference(replayed, "logits64_") <= replayed.case["tolerance"]["logits64_abs"]
    assert tensor_mismatches(replayed) == []


@pytest.mark.slow  # what they compute is compared in double precision above
@pytest.mark.parametrize("name", RUNS)
def test_logits_and_adapted_tensors_equal_the_official_ones_in_float32(name: str) -> None:
    replayed = replay_case(CASES[name], torch.float32)
    assert largest_difference(replayed, "logits_") <= replayed.case["tolerance"]["logits_abs"]
    assert tensor_mismatches(replayed) == []


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_outputs_of_a_function_equal_the_official_ones(name: str, dtype: torch.dtype) -> None:
    assert function_mismatches(CASES[name], dtype) == []


def test_a_function_that_computes_otherwise_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    case = SERVED["lora_peft_linear"]
    case = case | {"hyper_parameters": case["hyper_parameters"] | {"lora_alpha": 9}}
    monkeypatch.setattr(CaseFile, "read", lambda self: case)
    mismatches = function_mismatches(CASES["lora_peft_linear"], torch.float32)
    found = [mismatch.partition(":")[0] for mismatch in mismatches]
    assert found == ["y", "grad_A", "grad_B", "grad_x", "merged_weight", "y_merged"]


@pytest.mark.parametrize("name", [n for n in RUNS if n.startswith(("sar", "come_sar"))])
def test_resets_and_the_moving_average_equal_the_official_ones(name: str) -> None:
    replayed = replay_case(CASES[name], torch.float64)
    theirs = [after.get("resets_so_far", 0) for after in replayed.case["per_batch"]]
    assert [after["resets"] for after in replayed.after_batch] == theirs
    expected = replayed.case["per_batch"][-1].get("ema_after_batch")
    assert replayed.method.average == (
        None if expected is None else pytest.approx(expected, abs=1e-6)
    )


@pytest.mark.parametrize("name", [n for n in RUNS if n.startswith(("eata", "come_eata"))])
def test_selections_and_the_average_prediction_equal_the_official_ones(name: str) -> None:
    replayed = replay_case(CASES[name], torch.float64)
    ours, last = replayed.method.selection, replayed.case["per_batch"][-1]
    assert ours.reliable_images == last["reliable_so_far"]
    assert ours.selected_images == last["reliable_and_diverse_so_far"]
    assert ours.average.tolist() == pytest.approx(last["moving_probs"], abs=1e-7)


@pytest.mark.parametrize("name", ["eata_fisher", "come_eata_fisher"])
def test_the_fisher_information_equals_the_official_one(name: str) -> None:
    replayed = replay_case(CASES[name], torch.float32)
    assert len(replayed.method.fisher) == 18
    for key, ours in zip(replayed.method.trainable, replayed.method.fisher, strict=True):
        torch.testing.assert_close(
            ours, replayed.recorded[f"aux/fisher/{key}"], atol=1e-7, rtol=1e-4
        )


@pytest.mark.parametrize("name", STATISTICS)
def test_source_statistics_equal_the_official_ones(name: str) -> None:
    replayed = replay_case(CASES[name], torch.float32)
    assert replayed.method.source_statistics.images == replayed.case["kept_images"]
    assert set(replayed.tensors) <= set(replayed.recorded)
    assert statistics_difference(replayed) <= 1e-5


def test_a_comparison_that_should_fail_fails() -> None:
    replayed = replay_case(CASES["tent_ln_adam"], torch.float64)
    replayed.logits[3][0, 0] += 1e-6
    assert largest_difference(replayed, "logits64_") == pytest.approx(1e-6, rel=1e-3)
    replayed.logits[3][0, 0] = math.nan
    assert largest_difference(replayed, "logits64_") == math.inf
    name = next(iter(replayed.case["final"]["student"]))
    replayed.tensors[name] = replayed.tensors[name] + 1e-3
    assert any(name in mismatch for mismatch in tensor_mismatches(replayed))


def test_every_case_of_the_methods_so_far_is_run() -> None:
    ours = {
        "source",
        "tent",
        "sar",
        "paid",
        "lora",
        "dora",
        "norm",
        "eata",
        "lame",
        "vida",
        "ecotta",
        "svdp",
        "cmae",
        "dept",
        "deyo",
        "roid",
        "cmf",
        "rmt",
        "santa",
        "dpcore",
        "foa",
        "t3a",
        "come",
        "rem",
        "palm",
        "petal",
        "spa",
        "asr",
        "kff",
        "reservoir",
        "becotta",
    }
    expected = {n for n, f in CASES.items() if n.split("_")[0] in ours and f.folder == HERE}
    # Statistics have a test of their own; the reset after every three updates is another method.
    expected -= {"paid_source_stats_all", "paid_source_stats_filtered", "tent_mario_rdumb"}
    assert expected <= {*RUNS, *FUNCTIONS}
