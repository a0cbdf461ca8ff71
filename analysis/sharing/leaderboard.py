"""Entries of a leaderboard: rows of bundles, apart by protocol, with what makes them credible."""

import hashlib
import json
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ctta_bench.analysis.read.collect import Runs, load
from ctta_bench.analysis.report.audit import audit
from ctta_bench.analysis.sharing.bundle import ABOUT
from ctta_bench.analysis.table import notes
from ctta_bench.analysis.table.rows import Row, metric_of, rows
from ctta_bench.analysis.table.table import safe_name
from ctta_bench.analysis.tables.leaderboard import is_method, leaderboard
from ctta_bench.errors import RunError
from ctta_bench.record.bundle import Bundle
from ctta_bench.record.read import read_bytes
from ctta_bench.record.schema import DEPTHS, ENVIRONMENT_FILE, VERIFIED

ACCESS = {"none": "no source data", "unlabelled": "source images", "labelled": "source labels"}
_COLUMNS = ("mean", "half_interval", "gain", "low", "high", "time", "memory")


@dataclass(frozen=True)
class Source:
    """The bundle of an entry. depth: how far it was verified; file: its name on the site."""

    content_sha256: str
    file: str
    depth: str
    about: Mapping[str, str]


@dataclass(frozen=True)
class Entry:
    """A row of a bundle: a method with its values, over its seeds.

    key: the name of its page. date: when its last cell began. values: mean, half_interval, gain,
    low, high in the unit of the metric; time and memory as multiples of Source's; None where
    missing. domains: the mean of each.
    """

    key: str
    method: str
    label: str
    adapts: bool
    access: str
    warmup: bool
    source: Source
    date: str
    seeds: list[int]
    images: int
    values: Mapping[str, float | None]
    domains: Mapping[str, float | None]
    hyperparameters: Mapping[str, Any]
    tuning: str
    versions: Mapping[str, list[str]]
    cells: list[str]


@dataclass
class Board:
    """The entries of a protocol. facts: what all of them share. earlier: what newer ones replace.

    higher_is_better, symbol, unit: of the metric.
    """

    key: str
    title: str
    facts: dict[str, str]
    symbol: str
    unit: str
    higher_is_better: bool
    entries: list[Entry] = field(default_factory=list)
    earlier: list[Entry] = field(default_factory=list)

    def tables(self) -> Iterator[tuple[str, list[tuple[int | None, Entry]]]]:
        """For each kind of source data: its name, and the entries with their ranks, best first.

        Source is in every table and has no rank; equal means share one.
        """
        plain = [entry for entry in self.entries if not entry.adapts]
        for access, title in ACCESS.items():
            own = [entry for entry in self.entries if entry.adapts and entry.access == access]
            if not own:
                continue
            ordered = sorted([*own, *plain], key=self._place)
            means = [_shown(entry) for entry in own]
            yield title, [(self._rank(entry, means), entry) for entry in ordered]

    def rank(self, entry: Entry) -> tuple[int, int] | None:
        """The rank of an entry among those that read the same source data, and their number."""
        for _, table in self.tables():
            for rank, other in table:
                if other is entry and rank is not None:
                    return rank, sum(r is not None for r, _ in table)
        return None

    def _place(self, entry: Entry) -> tuple[bool, float, str]:
        mean = entry.values["mean"]
        value = math.inf if mean is None else mean
        return mean is None, -value if self.higher_is_better else value, entry.label

    def _rank(self, entry: Entry, means: Sequence[float | None]) -> int | None:
        mean = _shown(entry)
        if not entry.adapts or mean is None:
            return None
        known = [other for other in means if other is not None]
        return 1 + sum(o > mean if self.higher_is_better else o < mean for o in known)


def _shown(entry: Entry) -> float | None:
    mean = entry.values["mean"]
    return None if mean is None else round(mean, 1)


def boards(bundles: Sequence[Path]) -> list[Board]:
    """One board for each protocol of the bundles, sorted by title.

    Example: `[board.title for board in boards([Path("mine.zip"), Path("theirs.zip")])]`

    Every number of a bundle is computed again. Raises RunError for a bundle in which something does
    not hold, and if two files have the same content.
    """
    found: dict[str, Board] = {}
    seen: dict[str, Path] = {}
    for file in bundles:
        source = _source(file)
        if source.content_sha256 in seen:
            raise RunError(f"{file}: has the content of {seen[source.content_sha256]}; name one.")
        seen[source.content_sha256] = file
        runs = load(file).finished()
        for group in runs.groups():
            board = _board(group)
            for entry in _entries(group, source):
                found.setdefault(board.key, board).entries.append(entry)
    for board in found.values():
        _retire(board)
    return sorted(found.values(), key=lambda board: (board.title, board.key))


