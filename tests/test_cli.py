"""The command line as a user meets it: what it prints, where it writes, and how it refuses."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
from safetensors.torch import save_file
from typer.testing import CliRunner, Result

from ctta_bench.cli import app
from ctta_bench.cli.command import EXIT_CODES
from ctta_bench.source_models.pretrained import load_source_model
from tests.conftest import TOY

Invoke = Callable[..., Result]
Run = Callable[..., "subprocess.CompletedProcess[str]"]
PLUGIN = ("--plugin", str(TOY))


@pytest.fixture
def invoke(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Invoke]:
    """`ctta-bench` in this process, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    runner = CliRunner()
    yield lambda *arguments: runner.invoke(app, [str(a) for a in arguments])


def refused(result: Result, *words: str) -> None:
    """Assert a refusal: exit code 2, one `error:` sentence with these words."""
    assert result.exit_code == 2, result.output
    assert result.stderr.startswith("error: ")
    assert "Traceback" not in result.output
    for word in words:
        assert word in result.stderr


def toy_weights(file: Path) -> dict[str, torch.Tensor]:
    from ctta_bench.registry import load_plugin

    load_plugin(str(TOY))
    from ctta_bench.registry import MODELS

    weights = dict(MODELS.get("toy_vit")().state_dict())
    save_file(weights, file)
    return weights


# -- listing


@pytest.mark.parametrize("what", ["methods", "benchmarks", "models", "experiments"])
def test_lists_print_text_and_json(what: str, invoke: Invoke) -> None:
    rows = json.loads(invoke("list", what, "--format", "json").stdout)
    text = invoke("list", what).stdout
    assert rows
    assert all(row["name"] in text and row["description"] for row in rows)


def test_a_plugin_joins_the_list(invoke: Invoke) -> None:
    rows = json.loads(invoke("list", "benchmarks", *PLUGIN, "--format", "json").stdout)
    assert "toy" in [row["name"] for row in rows]


def test_every_command_has_an_example_in_its_help(invoke: Invoke) -> None:
    for words in (["list"], ["run"], ["grid"], ["status"], ["report"], ["data", "check"]):
        assert "Example" in invoke(*words, "--help").stdout


def test_the_version_is_printed_with_torch_and_the_commit(invoke: Invoke) -> None:
    from ctta_bench import __version__

    line = invoke("--version").stdout.strip()
    assert line.startswith(f"ctta-bench {__version__}, torch {torch.__version__.partition('+')[0]}")
    if (TOY.parents[1] / ".git").exists():
        assert re.search(r", commit [0-9a-f]{12}(\+edited)?$", line)


def every_command(group: Any, *words: str) -> Iterator[tuple[str, ...]]:
    """The words of all commands and groups."""
    yield words
    for name, command in getattr(group, "commands", {}).items():
        yield from every_command(command, *words, name)


