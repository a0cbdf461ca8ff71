"""The page of a report in a real browser: what a reader can do there."""

import pandas as pd
import pytest

from ctta_bench.analysis.report.write import write_report
from tests.browser import NEEDS_BROWSER, PATIENCE

pytestmark = NEEDS_BROWSER
WIDE, PHONE = {"width": 1200, "height": 900}, {"width": 360, "height": 740}


@pytest.fixture(scope="module")
def report(write, tmp_path_factory):
    runs = tmp_path_factory.mktemp("runs")
    for seed in (0, 1):
        write(runs, "source", {"gaussian_noise": 0.6, "fog": 0.4}, seed=seed)
        write(runs, "tent", {"gaussian_noise": 0.4, "fog": 0.2}, seed=seed)
        write(runs, "cotta", {"gaussian_noise": 0.1, "fog": 0.1}, seed=seed)
        folder = write(runs, "sar", {"gaussian_noise": 0.5, "fog": 0.3}, seed=seed)
        lines = (folder / "batches.jsonl").read_text().splitlines()
        lines[-1] = lines[-1].replace("}", ', "resets": 1}')
        (folder / "batches.jsonl").write_text("\n".join(lines) + "\n")
    write(runs, "</script><b>", {"gaussian_noise": 0.5, "fog": 0.3}, unfinished=True)
    return write_report(runs)


@pytest.fixture
def visit(browser, report):
    """Open the page offline; returns it and the list of what it complained about."""
    contexts = []

    def open_page(**options):
        context = browser.new_context(offline=True, viewport=WIDE, **options)
        contexts.append(context)
        context.set_default_timeout(PATIENCE)
        page, complaints = context.new_page(), []
        page.on("console", lambda said: complaints.append(said.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: complaints.append(request.url))
        page.goto(report.page.as_uri(), timeout=PATIENCE)
        return page, [said for said in complaints if not said.startswith(("file:", "data:"))]

    yield open_page
    for context in contexts:
        context.close()


def methods(page):
    """Row labels of the main table that are shown, from the top."""
    return page.locator(MAIN).locator("tbody tr:visible th").all_inner_texts()


MAIN = "table.sortable[aria-label^=mini_c-continual] >> nth=0"


def test_the_page_loads_offline_without_a_complaint(visit):
    page, complaints = visit()
    assert complaints == []
    assert page.locator("canvas").count() == 1
    assert page.locator("h1").count() == 1


def test_a_click_on_a_head_sorts_and_a_second_one_turns_it_round(visit):
    page, _ = visit()
    head = page.locator(MAIN).get_by_role("button", name="mean", exact=True)
    head.click()
    assert methods(page) == ["CoTTA", "TENT", "SAR", "Source", "</script><b>"]
    head.click()  # what has no result stays at the end
    assert methods(page) == ["Source", "SAR", "TENT", "CoTTA", "</script><b>"]
    sorted_by = page.locator(MAIN).locator("th[aria-sort]")
    assert sorted_by.get_attribute("aria-sort") == "descending"


def test_the_keyboard_sorts_too(visit):
    page, _ = visit()
    page.locator(MAIN).get_by_role("button", name="method", exact=True).focus()
    page.keyboard.press("Enter")
    assert methods(page) == ["</script><b>", "CoTTA", "SAR", "Source", "TENT"]


def test_a_filter_leaves_the_rows_that_hold_its_words(visit):
    page, _ = visit()
    box = page.locator("input[type=search]").nth(0)
    box.fill("TENT")
    shown = page.locator("label.filter").nth(0).locator("[role=status]")
    assert shown.inner_text().startswith("1 of ")
    box.fill("")
    assert shown.inner_text() == ""


def test_curves_are_told_in_words_by_arrow_keys(visit, report):
    (numbers,) = (path for path in report.figure_files if path.name.endswith("stream.csv"))
    drawn = pd.read_csv(numbers)
    last = drawn[drawn["method"] == "cotta"]["smoothed"].iloc[-1]
    page, _ = visit()
    told = page.locator(".curves output")
    page.locator(".uplot").focus()
    page.keyboard.press("End")
    page.wait_for_function("document.querySelector('.curves output').textContent.includes('fog')")
    assert told.inner_text().startswith("200 images, fog: ")
    assert f"CoTTA {last:.1f}" in told.inner_text()
    assert "(reset)" in told.inner_text().partition("SAR")[2]
    assert page.locator("canvas").get_attribute("aria-label").startswith("error in % (each batch)")
    page.keyboard.press("Home")
    page.wait_for_function(
        "document.querySelector('.curves output').textContent.includes('gaussian')"
    )


def test_a_method_can_be_taken_off_the_curves(visit):
    page, _ = visit()
    page.get_by_role("checkbox", name="CoTTA").uncheck()
    page.locator(".uplot").focus()
    page.keyboard.press("End")
    page.wait_for_function("document.querySelector('.curves output').textContent.includes('fog')")
    assert "CoTTA" not in page.locator(".curves output").inner_text()


def test_a_link_to_a_cell_opens_its_configuration(visit):
    page, _ = visit()
    page.locator("summary", has_text="All 9 cells").click()
    page.locator("td a[href^='#tent']").nth(0).click()
    shown = page.locator("details[id^='tent'][open] pre").nth(0)
    assert "schema_version: 1" in shown.inner_text()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_from_its_ground(visit, scheme):
    page, complaints = visit(color_scheme=scheme)
    ink, paper = page.evaluate(
        "() => { const s = getComputedStyle(document.body); return [s.color, s.backgroundColor]; }"
    )
    brightness = [sum(map(int, colour.strip("rgb()").split(","))) for colour in (ink, paper)]
    assert abs(brightness[0] - brightness[1]) > 500
    assert (brightness[0] > brightness[1]) == (scheme == "dark")
    assert complaints == []


def test_a_phone_scrolls_down_and_not_sideways(visit):
    page, _ = visit()
    page.set_viewport_size(PHONE)
    wide = page.evaluate("document.documentElement.scrollWidth - window.innerWidth")
    assert wide <= 0  # also before the chart is drawn anew
    page.wait_for_function(
        "document.querySelector('canvas').getBoundingClientRect().width <= window.innerWidth"
    )
