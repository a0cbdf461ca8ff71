"""A real Slurm for these tests: `eval "$(tests/slurm/cluster.sh env)"` names the one to use."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.launches import grid, slow, without_times, write_grid

CLUSTER = Path(__file__).parent / "cluster.sh"


def answers() -> str:
    """Why no test can run here; "" if one can."""
    if shutil.which("sinfo") is None or not os.environ.get("SLURM_CONF"):
        return "no Slurm here: `make test-slurm` installs and starts one"
    done = subprocess.run(["sinfo", "-h"], capture_output=True, text=True, timeout=30, check=False)
    return "" if done.returncode == 0 else f"Slurm does not answer: {done.stderr.strip()}"


@pytest.fixture(scope="session", autouse=True)
def _slurm() -> None:
    """Fails without Slurm if CTTA_NEEDS_SLURM is set, as by `make test-slurm`; else skips."""
    reason = answers()
    if reason and os.environ.get("CTTA_NEEDS_SLURM"):
        pytest.fail(reason)
    if reason:
        pytest.skip(reason)


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Jobs of a test take their caches from a folder of its own, and one thread."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    """The slow cell, run in this process without a pause or an interruption."""
    folder = tmp_path_factory.mktemp("undisturbed")
    file = write_grid(folder, slow(0.0))
    result = grid(file, "--out", folder / "runs", "--executor", "debug", "--quiet")
    assert result.exit_code == 0, result.output
    (cell,) = (folder / "runs").glob("slow-*")
    return without_times(cell)