@pytest.mark.parametrize("words", [*every_command(typer.main.get_command(app))], ids=" ".join)
def test_help_fits_80_columns_and_has_no_types_of_flags(
    words: tuple[str, ...], invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    text = invoke(*words, "--help").stdout
    assert max(map(len, text.splitlines())) <= 80
    options = re.sub(r"\.\.\. +<list\[str\]>", "", text)  # the type of arguments is shown
    assert "<bool>" not in text and "list[str]" not in options


def test_help_groups_commands_and_options_and_has_the_exit_codes(invoke: Invoke) -> None:
    text = invoke("--help").stdout
    for panel in (
        "Run",
        "Follow runs",
        "Results",
        "Methods, models and data",
        "Write a method, benchmark or experiment",
    ):
        assert f" {panel} ─" in text
    words = " ".join(text.split())
    assert all(f"{code} {meaning}" in words for code, meaning in EXIT_CODES.items())
    panels = re.findall(r"╭─ ([\w ]+) ─", invoke("run", "--help").stdout)
    assert panels == ["Arguments", "What to run", "Model", "Data", "Execution", "Output"]
    assert "[default: (the benchmark's own)]" in " ".join(invoke("run", "--help").stdout.split())


# -- running


def test_run_prints_the_errors_and_says_where_they_are(invoke: Invoke) -> None:
    result = invoke("run", "tent", "toy", *PLUGIN)
    assert result.exit_code == 0
    assert "noise" in result.stdout and "mean" in result.stdout
    folder = Path(result.stdout.strip().splitlines()[-1].removeprefix("results in "))
    assert (folder / "result.json").is_file()


def test_run_shows_source_beside_its_own_errors_where_it_is_known(invoke: Invoke) -> None:
    assert "Source" not in invoke("run", "tent", "toy", *PLUGIN).stdout
    source = json.loads(invoke("run", "source", "toy", *PLUGIN, "--format", "json").stdout)
    assert "source" not in source
    printed = invoke("run", "tent", "toy", *PLUGIN).stdout
    assert "Source (round 1)" in printed
    assert re.search(
        r"gain over Source: \S+ points, 95 % interval \[\S+, \S+\] for other im", printed
    )
    found = json.loads(invoke("run", "tent", "toy", *PLUGIN, "--format", "json").stdout)
    assert found["source"] == source["mean"]
    assert "Source" not in invoke("run", "tent", "toy", *PLUGIN, "--seed", "1").stdout


def test_a_second_run_says_already_done_and_writes_nothing(invoke: Invoke, tmp_path: Path) -> None:
    invoke("run", "source", "toy", *PLUGIN)
    before = {f: f.stat().st_mtime_ns for f in tmp_path.rglob("*") if f.is_file()}
    assert "already done" in invoke("run", "source", "toy", *PLUGIN).stdout
    assert {f: f.stat().st_mtime_ns for f in tmp_path.rglob("*") if f.is_file()} == before


def test_run_prints_its_result_as_json(invoke: Invoke) -> None:
    result = json.loads(invoke("run", "source", "toy", *PLUGIN, "--format", "json").stdout)
    assert result["rounds"][0]["domains"][0]["domain"] == "clean"


def test_overrides_reach_the_cell(invoke: Invoke, tmp_path: Path) -> None:
    import yaml

    invoke("run", "tent", "toy", *PLUGIN, "--set", "lr=1e-2", "--set", "benchmark.batch_size=5",
           "--rounds", 2, "--seed", 4)  # fmt: skip
    (file,) = tmp_path.rglob("cell.yaml")
    cell = yaml.safe_load(file.read_text())
    assert cell["method"]["hyperparameters"]["lr"] == 0.01
    assert (cell["benchmark"]["batch_size"], cell["benchmark"]["rounds"]) == (5, 2)
    assert cell["seed"] == 4


def test_a_grid_runs_keeps_and_reports(
    invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", lambda page: opened.append(page) or True)
    (tmp_path / "two.yaml").write_text(
        "title: Two by two\nmethods: [source, tent]\nbenchmarks: [toy]\nseeds: [0, 1]\n"
    )
    first = invoke("grid", "two.yaml", *PLUGIN)
    assert first.exit_code == 0, first.output
    assert "4 cells run, 0 were done before, 0 failed" in first.stdout
    assert re.search(r"\n1 +TENT +\d", first.stdout)
    assert re.search(
        r"Source \(2 seeds, \d+ images per domain\)|; 2 seeds, \d+ images", first.stdout
    )
    assert re.search(
        r"\[4/4\] done     tent toy toy_vit seed 1  error \d+\.\d %  \d+ s\n", first.stderr
    )
    again = invoke("grid", "two.yaml", "--open", *PLUGIN)
    assert "0 cells run, 4 were done before" in again.stdout
    assert opened == [(tmp_path / "runs/two/report/index.html").as_uri()]
    refused = invoke("grid", "two.yaml", "--open", "--executor", "slurm", *PLUGIN)
    assert refused.exit_code == 2 and "--open is for --executor local" in refused.stderr
    rows = json.loads(invoke("status", "runs/two", "--format", "json").stdout)
    assert [row["state"] for row in rows] == ["done"] * 4
    report = invoke("report", "runs/two")
    assert report.exit_code == 0 and len(opened) == 1, report.output
    assert "TENT" in report.stdout and "gain" in report.stdout
    page = (tmp_path / "runs/two/report/index.html").read_text()
    assert "<h1>Two by two</h1>" in page
    assert "ctta-bench grid two.yaml\nctta-bench report runs/two" in page
    assert (tmp_path / "runs/two/report/results.csv").is_file()


def test_a_failing_cell_does_not_stop_the_others(invoke: Invoke, tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text(
        "methods: [{name: paid, set: {source_samples: 10000, layers: q}}, source, "
        "{name: paid, set: {benchmark.labeller: toy_cnn}}]\nbenchmarks: [toy]\n"
    )
    result = invoke("grid", "x.yaml", *PLUGIN)
    assert result.exit_code == 1
    assert "2 cells run" in result.stdout and "1 failed" in result.stdout
    assert "near chance" in result.stderr
    states = {r["state"] for r in json.loads(invoke("status", "runs/x", "--format", "json").stdout)}
    assert states == {"done", "failed"}


def test_a_dry_run_lists_the_cells_and_writes_nothing(invoke: Invoke, tmp_path: Path) -> None:
    few = ("--seeds", "0", "--benchmark", "toy", "--set", "benchmark.examples=8")
    result = invoke("grid", "quickstart", "--dry-run", *few, *PLUGIN)
    # After a line of headings, seven methods on each of the two models.
    assert len(result.stdout.splitlines()) == 1 + 14
    assert not list(tmp_path.iterdir())


def test_data_check_shows_what_is_there(invoke: Invoke, tmp_path: Path) -> None:
    assert "15 domains" in invoke("data", "check", "fashion_c").stdout
    refused(invoke("data", "check", "image_folder"), "--data-root")
    refused(invoke("data", "check", "image_folder", "--data-root", tmp_path / "no"), "no folder")


# -- refusals


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("run", "tnet", "toy"), ("unknown method 'tnet'", "'tent'", "searched")),
        (("run", "tent", "tooy"), ("unknown benchmark", "'toy'")),
        (("run", "tent", "toy", "--preset", "papre"), ("no preset 'papre'", "default")),
        (("run", "tent", "toy", "--preset", "coed"), ("did you mean 'code'?",)),
        (("run", "tent", "toy", "--set", "lrr=1"), ("unknown key 'lrr'", "'lr'")),
        (("run", "tent", "toy", "--set", "learning_rate=1"), ("did you mean 'lr'?",)),
        (("run", "tent", "toy", "--set", "benchmark.batchsize=1"), ("did you mean 'batch_size'?",)),
        (("run", "tent", "toy", "--setting", "mixd"), ("did you mean 'mixed'?",)),
        (("run", "tent", "toy", "--set", "domains=nois,clean"), ("did you mean 'noise'?",)),
        (("run", "tent", "fashion_c", "--set", "domains=fgo"), ("did you mean 'fog'?",)),
        (("run", "tent", "toy", "--model", "resnet50"), ("did you mean timm:resnet50",)),
        (("run", "tent", "toy", "--device", "gpu"), ("--device 'gpu'", "cpu, cuda or cuda:NUMBER")),
        (("run", "tent", "toy", "--device", "cuda:9"), ("--device cuda:9", "this machine has")),
        (("grid", "quickstart", "--device", "cuda:9"), ("--device cuda:9", "this machine has")),
        (("run", "tent", "toy", "--set", "method.batch_size=1"), ("unknown key",)),
        (("run", "tent", "toy", "--set", "lr=fast"), ("lr", "'fast'", "number")),
        (("run", "tent", "toy", "--set", "lr=-1"), ("lr", "-1", "greater")),
        (("run", "tent", "toy", "--set", "lr"), ("KEY=VALUE",)),
        (("run", "tent", "toy", "--set", "lr=[1"), ("not valid YAML",)),
        (("run", "tent", "toy", "--set", "lr=1", "--set", "lr=2"), ("given twice", "1 and 2")),
        (("run", "tent", "toy", "--set", "batch_size=0"), ("batch_size", "greater")),
        (("run", "tent", "toy", "--set", "examples=41"), ("41", "40")),
        (("run", "tent", "toy", "--set", "domains=[fog]"), ("no domain 'fog'", "clean")),
        (("run", "paid", "toy", "--set", "rank=3"), ("rank", "even", "3")),
        (("run", "paid", "toy", "--set", "layers=qx"), ("layers", "'qx'")),
        (("run", "tent", "toy", "--seed", "-1"), ("seed", "-1")),
        (("run", "tent", "toy", "--model", "toy_vti"), ("unknown model", "'toy_vit'")),
        (("run", "tent", "toy", "--model", "timm:nope"), ("timm has no model 'nope'",)),
        (
            ("run", "paid", "toy", "--model", "toy_cnn"),
            ("PAID does not support toy_cnn", "linear layers of role q"),
        ),
        (("run", "tent", "toy", "--weights", "none.pth"), ("none.pth", "no such file")),
        (("run", "tent", "toy", "--preprocessing", "raw"), ("raw", "lineage")),
        (("run", "tent", "toy", "--format", "xml"), ("xml", "json")),
        (("run", "tent", "toy", "--log", "tensorbord"), ("unknown logger", "tensorboard")),
        (("run", "tent", "image_folder"), ("no default model", "--model")),
        (("run", "tent", "image_folder", "--model", "toy_vit"), ("--data-root",)),
        (("grid", "quickstrat"), ("unknown experiment", "'quickstart'")),
        (("grid", "no.yaml"), ("no.yaml", "cannot be read")),
        (("grid", "quickstart", "--seeds", "a"), ("--seeds", "'a'")),
        (("status", "nowhere"), ("nowhere",)),
        (("report", "nowhere"), ("nowhere",)),
        (("list", "dogs"), ("dogs", "methods")),
    ],
)
def test_a_mistake_gets_one_sentence_and_code_2(
    arguments: tuple[str, ...], words: tuple[str, ...], invoke: Invoke
) -> None:
    plugin = () if arguments[0] in ("status", "report") else PLUGIN
    refused(invoke(*arguments, *plugin), *words)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--set", "domains=fgo"), "scenes_c has no domain 'fgo'; did you mean 'fog'?"),
        (("--set", "batchsize=1"), "unknown key 'batchsize'; did you mean 'batch_size'?"),
        (("--benchmark", "fashon_c"), "unknown benchmark 'fashon_c', did you mean 'fashion_c'"),
    ],
)
def test_one_mistake_in_all_methods_is_one_message(
    options: tuple[str, ...], sentence: str, invoke: Invoke
) -> None:
    result = invoke("grid", "quickstart", *options)
    refused(result, sentence)
    assert result.stderr.count("\n") == 1 and "methods[" not in result.stderr


