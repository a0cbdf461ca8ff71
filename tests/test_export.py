"""Adapted models as plain networks: kept by runs, exported, and loaded by timm alone."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from safetensors import safe_open
from timm.models.vision_transformer import VisionTransformer
from typer.testing import CliRunner

from ctta_bench.cli import app
from ctta_bench.config.cell import CellRequest, resolve
from ctta_bench.config.experiment import expand, load_experiment
from ctta_bench.errors import ConfigError, MethodError, RunError
from ctta_bench.launch.running import run_grid
from ctta_bench.method import Method
from ctta_bench.record.folder import RunFolder
from ctta_bench.registry import METHODS
from ctta_bench.run.engine import run_cell
from ctta_bench.run.export import export, plain_state
from ctta_bench.run.options import RunOptions
from tests.methods import build, pictures, toy

# Methods without a plain network that gives their scored logits, and the reason in the message.
WITHOUT_PLAIN_FORM = {
    "asr_roid": "the other images of a batch",
    "cmf": "the other images of a batch",
    "dept": "which is not in the network",
    "dpcore": "the other images of a batch",
    "ecotta": "activations between the network's layers",
    "foa": "the other images of a batch",
    "kff": "the other images of a batch",
    "lame": "the other images of a batch",
    "norm": "the other images of a batch",
    "reservoir": "another average of its copies",
    "rmt": "the sum of two networks",
    "roid": "the other images of a batch",
    "vdp": "which is not in the network",
}
SEGMENTERS = {"svdp", "becotta"}  # not supported on the toy ViT
PLAIN = sorted(set(METHODS.names()) - set(WITHOUT_PLAIN_FORM) - SEGMENTERS)
FAST = {"vida": {"lr_adapters": 0.1, "lr": 0.01}, "paid": {"lr": 0.01}}
STRONG = {name: {"lr": 0.01} for name in ("lora", "dora", "tent", "sar", "pseudo_label", "eata")}


def adapted(name: str) -> Method:
    method = build(name, **(FAST | STRONG).get(name, {}))
    for images in pictures(24, seed=4).split(8):
        method(images)
    return method


def network_of(state: dict[str, torch.Tensor]) -> VisionTransformer:
    """The toy ViT as timm builds it, with these weights and no other."""
    network = VisionTransformer(
        img_size=16, patch_size=8, embed_dim=24, depth=4, num_heads=2, num_classes=10
    )
    network.load_state_dict(state, strict=True)
    return network.eval()


def logits(state: dict[str, torch.Tensor], images: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return network_of(state)((images - 0.5) / 0.5)


@pytest.mark.parametrize("name", PLAIN)
def test_the_plain_network_gives_the_logits_that_are_scored(name: str) -> None:
    method, images = adapted(name), pictures(8, seed=5)
    got = logits(plain_state(method), images)
    with torch.no_grad():
        torch.testing.assert_close(got, method.scored_model(images), atol=1e-5, rtol=0)
        if name not in ("cotta", "petal"):  # which average over random views where it is unsure
            torch.testing.assert_close(got, method.predict(images), atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", ["paid", "lora", "dora", "vida", "tent"])
def test_what_is_kept_is_adapted(name: str) -> None:
    images = pictures(8, seed=5)
    before = logits(toy.toy_vit().state_dict(), images)
    assert (logits(plain_state(adapted(name)), images) - before).abs().max() > 1e-4


@pytest.mark.parametrize("name", ["paid", "vida"])
def test_making_the_plain_form_changes_nothing(name: str) -> None:
    method, twin = adapted(name), adapted(name)
    plain_state(method)
    assert torch.equal(method(pictures(8)), twin(pictures(8)))


@pytest.mark.parametrize(("name", "reason"), WITHOUT_PLAIN_FORM.items())
def test_a_method_without_a_plain_form_is_refused_with_the_reason(name: str, reason: str) -> None:
    with pytest.raises(MethodError, match=f"has no plain network .*{reason}"):
        plain_state(build(name, **METHODS.get(name).checked_with))


def test_batch_statistics_are_no_weights() -> None:
    with pytest.raises(MethodError, match="the other images of a batch"):
        plain_state(build("tent", "toy_cnn"))


# -- runs ------------------------------------------------------------------------------------------


def request(**changes: Any) -> CellRequest:
    values = {"method": "lora", "benchmark": "toy", "set": {"lr": 0.01}, "keep_models": "domains"}
    return CellRequest(**values | changes)


@pytest.fixture
def folder(tmp_path: Path, toy: None) -> RunFolder:
    return RunFolder(tmp_path / "cell")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A run of LoRA with the model of each domain."""
    folder = RunFolder(tmp_path_factory.mktemp("whole") / "cell")
    run_cell(resolve(request()), folder)
    return folder


def models(folder: RunFolder) -> dict[str, dict[str, torch.Tensor]]:
    files = sorted(folder.path.glob("models/*.safetensors"))
    return {file.stem: safetensors.torch.load_file(file) for file in files}


