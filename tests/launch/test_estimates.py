"""Hours from earlier runs."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import yaml

from ctta_bench.launch.estimates import estimate
from tests.launch.conftest import RESULT, Make


def step(folder: Path, **benchmark: Any) -> Any:
    record = yaml.safe_load((folder / "cell.yaml").read_text())
    record["benchmark"] |= benchmark
    return SimpleNamespace(record=record)


def test_a_run_like_an_earlier_one_takes_as_long(make: Make, tmp_path: Path) -> None:
    done = make("tent-a", 10, result__json=RESULT)  # 80 images in 40 s
    found = estimate([step(done)] * 90, tmp_path / "trial")
    assert (found.hours, found.known, found.unknown) == (1.0, 90, 0)
    assert str(found) == "about 1.0 h on one worker, from earlier runs"


def test_other_lengths_are_estimated_by_the_image(make: Make, tmp_path: Path) -> None:
    done = make("tent-a", 10, result__json=RESULT)
    longer = step(done, examples=7200, domains=["clean"])
    assert estimate([longer], tmp_path / "elsewhere").hours == 1.0


def test_what_has_no_like_is_counted_and_not_guessed(make: Make, tmp_path: Path) -> None:
    done = make("tent-a", 10, result__json=RESULT)
    other = step(done)
    other.record["model"] = {"name": "another"}
    found = estimate([other, step(done)], tmp_path / "trial")
    assert (found.known, found.unknown) == (1, 1)
    assert "beside 1 without" in str(found)
    assert str(estimate([other], tmp_path / "trial")) == (
        "hours unknown: no earlier run like these"
    )


def test_damaged_results_tell_nothing(make: Make, tmp_path: Path) -> None:
    done = make("tent-a", 10, result__json=[1])
    assert estimate([step(done)], tmp_path / "trial").known == 0
