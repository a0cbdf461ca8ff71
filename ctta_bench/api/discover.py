"""What there is: lists of methods, benchmarks, models, settings, experiments, and their cards.

Nothing here imports torch, so that lists are fast.
"""

import fnmatch
import html
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib import resources
from typing import TYPE_CHECKING, Any

from ctta_bench import registry
from ctta_bench.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    import pandas as pd

Row = dict[str, Any]
TIMM = "timm:"
# What each list shows next to the names.
COLUMNS: dict[str, tuple[str, ...]] = {
    "methods": ("display_name", "reference", "task", "adapts_layers", "source_data"),
    "benchmarks": ("display_name", "reference", "task", "description"),
    "models": ("display_name", "task", "description"),
    "settings": ("display_name", "parameters", "description"),
    "experiments": ("cells", "description"),
}


class Listing(list[str]):
    """Names, which are shown as a table: `for name in list_methods("*ta*"): ...`

    `to_frame()` has everything that the entries declare.
    """

    def __init__(self, rows: Sequence[Row], columns: Sequence[str]) -> None:
        super().__init__(row["name"] for row in rows)
        self.rows, self.columns = list(rows), tuple(columns)

    def to_frame(self) -> "pd.DataFrame":
        """One row per entry, by name."""
        import pandas as pd

        return pd.DataFrame(self.rows, columns=None if self.rows else ["name"]).set_index("name")

    def __repr__(self) -> str:
        from tabulate import tabulate

        if not self.rows:
            return "nothing of that name"
        cells = [
            [row["name"], *(_short(row.get(key, "")) for key in self.columns)] for row in self.rows
        ]
        heads = ["name", *(key.replace("_", " ") for key in self.columns)]
        return tabulate(cells, heads, "simple", disable_numparse=True)

    def _repr_html_(self) -> str:
        frame = self.to_frame() if self.rows else None
        if frame is None:
            return "nothing of that name"
        return frame[[*self.columns]].reset_index().to_html(index=False)


def list_methods(
    pattern: str = "*", *, task: str | None = None, source_data: str | None = None
) -> Listing:
    """The methods whose name fits a pattern.

        list_methods("*ta*", task="segmentation")
        list_methods(source_data="none")

    pattern: with * and ?, as in file names. task: "classification" or "segmentation". source_data:
    what a method may read of it, "none", "unlabelled" or "labelled" (before a warm-up).
    """
    return _listing(
        "methods",
        pattern,
        lambda row: (
            (task is None or task in row.get("tasks", ["classification"]))
            and (source_data is None or row["source_data"].split(" ")[0].rstrip(",") == source_data)
        ),
    )


def list_benchmarks(pattern: str = "*", *, task: str | None = None) -> Listing:
    """The benchmarks whose name fits a pattern: `list_benchmarks("*_c")`."""
    return _listing("benchmarks", pattern, lambda row: task in (None, row["task"]))


def list_models(pattern: str = "*", *, task: str | None = None) -> Listing:
    """The source models whose name fits a pattern: `list_models("*vit*")`.

    With `timm:` the models of timm, each with the tags of its weights: `list_models("timm:vit_*")`.
    """
    if pattern.startswith(TIMM):
        import timm

        names = timm.list_pretrained(pattern.removeprefix(TIMM)) if task != "segmentation" else []
        rows = [
            {"name": f"{TIMM}{name}", "display_name": name, "task": "classification"}
            for name in names
        ]
        return Listing(rows, COLUMNS["models"][:2])
    return _listing("models", pattern, lambda row: task in (None, row["task"]))


def list_settings(pattern: str = "*") -> Listing:
    """The settings of streams whose name fits a pattern: `list_settings("*correlated")`."""
    return _listing("settings", pattern)


def published_checkpoints() -> list[Row]:
    """The public checkpoints of the PAID paper, a row each; what is not known is `unknown`."""
    from ctta_bench.config.yaml import parse_yaml

    file = resources.files("ctta_bench.datasets") / "checkpoints.yaml"
    kinds = parse_yaml(file.read_text(encoding="utf-8"), "checkpoints.yaml")
    return [
        {"name": name, "kind": kind.removesuffix("s"), **facts}
        for kind, found in kinds.items()
        for name, facts in found.items()
    ]


def list_experiments(pattern: str = "*") -> Listing:
    """The experiments of the package whose name fits a pattern: `list_experiments("paper/*")`.

    Command line: `ctta-bench grid NAME` runs one, `ctta-bench list experiments` shows its cost.
    """
    return _listing("experiments", pattern)


