"""Loggers of other projects, those that are installed."""

from pathlib import Path

import pytest

from ctta_bench.errors import ConfigError
from ctta_bench.run.loggers import LOGGERS, make_loggers

BATCHES = [
    {"batch": 0, "n": 20, "errors": 5, "loss": 0.5},
    {"batch": 1, "n": 20, "errors": 10, "loss": None},
]
RESULT = {
    "metric": "error",
    "mean": 37.5,
    "rounds": [{"round": 0, "domains": [{"error": 25.0}, {"error": 50.0}]}],
}


def log(name: str, folder: Path) -> None:
    (logger,) = make_loggers((name,))
    logger.start(folder, {"experiment": "trial", "method": {"name": "tent"}}, 0, 2)
    for record in BATCHES:
        logger.batch(record)
    logger.finish(RESULT)


def test_all_are_known_by_name():
    assert LOGGERS.names() == ["mlflow", "tensorboard", "wandb"]


@pytest.mark.parametrize("module", ["wandb", "mlflow", "mlflow.tracking"])
def test_one_that_is_not_installed_names_its_extra(module, tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, module, None)
    name = module.partition(".")[0]
    with pytest.raises(ConfigError, match=rf"pip install 'ctta-bench\[{name}\]'"):
        log(name, tmp_path)


def test_wandb_writes_an_offline_run_in_addition_to_the_lines(tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb")
    monkeypatch.delenv("WANDB_MODE", raising=False)
    log("wandb", tmp_path)
    wandb.teardown()  # waits until its own process has written all
    (run,) = (tmp_path / "wandb").glob("offline-run-*/*.wandb")
    written = run.read_bytes()
    assert b"error/batch" in written
    assert b"error/round0/1" in written


@pytest.mark.filterwarnings("ignore")  # it warns of what its own dependencies deprecate
def test_mlflow_keeps_batches_and_domains(tmp_path, monkeypatch):
    tracking = pytest.importorskip("mlflow.tracking")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    log("mlflow", tmp_path)
    client = tracking.MlflowClient(f"sqlite:///{tmp_path / 'mlflow.db'}")
    (run,) = client.search_runs([client.get_experiment_by_name("trial").experiment_id])
    history = client.get_metric_history(run.info.run_id, "error/batch")
    assert [(point.step, point.value) for point in history] == [(0, 25), (1, 50)]
    assert run.info.status == "FINISHED"
