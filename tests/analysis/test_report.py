import base64
import json
import re

import numpy as np
import pandas as pd
import pytest

from ctta_bench.analysis.figures.means import mean_figure
from ctta_bench.analysis.figures.stream import stream_figure
from ctta_bench.analysis.read.collect import RESULT_COLUMNS, batches, load
from ctta_bench.analysis.report.write import write_report
from ctta_bench.errors import RunError

SOURCE = {"gaussian_noise": 0.6, "fog": 0.4}
RATES = {"gaussian_noise": 0.4, "fog": 0.2}


def make_report(write, runs_dir):
    for seed in (0, 1):
        write(runs_dir, "source", SOURCE, seed=seed)
        write(runs_dir, "tent", RATES, seed=seed, hyperparameters={"lr": 0.001})
    write(runs_dir, "<b>", RATES, unfinished=True)
    (runs_dir / "trial" / "junk").mkdir()
    return write_report(runs_dir)


@pytest.fixture(scope="module")
def report(write, tmp_path_factory):
    """A report that no test changes."""
    return make_report(write, tmp_path_factory.mktemp("runs"))


@pytest.fixture
def own_report(cell, runs_dir):
    """A report without figures, which are slow to draw."""
    cell("tent", RATES, unfinished=True)
    return write_report(runs_dir)


def test_a_report_holds_page_tables_figures_and_results(report):
    assert report.page.parts[-2:] == ("report", "index.html")
    assert {path.suffix for path in report.table_files} == {".md", ".tex", ".csv", ".bib"}
    assert {path.suffix for path in report.figure_files} == {".png", ".pdf", ".svg", ".csv", ".txt"}
    kinds = ["calibration", "cost", "domain", "leaderboard", "protocols", "seeds", "significance"]
    stems = {path.stem.rpartition("-")[2] for path in report.table_files}
    stems -= {"references", "appendix"}
    assert sorted(stems - {report.tables[0].name.rpartition("-")[2]}) == kinds
    assert len(report.table_files) == 8 * 4 + 1
    assert len(report.figure_files) == 2 * 5
    assert list(pd.read_csv(report.results).columns) == RESULT_COLUMNS
    assert [table.frame.loc["tent", "gain"] for table in report.tables] == [20]
    assert [folder.name for folder, _ in report.left_out] == ["junk"]


def test_the_page_needs_nothing_from_outside(report):
    page = report.page.read_text()
    assert not re.search(r"""(src|url\()\s*=?\s*["']?(https?:)?//""", page)
    assert not re.search(r"<script[^>]*src", page)
    assert "<link" not in page
    assert re.findall(r'src="([^,]*),', page) == ["data:image/png;base64"] * 2
    links = re.findall(r'<a[^>]* href="(?!#)([^"]*)"', page)
    assert links and set(links) == {"https://arxiv.org/abs/2006.10726"}  # of a paper, to be clicked
    assert "prefers-color-scheme" in page


def test_the_page_tells_results_states_settings_and_what_was_left_out(report):
    page = report.page.read_text()
    assert "TENT is better than Source by 20.0 points [" in page
    assert "4 done, 1 incomplete. 1 left out" in page
    assert "1 of 5 cells is missing (1 incomplete)." in page
    assert "lr=0.001" in page
    assert "torch 2.6.0" in page
    assert "<code>ctta-bench grid trial.yaml</code>" in page
    assert "<code>trial/junk</code>: not a run folder" in page


def test_references_are_those_of_the_methods_in_the_tables(report):
    (file,) = (path for path in report.table_files if path.suffix == ".bib")
    assert re.findall(r"@\w+\{(\w+),", file.read_text()) == ["wang2021tent"]


def test_titles_and_captions_have_no_hash_and_sections_of_one_title_a_number(cell, runs_dir):
    for sha in ("a" * 64, "b" * 64):
        cell("tent", RATES, sha=sha)
        cell("source", SOURCE, sha=sha)
    report = write_report(runs_dir)
    titles = re.findall(r"<h2 id=[^>]*><a[^>]*>(.*?)</a></h2>", report.page.read_text())
    title = "mini_c, Continual, severity 5 – mini_vit"
    assert titles[:2] == [f"{title} (protocol 1)", f"{title} (protocol 2)"]
    captions = re.findall(r'<p class="soft">(.*?)</p>', report.page.read_text(), re.DOTALL)
    assert [text for text in (*titles, *captions) if re.search(r"aaaaaaaa|bbbbbbbb", text)] == []
    assert not any("normalisation: true" in text.lower() for text in captions)