def test_a_run_keeps_the_model_at_the_end_of_each_domain(whole: RunFolder) -> None:
    cell = resolve(request())
    found = models(whole)
    assert list(found) == ["00-clean", "01-dark", "02-noise"]
    assert set(found["00-clean"]) == set(toy.toy_vit().state_dict())
    weights = [state["blocks.0.attn.proj.weight"] for state in found.values()]
    assert not torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[1], weights[2])
    with safe_open(whole.path / "models/01-dark.safetensors", framework="pt") as file:
        metadata = file.metadata()
    assert metadata["cell"] == cell.id
    assert metadata["model"] == "toy_vit"
    assert metadata["source_sha256"] == cell.record["model"]["sha256"]
    assert metadata["domain"] == "dark"
    assert json.loads(metadata["preprocessing"])["mean"] == [0.5, 0.5, 0.5]


def test_models_are_of_the_domain_before_its_reset(folder: RunFolder) -> None:
    run_cell(resolve(request(set={"lr": 0.01, "benchmark.setting": "reset"})), folder)
    source = toy.toy_vit().state_dict()["blocks.0.attn.proj.weight"]
    assert len(models(folder)) == 3
    for state in models(folder).values():
        assert not torch.equal(state["blocks.0.attn.proj.weight"], source)


def test_every_round_has_its_own_files(folder: RunFolder) -> None:
    settings = {"benchmark.rounds": 2, "benchmark.domains": ["dark", "noise"]}
    run_cell(resolve(request(method="source", set=settings)), folder)
    assert list(models(folder)) == ["00-dark", "01-noise", "02-dark", "03-noise"]


def test_keeping_models_is_no_part_of_the_identity(toy: None) -> None:
    ids = {resolve(request(keep_models=keep)).id for keep in ("none", "last", "domains")}
    assert len(ids) == 1


def test_the_last_model_is_that_of_the_last_domain(folder: RunFolder, whole: RunFolder) -> None:
    run_cell(resolve(request(keep_models="last")), folder)
    assert list(models(folder)) == ["last"]
    for key, value in models(folder)["last"].items():
        assert torch.equal(value, models(whole)["02-noise"][key])


def test_a_done_cell_without_its_models_asks_for_force(folder: RunFolder) -> None:
    run_cell(resolve(request(keep_models="none")), folder)
    assert models(folder) == {}
    for keep in ("last", "domains"):
        with pytest.raises(
            RunError, match=rf"without the models of .*{keep}; rerun it with --force"
        ):
            run_cell(resolve(request(keep_models=keep)), folder)
    run_cell(resolve(request()), folder, RunOptions(force=True))
    assert len(models(folder)) == 3
    run_cell(resolve(request(keep_models="last")), folder)  # the last domain's will do
    run_cell(resolve(request(keep_models="none")), folder, RunOptions(force=True))
    assert models(folder) == {}


def test_a_grid_reports_this_for_its_done_cells(tmp_path: Path, toy: None) -> None:
    file = tmp_path / "kept.yaml"
    text = "methods: [source]\nbenchmarks: [toy]\nset: {examples: 8}\n"
    file.write_text(text, encoding="utf-8")
    runs, none = tmp_path / "runs", lambda step: ()
    run_grid(expand(load_experiment(str(file))), runs, RunOptions(), make_loggers=none)
    file.write_text(text + "keep_models: last\n", encoding="utf-8")
    cells = expand(load_experiment(str(file)))
    refused = run_grid(cells, runs, RunOptions(), make_loggers=none)
    assert "--force" in refused.failed[cells[0].id]
    assert not run_grid(cells, runs, RunOptions(force=True), make_loggers=none).failed
    assert (runs / cells[0].id / "models/last.safetensors").is_file()
    kept_none = expand(load_experiment(str(file)), keep_models="none")
    assert kept_none[0].request.keep_models == "none"


def stop_after(batches: int) -> Any:
    """A logger that interrupts the run as Ctrl-C twice does."""

    class Stopper:
        def __getattr__(self, name: str) -> Callable[..., None]:
            return lambda *arguments: None

        def batch(self, line: dict[str, Any]) -> None:
            if line["batch"] + 1 == batches:
                raise KeyboardInterrupt

    return Stopper()


@pytest.mark.parametrize("batches", [5, 6, 15])
def test_an_interrupted_run_ends_with_the_same_models(
    batches: int, folder: RunFolder, whole: RunFolder
) -> None:
    """Five batches a domain: before, at and after its end."""
    with pytest.raises(KeyboardInterrupt):
        run_cell(
            resolve(request()), folder, RunOptions(loggers=[stop_after(batches)], checkpoint="2")
        )
    run_cell(resolve(request()), folder, RunOptions(checkpoint="2"))
    expected, found = models(whole), models(folder)
    assert list(found) == list(expected)
    for name, state in expected.items():
        assert all(torch.equal(value, found[name][key]) for key, value in state.items())


