"""Colours, dashes and marks, the same in every figure."""

from typing import Any

SOURCE_COLOUR = "#555555"
# Okabe & Ito's palette without black and yellow, in an order of alternating lightness.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#56B4E9", "#CC79A7")
DASHES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (1.5, 1)), (0, (5, 1, 1, 1)))
MARKERS = "osD^vP*X"


def line_style(number: int, *, is_source: bool) -> dict[str, Any]:
    """Colour, dashes and marker of the line with this number; source is grey without a marker."""
    if is_source:
        return {"color": SOURCE_COLOUR, "ls": DASHES[0], "marker": ""}
    return {
        "color": COLOURS[number % len(COLOURS)],
        "ls": DASHES[number // len(COLOURS) % len(DASHES)],
        "marker": MARKERS[number % len(MARKERS)],
    }
