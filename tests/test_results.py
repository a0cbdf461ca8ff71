"""The pages of docs/results print what their stored tables say, and one command makes them."""

import importlib.util
import re
from pathlib import Path

import pandas as pd
import pytest

from ctta_bench.analysis.table.table import signed
from ctta_bench.analysis.tables.geometry import scientific
from ctta_bench.registry import METHODS
from ctta_bench.scoring.metric import printed

RESULTS = Path(__file__).parents[1] / "docs" / "results"
MARKED = re.compile(r"<!-- table: (\S+\.csv) -->\n\n?(.*?)\n<!-- /table -->", re.DOTALL)

# The column of a printed table that is compared with the stored one: its name there, its form here.
SHOWN = {
    "mean": ("mean", printed),
    "error %": ("mean", printed),
    "mIoU %": ("mean", printed),
    "best": ("best", "{:.2f}".format),
    "difference": ("difference", signed),
    "mixed, batch 10, 50 images": ("mixed, batch 10, 50 images", printed),
    "images/s": ("images_per_second", lambda v: f"{v:.1f}" if v >= 100 else f"{v:.2f}"),
    "time": ("time", "{:.2f}".format),
    "ΔS per pair": ("delta_s_per_pair", scientific),
    "PTTA": ("PTTA", printed),
    "Correlated": ("Correlated", printed),
    "Correlated, batch 50": ("Correlated, batch 50", printed),
    "memory / Source": ("memory_to_source", "{:.2f}".format),
    "FP": ("forward", "{:.2f}".format),
}


def printed_tables():
    return [
        pytest.param(page, file, text, id=f"{page.stem}-{Path(file).stem}")
        for page in sorted(RESULTS.glob("*.md"))
        for file, text in MARKED.findall(page.read_text("utf-8"))
    ]


