"""Translations of official settings: each recorded setting is used, or refused by its name."""

import copy
import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from ctta_bench.authoring.parity import (
    CaseFile,
    collect,
    replay_case,
    statistics_difference,
    tiny_vit,
    translate,
    translations,
)
from ctta_bench.errors import ConfigError, DataError
from tests.parity.test_parity import CASES, HERE

READ = {name: file.read() for name, file in CASES.items()}
KINDS = {f"{t.method}, {t.repository}, {t.words}": t for t in translations() if t.repository != "-"}


def case_of(translation: Any) -> dict[str, Any]:
    return copy.deepcopy(next(c for c in READ.values() if translate(c) is translation))


def settings(name: str, **changes: Any) -> dict[str, Any]:
    """Our hyper-parameters of a recorded case with other settings."""
    case = copy.deepcopy(READ[name])
    given = case["hyper_parameters"]
    given.get("cfg", given).update(changes)
    found: dict[str, Any] = translate(case).settings(case)
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_every_translation_refuses_an_unknown_setting_by_its_name(kind: str) -> None:
    translation = KINDS[kind]
    assert translation.settings(case_of(translation)) is not None
    case = case_of(translation)
    groups = [case["hyper_parameters"]]
    groups += [value for value in groups[0].values() if isinstance(value, dict)]
    for group in groups:
        group["warp_factor"] = 9
        with pytest.raises(DataError, match=r"'warp_factor' \(9\) has no counterpart in"):
            translation.settings(case)
        del group["warp_factor"]


def test_a_setting_without_effect_is_accepted_and_its_other_values_are_refused() -> None:
    assert settings("sar_official", steps=1, episodic=False) == settings("sar_official")
    with pytest.raises(DataError, match=r"'steps' \(2\) has no counterpart in 'sar'"):
        settings("sar_official", steps=2)
    with pytest.raises(DataError, match=r"'no_stats' is True; only False is known"):
        settings("norm_bn_batch", no_stats=True)
    with pytest.raises(DataError, match=r"'aug_type' is 'blur'; known are 'patch', 'pixel'"):
        settings("deyo_official_occ", aug_type="blur")


def test_a_missing_setting_is_named() -> None:
    case = copy.deepcopy(READ["sar_official"])
    del case["hyper_parameters"]["rho"]
    with pytest.raises(DataError, match="'rho' is missing"):
        translate(case).settings(case)


def test_occlusions_and_weightings_of_deyo_are_taken_over() -> None:
    found = settings("deyo_official_occ", occlusion_size=10, row_start=3, reweight_ent=0)
    assert found["destruction"] == "middle"
    assert [found[f"occlusion_{k}"] for k in ("size", "row", "column")] == [10, 3, 8]
    assert (found["weigh_by_entropy"], found["weigh_by_drop"]) == (False, True)
    # Their switches of the two filters: without one, every image passes.
    found = settings("deyo_official_patch", filter_ent=0, filter_plpd=0)
    assert (found["max_entropy"], found["min_drop"]) == (pytest.approx(3.0), -1.0)
    found = settings("deyo_occ", **{"DEYO.REWEIGHT_PLPD": False, "DEYO.COLUMN_START": 2})
    assert (found["weigh_by_drop"], found["occlusion_column"]) == (False, 2)


@pytest.mark.parametrize(
    ("written", "limit"),
    [(0.25, 0.25), ("0.25", 0.25), ("math.log(100)/2 - 1", math.log(100) / 2 - 1)],
)
def test_the_threshold_of_paid_is_a_number_or_its_formula(written: Any, limit: float) -> None:
    found = settings("paid_source_stats_filtered", threshold=written)
    assert (found["entropy_filter"], found["entropy_limit"]) == (True, limit)
    assert settings("paid_imagenet", threshold=written)["entropy_limit"] == limit
    with pytest.raises(DataError, match="'threshold' is 'half'; write a number of nats"):
        settings("paid_imagenet", threshold="half")


def test_further_settings_of_official_codes_are_taken_over() -> None:
    switches = {"ROID.USE_WEIGHTING": False, "ROID.USE_PRIOR_CORRECTION": False}
    found = settings("roid", **switches, **{"ROID.MOMENTUM_PROBS": 0.7})
    assert (found["weighting"], found["consistency"], found["prior"]) == (False, True, "off")
    assert found["prediction_rate"] == 0.3
    found = settings("dept_official", alpha=0.5, teacher_temp=0.04)
    assert (found["label_weight"], found["teacher_temperature"]) == (0.5, 0.04)
    found = settings("rmt", **{"RMT.LAMBDA_CE_SRC": 0.0, "RMT.LAMBDA_CONT": 2.0})
    assert (found["source_weight"], found["contrast_weight"]) == (0.0, 2.0)
    found = settings("tent_mario", **{"OPTIM.STEPS": 3, "OPTIM.BETA": 0.8, "OPTIM.WD": 0.1})
    assert (found["steps"], found["betas"], found["weight_decay"]) == (3, (0.8, 0.999), 0.1)
    assert settings("t3a", filter_K=-1) == {"supports": 0}


