"""Verifying a bundle in three depths: recounted, in part run again, or run again as a whole."""

import hashlib
import sys
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ctta_bench.analysis.report.audit import audit
from ctta_bench.errors import ConfigError, CttaBenchError
from ctta_bench.record.arrays import Arrays, read_all_arrays
from ctta_bench.record.bundle import Bundle
from ctta_bench.record.schema import (
    DEPTHS,
    PLUGIN_FILES,
    PREDICTIONS_FILE,
    WARM_UP,
    CellRecord,
)
from ctta_bench.registry import METRICS, load_plugin, plugin_files
from ctta_bench.run.environment import chosen_device
from ctta_bench.run.recorded import (
    SAME_BITS,
    Finding,
    cell_of,
    claims,
    device_facts,
    replay,
    stated_findings,
    stream_findings,
    stream_of,
)
from ctta_bench.source_models.shared import Models

Depth = Literal["recount", "replay", "full"]
BATCHES, CELLS, TOLERANCE = 10, 3, 0.5  # of `replay`, by default


@dataclass(frozen=True)
class Replayed:
    """A cell that was run again. batches: how many. images: of these batches.

    same: the share of images with the same prediction. difference: of the metric, in points; here
    minus there. exact: whether the same bits were asked for.
    """

    cell: str
    batches: int
    images: int
    same: float
    difference: float
    exact: bool


