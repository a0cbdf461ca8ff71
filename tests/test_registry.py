import subprocess
import sys
from pathlib import Path

import pytest

from ctta_bench import registry
from ctta_bench.errors import ConfigError
from ctta_bench.registry import BENCHMARKS, METHODS, MODELS, canonical, load_plugin, scan

PLUGIN = '''
"""A plug-in."""
from ctta_bench.registry import METHODS


@METHODS.register_module("{name}")
class Mine:
    """What {name} does.

    More of it.
    """

    paper = "mine"
'''


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plug-ins of a test are forgotten after it."""
    monkeypatch.setattr(registry, "_plugins", {})
    monkeypatch.setattr(METHODS, "_plugin_entries", {})


def write(folder: Path, name: str, file: str = "plugin.py") -> str:
    folder.mkdir(exist_ok=True)
    (folder / file).write_text(PLUGIN.format(name=name))
    return str(folder / file)


def test_names_are_found_without_importing_anything_heavy() -> None:
    code = (
        "import sys, ctta_bench\n"
        "from ctta_bench.registry import METHODS, BENCHMARKS, MODELS\n"
        "assert METHODS.names() and BENCHMARKS.names() and MODELS.names()\n"
        "assert METHODS.find('paid').attributes['source_access'] == 'unlabelled'\n"
        "heavy = {'torch', 'mmengine', 'timm', 'numpy', 'pandas', 'pydantic'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("registry", [METHODS, BENCHMARKS, MODELS], ids=lambda r: r.kind)
def test_every_entry_is_listed_sorted_with_one_line_about_it(registry: registry.Registry) -> None:
    assert registry.names() == sorted(registry.names())
    assert all(entry.description.endswith(".") for entry in registry.entries().values())


@pytest.mark.parametrize("name", METHODS.names())
def test_what_is_read_as_text_is_what_is_imported(name: str) -> None:
    entry, kind = METHODS.find(name), METHODS.get(name)
    assert kind.__module__ == entry.module
    assert kind.__doc__.partition("\n")[0] == entry.description
    assert {k: getattr(kind, k) for k in entry.attributes} == entry.attributes


@pytest.mark.parametrize(
    "spelling", ["pseudo_label", "pseudo-label", "Pseudo-Label", " PSEUDO_LABEL "]
)
def test_case_hyphens_and_spaces_do_not_matter(spelling: str) -> None:
    assert METHODS.find(spelling).name == "pseudo_label"
    assert canonical(spelling) == "pseudo_label"


def test_an_unknown_name_gets_close_ones_and_the_places_searched() -> None:
    with pytest.raises(ConfigError) as caught:
        METHODS.get("padi")
    assert str(caught.value) == (
        "unknown method 'padi', did you mean 'paid'? `ctta-bench list methods` shows all "
        f"{len(METHODS.names())}; searched: ctta_bench.methods."
    )


@pytest.mark.parametrize("name", ["zzzzzz", "os.path.join", "torch.nn.Linear", ""])
def test_a_name_like_none_gets_no_suggestion_and_imports_nothing(name: str) -> None:
    with pytest.raises(ConfigError, match=r"unknown method '.*'\. `ctta-bench list methods`"):
        METHODS.get(name)


def test_a_file_adds_its_entries(tmp_path: Path) -> None:
    file = write(tmp_path, "mine")
    module = load_plugin(file)
    assert METHODS.get("mine") is module.Mine
    entry = METHODS.find("mine")
    assert entry.description == "What mine does."
    assert entry.attributes["paper"] == "mine"
    assert "mine" in METHODS.names()
    with pytest.raises(ConfigError, match=rf"did you mean 'mine'.*searched: .*{file}"):
        METHODS.find("mime")


def test_a_file_is_loaded_once(tmp_path: Path) -> None:
    file = write(tmp_path, "mine")
    assert load_plugin(file) is load_plugin(file)


def test_a_module_adds_its_entries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, "mine", "module_of_a_test.py")
    monkeypatch.syspath_prepend(tmp_path)
    assert load_plugin("module_of_a_test").Mine is METHODS.get("mine")


def test_names_of_plugins_may_be_written_with_hyphens_and_capitals(tmp_path: Path) -> None:
    module = load_plugin(write(tmp_path, "My-Method"))
    assert METHODS.get("my_method") is METHODS.get("My-Method") is module.Mine
    assert set(scan(tmp_path / "plugin.py", "plugin", "METHODS")) == {"my_method"}


def test_two_files_of_one_name_are_two_plugins(tmp_path: Path) -> None:
    first = load_plugin(write(tmp_path / "a", "mine"))
    second = load_plugin(write(tmp_path / "b", "yours"))
    assert METHODS.get("mine") is first.Mine
    assert METHODS.get("yours") is second.Mine


@pytest.mark.parametrize("taken", ["tent", "mine"])
def test_a_name_that_another_owns_is_refused(taken: str, tmp_path: Path) -> None:
    load_plugin(write(tmp_path / "a", "mine"))
    owner = METHODS.get(taken)
    with pytest.raises(ConfigError, match=f"'{taken}', which .* has registered already"):
        load_plugin(write(tmp_path / "b", taken))
    assert METHODS.get(taken) is owner


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("import no_such_module", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("def f(:", "SyntaxError: "),
        ("nothing", "NameError: name 'nothing' is not defined"),
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("{}['key']", "KeyError: 'key'"),
        ("raise ValueError('wrong value')", "ValueError: wrong value"),
        ("raise RuntimeError('no device')", "RuntimeError: no device"),
        ("open('/no/such/file')", "FileNotFoundError: "),
    ],
)
def test_a_plugin_that_does_not_run_is_an_error_in_one_sentence(
    text: str, message: str, tmp_path: Path
) -> None:
    file = tmp_path / "broken.py"
    file.write_text(text)
    before = set(sys.modules)
    with pytest.raises(ConfigError) as caught:
        load_plugin(str(file))
    assert str(caught.value).startswith(f"plug-in {str(file)!r} does not load: {message}")
    assert "\n" not in str(caught.value)
    assert not [name for name in set(sys.modules) - before if "plugin_broken" in name]


def test_a_mended_plugin_loads(tmp_path: Path) -> None:
    file = write(tmp_path, "mine")
    with (tmp_path / "plugin.py").open("a") as stream:
        stream.write("nothing\n")
    with pytest.raises(ConfigError):
        load_plugin(file)
    write(tmp_path, "mine")
    assert load_plugin(file).Mine is METHODS.get("mine")


@pytest.mark.parametrize(
    ("name", "message"),
    [("nowhere/plugin.py", "no such file"), ("no_such_module", "No module named 'no_such_module'")],
)
def test_a_plugin_that_does_not_exist_is_named(name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=f"plug-in '{name}'.*{message}"):
        load_plugin(name)


def test_only_classes_and_functions_under_the_right_decorator_are_entries(tmp_path: Path) -> None:
    file = tmp_path / "entries.py"
    file.write_text(
        '"""About the file."""\n'
        '@METHODS.register_module("one")\nclass One:\n    source_access = "none"\n    n = f()\n'
        '@METHODS.register_module("two")\ndef two(): ...\n'
        '@MODELS.register_module("three")\ndef three(): ...\n'
        "@METHODS.register_module(NAME)\ndef four(): ...\n"
    )
    found = scan(file, "entries", "METHODS")
    assert set(found) == {"one", "two"}
    assert found["one"].attributes == {"source_access": "none"}
    assert found["two"].description == "About the file."


def test_a_plugin_that_fails_half_way_leaves_no_entry(tmp_path: Path) -> None:
    file = tmp_path / "half.py"
    file.write_text(
        "from ctta_bench.registry import METHODS\n"
        '@METHODS.register_module("half_done")\nclass A:\n    pass\nraise ValueError("no")\n'
    )
    with pytest.raises(ConfigError, match="does not load"):
        load_plugin(str(file))
    assert "half_done" not in METHODS.names()
