"""Rules of a comparison in a file: which rows of runs keep them, and why others do not."""

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ctta_bench.analysis.read.collect import load
from ctta_bench.errors import ConfigError, RunError, did_you_mean
from ctta_bench.record.read import read_cell, read_json
from ctta_bench.record.schema import HELD_OUT, RESULT_FILE
from ctta_bench.registry import METHODS

CANONICAL = "canonical"  # the order of the benchmark itself


class _Rules(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class CellRules(_Rules):
    """What a cell may use; an empty list: anything.

    normalisation: "true" (the checkpoint's own), "lineage" (none). orders: of the domains:
    "canonical" or a name of benchmark.domain_order. source_data: none, unlabelled, labelled.
    tuning: "hold-out": the values were searched on images that no table scores; "none": not
    searched; "any". most_trials: of a search. images: the least number in each domain.
    """

    normalisation: list[str] = []
    settings: list[str] = []
    severity: list[int] = []
    rounds: list[int] = []
    batch_sizes: list[int] = []
    orders: list[str] = []
    presets: list[str] = []
    source_data: list[str] = []
    warm_up: bool = True
    tuning: Literal["any", "none", "hold-out"] = "any"
    most_trials: int | None = Field(None, ge=1)
    images: int = Field(1, ge=1)


class RowRules(_Rules):
    """What a row has to show: at most so many `weights`, at least so many seeds and orders, and
    cells with each of the batch sizes. Seeds and orders count for each batch size by itself."""

    weights: int = Field(1, ge=1)
    seeds: int = Field(1, ge=1)
    batch_sizes: list[int] = []
    orders: int = Field(1, ge=1)


class Protocol(_Rules):
    """A protocol file. Its hash is that of its values, so comments do not count."""

    name: str
    version: int = Field(ge=1)
    title: str
    cells: CellRules = CellRules()
    rows: RowRules = RowRules()

    @property
    def sha256(self) -> str:
        """The hash of all values."""
        text = json.dumps(self.model_dump(mode="json"), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True)
class Verdict:
    """A row under a protocol: a method on a benchmark. reasons: why it does not qualify."""

    benchmark: str
    method: str
    cells: int
    reasons: tuple[str, ...]

    @property
    def qualifies(self) -> bool:
        """Whether the row keeps all rules."""
        return not self.reasons


def shipped() -> dict[str, Path]:
    """The protocol files of the package by name: fair-v1, lineage-v1."""
    folder = Path(str(resources.files("ctta_bench.analysis"))) / "sharing" / "protocols"
    return {file.stem: file for file in sorted(folder.glob("*.yaml"))}


def read_protocol(name: str) -> Protocol:
    """A protocol by the name of a shipped file, or by path.

    Example: `read_protocol("fair-v1").rows.seeds`

    Raises ConfigError for an unknown name, or a file that is no protocol.
    """
    known = shipped()
    file = known.get(name, Path(name))
    if not file.is_file():
        hint = did_you_mean(name, known) or f"; it is a file, or one of {', '.join(known)}."
        raise ConfigError(f"{name}: no such protocol{hint}")
    try:
        return Protocol(**yaml.safe_load(file.read_text("utf-8")))
    except (yaml.YAMLError, UnicodeDecodeError, TypeError) as error:
        raise ConfigError(f"{file}: is no protocol ({type(error).__name__}).") from error
    except ValidationError as error:
        texts = [f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors()]
        raise ConfigError(f"{file}: is no protocol: {'; '.join(texts)}.") from error


def check_protocol(directory: Path, protocol: Protocol) -> list[Verdict]:
    """Which rows below a folder of runs, or in a bundle, qualify; by benchmark, then by method.

    Example: `check_protocol(Path("runs/scenes"), read_protocol("fair-v1"))`

    Raises RunError if there is no finished cell.
    """
    runs = load(directory).finished()
    if runs.cells.empty:
        raise RunError(f"{directory}: no finished cell to check.")
    rows: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for path in map(Path, runs.cells["path"]):
        record: dict[str, Any] = dict(read_cell(path))
        record["result"] = read_json(path, RESULT_FILE)
        label = METHODS.display_name(record["method"]["name"])
        if not record.get("adapt", True):
            label += " (warm-up only)"
        rows[record["benchmark"]["name"], label].append(record)
    return [
        Verdict(benchmark, method, len(cells), tuple(_reasons(cells, protocol)))
        for (benchmark, method), cells in sorted(rows.items())
    ]


def _reasons(cells: Sequence[Mapping[str, Any]], protocol: Protocol) -> Iterator[str]:
    """Why a row does not qualify: what its cells must not use, then what it does not show."""
    good = []
    against: dict[str, int] = defaultdict(int)
    for cell in cells:
        texts = [*_against(cell, protocol.cells)]
        for text in texts:
            against[text] += 1
        good += [] if texts else [cell]
    for text, count in against.items():
        yield text if count == len(cells) else f"{text} ({count} of {len(cells)} cells)"
    rules = protocol.rows
    weights = {cell["model"]["sha256"] for cell in cells}
    if len(weights) > rules.weights:
        yield f"{len(weights)} source models in place of {rules.weights}"
    sizes: Sequence[int | None] = rules.batch_sizes or [None]
    for size in sizes:
        of_size = [c for c in good if size in (None, c["benchmark"]["batch_size"])]
        where = "" if size is None else f" with batch size {size}"
        seeds = {cell["seed"] for cell in of_size}
        orders = {_order(cell) for cell in of_size}
        if not of_size:
            yield f"no cell that keeps the rules{where}"
            continue
        if len(seeds) < rules.seeds:
            yield f"{_counted(len(seeds), 'seed')} of {rules.seeds}{where}"
        if len(orders) < rules.orders:
            yield f"{_counted(len(orders), 'order')} of the domains of {rules.orders}{where}"


def _order(cell: Mapping[str, Any]) -> str:
    """The order of the domains; a random one is another one for each seed."""
    name = cell["benchmark"].get("domain_order") or CANONICAL
    return f"random {cell['seed']}" if name == "random" else str(name)


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _against(cell: Mapping[str, Any], rules: CellRules) -> Iterator[str]:
    """What a cell uses that it must not."""
    benchmark, method = cell["benchmark"], cell["method"]
    severity = benchmark.get("severities") or [benchmark.get("severity")]
    used: list[tuple[str, Any, Sequence[Any]]] = [
        ("normalisation", str(cell["preprocessing"]["regime"]), rules.normalisation),
        ("setting", benchmark["setting"], rules.settings),
        ("rounds", benchmark.get("rounds", 1), rules.rounds),
        ("batch size", benchmark["batch_size"], rules.batch_sizes),
        ("order of the domains", benchmark.get("domain_order") or CANONICAL, rules.orders),
        ("source data", cell["result"].get("source_access") or "not recorded", rules.source_data),
        *(("severity", level, rules.severity) for level in severity if level is not None),
    ]
    if method["hyperparameters"]:
        used.append(("preset", method.get("preset", "default"), rules.presets))
        yield from _tuning(cell.get("tuned"), rules)
    for what, value, allowed in used:
        if allowed and value not in allowed:
            yield f"{what} {value} is not {' or '.join(map(str, allowed))}"
    if cell.get("warmup") and not rules.warm_up:
        yield "a warm-up"
    counts = [d["n"] for part in cell["result"]["rounds"] for d in part["domains"]]
    if min(counts, default=0) < rules.images:
        fewest = _counted(min(counts, default=0), "image")
        yield f"{fewest} per domain, fewer than {rules.images}"


def _tuning(tuned: Mapping[str, Any] | None, rules: CellRules) -> Iterator[str]:
    if rules.tuning == "none" and tuned:
        yield "its values were searched"
    elif rules.tuning == "hold-out":
        if not tuned or "trials" not in tuned:
            yield "no search of its values is recorded"
        elif tuned.get("images") != HELD_OUT:
            yield "its values were searched on images that the table scores"
    if tuned and rules.most_trials is not None and tuned.get("trials", 0) > rules.most_trials:
        yield f"{tuned['trials']} trials, more than {rules.most_trials}"
