"""The demo shows adaptation helping, by margins that the paired bootstrap calls real."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from ctta_bench.analysis.read.collect import load
from ctta_bench.analysis.read.statistics import paired_bootstrap
from ctta_bench.cli import app


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_tent_sar_and_paid_beat_source_over_three_seeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert CliRunner().invoke(app, ["grid", "quickstart", "--seeds", "0,1,2"]).exit_code == 0
    cells = load(tmp_path / "runs" / "quickstart").cells

    def folders(method: str, model: str) -> list[Path]:
        chosen = cells[(cells["method"] == method) & (cells["model"] == model)]
        return [Path(path) for path in chosen["path"]]

    # Entropy needs BatchNorm's help here, and PAID needs attention's layers (README).
    for method, model in (("tent", "fashion_cnn"), ("sar", "fashion_cnn"), ("paid", "fashion_vit")):
        assert len(folders(method, model)) == 3
        found = paired_bootstrap(folders(method, model), folders("source", model))
        assert found.high < 0, (method, found)
        assert found.p < 0.01
