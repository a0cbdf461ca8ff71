"""What is shipped: wheel, sdist, pinned versions, and what `make setup` says when it cannot."""

import importlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

import ctta_bench
from ctta_bench.cli import app
from ctta_bench.registry import BENCHMARKS, METHODS

ROOT = Path(__file__).parents[1]
TOY = Path(__file__).parent / "toy.py"
# Where each folder goes in the wheel.
PLACES = {
    "ctta_bench": "ctta_bench",
    "methods": "ctta_bench/methods",
    "datasets": "ctta_bench/datasets",
    "experiments": "ctta_bench/experiments",
    "analysis": "ctta_bench/analysis",
}
NOT_SHIPPED = shutil.ignore_patterns(
    ".*", "__pycache__", "*.egg-info", "build", "dist", "runs", "demo", "cases"
)


def toml(file: Path) -> dict[str, Any]:
    # In the standard library from Python 3.11 on; pytest brings its forerunner to 3.10.
    name = "tomllib" if sys.version_info >= (3, 11) else "tomli"
    content: dict[str, Any] = importlib.import_module(name).loads(file.read_text(encoding="utf-8"))
    return content


PYPROJECT = toml(ROOT / "pyproject.toml")


def files_of(folder: str) -> set[str]:
    """Paths inside a folder, as the wheel should have them."""
    files = (f for f in (ROOT / folder).rglob("*") if f.is_file())
    paths = {f.relative_to(ROOT / folder).as_posix() for f in files}
    return {p for p in paths if "__pycache__" not in p and not Path(p).name.startswith(".")}


# -- pyproject.toml


@pytest.mark.parametrize("folder", PLACES)
def test_package_data_covers_every_file_that_is_no_module(folder: str) -> None:
    patterns = PYPROJECT["tool"]["setuptools"]["package-data"][PLACES[folder].replace("/", ".")]
    matched = {
        file.relative_to(ROOT / folder).as_posix()
        for pattern in patterns
        for file in (ROOT / folder).glob(pattern)
    }

    assert {p for p in files_of(folder) if not p.endswith(".py")} - matched == set()


def test_every_folder_of_modules_is_a_package() -> None:
    folders = {
        (ROOT / folder / file).parent
        for folder in PLACES
        for file in files_of(folder)
        if file.endswith(".py")
    }

    assert [folder for folder in folders if not (folder / "__init__.py").is_file()] == []


def test_every_direct_dependency_and_tool_is_pinned() -> None:
    project = PYPROJECT["project"]
    extras = project["optional-dependencies"]
    asked = [*project["dependencies"], *(x for extra in extras.values() for x in extra)]
    pins = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    pinned = set(re.findall(r"^([a-z0-9-]+)==", pins, flags=re.MULTILINE))

    assert {re.split(r"[\[><=]", requirement)[0] for requirement in asked} - pinned == set()


def test_the_lowest_versions_that_are_tested_are_those_declared() -> None:
    text = (ROOT / "constraints-lowest.txt").read_text(encoding="utf-8")
    tested = dict(re.findall(r"^([a-z0-9-]+)==(\S+)$", text, flags=re.MULTILINE))
    declared = dict(line.split(">=") for line in PYPROJECT["project"]["dependencies"])

    assert tested.keys() == declared.keys()
    for name, lowest in declared.items():
        # The first release of `1.11` may have been 1.11.1.
        assert f"{tested[name]}.".startswith(f"{lowest}."), name


def test_the_version_is_the_same_everywhere() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))

    assert PYPROJECT["project"]["version"] == ctta_bench.__version__ == citation["version"]


