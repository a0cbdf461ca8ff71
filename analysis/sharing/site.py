"""A leaderboard as static pages: one for each protocol, method and entry, with JSON and badges."""

import json
import shutil
import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape, quoteattr

import jinja2

from ctta_bench.analysis.sharing.leaderboard import ACCESS, Board, Entry, boards
from ctta_bench.analysis.table.table import MISSING, plus_minus, safe_name, signed
from ctta_bench.errors import RunError
from ctta_bench.record.schema import PAGE_FILE
from ctta_bench.registry import METHODS
from ctta_bench.scoring.metric import printed

_TEMPLATES = Path(__file__).parent / "templates"
DATA_FILE = "leaderboard.json"
DEPTH_TEXTS = {
    "recount": "every number was computed again from predictions",
    "replay": "parts of cells were run again, and gave the same predictions",
    "full": "all cells were run again, and gave the same predictions",
}


def write_site(bundles: Sequence[Path], out: Path) -> list[Board]:
    """Write the pages of a leaderboard of bundles to a folder; an older site there is replaced.

    Example: `write_site([Path("mine.zip"), Path("theirs.zip")], Path("site"))`

    Raises RunError as `boards` does, and if the folder has something else.
    """
    if out.exists() and any(out.iterdir()) and not (out / DATA_FILE).is_file():
        raise RunError(f"{out}: exists and is no leaderboard; give another folder, or remove it.")
    found = boards(bundles)
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".leaderboard-", dir=out.parent) as work:
        draft = Path(work) / "new"
        draft.mkdir()
        _write(found, bundles, draft)
        if out.exists():
            out.replace(Path(work) / "old")
        draft.replace(out)
    return found


def _write(found: Sequence[Board], bundles: Sequence[Path], out: Path) -> None:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"value": _value, "gain": _gain, "times": _times, "mean": _mean}
    environment.globals.update(
        {
            "access": ACCESS,
            "depths": DEPTH_TEXTS,
            "method_name": METHODS.display_name,
            "paper": lambda name: METHODS.declared(name, "paper", ""),
            "missing": MISSING,
        }
    )

    def page(name: str, template: str, data: Mapping[str, Any], **values: Any) -> None:
        file = out / f"{name}.html"
        file.parent.mkdir(exist_ok=True)
        top = "../" * name.count("/")
        text = environment.get_template(template).render(top=top, boards=found, **values)
        file.write_text(text, "utf-8")
        text = json.dumps(data, indent=1, default=str)
        file.with_suffix(".json").write_text(f"{text}\n", "utf-8")

    shutil.copy(_TEMPLATES / "site.css", out / "site.css")
    by_method: dict[str, list[tuple[Board, Entry]]] = defaultdict(list)
    for board in found:
        page(f"protocols/{board.key}", "protocol.html.j2", asdict(board), board=board)
        for entry in (*board.entries, *board.earlier):
            by_method[entry.method].append((board, entry))
            place = board.rank(entry)
            data = asdict(entry) | {"protocol": board.key, "facts": board.facts, "rank": place}
            page(
                f"entries/{entry.key}", "entry.html.j2", data, board=board, entry=entry, place=place
            )
            (out / "badges").mkdir(exist_ok=True)
            badge = _badge(board, entry, place)
            (out / "badges" / f"{entry.key}.svg").write_text(badge, "utf-8")
    for method, rows in sorted(by_method.items()):
        records = [asdict(entry) | {"protocol": board.key} for board, entry in rows]
        name = f"methods/{safe_name(method)}"
        page(
            name,
            "method.html.j2",
            {"rows": records},
            method=method,
            file=safe_name(method),
            rows=rows,
        )
    everything = {"protocols": [asdict(board) for board in found]}
    page(
        "index", f"{PAGE_FILE}.j2", everything, methods={m: safe_name(m) for m in sorted(by_method)}
    )
    (out / "index.json").rename(out / DATA_FILE)
    (out / "bundles").mkdir()
    names = {
        e.source.content_sha256: e.source.file for b in found for e in (*b.entries, *b.earlier)
    }
    for file, name in zip(bundles, names.values(), strict=True):
        shutil.copy(file, out / "bundles" / name)


# -- printed values


def _value(value: float | None) -> str:
    return MISSING if value is None else printed(value)


def _mean(entry: Entry) -> str:
    mean, half = entry.values["mean"], entry.values["half_interval"]
    if mean is None:
        return MISSING
    return printed(mean) + ("" if half is None else plus_minus(half))


def _gain(entry: Entry) -> str:
    gain, low, high = (entry.values[name] for name in ("gain", "low", "high"))
    if gain is None:
        return MISSING
    interval = "" if low is None or high is None else f" [{signed(low)}, {signed(high)}]"
    return signed(gain) + interval


def _times(value: float | None) -> str:
    return MISSING if value is None else printed(value, 0 if value >= 100 else 1)


def _badge(board: Board, entry: Entry, place: tuple[int, int] | None) -> str:
    """A small picture for a README: the mean, the rank, and how far it was verified."""
    mean = entry.values["mean"]
    parts = [MISSING if mean is None else f"{board.symbol} {printed(mean)} {board.unit}"]
    parts += [f"rank {place[0]} of {place[1]}"] if place else []
    left, right = f"ctta-bench: {entry.label}", f"{', '.join(parts)} ({entry.source.depth})"
    widths = [round(6.4 * len(text)) + 14 for text in (left, right)]
    total = sum(widths)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{total}" height="20" role="img" '
        f'aria-label={quoteattr(f"{left}: {right}")} font-size="11" fill="#fff" '
        'text-anchor="middle" font-family="Verdana, DejaVu Sans, sans-serif">'
        f'<rect width="{total}" height="20" rx="3" fill="#0b57a4"/>'
        f'<path d="M3 0h{widths[0] - 3}v20H3a3 3 0 0 1-3-3V3a3 3 0 0 1 3-3z" fill="#444"/>'
        f'<text x="{widths[0] / 2}" y="14" textLength="{widths[0] - 12}">{escape(left)}</text>'
        f'<text x="{widths[0] + widths[1] / 2}" y="14" textLength="{widths[1] - 12}">'
        f"{escape(right)}</text></svg>\n"
    )