def _source(file: Path) -> Source:
    bundle = Bundle.read(file)
    found = audit(file)
    if found.findings:
        raise RunError(
            f"{file}: {len(found.findings)} numbers or files do not hold, first: "
            f"{found.findings[0]} `ctta-bench verify {file}` lists all."
        )
    content = str(bundle.manifest["content_sha256"])
    about = {key: str(bundle.manifest.get(key) or "") for key in ABOUT}
    return Source(
        content, f"{safe_name(file.stem)}-{content[:8]}.zip", _depth(file, content), about
    )


def _depth(file: Path, content: str) -> str:
    """How far a bundle was verified: by the file that `verify --save` wrote, else recounted."""
    saved = file.with_suffix(VERIFIED)
    try:
        record = json.loads(saved.read_text("utf-8")) if saved.is_file() else {}
        same = record.get("content_sha256") == content and record.get("holds") is True
        return str(record["depth"]) if same and record["depth"] in DEPTHS else DEPTHS[0]
    except (OSError, ValueError, KeyError, AttributeError) as error:
        raise RunError(f"{saved}: is no result of `ctta-bench verify --save`.") from error


def _board(group: Runs) -> Board:
    cell, metric = group.cells.iloc[0], metric_of(group)
    severity = cell["severity"]
    facts = {
        "benchmark": f"{cell['benchmark']}, version {cell['benchmark_version']}",
        "setting": str(cell["setting"]),
        "source model": f"{cell['model']} (weights {cell['model_sha256'][:12]})",
        "normalisation": notes.normalisation_label(cell),
        "batch size": str(cell["batch_size"]),
        "images per domain": "all" if cell["examples"] is None else str(cell["examples"]),
        "domains": ", ".join(cell["domains"]),
        "rounds": str(cell["rounds"]),
        "severity": "" if severity is None else str(severity),
        "precision": str(cell["precision"]),
        "further settings": str(cell["details"]),
        "metric": metric.text,
    }
    return Board(
        key=f"{safe_name(str(cell['benchmark']))}-{cell['group']}",
        title=f"{notes.title(group)}, batches of {cell['batch_size']}",
        facts={key: value for key, value in facts.items() if value},
        symbol=metric.symbol,
        unit=metric.unit,
        higher_is_better=metric.higher_is_better,
    )


def _entries(group: Runs, source: Source) -> Iterator[Entry]:
    table = leaderboard(group)
    domains = [name for name in table.frame.columns if name in set(group.domains["domain"])]
    for row in rows(group):
        numbers = table.frame.loc[row.name]
        finished = row.finished
        paths = [Path(path) for path in finished["path"]]
        named = f"{row.name} {group.cells['group'].iloc[0]} {source.content_sha256}"
        digest = hashlib.sha256(named.encode()).hexdigest()[:10]
        yield Entry(
            key=f"{safe_name(row.method)}-{digest}",
            method=row.method,
            label=row.label,
            adapts=is_method(row),
            access=str(numbers["source_access"]) or "none",
            warmup=bool(numbers["warmup"]),
            source=source,
            date=_date(paths),
            seeds=sorted(int(seed) for seed in finished["seed"]),
            images=int(group.domains[group.domains["cell"] == finished["cell"].iloc[0]]["n"].sum()),
            values={name: _number(numbers[name]) for name in _COLUMNS},
            domains={str(name): _number(numbers[name]) for name in domains},
            hyperparameters=json.loads(finished["hyperparameters"].iloc[0]),
            tuning=_tuning(row),
            versions={
                name: sorted({str(value) for value in finished[name].dropna()})
                for name in ("ctta_bench", "commit", "torch", "device", "threads", "plugin_files")
            },
            cells=sorted(finished["cell"]),
        )


def _tuning(row: Row) -> str:
    """How the values were chosen: the search as recorded, else the preset."""
    stated = sorted({str(text) for text in row.cells["tuned"] if text})
    presets = sorted({str(preset) for preset in row.cells["preset"]})
    if stated:
        return "; ".join(stated)
    return f"not searched (preset {', '.join(presets)})" if _has_values(row) else "nothing to tune"


def _has_values(row: Row) -> bool:
    return bool(json.loads(row.cells["hyperparameters"].iloc[0]))


def _date(folders: Sequence[Path]) -> str:
    """The day on which the last of these cells began; "" if it is not recorded."""
    times = [json.loads(read_bytes(folder, ENVIRONMENT_FILE)).get("time") for folder in folders]
    return max((str(time)[:10] for time in times if time), default="")


def _number(value: Any) -> float | None:
    number = float(value)
    return number if math.isfinite(number) else None


def _retire(board: Board) -> None:
    """Of one method by one contact with several bundles, the newest stays in the table."""
    by_owner: dict[tuple[str, str], list[Entry]] = defaultdict(list)
    for entry in board.entries:
        owner = entry.source.about["contact"] or entry.source.content_sha256
        by_owner[entry.label, owner].append(entry)
    for entries in by_owner.values():
        newest = max(entries, key=lambda e: (e.date, e.source.content_sha256))
        board.earlier += [e for e in entries if e.source is not newest.source]
    board.entries = [e for e in board.entries if e not in board.earlier]
