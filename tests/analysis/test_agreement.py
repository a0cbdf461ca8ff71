"""Verdicts on runs next to the paper: within the interval or not, and what differs."""

import functools
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
import yaml
from typer.testing import CliRunner

from ctta_bench.analysis.paper.agreement import verdicts_of
from ctta_bench.analysis.paper.as_paper import as_paper
from ctta_bench.analysis.paper.as_run import as_run
from ctta_bench.analysis.paper.printed import reference
from ctta_bench.analysis.paper.shape import domains_of
from ctta_bench.analysis.read.collect import load
from ctta_bench.cli import app
from ctta_bench.config.experiment import expand_checked, load_experiment
from ctta_bench.source_models.shared import Models

pytestmark = pytest.mark.usefixtures("undrawn")


def printed_rates(method: str, shift: float = 0.0) -> dict[str, float]:
    """The printed errors of ImageNet-C by domain in [0, 1], plus a shift."""
    results = reference()
    own = results[(results["table"] == "imagenet") & (results["method"] == method)]
    values = own[own["metric"] == "error"].set_index("domain")["value"]
    return {name: values[name] / 100 + shift for name in domains_of("imagenet_c")}


@pytest.fixture
def paper_cell(cell: Callable[..., Path]) -> Callable[..., None]:
    """A cell of ImageNet-C with the published protocol, but for what is given."""

    def write(method: str, shift: float = 0.0, **given: object) -> None:
        known = as_run("imagenet_c", method)
        assert known is not None
        values = {k: v for k, v in known.values.items() if not k.startswith("warmup_")}
        options = {"preset": "paper", "hyperparameters": values, "batch_size": known.batch_size}
        options |= {"regime": "lineage", "n": 500} | given
        folder = cell(method, printed_rates(method, shift), shuffle_errors=True, **options)
        file = folder / "cell.yaml"
        content = yaml.safe_load(file.read_text())
        content["benchmark"] |= {"name": "imagenet_c", "examples": None}
        file.write_text(yaml.safe_dump(content, sort_keys=False))

    return write


def test_what_agrees_is_within_and_what_differs_has_its_reasons(
    paper_cell: Callable[..., None], runs_dir: Path
) -> None:
    paper_cell("source")
    paper_cell("tent")
    paper_cell("paid", shift=0.1, batch_size=50)
    found = {one.label: one for one in verdicts_of(load(runs_dir))}
    assert list(found) == ["ImageNet-C, Source", "ImageNet-C, TENT", "ImageNet-C, PAID"]
    tent, paid = found["ImageNet-C, TENT"], found["ImageNet-C, PAID"]
    assert (tent.verdict, tent.reasons) == ("within", ())
    assert tent.difference == pytest.approx(0, abs=0.1)
    assert (paid.printed, paid.verdict) == (42.2, "outside")
    assert paid.difference == pytest.approx(10, abs=0.1)
    assert paid.reasons == ("warm-up: none", "batch size: 50, published 64")


def test_a_source_that_differs_is_a_reason_for_all(
    paper_cell: Callable[..., None], runs_dir: Path
) -> None:
    paper_cell("source", shift=-0.05, regime="true")
    paper_cell("tent", shift=-0.05, regime="true")
    source, tent = verdicts_of(load(runs_dir))
    assert source.reasons == ("normalisation: true, published lineage",)
    assert tent.reasons[0] == source.reasons[0]
    assert tent.reasons[-1] == "source model or images: Source is 50.8, printed 55.8"


def test_hyper_parameters_are_named_with_the_published_ones(
    paper_cell: Callable[..., None], runs_dir: Path
) -> None:
    paper_cell("source")
    paper_cell("tent", shift=0.2, hyperparameters={"lr": 0.01, "momentum": 0.9})
    _, tent = verdicts_of(load(runs_dir))
    assert tent.reasons == ("hyper-parameters: lr=0.01 (published: 0.0001)",)