def _listing(what: str, pattern: str, fits: Callable[[Row], bool] = lambda row: True) -> Listing:
    wanted = pattern.lower().replace("-", "_")
    rows = [row for row in entry_rows(what) if fits(row)]
    chosen = [r for r in rows if fnmatch.fnmatch(r["name"].lower().replace("-", "_"), wanted)]
    return Listing(chosen, COLUMNS[what])


def entry_rows(what: str) -> list[Row]:
    """The entries of a list as plain values, with all literal attributes that they declare."""
    if what == "experiments":
        from ctta_bench.config.experiment import count_cells, experiment_files, load_experiment

        found = {name: load_experiment(name) for name in experiment_files()}
        return [
            {"name": name, "cells": count_cells(one), "description": one.title}
            for name, one in found.items()
        ]
    if what == "settings":
        return setting_rows()
    kind = {"methods": registry.METHODS, "benchmarks": registry.BENCHMARKS}.get(
        what, registry.MODELS
    )
    return [_row(kind, entry) for entry in kind.entries().values()]


def _row(kind: registry.Registry, entry: registry.Entry) -> Row:
    plain: Row = {
        k: sorted(v) if isinstance(v, frozenset) else v for k, v in entry.attributes.items()
    }
    citation = kind.citation(entry.name)
    known = registry.references() if citation else {}
    row = {
        "name": entry.name,
        "description": entry.description,
        "module": entry.module,
        **plain,
        "display_name": kind.display_name(entry.name),
        "reference": registry.short_reference(citation, plain.get("venue", ""))
        if citation in known
        else "",
        "extra": plain.get("extra", ""),
    }
    if kind is registry.BENCHMARKS:
        row["extra"] = registry.MODELS.declared(plain.get("default_model", ""), "extra", "")
    if kind is registry.METHODS:
        tasks = plain.get("tasks", ["classification"])
        row["task"] = "both" if len(tasks) > 1 else tasks[0]
        row["extra"] = "seg" if tasks == ["segmentation"] else ""
        row["source_data"] = source_data(plain)
        row["needs_batch_norm"] = "yes" if plain.get("needs_batch_norm") else "no"
    else:
        row["task"] = plain.get("task") or _task_of(row)
    return row


def method_facts(names: Sequence[str]) -> dict[str, dict[str, str]]:
    """What the registry has on each method, read from its file without importing it."""
    from ctta_bench.analysis.paper.verdicts import parity_summary

    entries = registry.METHODS.entries()
    copied = ("paper", "checked_against", "source_access", "warmup_access")
    found = {}
    for name in names:
        if name not in entries:
            continue
        entry = entries[name]
        is_ours = entry.module.startswith("ctta_bench.methods")
        found[name] = {
            "description": entry.description,
            **{key: str(entry.attributes.get(key) or "") for key in copied},
            "parity": parity_summary(name) if is_ours else "not recorded: it is a plug-in",
        }
    return found


def _task_of(row: Row) -> str:
    """The task of a benchmark or model that declares none: its extra is for segmentation."""
    return "segmentation" if row["extra"] == "seg" else "classification"


def source_data(attributes: Row) -> str:
    """What a method reads of the source data: "none", "unlabelled", "labelled with warm-up", ..."""
    access, warm = (attributes.get(f"{key}_access", "none") for key in ("source", "warmup"))
    order = ("none", "unlabelled", "labelled")
    if order.index(warm) <= order.index(access):
        return str(access)
    return f"{warm} with warm-up" if access == "none" else f"{access}, {warm} with warm-up"


def setting_rows() -> list[Row]:
    """The settings of streams, with their parameters' defaults and sources."""
    from ctta_bench.stream.settings import SETTINGS, setting_display_name

    known = registry.references()
    return [
        {
            "name": name,
            "display_name": setting_display_name(name),
            "parameters": " ".join(
                k if v is None else f"{k}={v:g}" for k, v in setting.parameters.items()
            ),
            "description": setting.definition,
            "source": setting.source,
            "citation": setting.citation,
            "reference": registry.short_reference(setting.citation)
            if setting.citation in known
            else "",
        }
        for name, setting in SETTINGS.items()
    ]


