"""The registries: METHODS, BENCHMARKS and MODELS have the names that users type.

METRICS and MEASURES are for scoring, TABLES and FIGURES for reports. A class or function is
registered as in mmengine, and built by its name:

    @METHODS.register_module("tent")
    class Tent(Method): ...

    METHODS.get("tent")(model)

A registry first reads the source files of its packages as text, so that `ctta-bench list` needs
neither torch nor mmengine. The module of an entry is imported at the first `get`.
"""

import ast
import contextlib
import difflib
import functools
import importlib
import importlib.util
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, TypeVar

from ctta_bench.errors import ConfigError

T = TypeVar("T")
FAMILIES = "ctta_bench.parts.families."  # modules with bases of methods
ENTRY_POINT_GROUP = "ctta_bench.plugins"


@dataclass(frozen=True)
class Entry:
    """An entry as read from source text: its name, module, and first line of documentation.

    `attributes` are literals: class attributes (`source_access`, `paper`, ...) and the keyword
    arguments of the decorator (`place=20`). `defaults` are those of a method's hyper-parameters.
    """

    name: str
    module: str
    description: str
    attributes: dict[str, Any] = field(default_factory=dict)
    defaults: dict[str, Any] = field(default_factory=dict)


def canonical(name: str) -> str:
    """A name as registries spell it, lower case with underscores: `ImageNet-C` to `imagenet_c`."""
    return name.strip().lower().replace("-", "_")


