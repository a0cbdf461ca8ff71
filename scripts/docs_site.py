"""The hook of mkdocs.yml: pages made from the code, links that leave docs/, equations as MathML.

A page of a registered method or benchmark is its file in docs/methods/ or docs/benchmarks/ (idea
and equation; licence and citation) with what the entry itself says. Nothing of it is committed.
"""

import inspect
import json
import logging
import os
import re
from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

import docs_tables
import typer
import yaml
from docs_tables import code, markdown, of_package
from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from ctta_bench.analysis.sharing.site import write_site
from ctta_bench.authoring.parity import cases_for, repository_cases
from ctta_bench.cli import app
from ctta_bench.config.presets import describe, presets_of
from ctta_bench.datasets.fetching.origins import origins
from ctta_bench.errors import DataError
from ctta_bench.record.schema import PAGE_FILE
from ctta_bench.registry import BENCHMARKS, METHODS, Registry, references

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
REPOSITORY = "https://github.com/ctta-bench/ctta-bench"
LEADERBOARD = "leaderboard"  # folder of the site
LOG = logging.getLogger("mkdocs.hooks.docs_site")
# Files at the top of the repository that are pages of the site.
TOP = {
    "CHANGELOG.md": "about/changelog.md",
    "CONTRIBUTING.md": "about/contributing.md",
    "LICENSE": "about/licence.md",
    "CITATION.cff": "about/citing.md",
}
# Notebooks in docs/, and their pages.
NOTEBOOKS = {"analysis.ipynb": "notebook.md"} | {
    f"notebooks/{file.name}": f"notebooks/{file.stem}.md"
    for file in sorted((DOCS / "notebooks").glob("*.ipynb"))
}
PUBLIC = {
    "ctta_bench": "load, evaluate",
    "ctta_bench.method": "write a method",
    "ctta_bench.model": "source models",
    "ctta_bench.stream": "write a benchmark",
    "ctta_bench.registry": "find entries",
    "ctta_bench.testing": "conformance checks",
    "ctta_bench.analysis": "read results",
    "ctta_bench.config": "cells and experiments",
    "ctta_bench.parts": "building blocks of methods",
    "ctta_bench.errors": "errors",
}
LINK = re.compile(
    r"(?<!!)\[((?:[^\[\]]|\[[^\[\]]*\])*)\]\(([^()\s]+)\)|(!\[[^\]]*\])\(([^()\s]+)\)"
)
FENCE = re.compile(r"(^```.*?^```|`[^`\n]+`)", re.MULTILINE | re.DOTALL)


# -- mkdocs calls these ----------------------------------------------------------------------------


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put a page for each entry and each public module under its section."""
    entries = {
        "Methods": [f"methods/{name}.md" for name in (*of_package(METHODS), *of_plugins(METHODS))],
        "Benchmarks": [
            f"benchmarks/{name}.md" for name in (*of_package(BENCHMARKS), *of_plugins(BENCHMARKS))
        ],
        "Reference": [{"Python": [f"reference/{module}.md" for module in PUBLIC]}],
        "About": list(TOP.values()),
    }
    for section in config.nav or []:
        for title, pages in section.items():
            pages += entries.get(title, [])
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that have no file in docs/."""
    add = partial(File.generated, config)
    made = {
        **{
            page: notebook(json.loads((DOCS / n).read_text("utf-8")))
            for n, page in NOTEBOOKS.items()
        },
        **{f"reference/{name}.md": module_page(name, what) for name, what in PUBLIC.items()},
        **{page: top_page(name) for name, page in TOP.items()},
        **{f"methods/{n}.md": page.read_text("utf-8") for n, page in of_plugins(METHODS).items()},
        **{
            f"benchmarks/{name}.md": page.read_text("utf-8")
            for name, page in of_plugins(BENCHMARKS).items()
        },
    }
    edited = {page: name for name, page in TOP.items()}
    edited |= {page: f"docs/{name}" for name, page in NOTEBOOKS.items()}
    for page, content in made.items():
        files.append(file := add(page, content=content))
        if page in edited:
            file.edit_uri = f"../{edited[page]}"
    return files