def test_public_ci_runs_every_python_that_is_supported() -> None:
    text = (ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8")
    jobs = yaml.safe_load(text)["jobs"]
    pythons = jobs["tests"]["strategy"]["matrix"]["python"]
    classifiers = PYPROJECT["project"]["classifiers"]

    assert pythons == re.findall(r"Python :: (3\.\d+)", " ".join(classifiers))
    assert PYPROJECT["project"]["requires-python"] == f">={pythons[0]}"
    assert f"python:{pythons[0]}-" in jobs["lowest"]["container"]
    assert "bash .ci/run" in [step.get("run") for step in jobs["tests"]["steps"]]


# -- CONTRIBUTING.md


def test_the_templates_to_copy_run_as_plug_ins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    method, benchmark = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    (tmp_path / "method.py").write_text(method, encoding="utf-8")
    (tmp_path / "benchmark.py").write_text(benchmark, encoding="utf-8")
    plugins = ["--plugin", "method.py", "--plugin", "benchmark.py", "--plugin", str(TOY)]

    call = ["run", "my_method", "my_benchmark", "--model", "toy_vit", *plugins]
    done = CliRunner().invoke(app, call)
    METHODS.forget(METHODS.find("my_method").module)  # other tests walk over all entries
    BENCHMARKS.forget(BENCHMARKS.find("my_benchmark").module)

    assert done.exit_code == 0, done.output
    assert re.search(r"\bday\b.*\bnight\b", done.stdout, flags=re.DOTALL)


# -- make setup


def make_setup(folder: Path, python: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """`make setup` in a folder of its own, with a `python3` on PATH that runs `python` first."""
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy2(ROOT / name, folder)
    fake = folder / "bin" / "python3"
    fake.parent.mkdir()
    fake.write_text(f'#!/bin/sh\nexec {sys.executable} -c "{python}; exec(sys.argv[1])" "$2"\n')
    fake.chmod(0o755)
    kept = {k: v for k, v in os.environ.items() if k not in ("PYTHON", "TORCH", "MAKEFLAGS")}
    environment = kept | {"PATH": f"{fake.parent}{os.pathsep}{os.environ['PATH']}"}
    return subprocess.run(
        ["make", "setup", *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize(
    ("python", "sentence"),
    [
        (
            "import sys; sys.version_info = (3, 9, 18)",
            "error: 'python3' is Python 3.9, but ctta-bench needs 3.10 or newer; "
            "name a newer one: make setup PYTHON=/path/to/python3",
        ),
        (
            "import sys; sys.version_info = (3, 12, 1); sys.modules['ensurepip'] = None",
            "error: 'python3' (Python 3.12) lacks the module venv or ensurepip; install it "
            "(Debian, Ubuntu: apt install python3.12-venv) or name another Python: "
            "make setup PYTHON=/path/to/python3",
        ),
        (
            "import sys; sys.exit(127)",
            "error: 'python3' does not run; install Python 3.10 or newer, or name one: "
            "make setup PYTHON=/path/to/python3",
        ),
    ],
    ids=["too old", "without venv", "absent"],
)
def test_make_setup_says_in_one_sentence_what_is_missing(
    python: str, sentence: str, tmp_path: Path
) -> None:
    done = make_setup(tmp_path, python)

    assert done.returncode == 2
    assert done.stderr.splitlines()[0] == sentence
    assert not (tmp_path / ".venv").exists()


def test_make_setup_refuses_an_unknown_build_of_torch(tmp_path: Path) -> None:
    done = make_setup(tmp_path, "import sys", "TORCH=rocm")

    assert done.returncode == 2
    assert done.stderr.startswith("error: TORCH=rocm: choose cpu, or leave it out")


def test_make_setup_does_nothing_when_it_is_done(tmp_path: Path) -> None:
    ready = tmp_path / ".venv" / ".ready"
    ready.parent.mkdir()
    ready.touch()  # newer than the files it depends on

    done = make_setup(tmp_path, "import sys; sys.exit(127)")

    assert (done.returncode, done.stderr) == (0, "")


# -- wheel and sdist


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist of this tree and the wheel built from that sdist."""
    source = tmp_path_factory.mktemp("package") / "source"
    shutil.copytree(ROOT, source, ignore=NOT_SHIPPED)
    call = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(source / "dist")]
    subprocess.run([*call, str(source)], check=True, capture_output=True, timeout=240)
    return source / "dist"


@pytest.fixture(scope="module")
def wheel(distributions: Path) -> Path:
    (found,) = distributions.glob("*.whl")
    return found


@pytest.mark.slow
def test_the_wheel_holds_every_file_and_nothing_else(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    info = f"ctta_bench-{ctta_bench.__version__}.dist-info/"

    assert {name for name in names if not name.startswith(info)} == {
        f"{place}/{file}" for folder, place in PLACES.items() for file in files_of(folder)
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    "file",
    [
        "py.typed",
        "methods/presets/tent.yaml",
        "experiments/quickstart.yaml",
        "datasets/embedded/fashion_test.npz",
        "datasets/embedded/fashion_source.npz",
        "datasets/embedded/fashion_holdout.npz",
        "datasets/embedded/fashion_vit.safetensors",
        "datasets/embedded/fashion_cnn.safetensors",
        "datasets/embedded/scenes_vit.safetensors",
        "datasets/embedded/scenes_cnn.safetensors",
        "datasets/embedded/scenes_cnn_gn.safetensors",
        "datasets/embedded/streets_segformer.safetensors",
        "datasets/embedded/frost/frost1.png",
        "analysis/reference/reference_results.csv",
        "analysis/templates/report.html.j2",
    ],
)
def test_wheel_and_sdist_hold_what_runs_need(file: str, distributions: Path, wheel: Path) -> None:
    (sdist,) = distributions.glob("*.tar.gz")
    assert f"ctta_bench/{file}" in zipfile.ZipFile(wheel).namelist()
    with tarfile.open(sdist) as archive:
        assert f"{sdist.name.removesuffix('.tar.gz')}/ctta_bench/{file}" in archive.getnames()


@pytest.mark.slow
def test_the_wheel_alone_runs_in_an_empty_folder(wheel: Path, tmp_path: Path) -> None:
    site, empty = tmp_path / "site", tmp_path / "empty"
    empty.mkdir()
    zipfile.ZipFile(wheel).extractall(site)
    environment = os.environ | {"PYTHONPATH": str(site), "CTTA_BENCH_DATA": str(tmp_path / "data")}
    where = "import ctta_bench, pathlib; print(pathlib.Path(ctta_bench.__file__).parents[1])"
    run = ["-m", "ctta_bench", "run", "tent", "fashion_c", "--out", "runs"]
    few = ["--set", "benchmark.domains=[clean]", "--set", "benchmark.examples=100"]

    def python(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *arguments],
            cwd=empty,
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    assert python("-c", where).stdout.strip() == str(site)
    assert python(*run, *few).returncode == 0
    assert len(list(empty.glob("runs/*/result.json"))) == 1