class Registry:
    """One registry, which imports entries on demand.

    `kind` is the noun of messages, `variable` the name that decorators use in source files, and
    `packages` have the modules of the entries. A plain registry does not use mmengine, whose
    import takes half a second, and is not shown by `ctta-bench list`. `display_names` are for names
    that are not registered (a model `timm:...`).
    """

    def __init__(
        self,
        kind: str,
        variable: str,
        *packages: str,
        plain: bool = False,
        display_names: Mapping[str, str] | None = None,
    ) -> None:
        self.kind = kind
        self.variable = variable
        self.packages = packages
        self.plain = plain
        self._display_names = display_names or {}
        self._plugin_entries: dict[str, Entry] = {}

    def __repr__(self) -> str:
        return f"<{self.variable}: {', '.join(self.names())}>"

    @functools.cached_property
    def _modules(self) -> Any:
        if self.plain:
            return _PlainModules()
        from mmengine.registry import Registry as MMRegistry

        return MMRegistry(self.kind, scope="ctta_bench")

    @functools.cached_property
    def _package_entries(self) -> dict[str, Entry]:
        found: dict[str, Entry] = {}
        for module, file in _modules_of(self.packages):
            for name, entry in scan(file, module, self.variable).items():
                if name in found:
                    raise ConfigError(
                        f"{entry.module} and {found[name].module} both register the "
                        f"{self.kind} {name!r}; rename one of them."
                    )
                found[name] = entry
        return found

    def entries(self) -> dict[str, Entry]:
        """All entries by name, sorted: those of the packages and of loaded plug-ins."""
        load_entry_points()
        return dict(sorted((self._package_entries | self._plugin_entries).items()))

    def names(self) -> list[str]:
        """All names, sorted."""
        return list(self.entries())

    def find(self, name: str) -> Entry:
        """The entry called `name`, without importing it.

        Raises ConfigError with similar names and the searched packages if there is none.
        """
        entries = self.entries()
        entry = entries.get(canonical(name))
        if entry is None:
            close = difflib.get_close_matches(canonical(name), entries, n=2, cutoff=0.6)
            hint = f", did you mean {' or '.join(repr(c) for c in close)}?" if close else "."
            listed = f"`ctta-bench list {self.kind}s` shows all {len(entries)}"
            there = f"There are {', '.join(entries)}" if self.plain else listed
            raise ConfigError(
                f"unknown {self.kind} {name!r}{hint} {there}; searched: "
                f"{', '.join([*self.packages, *sorted(loaded_plugins())])}."
            )
        return entry

    def get(self, name: str) -> Any:
        """The class or function called `name`; imports its module.

        Raises ConfigError for an unknown name.
        """
        entry = self.find(name)
        importlib.import_module(entry.module)
        return self._modules.module_dict[entry.name]

    def name_of(self, target: type) -> str | None:
        """The name under which a class, or one that it derives from, is registered; None: none."""
        known = self._modules.module_dict
        return next(
            (name for base in target.__mro__ for name, entry in known.items() if entry is base),
            None,
        )

    def folder(self, name: str) -> Path | None:
        """The folder of the file that registers an entry, with its presets and translations.

        None for an entry without a file, as of a notebook.
        """
        module = self.find(name).module
        if module in sys.modules:
            file = getattr(sys.modules[module], "__file__", None)
        else:
            spec = importlib.util.find_spec(module)
            file = spec.origin if spec else None
        return Path(file).resolve().parent if file else None

    def plugin_folders(self) -> list[Path]:
        """The folders of the files of plug-ins, each once."""
        load_entry_points()
        found = [self.folder(name) for name in sorted(self._plugin_entries)]
        return list(dict.fromkeys(folder for folder in found if folder is not None))

    def page(self, name: str) -> Path | None:
        """The page of a plug-in's entry, `pages/NAME.md` next to its module; None without one."""
        folder = None if self.is_of_package(name) else self.folder(name)
        file = folder / "pages" / f"{self.find(name).name}.md" if folder else None
        return file if file is not None and file.is_file() else None

    def is_of_package(self, name: str) -> bool:
        """Whether an entry is one of the suite's own, not of a plug-in."""
        return self.find(name).name in self._package_entries

    def declared(self, name: str, attribute: str, default: Any = None) -> Any:
        """A literal attribute of an entry; the default if entry or attribute does not exist."""
        entry = self.entries().get(canonical(name))
        return default if entry is None else entry.attributes.get(attribute, default)

    def display_name(self, name: str) -> str:
        """The name in tables, figures and pages; `name` itself if none is declared.

        Example: `METHODS.display_name("cotta")` is "CoTTA".
        """
        return str(self.declared(name, "display_name") or self._display_names.get(name, name))

    def citation(self, name: str) -> str:
        """The BibTeX key of an entry's paper, a key of `references()`; "" if it has none."""
        return str(self.declared(name, "citation", ""))

    def forget(self, module: str) -> None:
        """Remove the entries of a plug-in whose import failed."""
        kept = {n: e for n, e in self._plugin_entries.items() if e.module != module}
        self._plugin_entries = kept

    def names_with(self, **facts: Any) -> list[str]:
        """Names of the entries with these attributes, in the order of `place`; None: without it."""
        found = [
            entry
            for entry in self.entries().values()
            if all(entry.attributes.get(key) == value for key, value in facts.items())
        ]
        return [entry.name for entry in sorted(found, key=lambda e: e.attributes.get("place", 0))]

    def register_module(self, name: str, **facts: Any) -> Callable[[T], T]:
        """Decorator that registers a class or function under `name`, as mmengine's does.

        `facts` are literals that are added to the attributes of the entry. Raises ConfigError if
        another module has registered the name.
        """

        name = canonical(name)

        def register(target: T) -> T:
            module = getattr(target, "__module__", "")
            owner = (self._package_entries | self._plugin_entries).get(name)
            if owner is not None and owner.module != module:
                raise ConfigError(
                    f"{module} registers the {self.kind} {name!r}, which {owner.module} has "
                    "registered already; choose another name."
                )
            if owner is None:
                doc = (getattr(target, "__doc__", None) or "").strip().partition("\n")[0]
                literals = {
                    key: value
                    for key, value in vars(target).items()
                    if isinstance(value, str | int | dict | frozenset) and not key.startswith("__")
                }
                self._plugin_entries[name] = Entry(name, module, doc, literals | facts)
            self._modules.register_module(name=name, module=target, force=True)
            return target

        return register


class _PlainModules:
    """The part of mmengine's registry that this module uses."""

    def __init__(self) -> None:
        self.module_dict: dict[str, Any] = {}

    def register_module(self, name: str, module: Any, force: bool) -> None:
        self.module_dict[name] = module


def _modules_of(packages: Iterable[str]) -> Iterator[tuple[str, Path]]:
    """Name and file of each module directly in one of the packages."""
    for package in packages:
        spec = importlib.util.find_spec(package)
        for folder in (spec.submodule_search_locations or []) if spec else []:
            for file in sorted(Path(folder).glob("*.py")):
                yield f"{package}.{file.stem}", file


def scan(file: Path, module: str, variable: str) -> dict[str, Entry]:
    """Entries that `file` registers with `@variable.register_module("name")`, read as text."""
    text = file.read_text(encoding="utf-8")
    if f"{variable}.register_module" not in text:
        return {}
    tree = ast.parse(text, filename=str(file))
    found = {}
    for node in tree.body:
        if not isinstance(node, ast.ClassDef | ast.FunctionDef):
            continue
        for name, facts in registered(node, variable):
            doc = ast.get_docstring(node) or ast.get_docstring(tree) or ""
            name = canonical(name)
            literals = _inherited(node, tree, file) | _literals(node)
            found[name] = Entry(
                name, module, doc.partition("\n")[0], literals | facts, _defaults(node)
            )
    return found


