"""Lists and cards: the names that users try first, without loading torch."""

import subprocess
import sys

import pytest

import ctta_bench
from ctta_bench.errors import ConfigError
from ctta_bench.registry import METHODS


def test_lists_are_names_and_tables() -> None:
    found = ctta_bench.list_methods("*ta*", task="segmentation")
    assert list(found) == [
        name
        for name in METHODS.names()
        if "ta" in name and "segmentation" in METHODS.get(name).tasks
    ]
    assert "CoTTA" in repr(found) and "<table" in found._repr_html_()
    assert found.to_frame().loc["cotta", "year"] == 2022
    assert ctta_bench.list_methods("nothing") == [] and "nothing of" in repr(
        ctta_bench.list_methods("nothing")
    )


@pytest.mark.parametrize(
    ("function", "pattern", "name"),
    [
        ("list_methods", "TENT", "tent"),
        ("list_benchmarks", "ImageNet-*", "imagenet_c"),
        ("list_models", "*vit*", "fashion_vit"),
        ("list_models", "timm:resnet50.a1*", "timm:resnet50.a1_in1k"),
        ("list_settings", "*correlated", "mixed_correlated"),
        ("list_experiments", "paper/*", "paper/ten_rounds"),
    ],
)
def test_a_pattern_chooses(function: str, pattern: str, name: str) -> None:
    found = getattr(ctta_bench, function)(pattern)
    assert name in found and len(found) < len(getattr(ctta_bench, function)()) + 100
    assert name in repr(found)


def test_lists_filter_by_task_and_source_data() -> None:
    assert "segformer_b5" in ctta_bench.list_models(task="segmentation")
    assert "fashion_vit" not in ctta_bench.list_models(task="segmentation")
    assert "streets_acdc" in ctta_bench.list_benchmarks(task="segmentation")
    free = ctta_bench.list_methods(source_data="none")
    assert "tent" in free and "rmt" not in free and "ecotta" not in free
    assert "ecotta" in ctta_bench.list_methods(source_data="labelled")


def test_the_card_of_a_method_has_hyper_parameters_and_presets() -> None:
    card = ctta_bench.describe("tent")
    assert card.kind == "method" and "paper" in card.presets
    assert card.to_frame().loc["lr", "default"] == METHODS.get("tent").Hyperparameters().lr
    assert "Wang et al." in repr(card) and "preset paper" in repr(card)
    assert "<table" in card._repr_html_()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("fashion_c", "severity of the corruptions"),
        ("fashion_vit", "model"),
        ("cdc", "slots"),
        ("quickstart", "cells"),
        ("ImageNet-C", "imagenet_c (benchmark)"),
    ],
)
def test_everything_has_a_card(name: str, words: str) -> None:
    assert words in repr(ctta_bench.describe(name))


def test_an_unknown_name_is_refused_with_a_similar_one() -> None:
    with pytest.raises(ConfigError, match="nothing is called 'tennt'; did you mean 'tent'"):
        ctta_bench.describe("tennt")


def test_lists_load_no_torch() -> None:
    code = (
        "import sys, ctta_bench\n"
        "repr(ctta_bench.list_methods()); repr(ctta_bench.list_settings())\n"
        "print([m for m in ('torch', 'pandas') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "[]\n"


def test_names_of_other_suites_lead_to_ours() -> None:
    with pytest.raises(AttributeError, match=r"'create_model'; here it is load_model\(NAME\)"):
        assert ctta_bench.create_model
    for name, here in ctta_bench._ELSEWHERE.items():
        assert name not in ctta_bench.__all__
        assert here.partition("(")[0] in ctta_bench.__all__
    with pytest.raises(AttributeError, match=r"no attribute 'nothing'$"):
        assert ctta_bench.nothing


def test_objects_are_shown_in_a_line_or_a_table() -> None:
    benchmark = ctta_bench.load_benchmark("scenes_c", setting="mixed")
    page = benchmark._repr_html_()
    assert "<table" in page and "gaussian_noise" in page and "mixed" in page
    for one in (benchmark, benchmark.domain("clean"), benchmark.source(), METHODS):
        assert "\n" not in repr(one) and len(repr(one)) < 900
    assert repr(benchmark.domain("clean")) == "<ArrayImages: 2,000 images uint8 3x32x32>"
