"""The forgetting probe: what is recorded, and that no result changes."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from ctta_bench.config.cell import Cell, CellRequest, resolve
from ctta_bench.errors import RunError
from ctta_bench.record.folder import RunFolder
from ctta_bench.registry import BENCHMARKS, METHODS
from ctta_bench.run.checkpoint import Progress
from ctta_bench.run.engine import run_cell
from ctta_bench.run.open import open_cell
from ctta_bench.run.options import RunOptions
from ctta_bench.run.probe import ForgettingProbe
from tests.launches import recorded
from tests.methods import NETWORKS, WITH, toy
from tests.test_engine import CLASSIFYING, StopAfter

pytestmark = pytest.mark.usefixtures("toy")
SMALL = {"benchmark.examples": 16, "benchmark.batch_size": 8}  # three domains of two batches


def cell(method: str = "tent", **values: Any) -> Cell:
    network = NETWORKS.get(method, "toy_vit")
    few = {"labeller": network, **SMALL, **WITH.get(method, {})}
    values = {"model": network, "set": few} | values
    return resolve(CellRequest(method=method, benchmark="toy", **values))


def bits(tree: Any) -> Any:
    """A tree of states in which tensors compare by their bits."""
    if isinstance(tree, Tensor):
        return tree.dtype, tuple(tree.shape), tree.detach().cpu().numpy().tobytes()
    if isinstance(tree, dict):
        return {key: bits(value) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return [bits(value) for value in tree]
    return tree


# A probe takes the state that a checkpoint takes, which test_method.py has for every method.
PROBED = {"source", "tent", "cotta", "dpcore", "kff", "reservoir"}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in PROBED else pytest.mark.slow)
        for name in CLASSIFYING
        if not METHODS.get(name).learns_labels
    ],
)
def test_a_probe_leaves_every_method_as_it_was(name: str) -> None:
    opened = open_cell(cell(name, probe="domains"))
    method = opened.method()
    method.start(opened.source(method))
    method(torch.rand(8, 3, 16, 16, generator=torch.Generator().manual_seed(0)))
    before, passes = bits(method.state_dict()), method.passes.forward_images
    probe, progress = ForgettingProbe(opened, method, 6), Progress()
    probe.domain_ended(progress)
    assert bits(method.state_dict()) == before
    assert method.passes.forward_images == passes
    assert 0 <= progress.probes[0]["accuracy"] <= 100


def test_a_method_that_is_moved_by_predicting_is_set_back(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = open_cell(cell(probe="domains"))
    method = opened.method()
    method.seen = torch.zeros(())  # type: ignore[attr-defined]

    def predict(self: Any, images: Tensor) -> Tensor:
        self.seen += len(images)
        return self.model(images)

    monkeypatch.setattr(type(method), "predict", predict)
    method.start()
    ForgettingProbe(opened, method, 6).domain_ended(Progress())
    assert method.seen == 0  # type: ignore[attr-defined]


def test_probes_change_no_result_and_are_recorded(tmp_path: Path) -> None:
    plain = run_cell(cell(), RunFolder(tmp_path / "plain"))
    probed = run_cell(cell(probe="domains"), RunFolder(tmp_path / "probed"))
    probes = probed.pop("source_probes")
    assert [(p["batches"], p["domain"]) for p in probes] == [
        (0, None), (2, "clean"), (4, "dark"), (6, "noise"),
    ]  # fmt: skip
    assert probes[0]["accuracy"] == plain["source_accuracy"]
    found = [recorded(tmp_path / name) for name in ("plain", "probed")]
    del found[1]["result"]["source_probes"]
    assert found[0] == found[1]


class WithClean(toy.Toy):
    """The toy benchmark with its clean pictures as an extra domain."""

    def domain_names(self) -> tuple[str, ...]:
        return ("dark", "noise")

    def extra_domains(self) -> tuple[str, ...]:
        return ("clean",)


def test_held_out_images_are_probed_where_there_are_any(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = type(BENCHMARKS)
    real = kind.get
    monkeypatch.setattr(
        kind, "get", lambda self, name: WithClean if name == "toy" else real(self, name)
    )
    wrong = WithClean().domain("clean").labels[::2].copy()  # half of the labels are others
    whole = WithClean.domain

    def domain(self: Any, name: str) -> Any:
        images = whole(self, name)
        images.labels[::2] = (wrong + 1) % 10
        return images

    monkeypatch.setattr(WithClean, "domain", domain)
    result = run_cell(cell(probe="rounds"), RunFolder(tmp_path / "a"))
    assert (result["source_accuracy"], result["held_out_accuracy"]) == (100, 50)
    first = result["source_probes"][0]
    assert (first["accuracy"], first["held_out_accuracy"]) == (100, 50)
    streamed = {"labeller": "toy_vit", **SMALL, "benchmark.domains": ["clean", "dark"]}
    result = run_cell(cell(probe="rounds", set=streamed), RunFolder(tmp_path / "b"))
    assert result["held_out_accuracy"] is None  # the method adapts to these
    assert {probe["held_out_accuracy"] for probe in result["source_probes"]} == {None}


def test_rounds_are_probed_at_their_ends_and_a_resumed_run_probes_none_twice(
    tmp_path: Path,
) -> None:
    settings = {"labeller": "toy_vit", **SMALL, "benchmark.rounds": 2}
    whole = run_cell(cell(probe="rounds", set=settings), RunFolder(tmp_path / "whole"))
    with pytest.raises(KeyboardInterrupt):
        run_cell(
            cell(probe="rounds", set=settings),
            RunFolder(tmp_path),
            RunOptions(loggers=[StopAfter(5)]),
        )  # the last batch of the first round
    resumed = run_cell(cell(probe="rounds", set=settings), RunFolder(tmp_path))
    assert [probe["batches"] for probe in whole["source_probes"]] == [0, 6, 12]
    assert resumed["source_probes"] == whole["source_probes"]


def test_a_done_cell_without_probes_is_refused_where_they_are_asked_for(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    run_cell(cell(probe="rounds"), folder)
    run_cell(cell(probe="rounds"), folder)
    with pytest.raises(RunError, match=r"--probe domains.*--force"):
        run_cell(cell(probe="domains"), folder)


def test_a_probe_is_no_part_of_a_cell_s_identity() -> None:
    assert {cell(probe=when).id for when in ("none", "rounds", "domains")} == {cell().id}