def _inherited(
    node: ast.ClassDef | ast.FunctionDef, tree: ast.Module, file: Path
) -> dict[str, Any]:
    """The literals of a class's first base, if it is one of `parts.families`."""
    base = node.bases[0] if isinstance(node, ast.ClassDef) and node.bases else None
    for line in tree.body:
        match line:
            case ast.ImportFrom(module=str(module), names=names) if module.startswith(FAMILIES):
                if isinstance(base, ast.Name) and base.id in {each.name for each in names}:
                    home = Path(__file__).parent.joinpath(*module.split(".")[1:])
                    return _literals_in(home.with_suffix(".py"), base.id)
    return {}


@functools.cache
def _literals_in(file: Path, name: str) -> dict[str, Any]:
    """The literals of a class in a file."""
    tree = ast.parse(file.read_text(encoding="utf-8"), filename=str(file))
    classes = (each for each in tree.body if isinstance(each, ast.ClassDef))
    return next((_literals(each) for each in classes if each.name == name), {})


def registered(
    node: ast.ClassDef | ast.FunctionDef, variable: str
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Names under which a class or function is registered, with the keyword arguments."""
    for call in node.decorator_list:
        match call:
            case ast.Call(
                func=ast.Attribute(value=ast.Name(id=owner), attr="register_module"),
                args=[ast.Constant(value=str(name))],
                keywords=facts,
            ) if owner == variable:
                yield name, {str(fact.arg): ast.literal_eval(fact.value) for fact in facts}


def _literals(node: ast.ClassDef | ast.FunctionDef) -> dict[str, Any]:
    """The attributes of a class that are literals."""
    values = {}
    for item in node.body if isinstance(node, ast.ClassDef) else ():
        match item:
            case (
                ast.Assign(targets=[ast.Name(id=key)], value=value)
                | ast.AnnAssign(target=ast.Name(id=key), value=ast.expr() as value)
            ):
                try:
                    values[key] = _literal(value)
                except ValueError:
                    continue  # not a literal
    return values


def _defaults(node: ast.ClassDef | ast.FunctionDef) -> dict[str, Any]:
    """The defaults of hyper-parameters, `name: type = Field(DEFAULT, ...)`, that are literals."""
    inner = [each for each in node.body if isinstance(each, ast.ClassDef)]
    fields = next((each.body for each in inner if each.name == "Hyperparameters"), [])
    values = {}
    for item in fields:
        match item:
            case ast.AnnAssign(
                target=ast.Name(id=key),
                value=ast.Call(func=ast.Name(id="Field"), args=[ast.Constant(value=default)]),
            ):
                values[key] = default
    return values


def _literal(value: ast.expr) -> Any:
    """The value of a literal, a union of literal sets, or `frozenset` of one."""
    match value:
        case ast.Call(func=ast.Name(id="frozenset"), args=[items], keywords=[]):
            return frozenset(_literal(items))
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            return _literal(left) | _literal(right)
    return ast.literal_eval(value)


METHODS = Registry("method", "METHODS", "ctta_bench.methods")
BENCHMARKS = Registry("benchmark", "BENCHMARKS", "ctta_bench.datasets")
MODELS = Registry(
    "model",
    "MODELS",
    "ctta_bench.datasets",
    display_names={"timm:vit_base_patch16_224.augreg_in21k_ft_in1k": "ViT-B/16 (ImageNet)"},
)
# Of a report, in the order of `place`. A table is a function that makes a Table, several or None of
# runs: with `of="all"` of all runs, else of those that share a table.
TABLES = Registry(
    "table", "TABLES", "ctta_bench.analysis.tables", "ctta_bench.analysis.paper", plain=True
)
FIGURES = Registry(
    "figure", "FIGURES", "ctta_bench.analysis.figures", "ctta_bench.analysis.paper", plain=True
)
# The metric of each task, by the task's name, and further measures of classification.
METRICS = Registry("metric", "METRICS", "ctta_bench.scoring", plain=True)
MEASURES = Registry("measure", "MEASURES", "ctta_bench.scoring", plain=True)
# Image corruptions by name, for benchmarks made of clean images: a class with `names` (the usual
# ones), `known` (all), `version` and `corrupt(image, corruption, severity, *, parameters, seed,
# index)`.
CORRUPTION_SETS = Registry(
    "set of corruptions", "CORRUPTION_SETS", "ctta_bench.datasets.making", plain=True
)
REGISTRIES = (METHODS, BENCHMARKS, MODELS, TABLES, FIGURES, METRICS, MEASURES, CORRUPTION_SETS)


def domain_display_names(benchmark: str, domains: Sequence[str]) -> list[str]:
    """The names of a benchmark's domains in tables and figures, e.g. "Gaussian", "JPEG".

    They are declared in the benchmark's `domain_display_names`; the name of another benchmark there
    means that benchmark's. A domain without one is shown with spaces for underscores. Where two
    domains would look the same, all of them keep the names of the record.
    """
    names = BENCHMARKS.declared(benchmark, "domain_display_names", {})
    if isinstance(names, str):
        names = BENCHMARKS.declared(names, "domain_display_names", {})
    shown = [str(names.get(domain, domain.replace("_", " "))) for domain in domains]
    return shown if len(set(shown)) == len(set(domains)) else list(domains)


def references() -> dict[str, dict[str, str]]:
    """The papers of methods, benchmarks and settings by BibTeX key, sorted.

    Each has the fields of its entry (`author`, `title`, `year`, ...) and, as `bibtex`, the entry.
    They are read from `references.bib` of methods/ and datasets/, and next to the modules of
    plug-ins.
    """
    folders = [folder for kind in (METHODS, BENCHMARKS) for folder in kind.plugin_folders()]
    return _references(tuple(dict.fromkeys(folders)))


@functools.cache
def _references(of_plugins: tuple[Path, ...]) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = {}
    folders = [
        Path(folder)
        for package in (*METHODS.packages, *BENCHMARKS.packages)
        if (spec := importlib.util.find_spec(package))
        for folder in spec.submodule_search_locations or []
    ]
    files = [folder / "references.bib" for folder in (*folders, *of_plugins)]
    for file in (file for file in files if file.is_file()):
        text = file.read_text(encoding="utf-8")
        for entry, key in re.findall(r"^(@\w+\{(\w+),\n.*?^\})", text, re.DOTALL | re.MULTILINE):
            if key in found and found[key]["bibtex"] != entry:
                raise ConfigError(
                    f"{file}: another BibTeX entry has the key {key!r}, too; rename one of them."
                )
            fields = dict(re.findall(r"^  (\w+) *= \{(.*)\},?$", entry, re.MULTILINE))
            found[key] = {**fields, "bibtex": entry}
    return dict(sorted(found.items()))


def short_reference(key: str, venue: str = "") -> str:
    """A paper in a few words, e.g. "Wang et al., ICLR 2021"; the key must be in `references()`."""
    fields = references()[key]
    names = [author.partition(",")[0] for author in fields["author"].split(" and ")]
    authors = " and ".join(names) if len(names) < 3 else f"{names[0]} et al."
    return " ".join(filter(None, (f"{authors},", venue, fields["year"])))


class PluginFile(NamedTuple):
    """A file of a plug-in's code, and the SHA-256 that it had when the plug-in was loaded."""

    path: Path
    sha256: str


_plugins: dict[str, ModuleType] = {}
_plugin_files: dict[str, dict[str, PluginFile]] = {}  # of each plug-in, by path below sys.path
_registering: set[str] = set()  # the plug-ins that register something
_FILE_PLUGIN = "ctta_bench_plugin_"  # start of the module's name of a plug-in that is a file
_INSTALLED = {"site-packages", "dist-packages"}
# Errors of faulty plug-ins at import; pydantic's errors are ValueErrors.
_PLUGIN_FAULTS = (
    ImportError,
    OSError,
    SyntaxError,
    NameError,
    AttributeError,
    TypeError,
    ValueError,
    LookupError,
    ArithmeticError,
    RuntimeError,
    AssertionError,
)


def loaded_plugins() -> dict[str, ModuleType]:
    """The loaded plug-ins, by the file or module name that the user gave."""
    return dict(_plugins)


def load_plugin(file_or_module: str) -> ModuleType:
    """Import a plug-in, whose entries join the registries: `load_plugin("my_method.py")`.

    It is a Python file (a path that ends in .py) or an installed module by its name. Raises
    ConfigError if there is no such file or module, or if the import fails.
    """
    if file_or_module in _plugins:
        return _plugins[file_or_module]
    path = Path(file_or_module)
    if path.suffix == ".py":
        module = import_file(path)
    else:
        with _named(file_or_module):
            module = importlib.import_module(file_or_module)
    _plugins[file_or_module] = module
    _plugin_files[file_or_module] = files = _read_code(module)
    if _modules_in(module, files) & {e.module for r in REGISTRIES for e in r.entries().values()}:
        _registering.add(file_or_module)
    return module


def plugin_files(modules: Collection[str] | None = None) -> dict[str, PluginFile]:
    """The files of the loaded plug-ins by name: their own, and further files that they import.

    modules: only plug-ins with one of these modules, and plug-ins that register nothing.
    """
    found: dict[str, PluginFile] = {}
    for plugin, module in loaded_plugins().items():
        files = _plugin_files.get(plugin, {})
        own = _modules_in(module, files)
        if modules is not None and plugin in _registering and not own & set(modules):
            continue
        for name, file in files.items():
            same = name not in found or found[name].path == file.path
            found[name if same else f"{file.path.parent.name}/{name}"] = file
    return found


def _modules_in(module: ModuleType, files: Iterable[str]) -> set[str]:
    """The dotted names of a plug-in's module and of the files that it imports."""
    stems = (name.removesuffix(".py").removesuffix("/__init__") for name in files)
    return {module.__name__, *(stem.replace("/", ".") for stem in stems)}


def _read_code(module: ModuleType) -> dict[str, PluginFile]:
    """The files of a plug-in, and of what it imports apart from installed packages.

    They are followed in the text of the files, so that the result does not depend on what else is
    loaded. A file has the path by which it is imported: `helper.py`, `package/__init__.py`.
    """
    import hashlib

    package = module.__name__.partition(".")[0]
    is_file = package.startswith(_FILE_PLUGIN)
    waiting = _located(module.__name__, package)
    if is_file and module.__file__:
        waiting = [(Path(module.__file__).stem, Path(module.__file__))]
    found: dict[str, PluginFile] = {}
    while waiting:
        dotted, path = waiting.pop()
        is_package = path.name == "__init__.py"
        name = dotted.replace(".", "/") + ("/__init__.py" if is_package else ".py")
        if name in found:
            continue
        content = path.read_bytes()
        found[name] = PluginFile(path.resolve(), hashlib.sha256(content).hexdigest())
        parent = dotted if is_package else dotted.rpartition(".")[0]
        for imported in _imported(content, parent):
            waiting += _located(imported, package)
    return found


def _imported(content: bytes, package: str) -> Iterator[str]:
    """The dotted names that a module of `package` imports, anywhere in its text."""
    for node in ast.walk(ast.parse(content)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*above, *filter(None, [base])])
            yield from (f"{base}.{alias.name}" for alias in node.names)


