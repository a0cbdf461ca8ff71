"""The built site opens from disk: start page, a method, the reference, and search with hits."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.browser import NEEDED, NEEDS_BROWSER, PATIENCE

if not NEEDED:
    pytest.importorskip("mkdocstrings")
pytestmark = [*NEEDS_BROWSER, pytest.mark.timeout(600)]
ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", folder],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stdout + built.stderr
    return folder


@pytest.fixture
def visit(browser, site):
    """Open a page from disk, offline; returns it and the list of what it complained about."""
    contexts = []

    def open_page(name):
        context = browser.new_context(offline=True, viewport={"width": 1200, "height": 900})
        contexts.append(context)
        context.set_default_timeout(PATIENCE)
        page, complaints = context.new_page(), []
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on(
            "request",
            lambda request: request.url.startswith("http") and complaints.append(request.url),
        )
        page.goto((site / name).as_uri(), timeout=PATIENCE)
        return page, complaints

    yield open_page
    for context in contexts:
        context.close()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("index.html", "Install"),
        ("methods/tent.html", "Hyper-parameters"),
        ("benchmarks/imagenet_c.html", "Licence and citation"),
        ("commands.html", "ctta-bench run"),
        ("reference/ctta_bench.html", "load_method"),
        ("notebook.html", "Reading results in Python"),
        ("notebooks/own_data.html", "Arrays in, accuracy out"),
        ("deploy.html", "A service"),
        ("about/changelog.html", "0.2.0"),
    ],
)
def test_a_page_opens_from_disk_without_a_request(visit, name, words):
    page, complaints = visit(name)
    assert page.locator("h1").count() == 1
    assert words in page.locator("article").inner_text()
    assert complaints == []


def test_every_equation_is_drawn_by_the_browser(visit):
    page, _ = visit("methods/paid.html")
    box = page.locator(".equation math").first.bounding_box()
    assert box["height"] > 20
    assert "$$" not in page.locator("article").inner_text()


def test_the_search_finds_pages_from_disk(visit):
    page, complaints = visit("index.html")
    page.locator("input.md-search__input").click()
    page.keyboard.type("stochastic restore")
    hits = page.locator(".md-search-result__item")
    hits.first.wait_for()
    assert any("glossary.html" in hit.get_attribute("href") for hit in hits.locator("a").all())
    assert complaints == []


def test_the_dark_colours_are_a_click_away(visit):
    page, _ = visit("index.html")
    assert page.locator("body").get_attribute("data-md-color-scheme") == "default"
    page.locator("label[title='Dark colours']").click()
    assert page.locator("body").get_attribute("data-md-color-scheme") == "slate"