def cells(text):
    """Rows of a Markdown table below its head: label, then entries without marks."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    split = [[part.strip() for part in line.strip("|").split("|")] for line in lines]
    plain = [[re.sub(r"\*\*|</?u>|†", "", part) for part in row] for row in split]
    return plain[0], plain[2:]


def label_of(text, names):
    """The stored label of a printed one: `tent lr=0.1` of `TENT (lr=0.1)`."""
    if text in names:
        return names[text]
    method, _, changed = text.removesuffix(" *").removesuffix(")").partition(" (")
    if changed == "warm-up only":
        return f"{names.get(method, method)} ({changed})"
    known = "=" in changed and method in names
    return f"{names[method]} {changed}" if known else text.removesuffix(" *")


@pytest.mark.parametrize(("page", "file", "text"), printed_tables())
def test_a_printed_table_shows_its_stored_means(page, file, text):
    stored = pd.read_csv(RESULTS / file, index_col=0)
    head, rows = cells(text)
    column = next(name for name in SHOWN if name in head)
    names = {METHODS.display_name(name): name for name in METHODS.names()}  # of labels
    labels = [label_of(row[0], names) for row in rows]
    found = {k: row[head.index(column)].split(" ")[0] for k, row in zip(labels, rows, strict=True)}
    key, shown = SHOWN[column]
    assert found == {label: shown(value) for label, value in stored[key].items()}


def test_there_are_tables_to_hold():
    assert printed_tables()


def load_script():
    path = Path(__file__).parents[1] / "scripts" / "results.py"
    spec = importlib.util.spec_from_file_location("results", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


SCRIPT = load_script()
INDEX = (RESULTS / "README.md").read_text("utf-8")


def test_every_table_and_figure_of_the_paper_with_numbers_has_its_counterpart():
    rows = [line for line in INDEX.splitlines() if line.startswith("| ")]
    named = " ".join(row.split("|")[1] for row in rows)
    tables = {int(number) for number in re.findall(r"\b\d+\b", re.sub(r"Figure \d+", "", named))}
    assert tables >= set(range(1, 13))
    assert {int(n) for n in re.findall(r"Figure (\d)", named)} == {1, 3, 4, 6, 7}


@pytest.mark.parametrize("page", sorted(RESULTS.glob("*.md")), ids=lambda page: page.stem)
def test_every_file_that_a_page_links_is_there(page):
    for link in re.findall(r"\]\(([^)#]+)", page.read_text("utf-8")):
        assert link.startswith("http") or (page.parent / link).exists(), link


def test_what_the_index_links_is_made_by_the_command():
    linked = {link for link in re.findall(r"\]\(([^)#]+)", INDEX) if link.endswith(("csv", "png"))}
    assert linked <= set(SCRIPT.FILES)
    assert all((RESULTS / file).is_file() for file in SCRIPT.FILES)


def _folder(search: str) -> str:
    """The folder of a call of `ctta-bench tune`: tune_BENCHMARK or tune_BENCHMARK_MODEL."""
    return SCRIPT.SEARCH + "_".join(re.findall(r" --(?:benchmark|model) (\S+)", search))


def test_every_experiment_of_a_file_is_run_by_its_page():
    for file, (name, *_) in SCRIPT.FILES.items():
        page = (RESULTS / f"{file.partition('/')[0]}.md").read_text("utf-8")
        lines = SCRIPT.commands(page)
        searches = {_folder(line) for line in lines if " tune " in line}
        made = name in searches or re.search(rf"(grid \S*\b|--out runs/){name}\b", " ".join(lines))
        assert made, name


def test_a_page_s_commands_are_whole_lines_without_comments():
    lines = ["A=1 ctta-bench grid x \\", "    --seeds 0   # long", "ls", "ctta-bench report runs/x"]
    text = "\n".join(["```sh", *lines, "```\n"])
    assert SCRIPT.commands(text) == ["A=1 ctta-bench grid x --seeds 0", "ctta-bench report runs/x"]


def test_a_marked_table_is_replaced_in_the_columns_that_it_has():
    old = "| method | mean |\n| --- | ---: |\n| old | 1 |"
    page = f"a\n<!-- table: p/x.csv -->\n\n{old}\n<!-- /table -->\nb\n"
    table = "Caption\n\n| method | fog | mean |\n| --- | ---: | ---: |\n| tent | 3 | **2** |\n"
    assert SCRIPT.reprinted(page, "p/x.csv", table) == page.replace(
        "| old | 1 |", "| tent | **2** |"
    )
    assert SCRIPT.reprinted(page, "p/y.csv", table) == page


def test_means_of_rounds_are_found_in_a_table_by_round_and_domain():
    page = "<!-- table: s/x.csv -->\n\n| method | round 1 | mean |\n<!-- /table -->\n"
    table = "| method | round 1 fog | round 1 mean | all rounds mean |\n| tent | 1 | 2 | 3 |\n"
    printed = "| method | round 1 | mean |\n| tent | 2 | 3 |"
    assert SCRIPT.reprinted(page, "s/x.csv", table).split("\n\n")[1].startswith(printed)


def test_a_file_is_taken_from_the_one_report_that_has_it(tmp_path, monkeypatch):
    monkeypatch.setattr(SCRIPT, "RESULTS", tmp_path / "docs")
    (tmp_path / "docs" / "p").mkdir(parents=True)
    (tmp_path / "docs" / "p.md").write_text("no table")
    for name, regime in (("a", "true"), ("b", "lineage")):
        (tmp_path / f"x-{name}.csv").write_text(name)
        (tmp_path / f"x-{name}.md").write_text(f"pre-processing {regime}")
    assert SCRIPT.take("p/x.csv", tmp_path, "x-?.csv", ["pre-processing lineage"]) == []
    assert (tmp_path / "docs" / "p" / "x.csv").read_text() == "b"
    (problem,) = SCRIPT.take("p/x.csv", tmp_path, "x-?.csv", [])
    assert problem.startswith("p/x.csv: 2 files match")


def test_the_table_of_the_demo_is_that_of_the_leaderboards(tmp_path):
    tables = tmp_path / "tables"
    tables.mkdir()
    head = "method,rank,mean,gain,low,high,p_holm\n"
    rows = {
        "scenes_vit": "paid,1,25.04,5.36,0.04,6.44,0.001\nsource,,30.4,,,,\n",
        "scenes_cnn": "source,,36.1,,,,\nsar,1,36.4,-0.3,-0.6,0.04,0.2\n",
    }
    for model, text in rows.items():
        (tables / f"x-{model}-0123abcd-leaderboard.csv").write_text(head + text)

    lines = SCRIPT.demo_table(tmp_path).splitlines()

    assert lines[0].startswith("| method | ViT: error % | gain | 95 % interval | CNN: error % |")
    assert lines[2:] == [
        "| PAID | 25.0 | +5.4 ↑ | [0.0, +6.4] | – | – | – |",
        "| Source | 30.4 | – | – | 36.1 | – | – |",
        "| SAR | – | – | – | 36.4 | −0.3 | [−0.6, 0.0] |",
    ]
