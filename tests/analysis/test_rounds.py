"""The curves over rounds, and the rings of rounds in which a method reset itself."""

import csv
import json
from pathlib import Path

from ctta_bench.analysis.figures.rounds import round_figure
from ctta_bench.analysis.read.collect import load


def with_resets(folder: Path, batches: tuple[int, ...]) -> None:
    """Write into batches.jsonl that the method reset itself in these batches."""
    file = folder / "batches.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    changed = [line | {"resets": int(line["batch"] in batches)} for line in lines]
    file.write_text("".join(json.dumps(line) + "\n" for line in changed))


def test_resets_are_counted_per_round_and_marked(write, tmp_path: Path) -> None:
    rates = [{"fog": 0.1 * (k + 1), "snow": 0.2} for k in range(3)]
    write(tmp_path, "source", rates, n=20)
    for seed, reset in ((0, (2, 5)), (1, (5,))):  # two domains of one batch: batch 2 is round 2
        with_resets(write(tmp_path, "rdumb", rates, n=20, batch_size=20, seed=seed), reset)
    made = round_figure(load(tmp_path), tmp_path / "rounds")

    with made[-1].open(newline="") as file:
        table = list(csv.DictReader(file))
    found = {(row["method"], row["round"]): float(row["resets"]) for row in table}
    assert [found["rdumb", str(k)] for k in (1, 2, 3)] == [0, 0.5, 1]
    assert [found["source", str(k)] for k in (1, 2, 3)] == [0, 0, 0]
    caption = (tmp_path / "rounds.txt").read_text()
    assert "A ring marks a round in which the method reset itself." in caption


def test_without_resets_nothing_is_said_of_them(write, tmp_path: Path) -> None:
    write(tmp_path, "source", [{"fog": 0.1, "snow": 0.2}] * 3, n=20)
    round_figure(load(tmp_path), tmp_path / "rounds")
    assert "ring" not in (tmp_path / "rounds.txt").read_text()