@pytest.mark.parametrize("name", ["imagenet_c", "cifar10_c", "cifar100_c", "acdc"])
def test_a_row_of_the_main_experiments_differs_from_the_published_one_in_nothing(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ctta_bench.source_models.hub.cached", lambda network: None)
    monkeypatch.setenv("CTTA_BENCH_DATA", str(tmp_path))
    models = Models(several=True, planning=True)
    described = load_experiment(f"paper/main_{name}")
    cells, problems = expand_checked(described, models=models)
    assert cells and not problems
    for cell in cells:
        method, settings = cell.record["method"], cell.record["benchmark"]
        known = as_run(settings["name"], method["name"])
        assert known is not None
        assert known.differing(method["hyperparameters"]) == {}
        assert known.preprocessing == cell.record["preprocessing"]["regime"]
        assert method["name"] == "source" or known.batch_size == settings["batch_size"]


def test_the_report_ends_with_the_verdicts(paper_cell: Callable[..., None], runs_dir: Path) -> None:
    paper_cell("source")
    paper_cell("tent", shift=0.2)
    done = CliRunner().invoke(app, ["report", str(runs_dir), "--against", "paper"])
    assert done.exit_code == 0, done.output
    assert "1 of 2 rows agree with the paper." in done.output
    page = (runs_dir / "report" / "index.html").read_text("utf-8")
    assert page.count("Agreement with the paper") >= 2
    rows = pd.read_csv(runs_dir / "report" / "tables" / "agreement.csv")
    assert rows["verdict"].tolist() == ["within", "outside"]


def test_the_command_writes_the_tables_of_the_paper_from_runs_and_both(
    paper_cell: Callable[..., None], runs_dir: Path, tmp_path: Path
) -> None:
    paper_cell("source")
    paper_cell("tent", env={"corruptions": "self-made images"})
    ask = functools.partial(CliRunner().invoke, app)
    done = ask(["report", str(runs_dir), "--as", "paper", "--against", "paper"])
    assert done.exit_code == 0, done.output
    folder = runs_dir / "as-paper"
    assert {file.stem for file in folder.glob("*.md")} == {"tables", "table-01", "table-09"}
    text = (folder / "table-09.md").read_text("utf-8")
    assert "| TENT, paper | 52.2 |" in text
    assert "| difference | 0.0 |" in text
    assert "Without a finished run: Pseudo, CoTTA" in text
    assert "- Self-made images." in text
    again = load(runs_dir)
    assert again.left_out == []  # the folder is no run
    (tmp_path / "empty").mkdir()
    refused = ask(["report", str(tmp_path / "empty"), "--as", "paper"])
    assert refused.exit_code == 2
    assert "no run fills a table or figure of the paper" in refused.stderr


def test_a_sweep_is_a_line_of_figure_6_with_the_paper_s_star(
    paper_cell: Callable[..., None], runs_dir: Path
) -> None:
    known = as_run("imagenet_c", "paid")
    assert known is not None
    values = {key: value for key, value in known.values.items() if not key.startswith("warmup_")}
    for rank, shift in ((2, 0.02), (12, 0.0), (14, 0.01)):
        paper_cell("paid", shift=shift, hyperparameters=values | {"rank": rank})
    made = as_paper(runs_dir, with_paper=True)
    assert [file.name for file in made.figures if file.suffix == ".png"] == ["figure-6.png"]
    drawn = pd.read_csv(runs_dir / "as-paper" / "figure-6.csv")
    own = drawn[(drawn["of"] == "runs") & (drawn["panel"] == "rank")]
    assert own["value"].tolist() == [2, 12, 14]
    assert own["mean"].tolist() == pytest.approx([44.2, 42.2, 43.2], abs=0.1)
    assert (own["half_interval"] > 0).all()
    stars = drawn[(drawn["of"] == "paper") & (drawn["panel"] == "rank")]
    assert stars["value"].tolist() == [12, 12, 12]


@pytest.mark.parametrize(
    "words",
    [["--as", "print"], ["--as", "paper", "--paper"], ["--as", "paper", "--against", "paper"]],
)
def test_what_as_paper_does_not_take_is_refused(words: list[str]) -> None:
    done = CliRunner().invoke(app, ["report", *words])
    assert done.exit_code == 2
    assert done.stderr.startswith("error: report --as")
