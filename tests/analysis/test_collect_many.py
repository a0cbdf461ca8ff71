"""What reading a run folder costs, counted in operations, and reading many in several processes."""

import builtins
import io
import shutil
import sys

import pandas as pd
import pytest
import yaml

from ctta_bench.analysis.read import collect
from ctta_bench.analysis.read.cells import read_folder
from ctta_bench.analysis.read.collect import load

DOMAINS = {f"domain_{number:02d}": 0.01 * number for number in range(15)}
CALLS = 1200  # of functions, for a cell of fifteen domains


@pytest.fixture
def copies(cell, runs_dir):
    """Cells that differ in their seed alone, copied from a first one."""
    first = cell("tent", DOMAINS, n=10, batch_size=10)

    def make(count):
        content = yaml.safe_load((first / "cell.yaml").read_text())
        result = (first / "result.json").read_text()
        for seed in range(1, count):
            name = f"tent-mini_c-seed{seed}-{seed:08x}"
            shutil.copytree(first, first.parent / name)
            folder = first.parent / name
            text = yaml.safe_dump(content | {"id": name, "seed": seed}, sort_keys=False)
            (folder / "cell.yaml").write_text(text)
            (folder / "result.json").write_text(result.replace(first.name, name))
        return runs_dir

    return make


def calls(work):
    """How many functions are called, in Python and in C."""
    count = 0

    def note(frame, event, argument):
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


def test_a_finished_cell_is_read_from_four_files_each_opened_once(copies, monkeypatch):
    directory, opened = copies(3), []
    real = io.open

    def noting(file, *arguments, **options):
        opened.append(str(file))
        return real(file, *arguments, **options)

    monkeypatch.setattr(io, "open", noting)
    monkeypatch.setattr(builtins, "open", noting)
    load(directory)
    inside = [name for name in opened if name.startswith(str(directory))]
    assert len(inside) == len(set(inside)) == 3 * 4


def test_a_cell_costs_the_same_however_many_there_are(copies):
    directory = copies(30)
    folders = sorted((directory / "trial").iterdir())
    for folder in folders:  # what is remembered from cell to cell is there
        read_folder(folder)
    few = calls(lambda: [read_folder(folder) for folder in folders[:10]])
    many = calls(lambda: [read_folder(folder) for folder in folders])
    assert many == pytest.approx(3 * few, rel=0.02)
    assert few / 10 < CALLS


def test_several_processes_read_what_one_reads(copies, monkeypatch):
    directory = copies(4)
    (directory / "trial" / "tent-mini_c-seed1-00000001" / "result.json").write_text("{")
    monkeypatch.setattr(collect, "_FEWEST", 2)
    one, two = load(directory), load(directory, workers=2)
    pd.testing.assert_frame_equal(one.cells, two.cells)
    pd.testing.assert_frame_equal(one.results, two.results)
    pd.testing.assert_frame_equal(one.domains, two.domains)
    assert one.left_out == two.left_out
    assert len(one.left_out) == 1


def test_a_plug_in_that_scores_nothing_is_no_matter_of_the_readers(copies, tmp_path, monkeypatch):
    (tmp_path / "gone_idea.py").write_text("")
    monkeypatch.setattr(collect, "loaded_plugins", lambda: {"gone_idea.py": collect})
    monkeypatch.setattr(collect, "_FEWEST", 2)

    directory = copies(4)

    assert len(load(directory, workers=2).cells) == len(load(directory).cells) == 4
