"""Options of a cell: each is declared once, and command line, YAML and docs take it from there."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ctta_bench import registry
from ctta_bench.cli import app, completion
from ctta_bench.config.options import CellOptions, cell_options
from ctta_bench.config.request import CellRequest
from ctta_bench.registry import BENCHMARKS, METHODS, load_plugin
from tests.conftest import TOY

ROOT = Path(__file__).parents[1]
# One field more in the class that declares the options, and nothing anywhere else.
ONE_MORE = """
import sys
from typing import Annotated, Literal
import ctta_bench.config.options as options

class CellOptions(options.CellOptions):
    shade: Annotated[
        Literal["dark", "light"], options.CellOption("of the curtains", record="changed")
    ] = "light"

options.CellOptions = CellOptions
"""


@pytest.fixture(autouse=True)
def no_plugins_of_other_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_plugins", {})
    for entries in registry.REGISTRIES:
        monkeypatch.setattr(entries, "_plugin_entries", {})


@pytest.fixture
def with_one_more(tmp_path: Path) -> object:
    """Runs Python code in a suite whose cells have one more option."""

    def run(code: str) -> str:
        path = os.pathsep.join(map(str, (ROOT, ROOT / "scripts")))
        done = subprocess.run(
            [sys.executable, "-c", ONE_MORE + code],
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": path, "COLUMNS": "200"},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        return done.stdout + done.stderr

    return run


COMMAND = "from ctta_bench.cli import main; sys.argv[1:] = {!r}; main()"


@pytest.mark.parametrize("command", ["run", "grid"])
def test_a_new_option_is_in_the_help_of_commands(command: str, with_one_more) -> None:
    line = next(
        line
        for line in with_one_more(COMMAND.format([command, "--help"])).splitlines()
        if "--shade" in line
    )
    assert "dark|light" in line and "Of the curtains." in line


def test_a_new_option_is_a_key_of_experiment_files_and_of_the_docs(
    tmp_path: Path, with_one_more
) -> None:
    (tmp_path / "e.yaml").write_text("methods: [tent]\nbenchmarks: [fashion_c]\nshade: dark\n")
    (tmp_path / "bad.yaml").write_text("methods: [tent]\nbenchmarks: [fashion_c]\nshade: grey\n")
    result = with_one_more(
        "from ctta_bench.config.experiment import load_experiment, requested\n"
        "print([values['shade'] for values in requested(load_experiment('e.yaml'))])\n"
        "from docs_tables import cell_table, key_table\n"
        "print(key_table()); print(cell_table())\n" + COMMAND.format(["grid", "bad.yaml"])
    )
    assert "['dark']" in result
    assert "| `shade` | of the curtains (`dark` or `light`) | `light` |" in result
    assert "| `shade` | of the curtains | `dark`, `light` | `light` | run, grid, file |" in result
    assert "bad.yaml:3: shade: 'grey': input should be 'dark' or 'light'." in result


@pytest.mark.slow
def test_a_new_option_is_recorded_if_it_is_not_the_default(tmp_path: Path, with_one_more) -> None:
    options = ["source", "toy", "--plugin", str(TOY), "--out", "out"]
    with_one_more(COMMAND.format(["run", *options, "--shade", "dark"]))
    with_one_more(COMMAND.format(["run", *options]))

    records = [file.read_text() for file in tmp_path.rglob("cell.yaml")]

    assert len(records) == 2
    assert ["shade: dark" in record for record in records].count(True) == 1


def test_a_request_has_every_option_with_the_default_that_was_declared() -> None:
    request = CellRequest.model_validate({"method": "tent", "benchmark": "toy"})
    for name, declared in cell_options().items():
        if declared.default is not ...:
            assert getattr(request, name) == declared.default == getattr(CellOptions, name)
    assert request.set is not CellOptions.set


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("run --plugin TOY tent to", ["toy"]),
        ("run tent fashion_c --model fashion_c", ["fashion_cnn"]),
        ("run --plugin TOY tent toy --model toy_", ["toy_cnn", "toy_vit"]),
        ("run tent fashion_c --preset p", ["paper", "published"]),
        ("run sar fashion_c --set rh", ["rho="]),
        ("run sar fashion_c --set re", ["recovery_threshold=", "repeat=", "reset_every="]),
        ("run sar fashion_c --set benchmark.exa", ["benchmark.examples="]),
        ("run tent fashion_c --set precision=b", ["precision=bfloat16"]),
        ("run tent fashion_c --set setting=cd", ["setting=cdc"]),
        ("run tent fashion_c --set domains=jp", ["domains=jpeg_compression"]),
        ("run tent fashion_c --set domains=[fog,con", ["domains=[fog,contrast"]),
        ("run tent imagenet_3dcc --set domains=fl", ["domains=flash"]),
        ("run tent streets_acdc --set domains=n", ["domains=night"]),
        ("grid quickstart --set domains=gaussian_n", ["domains=gaussian_noise"]),
        ("tune tent --benchmark streets_ac", ["streets_acdc"]),
        ("check ten", ["tent"]),
        ("data check fashion_c", ["fashion_c"]),
        ("run nothing nowhere --set lrx", []),
        ("run tent toy --precision ", ["float64", "float32", "bfloat16", "float16"]),
        ("run tent toy --keep-models ", ["none", "last", "domains"]),
        ("run pseudo", ["pseudo_label"]),
        ("run tent toy --setting mixed", ["mixed", "mixed_correlated"]),
        ("grid quick", ["quickstart"]),
        ("grid quickstart --executor s", ["slurm"]),
        ("grid quickstart --benchmark streets_ac", ["streets_acdc"]),
        ("cost tent --precision b", ["bfloat16"]),
    ],
)
def test_the_shell_completes_choices(words: str, offered: list[str]) -> None:
    arguments = f"ctta-bench {words.replace('TOY', str(TOY))}"
    environment = {
        "_CTTA_BENCH_COMPLETE": "complete_bash",
        "COMP_WORDS": arguments,
        "COMP_CWORD": str(len(arguments.split()) - (not arguments.endswith(" "))),
    }
    done = CliRunner().invoke(app, [], env=environment, prog_name="ctta-bench")
    assert done.stdout.split() == offered


def test_completion_finds_the_keys_and_domains_that_the_code_has(tmp_path: Path) -> None:
    given = {"plugin": [str(TOY)]}
    load_plugin(str(TOY))
    for name in METHODS.names():
        keys = {*completion.assignments({**given, "method": name}, "method.")}
        assert keys == {f"method.{key}=" for key in METHODS.get(name).Hyperparameters.model_fields}
    for name in BENCHMARKS.names():
        here = {**given, "benchmark": name}
        entry = BENCHMARKS.get(name)
        keys = {*completion.assignments(here, "benchmark.")}
        assert keys == {f"benchmark.{key}=" for key in entry.Settings.model_fields}
        if name in ("ccc", "image_folder", "domainnet126"):  # of numbers, folders, a setting
            continue
        built = entry(None, tmp_path)
        known, extra = built.domain_names(), {*built.extra_domains()}
        offered = [d.removeprefix("domains=") for d in completion.assignments(here, "domains=")]
        assert tuple(offered[: len(known)]) == known and {*offered[len(known) :]} <= extra


def test_completion_loads_no_torch_and_completes_the_piece_that_bash_replaces() -> None:
    words = ["ctta-bench", "run", "tent", "fashion_c", "--set", "domains", "=", "fog,con"]
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "import atexit, sys; sys.argv[0] = 'ctta-bench'; from ctta_bench.cli import main\n"
            "atexit.register(lambda: print('torch' in sys.modules))\n"
            "main()",
        ],
        env=os.environ
        | {
            "_CTTA_BENCH_COMPLETE": "complete_bash",
            "COMP_WORDS": "\n".join(words),
            "COMP_CWORD": str(len(words) - 1),
        },
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout.split() == ["fog,contrast", "False"], done.stderr