def _located(dotted: str, package: str) -> list[tuple[str, Path]]:
    """The Python files of a module and of the packages around it, by dotted name.

    [] for installed packages other than `package`: their versions are recorded, or do not matter.
    """
    top, *parts = dotted.split(".")
    if not top or top in sys.stdlib_module_names or top == __name__.partition(".")[0]:
        return []
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError, AttributeError):
        return []
    if spec is None or (top != package and _INSTALLED & set(Path(spec.origin or "").parts)):
        return []
    origin = spec.origin or ""
    found = [(top, Path(origin))] if origin.endswith(".py") else []
    folders = [Path(folder) for folder in spec.submodule_search_locations or ()]
    for number, part in enumerate(parts):
        files = [file for f in folders for file in (f / part / "__init__.py", f / f"{part}.py")]
        file = next((file for file in files if file.is_file()), None)
        if file is not None:
            found.append((".".join([top, *parts[: number + 1]]), file))
        folders = [folder / part for folder in folders]
    return found


@contextlib.contextmanager
def _named(plugin: str) -> Iterator[None]:
    """Faults of a plug-in within the block become a ConfigError that names it."""
    try:
        yield
    except _PLUGIN_FAULTS as error:
        raise ConfigError(
            f"plug-in {plugin!r} does not load: {type(error).__name__}: {error}."
        ) from error


def import_file(path: Path) -> ModuleType:
    """Import a file of a plug-in. Raises ConfigError if there is none, or if it does not load."""
    with _named(str(path)):
        return _import_file(path)


def _import_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise ConfigError(f"plug-in {str(path)!r}: no such file; check the path.")
    import hashlib  # slow to import, as importlib.metadata below: not needed by `--help`

    # The path is part of the module's name: two files called my_method.py are two plug-ins.
    digest = hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:8]
    name = f"{_FILE_PLUGIN}{path.stem}_{digest}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        for registry in REGISTRIES:
            registry.forget(name)
        raise
    return module


@functools.cache
def load_entry_points() -> None:
    """Load the plug-ins of installed packages (entry-point group `ctta_bench.plugins`)."""
    from importlib.metadata import entry_points

    for point in entry_points(group=ENTRY_POINT_GROUP):
        load_plugin(point.value)