def test_a_mistake_in_some_methods_names_them(invoke: Invoke, tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text(
        "methods: [source, {name: tent, set: {lr: -1}}, tent, {name: tent, set: {lr: -1}}]\n"
        "benchmarks: [toy]\nseeds: [0, 1]\n"
    )
    result = invoke("grid", "bad.yaml", *PLUGIN)
    refused(result, "methods[1], methods[3]: method tent.lr: -1")
    assert result.stderr.count("-1") == 1


@pytest.mark.parametrize("value", ["gaussian,jpeg", "[gaussian,jpeg]", "[gaussian, 'jpeg']"])
def test_domains_may_be_short_and_the_record_has_their_full_names(value: str) -> None:
    from ctta_bench.config.cell import CellRequest, resolve
    from ctta_bench.config.validation import parse_assignments

    def record(text: str) -> Any:
        given = parse_assignments([f"domains={text}"])
        request = CellRequest(method="source", benchmark="fashion_c", set=given)
        return resolve(request).record

    cell = record(value)
    assert cell["benchmark"]["domains"] == ["gaussian_noise", "jpeg_compression"]
    assert cell["id"] == record("[gaussian_noise, jpeg_compression]")["id"]


def test_a_beginning_of_two_domains_is_no_name(invoke: Invoke) -> None:
    out = invoke("run", "source", "imagenet_3dcc", "--set", "domains=far")
    assert "no domain" not in out.stderr  # far_focus
    refused(invoke("run", "source", "ccc", "--set", "domains=baseline"), "no domain 'baseline'")


def test_printed_commands_quote_paths_with_spaces(invoke: Invoke, tmp_path: Path) -> None:
    (tmp_path / "my grid.yaml").write_text("methods: [source]\nbenchmarks: [toy]\n")
    done = invoke("grid", "my grid.yaml", *PLUGIN, "--out", "my runs")
    assert "ctta-bench report 'my runs'" in done.stdout
    skeleton = invoke("new", "method", "mine", "--out", "my methods").stdout
    assert "ctta-bench check mine --plugin 'my methods/mine.py'" in skeleton


HOSTILE = {
    "tabs.yaml": "methods:\n\t- tent\n",
    "object.yaml": "methods: !!python/object/apply:os.system ['touch hacked']\n",
    "bomb.yaml": "a: &a [x, x]\nb: &b [*a, *a]\nmethods: [*b]\n",
    "twice.yaml": "methods: [tent]\nmethods: [sar]\n",
    "list.yaml": "- tent\n",
    "deep.yaml": "methods: " + "[" * 3000 + "]" * 3000,
    "self.yaml": "_base_: self.yaml\nmethods: [tent]\n",
    "empty.yaml": "",
    "octal.yaml": "methods: [tent]\nbenchmarks: [toy]\nseeds: [010]\n",
    "sexagesimal.yaml": "methods: [tent]\nbenchmarks: [toy]\nset: {lr: 1:30}\n",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_unreadable_and_hostile_yaml_is_refused(name: str, invoke: Invoke, tmp_path: Path) -> None:
    (tmp_path / name).write_text(HOSTILE[name])
    refused(invoke("grid", name, *PLUGIN), name)
    assert not (tmp_path / "hacked").exists()


def test_all_problems_of_an_experiment_come_in_one_message(invoke: Invoke, tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text(
        "methods: [tnet, {name: sar, set: {rho: -1}}]\nbenchmarks: [toy]\nseeds: [0, 1]\n"
    )
    refused(invoke("grid", "bad.yaml", *PLUGIN), "'tent'", "rho", "methods[0]", "methods[1]")
    assert not (tmp_path / "runs" / "bad").exists() or not list((tmp_path / "runs/bad").iterdir())


@pytest.mark.parametrize("call", [("run", "no_such_method", "toy"), ("grid", "quickstart")])
@pytest.mark.parametrize("out", ["/proc/ctta", "taken", "taken/below"])
def test_an_unusable_out_is_refused_before_anything_is_loaded(
    out: str, call: tuple[str, ...], invoke: Invoke, tmp_path: Path
) -> None:
    (tmp_path / "taken").write_text("a file")
    refused(invoke(*call, "--out", out), "--out")


def test_odd_places_and_values_make_short_safe_names(invoke: Invoke, tmp_path: Path) -> None:
    long = tmp_path / ("w" * 120) / ("v" * 120) / "weights.safetensors"
    long.parent.mkdir(parents=True)
    toy_weights(long)
    out = "ein Ordner/mit Ümläuten: und/ Leerzeichen"
    call = ("run", "tent", "toy", *PLUGIN, "--out", out)
    result = invoke(*call, "--weights", long)
    assert result.exit_code == 0, result.output
    (folder,) = (tmp_path / out).iterdir()
    same = tmp_path / "disk:2/w.safetensors"
    same.parent.mkdir()
    same.write_bytes(long.read_bytes())
    assert "already done" in invoke(*call, "--set", f"weights={same}").stdout
    assert len(folder.name) <= 120
    assert folder.name.isascii() and "/" not in folder.name and ":" not in folder.name


def test_overwritten_weights_make_a_new_cell(invoke: Invoke, tmp_path: Path) -> None:
    file = tmp_path / "w.safetensors"
    weights = toy_weights(file)
    call = ("run", "source", "toy", *PLUGIN, "--weights", file, "--format", "json")
    first = json.loads(invoke(*call).stdout)
    time.sleep(0.01)
    weights["head.bias"] = weights["head.bias"] + 0.01
    save_file(weights, file)
    second = json.loads(invoke(*call).stdout)
    assert first["model_sha256"] != second["model_sha256"]
    assert first["folder"] != second["folder"]


def test_nan_weights_are_refused(invoke: Invoke, tmp_path: Path) -> None:
    file = tmp_path / "nan.safetensors"
    weights = toy_weights(file)
    weights["norm.weight"][3] = float("nan")
    save_file(weights, file)
    refused(invoke("run", "source", "toy", *PLUGIN, "--weights", file), "norm.weight", "not finite")


def test_the_pre_processing_regime_makes_two_cells_and_a_footnote(
    invoke: Invoke, tmp_path: Path
) -> None:
    import yaml

    call = ("run", "source", "fashion_c", "--model", "fashion_cnn", "--set", "examples=10",
            "--set", "domains=[contrast]", "--out", "both")  # fmt: skip
    for regime in ("true", "lineage"):
        result = invoke(*call, "--preprocessing", regime)
        assert result.exit_code == 0, result.output
    used = [yaml.safe_load(f.read_text())["preprocessing"] for f in tmp_path.rglob("cell.yaml")]
    assert sorted((u["regime"], *u["mean"]) for u in used) == [
        ("lineage", 0.0, 0.0, 0.0),
        ("true", 0.5, 0.5, 0.5),
    ]
    printed = invoke("report", "both").stdout
    assert printed.count("as in earlier papers") == 1
    files = (tmp_path / "both/report/tables").glob("*-fashion_cnn-????????.md")
    text = "".join(file.read_text() for file in files)
    assert text.count("the checkpoint's own") == text.count("as in earlier papers") == 1
    assert text.count("not as the weights were trained") == 1


# -- signals and space


def start(*arguments: str, cwd: Path, **kwargs: Any) -> "subprocess.Popen[str]":
    call = [sys.executable, "-m", "ctta_bench", *arguments, *PLUGIN]
    return subprocess.Popen(
        call, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **kwargs
    )


def wait_for_batches(folder: Path, count: int) -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        lines = [f.read_text().count("\n") for f in folder.rglob("batches.jsonl")]
        if lines and lines[0] >= count:
            return
        time.sleep(0.02)
    raise TimeoutError(f"no {count} batches in {folder}")


@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)]
)
def test_an_interrupt_checkpoints_says_so_and_resumes_bit_identically(
    number: signal.Signals, invoke: Invoke, tmp_path: Path
) -> None:
    call = ("run", "tent", "toy", "--rounds", "10", "--out")
    process = start(*call, "cut", cwd=tmp_path)
    wait_for_batches(tmp_path / "cut", 5)
    process.send_signal(number)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "interrupted" in errors and "Traceback" not in errors
    assert list((tmp_path / "cut").rglob("state.pt"))
    for out in ("cut", "whole"):
        assert invoke(*call, out, "--quiet", *PLUGIN).exit_code == 0
    (cut,), (whole,) = ((tmp_path / o).rglob("predictions.npz") for o in ("cut", "whole"))
    assert cut.read_bytes() == whole.read_bytes()


