"""Display names and citations: declared with each entry, read without importing it."""

import re
import subprocess
import sys

import pytest

from ctta_bench.registry import (
    BENCHMARKS,
    METHODS,
    MODELS,
    Registry,
    domain_display_names,
    references,
    short_reference,
)
from ctta_bench.stream.settings import SETTINGS, setting_display_name


@pytest.mark.parametrize("registry", [METHODS, BENCHMARKS, MODELS], ids=lambda r: r.kind)
def test_every_entry_of_the_package_declares_its_own_display_name(registry: Registry) -> None:
    ours = [n for n, e in registry.entries().items() if e.module.startswith("ctta_bench.")]
    names = [registry.display_name(name) for name in ours]
    assert len(set(names)) == len(names)
    assert not set(names) & set(ours)


def test_display_names_and_references_need_nothing_heavy() -> None:
    code = (
        "import sys\n"
        "from ctta_bench.registry import METHODS, MODELS, domain_display_names, references\n"
        "from ctta_bench.registry import short_reference\n"
        "assert METHODS.display_name('pseudo-label') == 'Pseudo-label'\n"
        "assert METHODS.display_name('of_a_plugin') == 'of_a_plugin'\n"
        "assert MODELS.display_name('timm:vit_base_patch16_224.augreg_in21k_ft_in1k')"
        " == 'ViT-B/16 (ImageNet)'\n"
        "assert short_reference(METHODS.citation('cotta'), 'CVPR') == 'Wang et al., CVPR 2022'\n"
        "assert domain_display_names('cifar10_c', ['jpeg_compression']) == ['JPEG']\n"
        "heavy = {'torch', 'mmengine', 'timm', 'numpy', 'pandas', 'pydantic'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_every_citation_has_an_entry_and_every_entry_is_cited() -> None:
    cited = {
        registry.citation(name) for registry in (METHODS, BENCHMARKS) for name in registry.names()
    }
    cited |= {setting.citation for setting in SETTINGS.values()}
    assert cited - {""} == set(references())


@pytest.mark.parametrize("key", references())
def test_an_entry_of_the_bibliography_is_whole(key: str) -> None:
    entry = references()[key]
    assert {"author", "title", "year"} < set(entry)
    assert {"booktitle", "journal"} & set(entry)
    assert entry["bibtex"].count("{") == entry["bibtex"].count("}")
    assert entry["year"] in key


@pytest.mark.parametrize("name", METHODS.names())
def test_a_method_agrees_with_its_paper(name: str) -> None:
    attributes = METHODS.find(name).attributes
    assert attributes["adapts_layers"] and attributes["losses"] and attributes["extra_memory"]
    if key := METHODS.citation(name):
        assert attributes["year"] == int(references()[key]["year"])
        held = references()[key].get("booktitle") or references()[key]["journal"]
        assert all(word in held for word in attributes["venue"].split())
        if found := re.search(r"abs/(\S+)", attributes["paper"]):
            assert f"arXiv:{found[1]}" in held or "arXiv" not in held
    else:
        assert "paper" not in attributes


@pytest.mark.parametrize("name", BENCHMARKS.names())
def test_the_year_of_a_benchmark_is_its_papers(name: str) -> None:
    key, year = BENCHMARKS.citation(name), BENCHMARKS.declared(name, "year", 0)
    assert year == (int(references()[key]["year"]) if key else 0)


def test_papers_of_one_two_and_more_authors() -> None:
    assert short_reference("lee2013pseudolabel") == "Lee, 2013"
    assert short_reference("lee2024cmf", "ICLR") == "Lee and Chang, ICLR 2024"
    assert short_reference("doebler2023rmt", "CVPR") == "Döbler et al., CVPR 2023"


def test_every_domain_of_the_embedded_benchmarks_has_a_display_name() -> None:
    for name in ("fashion_c", "fashion_rotation", "streets_acdc", "imagenet_c", "imagenet_3dcc"):
        benchmark = BENCHMARKS.get(name)()
        domains = [*benchmark.domain_names(), *benchmark.extra_domains()]
        shown = domain_display_names(name, domains)
        assert len(set(shown)) == len(domains)
        assert all(text[0].isupper() or text[0].isdigit() for text in shown), shown


def test_domains_without_a_display_name_and_domains_that_would_look_the_same() -> None:
    assert domain_display_names("of_a_plugin", ["day_one", "night"]) == ["day one", "night"]
    same = ["day_one", "day one"]
    assert domain_display_names("of_a_plugin", same) == same


def test_every_setting_has_a_display_name() -> None:
    names = [setting_display_name(name) for name in SETTINGS]
    assert len(set(names)) == len(names)
    assert not set(names) & set(SETTINGS)
    assert setting_display_name("of_a_plugin") == "of_a_plugin"
