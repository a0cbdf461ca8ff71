"""Shared by all tests: one thread, a cache of their own, and the toy benchmark."""

import functools
import gc
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.testing

TOY = Path(__file__).parent / "toy.py"


def pytest_configure() -> None:
    """Ctrl-C works in the tests, even where a shell that runs them in the background ignores it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # Typer makes the commands again for each call; that is longer than most of the calls take.
    typer.testing._get_command = functools.cache(typer.testing._get_command)


def pytest_collection_finish() -> None:
    """The collected tests are not searched for garbage again and again."""
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    """Tiny models are fastest on one thread, and workers of pytest-xdist do not get in each
    other's way."""
    os.environ["OMP_NUM_THREADS"] = "1"
    torch = pytest.importorskip("torch")
    torch.set_num_threads(1)


@pytest.fixture(autouse=True, scope="module")
def _draw_alike_in_the_module() -> None:
    """The same for what fixtures of a module draw."""
    _draw_alike()


@pytest.fixture(autouse=True)
def _draw_alike_in_the_test() -> None:
    """A test that draws without a seed draws the same whatever ran before it."""
    _draw_alike()


def _draw_alike() -> None:
    import torch

    torch.manual_seed(0)


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Corrupted images of the tests go to a folder of their own."""
    os.environ.setdefault("CTTA_BENCH_DATA", str(tmp_path_factory.mktemp("cache")))


@pytest.fixture(autouse=True, scope="module")
def _forget_plugins_of_the_module() -> Iterator[None]:
    """The same for what fixtures of a module load."""
    yield from _forgetting_plugins()


@pytest.fixture(autouse=True)
def _forget_plugins() -> Iterator[None]:
    """Files that a test wrote and loaded are no plug-ins of the next test's runs."""
    yield from _forgetting_plugins()


def _forgetting_plugins() -> Iterator[None]:
    from ctta_bench import registry

    before = set(registry._plugins)
    yield
    for name in registry._plugins.keys() - before:
        if TOY.parent not in Path(str(registry._plugins[name].__file__)).resolve().parents:
            del registry._plugins[name]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium, without a window."""
    from playwright.sync_api import sync_playwright

    from tests.browser import CHROMIUM, PATIENCE

    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox"], timeout=PATIENCE
        )
        yield opened
        opened.close()


@pytest.fixture
def toy() -> None:
    """The benchmark `toy` and the models `toy_vit`, `toy_cnn`, loaded as a plug-in."""
    from ctta_bench.registry import load_plugin

    load_plugin(str(TOY))


@pytest.fixture(scope="module")
def undrawn() -> Iterator[None]:
    """Figures are composed, and saved as empty files: to draw one in three formats takes most of
    the time of a report. For tests of a report that look at no picture."""
    from matplotlib.figure import Figure

    def save(self: Figure, file: Path, **options: object) -> None:
        file.write_bytes(b"")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Figure, "savefig", save)
        yield


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest) -> Any:
    """The runs that a page of docs/results stores: runs.zip in the folder STORED of the module."""
    from ctta_bench.analysis.read.collect import load

    (group,) = load(request.module.STORED / "runs.zip").groups()
    return group


@pytest.fixture(scope="module")
def board(runs: Any) -> Any:
    """The leaderboard of these runs, as a data frame."""
    from ctta_bench.analysis.tables.leaderboard import leaderboard

    return leaderboard(runs).frame


@pytest.fixture
def command(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run `ctta-bench` in an empty folder, as a user would; returns code, stdout and stderr."""

    def run(*arguments: str, **kwargs: object) -> subprocess.CompletedProcess[str]:
        call = [sys.executable, "-m", "ctta_bench", *map(str, arguments)]
        options = {"cwd": tmp_path, "capture_output": True, "text": True, "timeout": 240} | kwargs
        return subprocess.run(call, check=False, **options)  # type: ignore[call-overload,no-any-return]

    return run
