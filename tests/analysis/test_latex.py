"""Every kind of table, compiled by a real LaTeX."""

import os
import re
import shutil
import subprocess

import pytest

from ctta_bench.analysis.paper.quoted import quoted_tables
from ctta_bench.analysis.read.collect import load
from ctta_bench.analysis.report.write import write_report
from ctta_bench.analysis.table.table import citation_keys
from ctta_bench.analysis.tables.main import main_table
from ctta_bench.registry import METHODS
from tests.analysis.street_cells import row, write_street_cell
from tests.analysis.test_kept_models import keep, network

NEEDED = bool(os.environ.get("CTTA_NEEDS_LATEX"))
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        shutil.which("pdflatex") is None and not NEEDED, reason="pdflatex is not installed"
    ),
]
APPENDIX = "-appendix"
FIVE = ("gaussian_noise", "fog", "snow", "frost", "contrast")
# Two columns of 3.25 inches, as at ICML; other conferences have the same or wider ones.
HEAD = (
    r"\documentclass[10pt,twocolumn]{article}"
    r"\usepackage[textwidth=6.75in,textheight=9in,columnsep=0.25in]{geometry}"
    r"\usepackage{array,booktabs,graphicx}\begin{document}"
)
# The paper's own tables, and the last words of the names of ours; a main table ends in its hash.
KINDS = {
    "calibration", "classes", "cost", "fog", "leaderboard", "orders", "paper", "pairs",
    "protocols", "ranks", "rounds", "seeds", "severities", "significance", "stability", "night",
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
    quoted = {table.name: table.to_latex() for table in quoted_tables()}
    return {name: text for name, text in (ours | quoted).items() if not name.endswith(APPENDIX)}


def test_all_kinds_are_there(tables):
    last = {name.rpartition("-")[2] for name in tables}
    assert last >= KINDS
    assert any(name.startswith("geometry") for name in tables)


def test_every_table_compiles_in_two_columns_and_nothing_is_wider_or_longer(tables, tmp_path):
    body = "\n".join(f"x {text}\n\\clearpage" for text in tables.values())
    (tmp_path / "all.tex").write_text(f"{HEAD}\n{body}\n\\end{{document}}\n")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "all.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, errors="replace")
    assert done.returncode == 0, done.stdout[-1500:]
    wide = re.findall(r"Overfull \\hbox \((\d+)\.\d+pt", done.stdout)
    assert [points for points in wide if int(points) > 1] == []
    assert "multiply defined" not in done.stdout
    assert "Float too large" not in done.stdout


def test_no_text_is_smaller_than_seven_points_and_nothing_is_scaled(tables):
    for text in tables.values():
        assert "resizebox" not in text and "scalebox" not in text and r"\tiny" not in text
        assert {int(size) for size in re.findall(r"fontsize\{(\d+)\}", text)} <= {7, 8}


def test_fifteen_domains_of_thirty_cited_methods_are_one_table(write, tmp_path):
    domains = [f"domain_{number}" for number in range(15)]
    names = [name for name in METHODS.names() if METHODS.citation(name)][:29]
    for place, name in enumerate(["source", *names]):
        write(tmp_path, name, dict.fromkeys(domains, 0.01 * place + 0.3), n=100)
    table = main_table(load(tmp_path))
    text = table.to_latex(citation_keys(names))
    assert text.count(r"\begin{table*}") == text.count(r"\begin{tabular}") == 1
    (tmp_path / "one.tex").write_text(
        f"{HEAD.replace('graphicx', 'graphicx,natbib')}\n"
        r"\renewcommand{\citep}[1]{(Wang et al., 2021)}"
        f"\n{text}\n\\end{{document}}\n"
    )
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "one.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, errors="replace")
    assert done.returncode == 0 and "Overfull" not in done.stdout, done.stdout[-1500:]


def test_none_has_a_letter_that_a_plain_latex_lacks(tables):
    assert [name for name, text in tables.items() if not text.isascii()] == []
