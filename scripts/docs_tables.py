"""Write the tables of the docs that are made from the code: python scripts/docs_tables.py

A table is between `<!-- table NAME -->` and `<!-- end -->`; tests/test_docs.py compares the pages
with what this writes.
"""

import json
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from pydantic import BaseModel

from ctta_bench.api.discover import published_checkpoints, source_data
from ctta_bench.config.experiment import Experiment, MethodEntry
from ctta_bench.config.fields import choices_of, range_text, type_text
from ctta_bench.config.options import REQUIRED, cell_options
from ctta_bench.registry import BENCHMARKS, METHODS, Entry, Registry, short_reference
from ctta_bench.stream.settings import SETTINGS
from ctta_bench.testing import supported_benches

ROOT = Path(__file__).parents[1]
PAGES = sorted((ROOT / "docs").rglob("*.md"))


def markdown(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table in Markdown."""
    heads = list(heads)
    lines = [heads, ["---"] * len(heads), *rows]
    return "".join(
        f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines
    )


def code(value: Any) -> str:
    """A value as users write it, "none" for what is empty."""
    if isinstance(value, tuple | list):
        value = json.dumps(value) if value else ""
    return (
        "none"
        if value in (None, "", {})
        else f"`{str(value).lower() if isinstance(value, bool) else value}`"
    )


def described(model: type[BaseModel], name: str) -> str:
    """What a key is, with the values that it may have."""
    field = model.model_fields[name]
    declared = cell_options("file").get(name)
    choices = choices_of(declared.type if declared else field.annotation)
    *others, last = map(code, choices or ("",))
    values = f" ({', '.join(others)} or {last})" if choices else ""
    several = (
        "; with a list, the whole product runs once for each value"
        if declared and declared.option.lists
        else ""
    )
    return f"{field.description}{values}{several}"


def key_table(model: type[BaseModel] = Experiment) -> str:
    """The keys of a model of YAML files."""
    return markdown(
        ("key", "meaning", "default"),
        [
            (
                f"`{name}`",
                described(model, name),
                "" if field.is_required() else code(field.default),
            )
            for name, field in model.model_fields.items()
        ],
    )


def cell_table() -> str:
    """The options of a cell, and where they are given."""
    rows = []
    for name, (_, kind, option, default) in cell_options().items():
        values = ", ".join(map(code, choices_of(kind))) or option.metavar or type_text(kind)
        limits = range_text([SimpleNamespace(**option.limits)])
        rows.append(
            (
                f"`{name}`",
                option.help,
                ", ".join(filter(None, (values, limits))),
                "" if default is REQUIRED else option.unset or code(default),
                ", ".join(option.places),
            )
        )
    return markdown(("option", "meaning", "values", "default", "given in"), rows)


def setting_table() -> str:
    """The settings of streams."""
    rows = [
        (
            f"`{name}`",
            setting.definition,
            ", ".join(
                f"`{key}`" + ("" if value is None else f" ({value:g})")
                for key, value in setting.parameters.items()
            ),
            setting.source,
        )
        for name, setting in SETTINGS.items()
    ]
    return markdown(("setting", "order", "parameters (default)", "source"), rows)


def of_package(registry: Registry) -> dict[str, Entry]:
    """The entries of the package, without those of plug-ins."""
    return {n: e for n, e in registry.entries().items() if e.module.startswith("ctta_bench.")}


def reference(entry: Entry) -> str:
    """The paper of a method in short, as a link."""
    citation, link = METHODS.citation(entry.name), entry.attributes.get("paper", "")
    paper = short_reference(citation, entry.attributes.get("venue", "")) if citation else "–"
    return f"[{paper}]({link})" if link.startswith("http") else paper


NETWORKS = {
    "tiny_vit": "ViT", "tiny_cnn": "BatchNorm", "tiny_group_norm_cnn": "GroupNorm",
    "tiny_segmentor": "SegFormer",
}  # fmt: skip


def networks(name: str) -> str:
    """The kinds of networks that the conformance checks of a method run on."""
    benches = supported_benches(METHODS.get(name), {})
    found = {bench.network.__name__ for bench in benches}
    return ", ".join(text for network, text in NETWORKS.items() if network in found)


def tasks(entry: Entry) -> str:
    """What a method is defined for."""
    return " and ".join(sorted(entry.attributes.get("tasks", ["classification"])))


def methods_table() -> str:
    """The methods in the order of their years: source first, what has no paper last."""
    ours = of_package(METHODS).values()
    order = sorted(ours, key=lambda e: (e.name != "source", e.attributes.get("year", 9999), e.name))
    rows = []
    for entry in order:
        facts = entry.attributes
        rows.append(
            (
                f"[{facts['display_name']}]({entry.name}.md) `{entry.name}`",
                str(facts.get("year", "–")),
                facts["adapts_layers"],
                facts["losses"],
                source_data(facts),
                facts["extra_memory"],
                " + ".join(f"{count:g}" for count in facts["passes_per_image"]),
                networks(entry.name),
                tasks(entry),
                reference(entry),
                facts["checked_against"],
            )
        )
    heads = ("method", "year", "adapts", "loss", "source data", "memory", "passes", "networks")
    return markdown((*heads, "task", "paper", "checked against"), rows)


def benchmarks_table() -> str:
    """All registered benchmarks."""
    rows = []
    for name, entry in of_package(BENCHMARKS).items():
        facts = entry.attributes
        model = code(BENCHMARKS.get(name).default_model)
        link = f"[{facts['display_name']}]({name}.md) `{name}`"
        rows.append((link, entry.description.rstrip("."), model))
    return markdown(("benchmark", "images", "source model"), rows)


def checkpoints_table() -> str:
    """The public checkpoints of the paper."""
    heads = ("name", "published", "file", "bytes", "sha256", "clean", "source", "input")
    rows = [
        [code(row["name"]), *(row[key] for key in heads[1:])] for row in published_checkpoints()
    ]
    names = ("for", "published", "file", "bytes", "SHA-256", "clean accuracy, %")
    return markdown((*names, "error without adaptation, %", "input"), rows)


TABLES: dict[str, Callable[[], str]] = {
    "keys": key_table,
    "method keys": lambda: key_table(MethodEntry),
    "options": cell_table,
    "settings": setting_table,
    "methods": methods_table,
    "benchmarks": benchmarks_table,
    "checkpoints": checkpoints_table,
}
PLACE = re.compile(r"(<!-- table ([\w ]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def filled(page: str) -> str:
    """A page with its tables as the code has them."""
    return PLACE.sub(lambda found: f"{found[1]}\n{TABLES[found[2]]()}\n{found[3]}", page)


def main() -> None:
    """Write the tables of all pages."""
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        if (new := filled(text)) != text:
            page.write_text(new, encoding="utf-8")
            print(f"written: {page}")


if __name__ == "__main__":
    main()
