"""Tables and progress bars in a terminal: they fit and stay readable."""

import io
import re
from pathlib import Path

import pytest
from rich.console import Console

from ctta_bench.analysis.table.table import Entry
from ctta_bench.cli.command import State
from ctta_bench.cli.terminal.console import comparison_table
from ctta_bench.cli.terminal.progress import ConsoleProgress, shorten

HEADER = ("method", "fog", "snow", "mean", "gain")


def printed(methods: int, width: int) -> list[list[str]]:
    lines = [
        (f"method_{number}", tuple(Entry(f"{number}.{k}") for k in range(4)))
        for number in range(methods)
    ]
    out = io.StringIO()
    Console(file=out, width=width).print(comparison_table(HEADER, lines, "error %", width))
    rows = [line.strip("│┃").replace("┃", "│").split("│") for line in out.getvalue().splitlines()]
    return [[cell.strip() for cell in row] for row in rows if len(row) > 1]


def test_methods_that_fit_are_columns() -> None:
    rows = printed(3, width=80)
    assert rows[0] == ["error %", "method_0", "method_1", "method_2"]
    assert rows[1] == ["fog", "0.0", "1.0", "2.0"]


@pytest.mark.parametrize("methods", [7, 50])
def test_more_methods_than_fit_have_a_row_each_with_what_counts(methods: int) -> None:
    rows = printed(methods, width=80)
    assert rows[0] == ["error %", "mean", "gain"]
    assert rows[1:] == [[f"method_{n}", f"{n}.2", f"{n}.3"] for n in range(methods)]


# -- progress


def test_a_long_name_loses_its_middle() -> None:
    assert shorten("abcdefghij", 10) == "abcdefghij"
    assert shorten("abcdefghij", 7) == "abc…hij"
    assert shorten("abcdefghij", 6) == "abc…ij"


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("domain", ["fog", "elastic_transform"])
def test_a_bar_keeps_counts_and_time_left_on_one_line(
    width: int, domain: str, tmp_path: Path
) -> None:
    console = Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None)
    progress = ConsoleProgress(
        console, "a-long-method-imagenet_3dcc-a_model-seed0-1a2b3c4d", "3/10 "
    )
    progress.start(tmp_path, {"benchmark": {"task": "classification"}}, 0, 300)  # type: ignore[typeddict-item]
    progress.batch({"errors": 3, "n": 10, "domain": domain})
    screen = Console(file=io.StringIO(), width=width, color_system=None)
    screen.print(progress.bar.get_renderable())
    progress.finish(None)
    (line,) = screen.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert len(line) <= width
    assert f" 1/300 {domain}  error 30.0 %" in line and line.rstrip().endswith("-:--:--")
    assert re.search(r" 3/10 a\S*…\S*4d  ", line)


def test_the_bar_of_a_cell_that_fails_before_its_stream_is_removed() -> None:
    console = Console(file=io.StringIO(), force_terminal=True)
    progress = ConsoleProgress(console, "cell")
    progress.preparing("making images", 1, 2)
    assert progress.bar.live.is_started
    State.stop_bar()
    assert not progress.bar.live.is_started
