"""`ctta-bench list`: a table in a terminal, tab-separated fields in a pipe."""

import io
import json

import pytest
from rich.console import Console
from typer.testing import CliRunner

from ctta_bench.api.discover import Row, source_data
from ctta_bench.cli import app
from ctta_bench.cli.listing import PIPE, TERMINAL, rows_of
from ctta_bench.cli.terminal.console import list_table
from ctta_bench.method import Method
from ctta_bench.registry import METHODS

LISTS = sorted(TERMINAL)


@pytest.mark.parametrize("what", LISTS)
def test_a_pipe_gets_one_line_per_entry_with_all_of_every_field(what: str) -> None:
    head, *lines = CliRunner().invoke(app, ["list", what]).stdout.splitlines()
    assert tuple(head.split("\t")) == PIPE[what]
    rows = rows_of(what)
    assert [line.split("\t")[0] for line in lines] == [row["name"] for row in rows]
    assert {line.count("\t") for line in lines} == {len(PIPE[what]) - 1}
    assert all(
        " ".join(row["description"].split()) in line for row, line in zip(rows, lines, strict=True)
    )


@pytest.mark.parametrize("what", LISTS)
def test_a_terminal_of_80_columns_shows_a_list_whole(what: str) -> None:
    columns, out = TERMINAL[what], io.StringIO()
    rows = [[fill(row) for fill in columns.values()] for row in rows_of(what)]
    Console(file=out, width=80).print(list_table(list(columns), rows))
    lines = out.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    assert "…" not in out.getvalue()
    assert [row[0] for row in rows if not any(line.startswith(row[0]) for line in lines)] == []


@pytest.mark.parametrize("name", METHODS.names())
def test_what_a_list_says_of_a_method_is_what_its_class_has(name: str) -> None:
    kind, attributes = METHODS.get(name), METHODS.find(name).attributes
    for key in ("tasks", "source_access", "warmup_access", "needs_batch_norm", "year", "venue"):
        assert attributes.get(key, getattr(Method, key)) == getattr(kind, key), key


def test_what_needs_an_extra_is_marked() -> None:
    found = {
        row["name"]: row for what in ("methods", "benchmarks", "models") for row in rows_of(what)
    }
    marked = {name for name, row in found.items() if row["extra"] == "seg"}
    assert {
        "svdp",
        "streets_acdc",
        "cityscapes_acdc",
        "segformer_b5",
        "streets_segformer",
    } <= marked
    assert not {"tent", "fashion_c", "fashion_vit"} & marked
    shown = TERMINAL["benchmarks"]["benchmark"](found["cityscapes_acdc"])
    assert shown == "Cityscapes → ACDC (Sakaridis et al., 2021) [seg]"


@pytest.mark.parametrize(
    ("access", "words"),
    [
        ({}, "none"),
        ({"source_access": "unlabelled"}, "unlabelled"),
        ({"warmup_access": "labelled"}, "labelled with warm-up"),
        (
            {"source_access": "unlabelled", "warmup_access": "labelled"},
            "unlabelled, labelled with warm-up",
        ),
        ({"source_access": "labelled", "warmup_access": "unlabelled"}, "labelled"),
    ],
)
def test_source_data_in_words(access: Row, words: str) -> None:
    assert source_data(access) == words


def test_json_has_task_source_data_and_reference_of_a_method() -> None:
    rows = json.loads(CliRunner().invoke(app, ["list", "methods", "--format", "json"]).stdout)
    cotta = next(row for row in rows if row["name"] == "cotta")
    assert (cotta["display_name"], cotta["reference"]) == ("CoTTA", "Wang et al., CVPR 2022")
    assert (cotta["task"], cotta["source_data"]) == ("both", "none")
    assert cotta["tasks"] == ["classification", "segmentation"]
    norm = next(row for row in rows if row["name"] == "norm")
    assert norm["needs_batch_norm"] == "yes"