def test_a_disk_without_space_gives_one_sentence_and_no_half_result(
    invoke: Invoke, tmp_path: Path
) -> None:
    import resource

    no_signal = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1200, before[1]))  # bytes of a file
    try:
        result = invoke("run", "tent", "toy", *PLUGIN)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, no_signal)
    refused(result)
    assert not list(tmp_path.rglob("result.json"))
    assert not list(tmp_path.rglob("*.tmp"))


def test_shell_completion_is_offered(command: Run) -> None:
    # Which shell runs the tests is not what is tested.
    named = os.environ | {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    done = command("--show-completion", "bash", env=named)
    assert "complete" in done.stdout


def test_a_user_s_method_file_runs_without_a_terminal_and_without_a_progress_bar(
    invoke: Invoke, tmp_path: Path
) -> None:
    (tmp_path / "my_method.py").write_text(
        '"""Mine."""\n'
        "from ctta_bench.method import Method\n"
        "from ctta_bench.registry import METHODS\n\n\n"
        '@METHODS.register_module("mine")\n'
        "class Mine(Method):\n"
        '    """Source with a counter that no line here saves."""\n\n'
        "    def adapt(self, images):\n"
        "        self.seen = getattr(self, 'seen', 0) + len(images)\n"
        "        return self.model(images)\n"
    )
    plugins = (*PLUGIN, "--plugin", "my_method.py")
    assert "mine" in invoke("list", "methods", *plugins).stdout
    done = invoke("run", "mine", "toy", *plugins)
    assert done.exit_code == 0, done.output
    assert "img/s" not in done.stderr and "\x1b" not in done.stdout + done.stderr
    from ctta_bench.registry import METHODS

    METHODS.forget(METHODS.find("mine").module)  # other tests walk over all methods


def test_the_loaded_model_is_the_registered_one() -> None:
    from ctta_bench.registry import MODELS, load_plugin

    load_plugin(str(TOY))
    assert load_source_model("toy_vit").name == "toy_vit"
    assert "toy_vit" in MODELS.names()


def test_verbose_lists_show_hyper_parameters_ranges_and_presets(invoke: Invoke) -> None:
    text = invoke("list", "methods", "--verbose").stdout
    assert "matches ^[qkvom]+$" in text and "skip_last_blocks" in text
    rows = json.loads(invoke("list", "methods", "--verbose", "--format", "json").stdout)
    tent = next(row for row in rows if row["name"] == "tent")
    lr = next(field for field in tent["hyperparameters"] if field["name"] == "lr")
    assert (lr["type"], lr["range"], lr["default"]) == ("float", ">= 0", 0.001)
    assert lr["searched"] == "1e-05 to 0.1"
    assert tent["presets"]["code"]["cifar10_c"]["optimizer"] == "adam"


def test_parity_prints_source_difference_and_verdict(invoke: Invoke) -> None:
    result = invoke("parity", "tent", "--format", "json")
    assert result.exit_code == 0, result.output
    rows = json.loads(result.stdout)
    assert {row["method"] for row in rows} == {"tent"}
    assert all(row["agrees"] and row["commit"] for row in rows)
    assert "DequanWang/tent" in invoke("parity", "tent").stdout


def test_parity_lists_every_case_and_passes_none_of_an_unknown_method(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from ctta_bench.authoring import parity

    cases = {f.stem: f for f in (TOY.parent / "parity" / "cases").glob("*.json")}
    files, all_of_them = parity.collect([parity.repository_cases()]), parity.translations()
    assert files.keys() == cases.keys()
    assert all(parity.translate(file.read()) for file in files.values())
    fewer = [t for t in all_of_them if t.method != "lame"]
    monkeypatch.setattr(parity, "translations", lambda: fewer)
    outside = [n for n, file in files.items() if parity.translate(file.read()) is None]
    assert sorted(outside) == ["lame_knn", "lame_knn_sym", "lame_linear", "lame_rbf"]
    for name in outside:
        verdict = parity.verdict(files[name])
        assert (verdict.method, verdict.agrees, verdict.words) == ("", None, "not in the suite")


def test_parity_takes_further_folders_and_fails_where_figures_differ(
    invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import shutil

    reference = TOY.parent / "parity"
    for part in ("model", "stream"):
        shutil.copytree(reference / part, tmp_path / "mine" / part)
    (tmp_path / "mine" / "cases").mkdir()
    for suffix in (".json", ".safetensors"):
        source = reference / "cases" / f"tent_ln_sgd{suffix}"
        shutil.copy(source, tmp_path / "mine" / "cases" / f"anything{suffix}")
    file = tmp_path / "mine" / "cases" / "anything.json"
    file.write_text(file.read_text().replace('"lr": 0.001', '"lr": 0.002'))
    monkeypatch.setenv("CTTA_BENCH_PARITY", str(tmp_path / "mine"))
    result = invoke("parity", "tent", "--format", "json")
    assert result.exit_code == 1
    (row,) = (r for r in json.loads(result.stdout) if r["case"] == "anything")
    assert row["agrees"] is False and "logits in float64" in row["detail"]
    refused(invoke("parity", "tent", "--cases", tmp_path), "no folder `cases`")


def test_a_tilde_in_any_path_is_the_home_folder(
    invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "one.yaml").write_text("methods: [source]\nbenchmarks: [toy]\n")
    (tmp_path / "home" / "mine.py").write_text("MINE = True\n")
    done = invoke("grid", "~/one.yaml", *PLUGIN, "--plugin", "~/mine.py", "--out", "~/runs")
    assert done.exit_code == 0, done.output
    assert len([*(tmp_path / "home" / "runs").glob("source-*/result.json")]) == 1
    assert invoke("status", "~/runs").exit_code == 0
    assert not (tmp_path / "~").exists() and not Path("~").exists()
