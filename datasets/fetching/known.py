"""The data sets that benchmarks use: downloaded, fetched by hand, embedded, or a user's own."""

from pathlib import Path
from typing import Any

from ctta_bench.datasets.fetching.origins import Origin, origins
from ctta_bench.registry import BENCHMARKS, canonical


def known_data(root: Path) -> list[dict[str, Any]]:
    """One row per data set: name, how to get it, whether it is under `root`, title, layout."""
    table = origins()
    rows = [
        {
            "name": name,
            "how": _how(origin),
            "there": _there(origin, root),
            "title": origin.title,
            "layout": origin.layout,
            "folders": origin.folders,
            "parts": [archive.part for archive in origin.archives],
        }
        for name, origin in table.items()
    ]
    for name, entry in BENCHMARKS.entries().items():
        if name not in table:
            how = "your own images" if name == "image_folder" else "in the package"
            there = "–" if name == "image_folder" else "yes"
            rows.append({"name": name, "how": how, "there": there, "title": entry.description})
    return rows


def embedded_or_own(name: str) -> str | None:
    """A sentence for a benchmark that needs no download, None for any other."""
    if canonical(name) in origins() or canonical(name) not in BENCHMARKS.entries():
        return None
    if canonical(name) == "image_folder":
        return "image_folder: reads your own images; give their folder with --data-root."
    return f"{canonical(name)}: is in the package; there is nothing to fetch."


def _how(origin: Origin) -> str:
    if origin.by_hand is not None:
        return "by hand"
    optional = [archive.part for archive in origin.archives if archive.optional]
    more = f" (+ {', '.join(optional)})" if optional else ""
    return f"download, {origin.bytes / 1e9:.1f} GB{more}"


def _there(origin: Origin, root: Path) -> str:
    if origin.by_hand is not None:
        roots = [root, *(root / folder for folder in origin.under)]
        is_there = any(all((place / name).exists() for name in origin.folders) for place in roots)
        return "yes" if is_there else "no"
    places = [root / a.into / name for a in origin.chosen(()) for name in a.provides]
    found = sum(place.exists() for place in places)
    return "yes" if found == len(places) else f"{found} of {len(places)} folders" if found else "no"
