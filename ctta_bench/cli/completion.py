"""What the shell offers while a user types: names, keys and values, without importing torch.

The sources of methods and benchmarks are parsed, as the registries do: their classes, base classes
and constants, through imports inside the package. Names that are computed at run time are not
offered.
"""

import ast
import contextlib
import functools
import io
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import typer

import ctta_bench
from ctta_bench.config.fields import choices_of
from ctta_bench.config.options import cell_options
from ctta_bench.errors import CttaBenchError
from ctta_bench.registry import BENCHMARKS, METHODS, MODELS, Registry, canonical, registered, scan

Given = Mapping[str, Any]  # the options and arguments before the word, by name
Complete = Callable[[Given, str], Iterable[str]]  # from them and the word's start to its candidates


def completion(candidates: Complete) -> Callable[[typer.Context, str], list[str]]:
    """The function that typer calls for the candidates of a word."""

    def complete(ctx: typer.Context, incomplete: str) -> list[str]:
        # After an option without its value the parser leaves arguments as words.
        arguments = [p.name for p in ctx.command.params if p.param_type_name == "argument"]
        left = dict(zip(arguments, ctx.args, strict=False))
        given = left | {k: v for k, v in ctx.params.items() if v or k not in left}
        found = candidates(given, incomplete)
        return [name for name in found if name.startswith(incomplete)]

    return complete


def one_of(*words: str) -> Callable[[typer.Context, str], list[str]]:
    """Completion of a fixed list."""
    return completion(lambda given, start: words)


@contextlib.contextmanager
def whole_words_in_bash() -> Iterator[None]:
    """Bash splits words at `=` and `:` and replaces only the last piece. Join the pieces for typer,
    and print only the last piece of each candidate. Outside of a completion this does nothing."""
    words = os.environ.get("COMP_WORDS", "").split("\n")
    if os.environ.get("_CTTA_BENCH_COMPLETE") != "complete_bash" or len(words) < 2:
        yield
        return
    words = words[: int(os.environ["COMP_CWORD"]) + 1]
    joined = re.sub(r"\n?([=:]+)\n?", r"\1", "\n".join(words)).split("\n")
    os.environ |= {"COMP_WORDS": "\n".join(joined), "COMP_CWORD": str(len(joined) - 1)}
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            yield
    finally:
        before = len(joined[-1]) - len(re.split("[=:]", joined[-1])[-1])
        typer.echo("\n".join(line[before:] for line in printed.getvalue().splitlines()))


def methods(given: Given, start: str) -> Iterable[str]:
    """Names of methods."""
    return _modules(METHODS, given)


def benchmarks(given: Given, start: str) -> Iterable[str]:
    """Names of benchmarks."""
    return _modules(BENCHMARKS, given)


def models(given: Given, start: str) -> Iterable[str]:
    """Names of registered models."""
    return _modules(MODELS, given)


def settings(given: Given, start: str) -> Iterable[str]:
    """Names of settings of the stream."""
    from ctta_bench.stream.settings import SETTINGS

    return SETTINGS


def experiments(given: Given, start: str) -> Iterable[str]:
    """Names of experiments."""
    from ctta_bench.config.experiment_file import experiment_files

    return experiment_files()


def presets(given: Given, start: str) -> Iterable[str]:
    """Presets of the methods that are named, or of all."""
    from ctta_bench.config.presets import presets_of

    names = _chosen("method", given) or METHODS.names()
    return sorted({"default", *(preset for name in names for preset in presets_of(name))})


def assignments(given: Given, start: str) -> Iterable[str]:
    """KEY= for the methods and benchmarks that are named, then values of some keys."""
    key, equals, value = start.partition("=")
    owner, dot, bare = key.rpartition(".")
    if not equals:
        return [f"{owner}{dot}{name}=" for name in _keys(owner, given)]
    head, comma, _ = value.rpartition(",")
    before = f"{head}{comma}" or "[" * value.startswith("[")
    values = _values(bare, given) if not comma or bare == "domains" else ()
    return [f"{key}={before}{name}" for name in values]


def _keys(owner: str, given: Given) -> list[str]:
    """Keys of `--set` after a prefix, "" for none."""
    kinds = {"method": (METHODS, "Hyperparameters"), "benchmark": (BENCHMARKS, "Settings")}
    wanted = kinds if not owner else {owner: kinds[owner]} if owner in kinds else {}
    found = set() if owner else {*cell_options("set")}
    for kind, (registry, model) in wanted.items():
        for name in _chosen(kind, given):
            found |= {*_fields(_member(_class(registry, name, given), model))}
    return sorted(found)


def _values(key: str, given: Given) -> Iterable[str]:
    """Values of a key of `--set`, as far as they are known: domains, settings, choices."""
    if key == "domains":
        return [
            domain
            for name in _chosen("benchmark", given)
            for place in ("domain_names", "extra_domains")
            for domain in _returned(_class(BENCHMARKS, name, given), place)
        ]
    if key == "setting":
        return settings(given, "")
    option = cell_options("set").get(key)
    return models(given, "") if key == "model" else choices_of(option.type) if option else ()


def _modules(registry: Registry, given: Given) -> dict[str, str]:
    """Names of a registry, with the module or, for a plug-in, the file of each."""
    found = {name: entry.module for name, entry in registry.entries().items()}
    for file in map(Path, given.get("plugin") or ()):
        if file.suffix == ".py" and file.is_file():
            found |= dict.fromkeys(scan(file, str(file), registry.variable), str(file))
    return dict(sorted(found.items()))


