"""The pages of docs/results print what their stored tables say."""

import re
from pathlib import Path

import pandas as pd
import pytest

RESULTS = Path(__file__).parents[1] / "docs" / "results"
MARKED = re.compile(r"<!-- table: (\S+\.csv) -->\n\n?(.*?)\n<!-- /table -->", re.DOTALL)


def printed_tables():
    return [
        pytest.param(page, file, text, id=f"{page.stem}-{Path(file).stem}")
        for page in sorted(RESULTS.glob("*.md"))
        for file, text in MARKED.findall(page.read_text("utf-8"))
    ]


def cells(text):
    """Rows of a Markdown table below its head: label, then entries without marks."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    split = [[part.strip() for part in line.strip("|").split("|")] for line in lines]
    plain = [[re.sub(r"\*\*|</?u>|†", "", part) for part in row] for row in split]
    return plain[0], plain[2:]


@pytest.mark.parametrize(("page", "file", "text"), printed_tables())
def test_a_printed_table_shows_its_stored_means(page, file, text):
    stored = pd.read_csv(RESULTS / file, index_col=0)
    head, rows = cells(text)
    column = next(name for name in ("mean", "time") if name in head)
    printed = {row[0]: row[head.index(column)].split(" ")[0] for row in rows}
    digits = {"mean": 1, "time": 2}[column]
    assert printed == {label: f"{value:.{digits}f}" for label, value in stored[column].items()}


def test_there_are_tables_to_hold():
    assert printed_tables()