def test_a_run_that_saved_nothing_before_it_was_interrupted_cannot_save_later(
    folder: RunFolder,
) -> None:
    nothing = resolve(request(keep_models="none"))
    with pytest.raises(KeyboardInterrupt):
        run_cell(nothing, folder, RunOptions(loggers=[stop_after(8)], checkpoint="1"))
    with pytest.raises(RunError, match=r"00-clean.safetensors: was not saved before .* --force"):
        run_cell(resolve(request()), folder)
    run_cell(resolve(request(keep_models="last")), folder)
    assert list(models(folder)) == ["last"]


def test_a_method_without_a_plain_form_is_refused_before_the_first_batch(
    folder: RunFolder,
) -> None:
    with pytest.raises(MethodError, match="VDP has no plain network"):
        run_cell(resolve(request(method="vdp", set={"patch_size": 4})), folder)
    assert not folder.file("batches.jsonl").exists()


# -- export ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder with a model for each domain."""
    folder = RunFolder(tmp_path_factory.mktemp("runs") / "cell")
    run_cell(resolve(request(method="paid", set={"lr": 1e-3})), folder)
    return folder.path


def test_the_end_of_the_stream_is_exported_unless_a_domain_is_named(
    kept: Path, tmp_path: Path
) -> None:
    for domain, stem in ((None, "02-noise"), ("dark", "01-dark"), ("01-dark", "01-dark")):
        out = tmp_path / f"{domain}.safetensors"
        assert export(kept, out, domain=domain).stem == stem
        state = safetensors.torch.load_file(out)
        expected = safetensors.torch.load_file(kept / f"models/{stem}.safetensors")
        assert torch.equal(state["head.weight"], expected["head.weight"])
        assert logits(state, pictures(4)).isfinite().all()
        with safe_open(out, framework="pt") as file:
            assert file.metadata()["method"] == "paid"
            assert file.metadata()["domain"] == stem.partition("-")[2]


def test_an_exported_model_can_be_run(kept: Path, tmp_path: Path, folder: RunFolder) -> None:
    out = tmp_path / "adapted.safetensors"
    export(kept, out)
    result = run_cell(resolve(request(method="source", set={}, weights=out)), folder)
    assert result["model_sha256"] != resolve(request()).record["model"]["sha256"]


def test_mistakes_of_an_export_are_refused_with_a_sentence(kept: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.safetensors"
    with pytest.raises(ConfigError, match=r"out.pt: exports are .safetensors files"):
        export(kept, tmp_path / "out.pt")
    with pytest.raises(RunError, match="is not a run folder"):
        export(tmp_path, out)
    with pytest.raises(
        RunError, match="no saved model of domain 'fog'; it has: 00-clean, 01-dark, 02-n"
    ):
        export(kept, out, domain="fog")
    assert not out.exists()
    out.write_bytes(b"")
    with pytest.raises(ConfigError, match="exists; choose another name, or use --force"):
        export(kept, out)
    export(kept, out, force=True)
    assert out.stat().st_size > 0


def test_the_export_of_a_run_without_models_names_the_option(
    folder: RunFolder, tmp_path: Path
) -> None:
    run_cell(resolve(request(method="source", set={}, keep_models="none")), folder)
    with pytest.raises(RunError, match="has no saved model; rerun it with --keep-models last"):
        export(folder.path, tmp_path / "out.safetensors")


def test_a_broken_model_is_not_exported(folder: RunFolder, tmp_path: Path) -> None:
    settings = {"faithful": True, "batch_size": 1, "examples": 2}
    run_cell(resolve(request(method="paid", set=settings)), folder)
    with pytest.raises(RunError, match="is not finite: adaptation diverged"):
        export(folder.path, tmp_path / "out.safetensors")


def test_an_unfinished_run_exports_a_domain_but_no_end(folder: RunFolder, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run_cell(resolve(request()), folder, RunOptions(loggers=[stop_after(8)]))
    with pytest.raises(RunError, match="is not done; finish it, or choose a finished --domain"):
        export(folder.path, tmp_path / "out.safetensors")
    assert export(folder.path, tmp_path / "out.safetensors", domain="clean").stem == "00-clean"


def test_the_command_keeps_and_exports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    plugin = f"--plugin {toy.__file__}"
    line = f"run lora toy {plugin} --set examples=8 --keep-models last --quiet --device cpu"
    done = CliRunner().invoke(app, line.split())
    assert done.exit_code == 0, done.output
    (cell,) = (tmp_path / "runs/single").iterdir()
    call = ["export", str(cell), "out.safetensors"]
    result = CliRunner().invoke(app, call)
    assert result.exit_code == 0, result.output
    assert "out.safetensors" in result.output
    network_of(safetensors.torch.load_file(tmp_path / "out.safetensors"))
    assert CliRunner().invoke(app, call).exit_code == 2  # the file is in the way