def _chosen(kind: str, given: Given) -> list[str]:
    """The methods or benchmarks that the command names, or its experiment."""
    found = given.get(kind) or given.get(f"{kind}s") or ()
    if not found and given.get("experiment"):
        from ctta_bench.config.experiment_file import load_experiment

        try:
            experiment = load_experiment(given["experiment"])
        except CttaBenchError:
            return []
        found = (
            experiment.benchmarks
            if kind == "benchmark"
            else [entry.name for entry in experiment.methods]
        )
    return [canonical(name) for name in ([found] if isinstance(found, str) else found)]


# Options of a cell whose values are more than the choices of their type.
OF_CELLS: Mapping[str, Complete] = {
    "method": methods,
    "benchmark": benchmarks,
    "model": models,
    "preset": presets,
    "set": assignments,
}


# -- classes, read as text

Found = tuple[str, ast.AST] | None  # a definition and its module


@functools.cache
def _tree(module: str) -> ast.Module:
    """The source of a module of the package, or of a plug-in's file."""
    file = Path(module)
    if file.suffix != ".py":
        place = Path(ctta_bench.__file__).parent.joinpath(*module.split(".")[1:])
        file = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
    return ast.parse(file.read_text(encoding="utf-8") if file.is_file() else "")


def _class(registry: Registry, name: str, given: Given) -> Found:
    """The class that is registered under a name."""
    module = _modules(registry, given).get(name, "")
    for node in _tree(module).body if module else ():
        if isinstance(node, ast.ClassDef) and any(
            canonical(own) == name for own, _ in registered(node, registry.variable)
        ):
            return module, node
    return None


def _named(module: str, name: str, body: Iterable[ast.AST]) -> Found:
    """The definition of a name, or its value, in the body of a module or class."""
    for node in body:
        match node:
            case ast.ClassDef(name=own) | ast.FunctionDef(name=own) if own == name:
                return module, node
            case (
                ast.Assign(targets=[ast.Name(id=own)], value=ast.expr() as value)
                | ast.AnnAssign(target=ast.Name(id=own), value=ast.expr() as value)
            ) if own == name:
                return _follow(module, value)
    return None


def _global(module: str, name: str) -> Found:
    """The definition of a name in a module: its own, or imported from another of the package."""
    tree = _tree(module)
    if found := _named(module, name, tree.body):
        return found
    for node in ast.walk(tree):  # imports under TYPE_CHECKING, too
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("ctta_bench"):
            for alias in node.names:
                if (alias.asname or alias.name) == name:
                    return _global(str(node.module), alias.name)
    return None


def _follow(module: str, node: ast.AST) -> Found:
    """What `Name`, `Class.Name` or `METHODS.get(NAME)` refers to; other expressions as they are."""
    match node:
        case ast.Name(id=name):
            return _global(module, name)
        case ast.Attribute(value=ast.Name(id=owner), attr=name):
            return _member(_global(module, owner), name)
        case ast.Call(
            func=ast.Attribute(value=ast.Name(id="METHODS"), attr="get"),
            args=[ast.Constant(value=str(name))],
        ):
            return _class(METHODS, name, {})
    return module, node


def _lineage(found: Found) -> Iterator[tuple[str, ast.ClassDef]]:
    """A class and its base classes."""
    if found and isinstance(found[1], ast.ClassDef):
        yield found[0], found[1]
        for base in found[1].bases:
            yield from _lineage(_follow(found[0], base))


def _member(owner: Found, name: str) -> Found:
    """An attribute of a class, its own or that of the first base class which has it."""
    return next(filter(None, (_named(m, name, node.body) for m, node in _lineage(owner))), None)


def _fields(model: Found) -> Iterator[str]:
    """The fields of a model, as pydantic has them."""
    for _, node in _lineage(model):
        for item in node.body:
            match item:
                case ast.AnnAssign(target=ast.Name(id=name)) if not name.startswith("_"):
                    yield name


def _returned(owner: Found, method: str) -> list[str]:
    """The names that a method of a class returns, if they are written out as constants."""
    found = _member(owner, method)
    last = found[1].body[-1] if found and isinstance(found[1], ast.FunctionDef) else None
    return _texts(found[0], last.value, owner) if found and isinstance(last, ast.Return) else []


def _texts(module: str, node: ast.AST | None, owner: Found) -> list[str]:
    match node:
        case ast.Constant(value=str(text)):
            return [text]
        case ast.Tuple(elts=nodes) | ast.List(elts=nodes) | ast.Dict(keys=nodes):
            return [text for one in nodes for text in _texts(module, one, owner)]
        case ast.Starred(value=inner) | ast.Call(func=ast.Name(id="tuple"), args=[inner]):
            return _texts(module, inner, owner)
        case ast.Subscript(value=inner, slice=ast.Slice(lower=low, upper=high)):
            low, high = (ast.literal_eval(n) if n is not None else None for n in (low, high))
            return _texts(module, inner, owner)[low:high]
        case ast.Attribute(value=ast.Name(id="self"), attr=name):
            found = _member(owner, name)
        case ast.Name(id=name):
            found = _global(module, name)
        case _:
            return []
    return _texts(*found, owner) if found else []