def test_names_are_escaped_on_the_page(report):
    page = report.page.read_text()
    assert "&lt;b&gt;" in page
    assert "<b> seed" not in page


def test_a_new_report_replaces_the_old_and_leaves_nothing_else(own_report, runs_dir):
    (runs_dir / "report" / "stale.txt").touch()
    write_report(runs_dir)
    assert not (runs_dir / "report" / "stale.txt").exists()
    assert sorted(path.name for path in runs_dir.iterdir()) == ["report", "trial"]


def test_the_same_runs_give_the_same_bytes(report):
    paths = [report.page, report.results, *report.table_files, *report.figure_files]
    before = [path.read_bytes() for path in paths]
    write_report(report.page.parents[1])
    assert [path.read_bytes() for path in paths] == before


def test_a_failed_report_leaves_the_old_one_and_no_draft(own_report, runs_dir, monkeypatch):
    before = own_report.page.read_bytes()
    monkeypatch.setattr("ctta_bench.analysis.report.write.render", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        write_report(runs_dir)
    assert own_report.page.read_bytes() == before
    assert sorted(path.name for path in runs_dir.iterdir()) == ["report", "trial"]


def test_a_folder_that_is_no_report_is_never_replaced(cell, runs_dir, tmp_path):
    cell("tent", RATES)
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.tex").touch()
    with pytest.raises(RunError, match="exists and is no report"):
        write_report(runs_dir, tmp_path / "thesis")
    assert (tmp_path / "thesis" / "chapter.tex").exists()


def test_a_report_can_be_written_elsewhere(cell, runs_dir, tmp_path):
    cell("tent", RATES)
    report = write_report(runs_dir, tmp_path / "new" / "place")
    assert report.page == tmp_path / "new" / "place" / "index.html"
    assert not (runs_dir / "report").exists()


def test_an_output_that_cannot_be_made_is_one_sentence(cell, runs_dir, tmp_path):
    cell("tent", RATES)
    (tmp_path / "file").touch()
    with pytest.raises(RunError, match="cannot be written"):
        write_report(runs_dir, tmp_path / "file" / "report")


def test_a_directory_without_cells_is_one_sentence(runs_dir, tmp_path):
    with pytest.raises(RunError, match="no cell to report on"):
        write_report(runs_dir)
    with pytest.raises(RunError, match="no such folder"):
        write_report(tmp_path / "nowhere")


def test_a_directory_of_unusable_cells_says_why(cell, runs_dir):
    (cell("tent", RATES) / "cell.yaml").write_text("")
    with pytest.raises(RunError, match=r"cell\.yaml is empty or cut"):
        write_report(runs_dir)


def test_a_report_of_unfinished_cells_alone_is_a_page_of_missing_cells(cell, runs_dir):
    cell("tent", RATES, unfinished=True)
    report = write_report(runs_dir)
    assert report.figure_files == []
    assert "No method has a complete result yet." in report.page.read_text()


def test_the_dots_are_stored_as_numbers_beside_the_picture(cell, runs_dir, tmp_path):
    cell("tent", {"fog": 0.2}, seed=0)
    cell("tent", {"fog": 0.4}, seed=1)
    png, pdf, csv = mean_figure(load(runs_dir), tmp_path / "dots")
    row = pd.read_csv(csv).iloc[0]
    assert (row["method"], row["mean"], row["seeds"]) == ("tent", 30, 2)
    assert row["std"] == pytest.approx(np.sqrt(200))
    assert png.read_bytes().startswith(b"\x89PNG")
    assert b"/Type /Font" in pdf.read_bytes()
    assert b"/Subtype /Type3" not in pdf.read_bytes()


def test_the_curve_is_the_mean_of_the_last_batches_within_the_domain(cell, runs_dir, tmp_path):
    folder = cell("tent", RATES, n=120, batch_size=10, shuffle_errors=True)  # 12 batches: window 2
    drawn = pd.read_csv(stream_figure(load(runs_dir), tmp_path / "stream")[2])
    errors = batches(folder)["errors"].tolist()
    assert drawn["images"].tolist() == list(range(10, 250, 10))
    assert drawn["error"].tolist() == [10 * count for count in errors]
    assert drawn["smoothed"].iloc[0] == 10 * errors[0]
    assert drawn["smoothed"].iloc[5] == pytest.approx(5 * (errors[4] + errors[5]))
    assert drawn["smoothed"].iloc[12] == 10 * errors[12]  # the first batch of the second domain


def test_seeds_of_a_curve_are_averaged(cell, runs_dir, tmp_path):
    cell("tent", {"fog": 0.2}, seed=0, n=20)
    cell("tent", {"fog": 0.4}, seed=1, n=20)
    drawn = pd.read_csv(stream_figure(load(runs_dir), tmp_path / "stream")[2])
    assert drawn["smoothed"].tolist() == [30]


def test_rounds_and_single_batch_domains_are_drawn(cell, runs_dir, tmp_path):
    cell("tent", [{"x": 0.5, "y": 0.2}] * 3, n=10)
    drawn = pd.read_csv(stream_figure(load(runs_dir), tmp_path / "stream")[2])
    assert drawn["smoothed"].tolist() == [50, 20] * 3
    assert drawn["round"].tolist() == [0, 0, 1, 1, 2, 2]


def test_many_domains_are_drawn_as_rounds(cell, runs_dir, tmp_path):
    cell("tent", [{"x": 0.5, "y": 0.2}] * 40, n=10)  # 80 domains
    drawn = pd.read_csv(stream_figure(load(runs_dir), tmp_path / "stream")[2])
    assert drawn["smoothed"].tolist() == [35] * 80


def test_a_reset_is_stored_with_the_curve(cell, runs_dir, tmp_path):
    folder = cell("sar", RATES)
    lines = (folder / "batches.jsonl").read_text().splitlines()
    lines[3] = lines[3].replace("}", ', "resets": 1}')
    (folder / "batches.jsonl").write_text("\n".join(lines) + "\n")
    drawn = pd.read_csv(stream_figure(load(runs_dir), tmp_path / "stream")[2])
    assert drawn["resets"].tolist() == [0, 0, 0, 1, 0, 0, 0, 0, 0, 0]


def test_a_cut_log_of_batches_costs_the_curve_but_no_number(cell, runs_dir, tmp_path):
    cell("source", SOURCE)
    (cell("tent", RATES) / "batches.jsonl").write_text('{"batch": 0, "rou')
    drawn = pd.read_csv(stream_figure(load(runs_dir), tmp_path / "stream")[2])
    assert set(drawn["method"]) == {"source"}
    assert write_report(runs_dir).tables[0].frame.loc["tent", "mean"] == 30


def test_the_page_shows_the_means_before_the_domains(report):
    (heads, *_) = re.findall(r"<thead>(.*?)</thead>", report.page.read_text())
    found = re.findall(r"<th[^>]*>(.*?)</th>", heads)
    assert found[:3] == ["rank", "method", "error %"] and found[-1] == "fog"


def test_the_page_has_date_and_commands_to_make_it_again(cell, runs_dir):
    cell("source", SOURCE, experiment="quickstart", env={"time": "2026-03-01T10:00:00Z"})
    cell("tent", RATES, experiment="quickstart", env={"time": "2026-03-02T09:00:00Z"})
    page = write_report(runs_dir, runs_dir.parent / "out").page.read_text()
    assert "<h1>Eight methods on the embedded scenes</h1>" in page
    assert "the newest of 2026-03-02" in page
    command = f"ctta-bench grid quickstart\nctta-bench report {runs_dir} --out"
    assert command in page


def test_the_page_has_every_table_in_three_formats_and_figures_as_vectors(report):
    page = report.page.read_text()
    held = re.findall(r'class="copies" data-name="([^"]*)">(.*?)</script>', page)
    files = {path.stem: path.read_text() for path in report.table_files if path.suffix == ".csv"}
    (main,) = (table.name for table in report.tables)
    assert {name: json.loads(text)["csv"] for name, text in held} == {
        name: text
        for name, text in files.items()
        if name != main  # the leaderboard has it
    }
    held = dict(re.findall(r'class="file" data-name="([^"]*)">(.*?)</script>', page))
    for path in report.figure_files:
        if path.suffix in (".pdf", ".svg"):
            assert base64.b64decode(held[path.name]) == path.read_bytes()