def on_page_markdown(text: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Complete the pages of entries; mend links; make equations."""
    place = page.file.src_uri
    folder, _, name = place.rpartition("/")
    entry = Path(name).stem
    if folder == "methods" and (entry in of_package(METHODS) or entry in of_plugins(METHODS)):
        text = method_page(entry, text)
    elif folder == "benchmarks" and (
        entry in of_package(BENCHMARKS) or entry in of_plugins(BENCHMARKS)
    ):
        text = benchmark_page(entry, text)
    elif place == "commands.md":
        text = "\n\n".join([text, *command_sections(typer.main.get_command(app), "ctta-bench")])
    elif place == "leaderboard.md" and bundles():
        text += f'\n<a href="{LEADERBOARD}/{PAGE_FILE}">The leaderboard of this repository</a>\n'
    copied = {page: top for top, page in TOP.items() if top.endswith(".md")}
    source = copied.get(place, f"docs/{place}")
    pieces = FENCE.split(text)
    pieces[::2] = [relinked(piece, source, place) for piece in pieces[::2]]
    # GitHub wants bars of code in tables escaped, Python-Markdown shows the escape.
    pieces[1::2] = [p if p.startswith("```") else p.replace("\\|", "|") for p in pieces[1::2]]
    if folder == "methods":
        pieces[::2] = map(equations, pieces[::2])
    return "".join(pieces)


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Take off the mark at which the theme asks GitHub for stars: no request leaves a page."""
    return output.replace(' data-md-component="source"', "")


def on_post_build(config: MkDocsConfig) -> None:
    """Make the leaderboard of the results that are stored with their runs."""
    if bundles():
        write_site(bundles(), Path(config.site_dir) / LEADERBOARD)


def bundles() -> list[Path]:
    """The bundles of docs/results."""
    return sorted((DOCS / "results").rglob("*.zip"))


# -- links and equations ---------------------------------------------------------------------------


def relinked(text: str, source: str, place: str) -> str:
    """Links of a file of the repository, as they are on the page at `place` of the site."""

    def mend(found: re.Match[str]) -> str:
        label, link = (f"[{found[1]}]", found[2]) if found[2] else (found[3], found[4])
        return f"{label}({destination(link, source, place)})"

    return LINK.sub(mend, text)


def destination(link: str, source: str, place: str) -> str:
    """Where a link of the file `source` leads from the page at `place`."""
    target, hash_, anchor = link.partition("#")
    if not target or re.match(r"[a-z]+:", target):
        return link
    path = os.path.normpath(Path(source).parent / target)
    if path in TOP:
        path = f"docs/{TOP[path]}"
    elif path.removeprefix("docs/") in NOTEBOOKS:
        path = f"docs/{NOTEBOOKS[path.removeprefix('docs/')]}"
    elif not (ROOT / path).exists():
        if not path.startswith(("docs/reference/", "docs/notebook")):
            LOG.warning("%s links %s, which is not there", source, link)
    elif (ROOT / path / "README.md").is_file() and path.startswith("docs/"):
        path = f"{path}/README.md"
    if path.startswith("docs/") and not (ROOT / path).is_dir():
        return os.path.relpath(path, Path("docs", place).parent) + hash_ + anchor
    kind = "tree" if (ROOT / path).is_dir() else "blob"
    return f"{REPOSITORY}/{kind}/main/{path}{hash_}{anchor}"


def equations(text: str) -> str:
    """`$$ LaTeX $$` on a line, and `$LaTeX$`, as MathML, which browsers draw without a script."""

    def block(found: re.Match[str]) -> str:
        return f'<div class="equation">{convert(found[1].strip(), display="block")}</div>'

    text = re.sub(r"^\$\$(.+?)\$\$$", block, text, flags=re.MULTILINE)
    # In a span: what begins a line would be a block of its own.
    return re.sub(r"\$([^$\n]+)\$", lambda found: f"<span>{convert(found[1])}</span>", text)


# -- methods and benchmarks ------------------------------------------------------------------------


def of_plugins(registry: Registry) -> dict[str, Path]:
    """The pages of entries of installed plug-ins, by name."""
    names = [name for name in registry.names() if not registry.is_of_package(name)]
    return {name: page for name in names if (page := registry.page(name)) is not None}


def source_link(module: str) -> str:
    """A Markdown link to the file of a module of the repository; of a plug-in its name."""
    if not module.startswith("ctta_bench."):
        return code(module)
    path = f"{module.removeprefix('ctta_bench.').replace('.', '/')}.py"
    return f"[{path}]({REPOSITORY}/blob/main/{path})"


def about(module_doc: str) -> str:
    """The docstring of a module, with lists and paragraphs as Markdown has them."""
    return inspect.cleandoc(module_doc).replace("<", "&lt;")


def facts(rows: dict[str, str]) -> str:
    """A table of two columns without those that are empty."""
    return markdown(("", ""), [(key, value) for key, value in rows.items() if value])


def method_page(name: str, idea: str) -> str:
    """The page of a method: `idea` is its file in docs/methods/."""
    entry, method = METHODS.find(name), METHODS.get(name)
    described = describe(name)
    presets = (METHODS.folder(name) or ROOT) / "presets" / f"{name}.yaml"
    forward, backward = method.passes_per_image or ("–", "–")
    parts = [
        f"# {method.display_name}",
        f"`{name}`: {entry.description}",
        "## Idea",
        idea,
        "## At a glance",
        facts(
            {
                "paper": docs_tables.reference(entry),
                "adapts": method.adapts_layers,
                "loss": method.losses or "–",
                "memory between batches": method.extra_memory or "–",
                "tasks": docs_tables.tasks(entry),
                "source data": docs_tables.source_data(entry.attributes),
                "passes per image": f"{forward} forward, {backward} backward (as declared; "
                "[performance](../performance.md) has times)",
                "checked against": method.checked_against,
                "presets": ", ".join(map(code, presets_of(name))),
                "file": source_link(entry.module),
            }
        ),
        "## Hyper-parameters",
        hyperparameters(method, described["hyperparameters"]),
    ]
    if presets.is_file():
        parts += [
            "## Presets",
            "Values for each benchmark, with their sources as comments; `any` holds for benchmarks "
            "without an entry. On the embedded benchmarks, `tuned` and `published` come from "
            "[ctta-bench tune](../adding-a-method.md#6-tune-it-as-the-others-were-tuned).",
            f"```yaml\n{presets.read_text(encoding='utf-8')}```",
        ]
    if cases := checked_cases().get(name):
        parts += [
            "## Reference outputs",
            "The logits equal those that were recorded from these programs, in float64 within 1e-9 "
            "(`ctta-bench parity` prints each difference; [how](../../tests/parity/README.md)).",
            markdown(("case", "program"), cases),
        ]
    parts += [
        "## Notes on this implementation",
        "From the head of the file: the official code, and each difference from it.",
        about(inspect.getmodule(method).__doc__),
        *citation("methods", method),
    ]
    return "\n\n".join(parts)


def hyperparameters(method: Any, rows: list[dict[str, Any]]) -> str:
    """The table of hyper-parameters: the method's own, those it shares, those of its warm-up."""
    own = method.Hyperparameters.__annotations__
    rows = sorted(rows, key=lambda row: (row["name"].startswith("warmup"), row["name"] not in own))
    return (
        markdown(
            ("name", "default", "type and range", "meaning"),
            [
                (
                    f"`{row['name']}`",
                    code(row["default"]),
                    " ".join(filter(None, (row["type"], row["range"]))),
                    row["description"]
                    + (f"; `tune` searches {row['searched']}" if row["searched"] else ""),
                )
                for row in rows
            ],
        )
        if rows
        else "None."
    )


def citation(folder: str, entry: Any) -> list[str]:
    """The BibTeX entry of a method or benchmark."""
    found = references().get(entry.citation)
    if found is None:
        return []
    return ["## Cite" if folder == "methods" else "", f"```bibtex\n{found['bibtex']}\n```"]


@cache
def checked_cases() -> dict[str, list[tuple[str, str]]]:
    """Parity cases by method: name, and the program that recorded it."""
    found: dict[str, list[tuple[str, str]]] = {}
    for file in sorted(cases_for(repository_cases()), key=lambda file: file.name):
        name, case = file.name, file.read()
        if (translation := file.translation()) is not None and case["source"] != "-":
            program = f"[{case['source']}](https://github.com/{case['source']})"
            found.setdefault(translation.method, []).append((f"`{name}`", program))
    return found


def benchmark_page(name: str, terms: str) -> str:
    """The page of a benchmark: `terms`, licence and citation, is its file in docs/benchmarks/."""
    entry, benchmark = BENCHMARKS.find(name), BENCHMARKS.get(name)
    given = origins().get(name)
    parts = [
        f"# {benchmark.display_name}",
        f"`{name}`: {entry.description}",
        facts(
            {
                "task": benchmark.task,
                "classes": str(benchmark.num_classes or "those of your folders"),
                "source model": code(benchmark.default_model),
                "severities": ", ".join(map(str, benchmark.severities)),
                **domains(benchmark),
                "data": how_to_get(given, name),
                "file": source_link(entry.module),
            }
        ),
        "## Images and layout",
        about(inspect.getmodule(benchmark).__doc__),
        "More: [how data is read](../data.md), [source models](../models.md).",
        "## Settings",
        "Keys of `--set` and of experiment files; [protocols](../protocols.md) defines the orders.",
        docs_tables.key_table(benchmark.Settings),
        "## Licence and citation",
        terms,
        *citation("datasets", benchmark),
    ]
    return "\n\n".join(parts)


def domains(benchmark: Any) -> dict[str, str]:
    """The domains of a benchmark, where they do not depend on the data of a user."""
    chosen = benchmark(root=ROOT / "no data")
    try:
        named = {"domains": chosen.domain_names(), "extra domains": chosen.extra_domains()}
    except DataError:
        named = {}
    if not named.get("domains"):
        return {"domains": "as in your data"}
    return {key: ", ".join(map(code, names)) for key, names in named.items()}


def how_to_get(given: Any, name: str) -> str:
    """Where the data of a benchmark come from."""
    if given is None:
        return "nothing to download"
    if given.by_hand:
        return given.by_hand
    size = sum(archive.bytes or 0 for archive in given.archives if not archive.optional)
    return f"`ctta-bench data download {name}` ({size / 1e9:.1f} GB)"


# -- reference -------------------------------------------------------------------------------------


def command_sections(command: Any, path: str) -> Iterator[str]:
    """A section for each command below one, with its options by group."""
    for name, below in sorted(command.commands.items()):
        called = f"{path} {name}"
        if hasattr(below, "commands"):
            yield from command_sections(below, called)
            continue
        context = below.make_context(called, [], resilient_parsing=True)
        yield f"## {called}\n\n{inspect.cleandoc(below.help or '')}"
        yield f"```text\n{below.get_usage(context).removeprefix('Usage: ')}\n```"
        groups: dict[str, list[tuple[str, str]]] = {}
        for parameter in below.params:
            if record := parameter.get_help_record(context):
                group = groups.setdefault(parameter.rich_help_panel or "", [])
                group.append((f"`{record[0]}`", record[1].replace("\n", " ")))
        for title, rows in groups.items():
            yield "\n\n".join(filter(None, (title and f"**{title}**", markdown(("", ""), rows))))


def module_page(module: str, what: str) -> str:
    """The reference of a public module, by mkdocstrings."""
    return f"# {module}\n\n*For: {what}.*\n\n::: {module}\n"


# -- other files -----------------------------------------------------------------------------------


def top_page(name: str) -> str:
    """A file at the top of the repository as a page."""
    text = (ROOT / name).read_text(encoding="utf-8")
    if name == "LICENSE":
        more = "More: [licences of images and weights](../licences.md)."
        return f"# Licence\n\n{more}\n\n```text\n{text}```\n"
    if name == "CITATION.cff":
        cited = yaml.safe_load(text)
        year = str(cited["date-released"])[:4]
        return (
            f"# Citing\n\n{cited['message']}\n\n```bibtex\n@software{{ctta_bench,\n"
            f"  title = {{{cited['title']}}},\n  author = {{{cited['authors'][0]['name']}}},\n"
            f"  version = {{{cited['version']}}},\n  year = {{{year}}},\n"
            f"  url = {{{cited['repository-code']}}},\n}}\n```\n\n"
            "The page of each [method](../methods/index.md) names its paper, that of each "
            "[benchmark](../benchmarks/index.md) the papers of its data.\n\n"
            f"The same as [CITATION.cff]({REPOSITORY}/blob/main/CITATION.cff).\n"
        )
    return text


def notebook(content: dict[str, Any]) -> str:
    """A notebook as Markdown, with its stored outputs."""
    parts = []
    for cell in content["cells"]:
        text = "".join(cell["source"])
        parts.append(text if cell["cell_type"] == "markdown" else f"```python\n{text}\n```")
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            if png := "".join(data.get("image/png", "")).replace("\n", ""):
                parts.append(f'<img class="output" alt="figure" src="data:image/png;base64,{png}">')
            elif html := "".join(data.get("text/html", [])):
                parts.append(f'<div class="output" markdown="0">{without_style(html)}</div>')
            else:
                shown = "".join(output.get("text", data.get("text/plain", [])))
                table = "\n| ---" in shown
                parts.append(shown if table else f"```text\n{shown.rstrip()}\n```")
    return "\n\n".join(parts) + "\n"


def without_style(html: str) -> str:
    """A frame of pandas without its own style, and without line breaks, which may end HTML."""
    html = re.sub(r"<pre.*?</pre>", lambda f: f[0].replace("\n", "&#10;"), html, flags=re.S)
    return re.sub(
        r'<style.*?</style>| (border="1"|class="dataframe")|\s*\n\s*', "", html, flags=re.S
    )
