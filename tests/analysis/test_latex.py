"""Every kind of table, compiled by a real LaTeX."""

import os
import re
import shutil
import subprocess

import pytest

from ctta_bench.analysis.paper.quoted import quoted_tables
from ctta_bench.analysis.report.write import write_report
from tests.analysis.street_cells import row, write_street_cell
from tests.analysis.test_kept_models import keep, network

NEEDED = bool(os.environ.get("CTTA_NEEDS_LATEX"))
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        shutil.which("pdflatex") is None and not NEEDED, reason="pdflatex is not installed"
    ),
]
FIVE = ("gaussian_noise", "fog", "snow", "frost", "contrast")
HEAD = r"\documentclass{article}\usepackage{booktabs,graphicx}\begin{document}"
# The paper's own tables, and the last words of the names of ours; a main table ends in its hash.
KINDS = {
    "calibration", "classes", "cost", "fog", "orders", "paper", "pairs", "protocols", "ranks",
    "rounds", "seeds", "severities", "significance", "stability", "night",
}  # fmt: skip


@pytest.fixture(scope="module")
def tables(write, tmp_path_factory):
    """LaTeX of each table of a report that has all kinds, and of those that quote the paper."""
    runs = tmp_path_factory.mktemp("runs")
    rounds = [{name: 0.1 * place + 0.2 for place, name in enumerate(FIVE)}] * 2
    turned = [dict(reversed(part.items())) for part in rounds]
    for seed in (0, 1):
        keep(write(runs, "source", rounds, n=20, seed=seed), network(), "last")
        write(runs, "pseudo_label", rounds, n=20, seed=seed, collapsed=["fog"])
        write(runs, "tent", rounds, n=20, seed=seed, counters={"resets": 1, "skipped_updates": 2})
    keep(write(runs, "paid", rounds, n=20, hyperparameters={"a_b": "50%"}), network(1, 0.1), "last")
    write(runs, "paid", rounds, n=20, hyperparameters={"a_b": "~^\\ <|>&#$ {0} ±−≥×Δ†–"})
    write(runs, "sar", rounds, n=20, unfinished=True)
    write(runs, "tent", turned, n=20, experiment="orders")
    write(runs, "tent", rounds, n=20, severity=3, experiment="severities")
    right = (row(0, 0, 1, 1), row(0, 0, 1, 1))
    for method in ("source", "tent"):
        maps = {"fog": [right], "night": [right], "rain": [right], "snow": [right]}
        options = {"benchmark": "cityscapes_acdc", "experiment": "streets"}
        write_street_cell(runs, method, [maps] * 3, pictures=False, **options)
    (runs / "trial" / "junk").mkdir()
    report = write_report(runs, against="paper")
    ours = {path.stem: path.read_text() for path in report.table_files if path.suffix == ".tex"}
    return ours | {table.name: table.to_latex() for table in quoted_tables()}


def test_all_kinds_are_there(tables):
    last = {name.rpartition("-")[2] for name in tables}
    assert last >= KINDS
    assert any(name.startswith("geometry") for name in tables)


def test_every_table_compiles_and_fits_the_page(tables, tmp_path):
    body = "\n".join(f"{text}\n\\clearpage" for text in tables.values())
    (tmp_path / "all.tex").write_text(f"{HEAD}\n{body}\n\\end{{document}}\n")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "all.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, errors="replace")
    assert done.returncode == 0, done.stdout[-1500:]
    wide = re.findall(r"Overfull \\hbox \((\d+)\.\d+pt", done.stdout)
    assert [points for points in wide if int(points) > 10] == []
    assert "multiply defined" not in done.stdout
    pages = re.search(r"Output written on all\.pdf \((\d+) pages", done.stdout)
    assert int(pages[1]) == len(tables)  # one each: none is too long for its page


def test_none_has_a_letter_that_a_plain_latex_lacks(tables):
    assert [name for name, text in tables.items() if not text.isascii()] == []