@dataclass(frozen=True)
class Description:
    """An entry in words: `facts`, and for a method its `hyperparameters` and `presets`.

    settings: the keys of a benchmark's stream. text: notes on the implementation.
    """

    name: str
    kind: str
    facts: dict[str, str]
    hyperparameters: list[Row] = field(default_factory=list)
    settings: list[Row] = field(default_factory=list)
    presets: dict[str, Any] = field(default_factory=dict)
    text: str = ""

    def to_frame(self) -> "pd.DataFrame":
        """The hyper-parameters of a method or the settings of a benchmark, one row each."""
        import pandas as pd

        rows = self.hyperparameters or self.settings
        return pd.DataFrame(rows, columns=None if rows else ["name"]).set_index("name")

    def __repr__(self) -> str:
        from tabulate import tabulate

        keys = ("name", "default", "range", "description")
        parts = [f"{self.name} ({self.kind})", *(f"  {key}: {v}" for key, v in self.facts.items())]
        for rows in filter(None, (self.hyperparameters, self.settings)):
            cells = [[_short(row[key], 60) for key in keys] for row in rows]
            parts += ["", tabulate(cells, keys, "simple", disable_numparse=True)]
        parts += [""] * bool(self.presets)
        for name, of_benchmarks in self.presets.items():
            parts += [f"preset {name}, {key}: {_values(v)}" for key, v in of_benchmarks.items()]
        return "\n".join([*parts, *(["", self.text] if self.text else [])])

    def _repr_html_(self) -> str:
        facts = "".join(
            f"<tr><th>{html.escape(key)}</th><td>{html.escape(value)}</td></tr>"
            for key, value in self.facts.items()
        )
        rows = self.hyperparameters or self.settings
        table = self.to_frame().reset_index().to_html(index=False) if rows else ""
        presets = "".join(
            f"<tr><td>{html.escape(name)}</td><td>{html.escape(key)}</td>"
            f"<td>{html.escape(_values(values))}</td></tr>"
            for name, of_benchmarks in self.presets.items()
            for key, values in of_benchmarks.items()
        )
        if presets:
            heads = "<tr><th>preset</th><th>benchmark</th><th>values</th></tr>"
            presets = f"<table>{heads}{presets}</table>"
        return (
            f"<h4>{html.escape(self.name)} ({self.kind})</h4><table>{facts}</table>{table}{presets}"
        )


def describe(name: str) -> Description:
    """The card of a method, benchmark, model, setting or experiment, by its name.

        describe("tent")                 # hyper-parameters, presets, paper
        describe("scenes_c").settings   # what can be chosen about its stream

    Raises ConfigError for an unknown name, with a similar one.
    """
    found = {what: {row["name"]: row for row in entry_rows(what)} for what in COLUMNS}
    what = next((w for w, rows in found.items() if registry.canonical(name) in rows), None)
    what = what or next((w for w, rows in found.items() if name in rows), None)
    if what is None:
        everything = [known for rows in found.values() for known in rows]
        hint = (
            did_you_mean(name, everything) or "; list_methods(), list_benchmarks(), ... show all."
        )
        raise ConfigError(f"nothing is called {name!r}{hint}")
    rows = found[what]
    row = rows.get(registry.canonical(name)) or rows[name]
    facts = {
        key.replace("_", " "): str(row[key])
        for key in ("description", *COLUMNS[what], "paper", "checked_against")
        if row.get(key)
    }
    described: dict[str, Any] = {}
    if what == "methods":
        from ctta_bench.config.presets import describe as of_method

        described = of_method(row["name"]) | {"text": _notes(registry.METHODS.get(row["name"]))}
    if what == "benchmarks":
        described = {"settings": _settings(row["name"], facts)}
    return Description(row["name"], what.removesuffix("s"), facts, **described)


def _settings(name: str, facts: dict[str, str]) -> list[Row]:
    """The settings of a benchmark; adds what its class knows to the facts."""
    from ctta_bench.config.fields import range_text, type_text

    entry = registry.BENCHMARKS.get(name)
    facts["default model"] = entry.default_model or "none"
    if isinstance(entry.num_classes, int) and entry.num_classes:
        facts["classes"] = str(entry.num_classes)
    return [
        {
            "name": key,
            "type": type_text(one.annotation),
            "range": range_text(one.metadata),
            "default": one.default,
            "description": one.description or "",
        }
        for key, one in entry.Settings.model_fields.items()
    ]


def _values(values: dict[str, Any]) -> str:
    """The values of a preset: `lr=0.001, momentum=0.9`, without the record of their search."""
    return ", ".join(f"{k}={v}" for k, v in (values or {}).items() if k != "tuned") or "defaults"


def _notes(entry: Any) -> str:
    import inspect

    return inspect.cleandoc(getattr(inspect.getmodule(entry), "__doc__", None) or "")


def _short(value: Any, width: int = 48) -> str:
    text = " ".join(str(value).split())
    return text if len(text) <= width else f"{text[: width - 3]}..."
