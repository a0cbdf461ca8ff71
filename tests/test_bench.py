"""What `scripts/bench.py` calls missed and lost; the measuring itself is in tests/measuring."""

import argparse
import importlib
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPTS = Path(__file__).parents[1] / "scripts"


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(SCRIPTS))
    yield importlib.import_module("costs.rows")
    for name in [n for n in sys.modules if n.partition(".")[0] in ("bench", "costs")]:
        del sys.modules[name]


def row(bench: Any, name: str, median: float, sign: str = "<=", bound: float = 1.2) -> Any:
    return bench.Row(name, [median - 0.1, median, median + 0.1], bench.Goal(sign, bound))


def test_a_goal_is_missed_on_its_own_side(bench: Any) -> None:
    assert not row(bench, "paid: step / TENT", 1.2).missed
    assert row(bench, "paid: step / TENT", 1.21).missed
    assert row(bench, "source: bare loop / engine", 0.9, ">=", 0.98).missed
    assert not row(bench, "source: bare loop / engine", 0.98, ">=", 0.98).missed


@pytest.mark.parametrize(
    ("name", "median", "sign", "before", "is_lost"),
    [
        ("paid: step / TENT", 1.14, "<=", 1.0, False),
        ("paid: step / TENT", 1.16, "<=", 1.0, True),
        ("source: bare loop / engine", 0.88, ">=", 1.0, False),
        ("source: bare loop / engine", 0.86, ">=", 1.0, True),
        ("rotta: teacher, restore / step", 0.008, "<=", 0.001, False),
        ("import ctta_bench [s]", 9.0, "<=", 0.1, False),
    ],
)
def test_what_is_lost_is_more_than_fifteen_percent_of_a_ratio(
    bench: Any, name: str, median: float, sign: str, before: float, is_lost: bool
) -> None:
    assert bench.lost(row(bench, name, median, sign), {name: before}) is is_lost
    assert not bench.lost(row(bench, name, median, sign), {})


def test_the_baseline_holds_ratios_of_this_benchmark(bench: Any) -> None:
    import json

    kept = json.loads(bench.BASELINE.read_text("utf-8"))
    assert "tent: step / bound" in kept
    assert not any(name.endswith("[s]") for name in kept)
    maps = {name: value for name, value in kept.items() if name.startswith("maps: ")}
    assert all(0 < value < 2 for name, value in kept.items() if name not in maps)
    assert maps and all(value in range(1, 7) for value in maps.values())


def test_each_command_has_options_with_defaults(bench: Any) -> None:
    for command in importlib.import_module("bench").COMMANDS:
        module = importlib.import_module(f"costs.{command}")
        parser = argparse.ArgumentParser()
        module.add_options(parser)
        assert vars(parser.parse_args([]))
        assert callable(module.run)


def test_the_parts_of_a_profile_are_called_by_the_engine(bench: Any) -> None:
    for owner, attribute, _ in importlib.import_module("costs.profile").SECTIONS:
        assert callable(getattr(owner, attribute)), attribute


def test_options_alone_are_those_of_the_first_command(
    bench: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    main = importlib.import_module("bench")
    ran: list[Any] = []
    monkeypatch.setattr(importlib.import_module("costs.steps"), "run", lambda o: ran.append(o) or 3)
    assert main.main(["--only", "paid"]) == 3
    assert ran[0].only == "paid"
    with pytest.raises(SystemExit) as ended:
        main.main(["nonsense"])
    assert (ended.value.code, "invalid choice: 'nonsense'" in capsys.readouterr().err) == (2, True)
