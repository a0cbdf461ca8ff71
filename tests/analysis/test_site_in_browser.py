"""The pages of a leaderboard in a real browser, from disk and on a phone."""

import shutil
from pathlib import Path

import pytest

from ctta_bench.analysis.sharing.bundle import draft_bundle
from ctta_bench.analysis.sharing.site import write_site
from ctta_bench.record.bundle import write_bundle
from tests.browser import NEEDS_BROWSER, PATIENCE

pytestmark = NEEDS_BROWSER
STORED = Path(__file__).parent / "stored" / "first"


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("leaderboard")
    draft = draft_bundle(Path(shutil.copytree(STORED, folder / "first")))
    write_bundle(folder / "runs.zip", draft.contents, draft.about)
    write_site([folder / "runs.zip"], folder / "site")
    return folder / "site"


@pytest.mark.parametrize("width", [390, 1280])
def test_no_page_is_wider_than_the_screen_or_asks_the_network(browser, site, width):
    context = browser.new_context(offline=True, viewport={"width": width, "height": 740})
    context.set_default_timeout(PATIENCE)
    page, complaints = context.new_page(), []
    page.on("console", lambda said: complaints.append(said.text))
    page.on("requestfailed", lambda request: complaints.append(request.url))
    for file in sorted(site.rglob("*.html")):
        page.goto(file.as_uri())
        assert page.evaluate("document.scrollingElement.scrollWidth") <= width, file
        assert page.locator("h1").is_visible()
    assert complaints == []
    page.goto((site / "index.html").as_uri())
    page.get_by_role("link", name="TENT").first.click()
    assert "entries" in page.url and page.locator("img[alt=badge]").is_visible()
    context.close()