@dataclass
class Verification:
    """What `verify` found.

    findings: by cell ("" for the whole bundle), a kind and a sentence each. notes: what could not
    be checked, and why. numbers: how many were computed again.
    """

    file: str
    depth: Depth
    content_sha256: str
    cells: int = 0
    numbers: int = 0
    findings: list[tuple[str, Finding]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    replayed: list[Replayed] = field(default_factory=list)

    @property
    def holds(self) -> bool:
        """Whether nothing was found."""
        return not self.findings

    def record(self) -> dict[str, Any]:
        """Plain values, as `verify --format json` prints them and a leaderboard reads them."""
        findings = [{"cell": cell, **found._asdict()} for cell, found in self.findings]
        return asdict(self) | {"holds": self.holds, "findings": findings}


def verify(
    file: Path | str,
    depth: Depth = "recount",
    *,
    cells: Collection[str] = (),
    batches: int = BATCHES,
    run_code: bool = False,
    tolerance: float = TOLERANCE,
    device: str | None = None,
    data_root: Path | None = None,
) -> Verification:
    """Check a bundle, and return what does not hold.

        verify("runs.zip").holds
        verify("runs.zip", "replay", batches=20).replayed

    Args:
        file: a bundle (`ctta-bench bundle`).
        depth: "recount" computes every number again from predictions, and compares hashes, names,
            orders, labels, presets and warm-ups. "replay" also runs the first `batches` of some
            cells again and compares predictions. "full" runs all cells as a whole.
        cells: names of the cells to run, or their first characters; by default three for "replay",
            spread over the bundle.
        batches: how many batches of each cell "replay" runs.
        run_code: whether to import the plug-ins in the bundle. Without it nothing of a bundle is
            executed.
        tolerance: difference of the metric in points that is accepted where device, threads or
            versions differ from the run's. Where they are the same, predictions must be equal.
        device, data_root: as those of `ctta-bench run`.

    Raises ConfigError for a wrong argument, RunError for a file that is no bundle or not safe.
    """
    if depth not in DEPTHS:
        raise ConfigError(f"depth {depth!r}: choose recount, replay or full.")
    bundle = Bundle.read(Path(file))
    found = Verification(str(file), depth, str(bundle.manifest.get("content_sha256")))
    found.findings += [("", Finding("changed", f"{text}.")) for text in bundle.findings]
    with tempfile.TemporaryDirectory(prefix="ctta-bench-") as place:
        runs = Path(place) / "runs"
        bundle.unpack(runs)
        if run_code:
            _load_code(bundle, Path(place) / "code", found)
        _recount(bundle, runs, found, data_root)
        if depth != "recount":
            chosen = _chosen(bundle, cells, depth)
            wanted = batches if depth == "replay" else None
            _replay(bundle, runs, chosen, wanted, found, tolerance, device, data_root)
    return found


def _of_cells(bundle: Bundle) -> Iterator[tuple[str, dict[str, Any]]]:
    for place, stored in bundle.cells().items():
        if stored["record"].get("kind") != WARM_UP:
            yield place, stored


# -- depth recount


def _recount(bundle: Bundle, runs: Path, found: Verification, data_root: Path | None) -> None:
    audited = audit(runs)
    found.cells, found.numbers = audited.cells, audited.numbers
    for text in audited.findings:
        text = text.removeprefix(f"{runs}/").replace(f"{runs}/", "")
        place, _, sentence = text.partition(": ")
        found.findings.append((Path(place).name, Finding("numbers", sentence)))
    for place, stored in _of_cells(bundle):
        record, environment = stored["record"], stored["environment"]
        arrays = read_all_arrays(runs / place, PREDICTIONS_FILE)
        own = [*_code_findings(bundle, environment)]
        try:
            own += claims(record, stored["result"])
            stream = stream_of(record, data_root)
            if stream is None:
                found.notes.append(
                    f"{record['id']}: the data of {record['benchmark']['name']} are not here, so "
                    "labels and images are only compared with what the bundle states itself."
                )
                own += stated_findings(record, environment, arrays)
            else:
                own += stream_findings(stream, arrays)
        except CttaBenchError as error:
            found.notes.append(f"{record['id']}: its values are not compared: {error}")
            own += stated_findings(record, environment, arrays)
        found.findings += [(record["id"], each) for each in own]


def _code_findings(bundle: Bundle, environment: Mapping[str, Any]) -> Iterator[Finding]:
    """Plug-ins in the bundle, or loaded here, that are not those that the cell ran with."""
    here = {name: file.sha256 for name, file in plugin_files().items()}
    there = {name: hashlib.sha256(text).hexdigest() for name, text in bundle.code().items()}
    for name, sha256 in (environment.get(PLUGIN_FILES) or {}).items():
        if there.get(name, sha256) != sha256:
            yield Finding("plug-in", f"ran with another {name} than the one in the bundle.")
        elif here.get(name, sha256) != sha256:
            yield Finding("plug-in", f"ran with another {name} than the one that is loaded here.")


def _load_code(bundle: Bundle, folder: Path, found: Verification) -> None:
    """Write the plug-ins of a bundle to a folder and import them."""
    for name, content in bundle.code().items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
    sys.path.append(str(folder))  # they may import each other
    names = {n for _, stored in _of_cells(bundle) for n in stored["environment"].get("plugins", ())}
    here = {file.sha256 for file in plugin_files().values()}
    for name in sorted(names):
        file = folder / name
        if hashlib.sha256(bundle.code().get(name, b"")).hexdigest() in here:
            continue  # it is loaded already
        if name.endswith(".py") and not file.is_file():
            found.notes.append(f"the code of the plug-in {name} is not in the bundle.")
        else:
            load_plugin(str(file) if name.endswith(".py") else name)


# -- depths replay and full


def _chosen(bundle: Bundle, cells: Collection[str], depth: Depth) -> list[str]:
    """The places of the cells to run again."""
    places = [place for place, _ in _of_cells(bundle)]
    if cells:
        unknown = [c for c in cells if not any(Path(p).name.startswith(c) for p in places)]
        if unknown:
            raise ConfigError(f"--cell {unknown[0]}: the bundle has no such cell.")
        return [p for p in places if any(Path(p).name.startswith(c) for c in cells)]
    if depth == "full":
        return places
    # Spread by a hash of the content: whoever made the bundle could not choose them.
    seed = str(bundle.manifest.get("content_sha256"))
    return sorted(places, key=lambda p: hashlib.sha256(f"{seed} {p}".encode()).digest())[:CELLS]


def _replay(
    bundle: Bundle,
    runs: Path,
    chosen: Sequence[str],
    batches: int | None,
    found: Verification,
    tolerance: float,
    device: str | None,
    data_root: Path | None,
) -> None:
    name, models, stored = chosen_device(device), Models(), bundle.cells()
    facts = device_facts(name)
    for place in chosen:
        record, environment = stored[place]["record"], stored[place]["environment"]
        theirs = read_all_arrays(runs / place, PREDICTIONS_FILE)
        try:
            ours = replay(cell_of(record, data_root, models), batches, name, models)
        except CttaBenchError as error:
            found.findings.append((record["id"], Finding("not run", f"cannot be run: {error}")))
            continue
        differing = [
            f"another {k}" if k in environment else f"{k} not recorded"
            for k in SAME_BITS
            if environment.get(k) != facts[k]
        ]
        exact = not differing and (facts["device"] == "cpu" or facts["deterministic"])
        done, finding = _compared(record, ours, theirs, exact, tolerance)
        found.replayed.append(done)
        if not exact:
            why = ", ".join(differing) or "another device, whose sums are not deterministic"
            found.notes.append(
                f"{record['id']}: compared within {tolerance:g} points, not bit by bit ({why})."
            )
        if finding:
            found.findings.append((record["id"], finding))


def _compared(
    record: CellRecord, ours: Arrays, theirs: Arrays, exact: bool, tolerance: float
) -> tuple[Replayed, Finding | None]:
    metric = METRICS.get(str(record["benchmark"].get("task", "classification")))()
    count = len(ours["index"])
    part = {name: values[:count] for name, values in theirs.items()}
    if len(part["index"]) < count:
        return (
            Replayed(record["id"], 0, count, 0.0, float("nan"), exact),
            Finding("subset", "has fewer images than the same batches here."),
        )
    equal = np.ones(count, bool)
    for name in {*metric.arrays, *(("confidence",) if exact else ())} & part.keys():
        same = part[name] == ours[name]
        equal &= same.reshape(count, -1).all(1)
    rows = np.arange(count)
    here, there = (metric.entry_of(a, rows)[metric.name] or 0.0 for a in (ours, part))
    size = record["benchmark"]["batch_size"]
    done = Replayed(
        record["id"], -(-count // size), count, float(equal.mean()), here - there, exact
    )
    wrong = np.flatnonzero(~equal)
    if exact and len(wrong):
        return done, Finding(
            "prediction",
            f"{len(wrong):,} of {count:,} predictions differ from those here, on the same kind of "
            f"device; the first is image {wrong[0]} of the stream.",
        )
    if abs(here - there) > tolerance:
        return done, Finding(
            "prediction",
            f"{metric.symbol} of the first {count:,} images is {there:.2f}, but {here:.2f} here "
            f"(tolerance {tolerance:g} points).",
        )
    return done, None