# -- recorded cases with other settings: the same outputs, or the refusal of the file


@pytest.fixture
def changed(tmp_path: Path) -> Any:
    """A function that copies a case with other settings; returns it."""

    def make(name: str, **changes: Any) -> CaseFile:
        (tmp_path / "cases").mkdir(exist_ok=True)
        case = copy.deepcopy(READ[name])
        given = case["hyper_parameters"]
        given.get("cfg", given).update(changes)
        (tmp_path / "cases" / f"{name}.json").write_text(json.dumps(case))
        shutil.copy(HERE / "cases" / f"{name}.safetensors", tmp_path / "cases")
        return collect([tmp_path])[name]

    return make


def test_a_threshold_as_a_number_keeps_the_images_below_it(changed: Any) -> None:
    file = changed("paid_source_stats_filtered", threshold=math.log(10) / 2 - 1)
    assert statistics_difference(replay_case(file, torch.float32)) <= 1e-5
    limit = 0.4
    replayed = replay_case(changed("paid_source_stats_filtered", threshold=limit), torch.float64)
    model, images = replayed.method.model, file.part("stream/stream.safetensors")["source_images"]
    with torch.no_grad():
        features = model.features(images.double() / 255)
        log_p = model.head(features).log_softmax(-1)
    kept = features[-(log_p.exp() * log_p).sum(-1) < limit]
    found: Any = replayed.method.source_statistics
    assert found.images == len(kept) and 2 < len(kept) < 64
    torch.testing.assert_close(found.mean, kept.mean(0))
    torch.testing.assert_close(found.std, kept.std(0))


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("deyo_official_occ", {"occlusion_size": 10, "row_start": 3, "column_start": 20}),
        ("deyo_official_occ", {"reweight_ent": 0}),
        ("deyo_official_occ", {"reweight_plpd": 0}),
        ("deyo_official_occ", {"reweight_ent": 0, "reweight_plpd": 0}),
        ("deyo_official_occ", {"filter_ent": 0, "filter_plpd": 0}),
    ],
)
def test_deyo_with_other_settings_equals_its_formulas(
    changed: Any, name: str, changes: dict[str, int]
) -> None:
    """The reference is written here from the formulas, not recorded from the authors' code."""
    file = changed(name, **changes)
    ours = replay_case(file, torch.float64)
    for mine, theirs in zip(ours.logits, deyo_from_its_formulas(file), strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-9, rtol=0)
    before = replay_case(CASES[name], torch.float64)
    assert float((ours.logits[-1] - before.logits[-1]).abs().max()) > 1e-6


def deyo_from_its_formulas(file: CaseFile) -> list[torch.Tensor]:
    """The scored logits of DeYO with an occluded square, of a case's settings."""
    hp = file.read()["hyper_parameters"]
    network = tiny_vit()
    network.load_state_dict(file.part("model/tiny_vit.safetensors"))
    network = network.double().eval().requires_grad_(False)
    norms = [p for n, p in network.named_parameters() if ".norm" in n and n.startswith("blocks.")]
    optimizer = torch.optim.SGD([p.requires_grad_() for p in norms], lr=0.005, momentum=0.9)
    stream, found = file.part("stream/stream.safetensors"), []
    size, top, left = (hp[k] for k in ("occlusion_size", "row_start", "column_start"))
    for number in range(7):
        images = stream[f"images_{number}"].double() / 255
        logits = network(images)
        found.append(logits.detach())
        p = logits.softmax(1)
        entropy = -(p * p.log()).sum(1)
        limit = 0.15 * math.log(10) if hp["filter_ent"] else math.log(1000)
        first = entropy < limit
        if not bool(first.any()):
            continue
        covered = images[first].clone()
        mean = covered.mean((2, 3), keepdim=True)
        covered[:, :, top : top + size, left : left + size] = mean
        with torch.no_grad():
            after = network(covered).softmax(1)
        label = p[first].argmax(1, keepdim=True)
        drop = (p[first].gather(1, label) - after.gather(1, label)).squeeze(1).detach()
        second = drop > (hp["plpd_threshold"] if hp["filter_plpd"] else -2)
        if not bool(second.any()):
            continue
        kept, drop = entropy[first][second], drop[second]
        weight = torch.ones_like(drop)
        if hp["reweight_ent"] or hp["reweight_plpd"]:
            certainty = (0.4 * math.log(10) - kept.detach()).exp()
            weight = hp["reweight_ent"] * certainty + hp["reweight_plpd"] * drop.exp()
        optimizer.zero_grad()
        (kept * weight).mean().backward()
        optimizer.step()
    return found


def test_a_refused_setting_names_the_file_and_the_setting(changed: Any) -> None:
    file = changed("tent_ln_sgd", temperature=2.0)
    with pytest.raises(DataError, match=r"tent_ln_sgd\.json: the setting 'temperature' \(2\.0\)"):
        replay_case(file, torch.float64)
    file = changed("sar_official", rho=-1)
    with pytest.raises(ConfigError, match=r"sar_official\.json\.rho: -1: .* greater than"):
        replay_case(file, torch.float64)
