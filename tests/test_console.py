"""Tables of a report in a terminal: what fits stays readable."""

import io

import pytest
from rich.console import Console

from ctta_bench.analysis.table.table import Entry
from ctta_bench.cli.console import comparison_table

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
