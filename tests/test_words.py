"""Messages, help and pages use the field's words: none of the words that were retired for them.

Read are all texts of the code that a user can see: string literals of more than one word, and the
docstrings of commands and of registered entries, which help and lists print.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from ctta_bench.cli import app

ROOT = Path(__file__).parents[1]
CODE = ("ctta_bench", "methods", "datasets", "analysis")
PAGES = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "docs/**/*.md")
UNITS = r"domain|class|batch|round|second|minute|method|cell|job|seed|window|severity|worker"

# What is not written, what is written instead, and an example that has to be found.
WORDS = [
    (r"ow(es?|ed)", "the method contract, conformance checks", "what every method owes"),
    (r"golden", "reference (outputs)", "golden figures"),
    (r"serves|served|can(not| not)? serve", "supports, does not support", "cannot serve it"),
    (r"pairings?", "compatibility", "the pairing of methods and models"),
    (r"to the (same )?bits?", "bit-identical", "resumes to the same bits"),
    (r"anew", "again, from the start", "it starts anew"),
    (r"noughts?", "zero", "the gate starts at nought"),
    (r"heed(s|ed|ing)?", "respect, handle", "an interrupt is heeded"),
    (r"how [^.:;|]{0,40}\bstands?", "status", "how the cells of a folder stand"),
    (r"h(olds?|eld|olding) ([\w`'-]+ ){0,5}against", "compare with, check against",
     "it is held against the paper"),
    (r"la(ys?|id) ([\w`'-]+ ){0,3}down|laid", "write, arrange", "cells are laid down"),
    (r"(un)?settle[sd]?", "final, until a final state", "until it is settled"),
    (r"beside", "next to, alongside", "the file beside it"),
    (r"holes?", "missing cells", "holes of a table"),
    (r"pre-processing( is)? (true|lineage)", "normalisation: the checkpoint's own, or none",
     "pre-processing true"),
    (r"told|tells", "report, print, show", "what it tells"),
    (r"(passes|forwards?|backwards?|views?|crops|steps?|ms|s|seconds?|[kMG]B|bytes|once|twice) "
     r"an image", "per image", "two passes an image"),
    (rf"(images|batches|passes|files|cells|jobs|steps|bytes|seeds|hours) an? ({UNITS})",
     "per domain, per batch, ...", "images a domain"),
]  # fmt: skip
RETIRED = [(re.compile(rf"\b({pattern})\b", re.IGNORECASE), write) for pattern, write, _ in WORDS]


def complaints(text: str, place: str) -> list[str]:
    """A line for each retired word: where it is, and what to write instead."""
    found = []
    for pattern, write in RETIRED:
        for match in pattern.finditer(text):
            line = text.count("\n", 0, match.start())
            context = " ".join(text[max(0, match.start() - 40) : match.end() + 40].split())
            found.append(
                f"{place}, line {line + 1}: {match[0]!r}: write {write} (... {context} ...)"
            )
    return found


def shown_texts(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Lines and texts that a user may see; other docstrings are left out."""
    hidden = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            is_shown = not isinstance(node, ast.Module) and node.decorator_list
            first = node.body[0] if node.body else None
            if isinstance(first, ast.Expr) and not is_shown:
                hidden.add(first.value)
    for node in ast.walk(tree):
        is_text = isinstance(node, ast.Constant) and isinstance(node.value, str)
        if is_text and node not in hidden and " " in node.value.strip():
            yield node.lineno, node.value


def modules() -> list[Path]:
    files = (file for folder in CODE for file in (ROOT / folder).rglob("*.py"))
    return sorted({file.resolve() for file in files})


@pytest.mark.parametrize("folder", CODE)
def test_messages_help_and_captions_use_the_words_of_the_field(folder: str) -> None:
    found = []
    for file in modules():
        if file.is_relative_to(ROOT / folder):
            name = file.relative_to(ROOT).as_posix()
            for line, text in shown_texts(ast.parse(file.read_text(encoding="utf-8"))):
                found += complaints(text, f"{name}:{line}")
    assert not found, "\n" + "\n".join(found)


@pytest.mark.parametrize("pattern", PAGES)
def test_pages_use_the_words_of_the_field(pattern: str) -> None:
    found = []
    for page in sorted(ROOT.glob(pattern)):
        found += complaints(page.read_text(encoding="utf-8"), page.relative_to(ROOT).as_posix())
    assert not found, "\n" + "\n".join(found)


def test_help_uses_the_words_of_the_field() -> None:
    found = []
    for command in commands(typer.main.get_command(app)):
        shown = CliRunner().invoke(app, [*command, "--help"], env={"COLUMNS": "200"})
        found += complaints(shown.output, " ".join(["ctta-bench", *command, "--help"]))
    assert not found, "\n" + "\n".join(found)


def commands(group, names: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:  # type: ignore[no-untyped-def]
    """The names of a command and of those below it."""
    yield names
    for name, command in getattr(group, "commands", {}).items():
        yield from commands(command, (*names, name))


@pytest.mark.parametrize(("pattern", "write", "example"), WORDS)
def test_a_retired_word_is_found_and_its_replacement_is_not(
    pattern: str, write: str, example: str
) -> None:
    code = f'def f():\n    """{example}."""\n    raise ValueError(f"no: {{x}} {example}.")\n'
    texts = list(shown_texts(ast.parse(code)))

    assert [line for line, _ in texts] == [3]  # the docstring is for developers
    (complaint,) = complaints(texts[0][1], "a.py:3")
    assert f"write {write}" in complaint
    assert complaints(write, "") == []
