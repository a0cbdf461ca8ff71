"""Which data sets there are: fetched, got by hand, embedded, or a user's own."""

from pathlib import Path
from typing import Any

from ctta_bench.datasets.fetching.sources import Source, sources
from ctta_bench.registry import BENCHMARKS, canonical


def known_data(root: Path) -> list[dict[str, Any]]:
    """A row a data set: name, how one gets it, whether it is under `root`, title, layout."""
    table = sources()
    rows = [
        {
            "name": name,
            "how": _how(source),
            "there": _there(source, root),
            "title": source.title,
            "layout": source.layout,
            "folders": source.folders,
            "parts": [archive.part for archive in source.archives],
        }
        for name, source in table.items()
    ]
    for name, entry in BENCHMARKS.entries().items():
        if name not in table:
            how = "your own images" if name == "image_folder" else "in the package"
            there = "–" if name == "image_folder" else "yes"
            rows.append({"name": name, "how": how, "there": there, "title": entry.description})
    return rows


def embedded_or_own(name: str) -> str | None:
    """A sentence for a benchmark that needs no fetching, None for any other."""
    if canonical(name) in sources() or canonical(name) not in BENCHMARKS.entries():
        return None
    if canonical(name) == "image_folder":
        return "image_folder: reads your own images; give their folder with --data-root."
    return f"{canonical(name)}: is in the package; there is nothing to fetch."


def _how(source: Source) -> str:
    if source.by_hand is not None:
        return "by hand"
    optional = [archive.part for archive in source.archives if archive.optional]
    more = f" (+ {', '.join(optional)})" if optional else ""
    return f"download, {source.bytes / 1e9:.1f} GB{more}"


def _there(source: Source, root: Path) -> str:
    if source.by_hand is not None:
        roots = [root, *(root / folder for folder in source.under)]
        is_there = any(all((place / name).exists() for name in source.folders) for place in roots)
        return "yes" if is_there else "no"
    places = [root / a.into / name for a in source.chosen(()) for name in a.provides]
    found = sum(place.exists() for place in places)
    return "yes" if found == len(places) else f"{found} of {len(places)} folders" if found else "no"
