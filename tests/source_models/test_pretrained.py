import hashlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import safetensors.torch
import timm
import torch
from timm.layers import resample_abs_pos_embed
from torch import Tensor, nn
from typer.testing import CliRunner

from ctta_bench.cli import app
from ctta_bench.config.cell import CellRequest, resolve
from ctta_bench.errors import ConfigError, DataError
from ctta_bench.model import SourceModel
from ctta_bench.registry import MODELS
from ctta_bench.run.open import source_accuracy
from ctta_bench.source_models import hub
from ctta_bench.source_models.pretrained import load_source_model
from tests.conftest import TOY
from tests.methods import toy
from tests.test_model import Linear

VIT = "timm:test_vit.r160_in1k"


@pytest.fixture
def plain_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model registered by a user who knows nothing of pretrained_cfg."""
    monkeypatch.setattr(MODELS, "_plugin_entries", dict(MODELS._plugin_entries))

    @MODELS.register_module("plain_model")
    def plain_model() -> nn.Module:
        return Linear()


@pytest.mark.usefixtures("plain_model")
def test_a_registered_model_needs_neither_a_record_nor_a_file(tmp_path: Path) -> None:
    assert load_source_model("plain-model").name == "plain-model"
    network = Linear()
    torch.save(network.state_dict(), tmp_path / "own.pth")
    loaded = load_source_model("plain_model", weights=tmp_path / "own.pth")
    assert loaded.sha256() == SourceModel(network).sha256()


def test_a_registered_model_loads_its_own_file(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(MODELS, "_plugin_entries", dict(MODELS._plugin_entries))
    source = Linear()
    torch.save(source.state_dict(), tmp_path / "own.pth")

    @MODELS.register_module("model_with_file")
    def model_with_file() -> nn.Module:
        network = Linear()
        network.pretrained_cfg = {"file": tmp_path / "own.pth"}
        return network

    assert load_source_model("model_with_file").sha256() == SourceModel(source).sha256()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("timm:vit_bas_patch16_224", "timm has no .* Did you mean timm:vit_base_patch16_224"),
        ("timm:test_vit.nope", r"timm has no model 'test_vit\.nope'\. Did you mean timm:test_vit"),
        ("toy_vitt", "unknown model 'toy_vitt', did you mean 'toy_vit'"),
    ],
)
def test_unknown_models_are_refused_with_close_names(name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_source_model(name)


# -- where weights lie


@pytest.fixture(scope="module")
def vit() -> dict[str, Tensor]:
    """The tensors of timm's smallest ViT for 160 pixels in patches of 16."""
    torch.manual_seed(0)
    tensors: dict[str, Tensor] = timm.create_model("test_vit").state_dict()
    return tensors


@pytest.fixture
def hub_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of the hub."""
    folder = tmp_path / "hub"
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(folder))
    return folder


def put_into(cache: Path, tensors: dict[str, Tensor]) -> None:
    """What the hub's client leaves in its cache after fetching the weights of VIT."""
    repository = cache / "models--timm--test_vit.r160_in1k"
    commit = "c" * 40
    for folder in ("refs", f"snapshots/{commit}"):
        (repository / folder).mkdir(parents=True)
    (repository / "refs/main").write_text(commit)
    safetensors.torch.save_file(tensors, repository / f"snapshots/{commit}/model.safetensors")


def test_a_timm_model_without_weights_is_refused_and_downloads_nothing(hub_cache: Path) -> None:
    with pytest.raises(DataError, match="which are only downloaded on request: use `ctta-b"):
        load_source_model(VIT)
    assert not hub_cache.exists()


def test_weights_in_the_hubs_cache_are_used(hub_cache: Path, vit: dict[str, Tensor]) -> None:
    put_into(hub_cache, vit)
    model = load_source_model(VIT)
    assert all(torch.equal(v, vit[k]) for k, v in model.network.state_dict().items())
    assert model.preprocessing.size == (160, 160)


def test_a_damaged_file_in_the_hubs_cache_is_reported(
    hub_cache: Path, vit: dict[str, Tensor]
) -> None:
    put_into(hub_cache, {k: v for k, v in vit.items() if k != "norm.bias"})
    with pytest.raises(DataError, match=f"is not the complete file of {VIT}"):
        load_source_model(VIT)


def test_weights_below_the_data_root_are_found_by_the_models_name(
    tmp_path: Path, vit: dict[str, Tensor]
) -> None:
    (tmp_path / "models").mkdir()
    torch.save(vit, tmp_path / "models/test_vit.r160_in1k.pth")
    model = load_source_model(VIT, root=tmp_path)
    assert torch.equal(model.network.cls_token, vit["cls_token"])
    safetensors.torch.save_file(vit, tmp_path / "models/test_vit.r160_in1k.safetensors")
    with pytest.raises(ConfigError, match="both exist; remove one"):
        load_source_model(VIT, root=tmp_path)


def test_a_registered_model_whose_weights_lie_elsewhere_is_refused_without_them(
    tmp_path: Path,
) -> None:
    with pytest.raises(DataError, match=r"RobustBench's Hendrycks2020AugMix_WRN .* put them at"):
        load_source_model("cifar10_wrn40_2", root=tmp_path)


def test_a_file_states_how_its_images_are_normalised(
    tmp_path: Path, vit: dict[str, Tensor]
) -> None:
    noted = {"mean": [0.1, 0.2, 0.3], "std": [1.0, 1.0, 1.0]}
    file = tmp_path / "own.safetensors"
    safetensors.torch.save_file(vit, file, {"ctta_bench": json.dumps(noted)})
    assert load_source_model(VIT, weights=file).preprocessing.mean == (0.1, 0.2, 0.3)


# -- fetching, on request


class Hub(BaseHTTPRequestHandler):
    """A hub that holds one small file for each name it is asked for."""

    content = b"weights"

    def do_HEAD(self) -> None:
        known = "test_vit.r160_in1k" in self.path and self.path.endswith("model.safetensors")
        self.send_response(200 if known else 404)
        self.send_header("X-Repo-Commit", "c" * 40)
        self.send_header("ETag", f'"{hashlib.sha256(self.content).hexdigest()}"')
        self.send_header("Content-Length", str(len(self.content)) if known else "0")
        if not known:
            self.send_header("X-Error-Code", "RepoNotFound")
        self.end_headers()

    def do_GET(self) -> None:
        self.do_HEAD()
        self.wfile.write(self.content)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of a hub on this machine, which the client asks."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Hub) as served:
        threading.Thread(target=served.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{served.server_port}"
        monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", address)
        template = f"{address}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        monkeypatch.setattr(
            huggingface_hub.constants, "HUGGINGFACE_CO_URL_TEMPLATE", template, raising=False
        )
        yield address
        served.shutdown()


@pytest.mark.usefixtures("server")
def test_models_download_fetches_into_the_hubs_cache(hub_cache: Path) -> None:
    done = CliRunner().invoke(app, ["models", "download", VIT])
    assert done.exit_code == 0, done.output
    assert Path(done.stdout.strip().split(": ")[1]).read_bytes() == Hub.content
    assert hub.cached(timm.create_model("test_vit.r160_in1k")) is not None
    assert "already there" in CliRunner().invoke(app, ["models", "download", VIT]).stdout


@pytest.mark.usefixtures("server", "hub_cache")
def test_a_repository_that_is_not_there_is_reported_in_one_sentence() -> None:
    done = CliRunner().invoke(app, ["models", "download", "timm:test_resnet.r160_in1k"])
    assert done.exit_code == 2
    assert "of timm/test_resnet.r160_in1k cannot be downloaded from http://127.0.0.1" in done.stderr


@pytest.mark.usefixtures("hub_cache")
def test_offline_mode_is_honoured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    done = CliRunner().invoke(app, ["models", "download", VIT])
    assert done.exit_code == 2
    assert "HF_HUB_OFFLINE is set" in done.stderr


def test_only_timm_models_are_on_the_hub() -> None:
    done = CliRunner().invoke(app, ["models", "download", "fashion_vit"])
    assert done.exit_code == 2
    assert "only models timm:NAME.TAG are on the hub" in done.stderr


# -- another input size


@pytest.fixture(scope="module")
def vit_file(vit: dict[str, Tensor], tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("vit") / "vit.pth"
    torch.save(vit, file)
    return file


@pytest.mark.parametrize("size", [(80, 80), (320, 320), (64, 128)])
def test_another_input_size_resamples_positions_as_timm_does(
    size: tuple[int, int], vit: dict[str, Tensor], vit_file: Path
) -> None:
    model = load_source_model(VIT, weights=vit_file, input_size=size).eval()
    grid = [size[0] // 16, size[1] // 16]
    expected = resample_abs_pos_embed(vit["pos_embed"], new_size=grid, old_size=[10, 10])
    torch.testing.assert_close(model.network.pos_embed.detach(), expected, rtol=0, atol=0)
    assert model.network.pos_embed.shape[1] == 1 + grid[0] * grid[1]
    assert model(torch.rand(1, 3, 32, 32)).shape == (1, 1000)  # resized to it, whatever comes
    assert model.preprocessing.size == size


def test_a_size_that_patches_do_not_tile_is_refused(vit_file: Path) -> None:
    with pytest.raises(
        ConfigError, match="input_size 100x100: is not a multiple of the 16x16 patch"
    ):
        load_source_model(VIT, weights=vit_file, input_size=(100, 100))


def test_positions_of_another_grid_are_never_resampled_unasked(
    vit: dict[str, Tensor], tmp_path: Path
) -> None:
    file = tmp_path / "larger.pth"
    torch.save(vit | {"pos_embed": torch.zeros(1, 401, 64)}, file)
    with pytest.raises(DataError, match=r"'pos_embed' has shape \(1, 401, 64\) where the model"):
        load_source_model(VIT, weights=file)


@pytest.mark.parametrize(
    ("given", "size"), [(16, [16, 16]), ("16", [16, 16]), ("8x24", [8, 24]), (None, [16, 16])]
)
@pytest.mark.usefixtures("toy")
def test_the_input_size_is_recorded_with_the_cell(given: Any, size: list[int]) -> None:
    cell = resolve(CellRequest(method="source", benchmark="toy", input_size=given))
    assert cell.record["preprocessing"]["size"] == size


@pytest.mark.parametrize("given", ["0", "16x", "large", "-8", "1.5"])
def test_what_is_no_size_is_refused(given: str) -> None:
    done = CliRunner().invoke(app, ["run", "source", "fashion_c", "--input-size", given])
    assert done.exit_code == 2
    assert "input_size" in done.stderr
    assert "write PIXELS or HEIGHTxWIDTH" in done.stderr


# -- wrong weights


def loaded_from(tensors: dict[str, Tensor], folder: Path) -> SourceModel:
    torch.save(tensors, folder / "w.pth")
    return load_source_model("toy_vit", weights=folder / "w.pth").eval()


def head_rows(order: Any) -> dict[str, Tensor]:
    tensors = toy.toy_vit().state_dict()
    return {k: v[order] if k.startswith("head.") else v for k, v in tensors.items()}


def random_weights() -> dict[str, Tensor]:
    torch.manual_seed(1)
    return {k: torch.randn_like(v) for k, v in toy.toy_vit().state_dict().items()}


@pytest.mark.parametrize(
    "tensors",
    [lambda: head_rows([*range(1, 10), 0]), lambda: head_rows([*range(9, -1, -1)]), random_weights],
    ids=["classes shifted", "classes reversed", "other weights"],
)
def test_weights_that_fit_but_are_not_the_benchmarks_are_refused_near_chance(
    tensors: Any, tmp_path: Path
) -> None:
    with pytest.raises(DataError, match="near chance"):
        source_accuracy(toy.Toy(), loaded_from(tensors(), tmp_path))


def test_weights_of_a_data_parallel_training_are_really_loaded(tmp_path: Path) -> None:
    """Loaded loosely, not one of these keys would match, and the model would guess."""
    wrapped = {f"module.{k}": v for k, v in toy.toy_vit().state_dict().items()}
    model = loaded_from({"model": wrapped}, tmp_path)  # type: ignore[dict-item]
    assert source_accuracy(toy.Toy(), model) == 100.0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: {k: v for k, v in t.items() if k != "norm.bias"}, "key 'norm.bias' is missing"),
        (
            lambda t: t | {"head.weight": torch.zeros(100, 24)},
            "'head.weight' has shape (100, 24) where the model has (10, 24)",
        ),
    ],
    ids=["key missing", "head of 100"],
)
def test_a_run_with_half_fitting_weights_ends_with_the_key_and_both_shapes(
    change: Any, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save(change(toy.toy_vit().state_dict()), "w.pth")
    call = ["run", "source", "toy", "--plugin", str(TOY), "--weights", "w.pth"]
    done = CliRunner().invoke(app, call)
    assert done.exit_code == 2
    assert message in done.stderr.replace("\n", " ")
    assert not list(Path("runs").glob("*/*/result.json"))


def test_a_timm_models_head_has_as_many_rows_as_the_benchmark_has_classes(
    vit: dict[str, Tensor], tmp_path: Path
) -> None:
    head = {"head.weight": torch.zeros(7, 64), "head.bias": torch.zeros(7)}
    torch.save(vit | head, tmp_path / "seven.pth")
    model = load_source_model(VIT, weights=tmp_path / "seven.pth", num_classes=7)
    assert model.num_classes == 7
    with pytest.raises(DataError, match=r"\(7, 64\) where the model has \(10, 64\)"):
        load_source_model(VIT, weights=tmp_path / "seven.pth", num_classes=10)


def test_a_model_of_other_classes_is_refused_before_anything_runs() -> None:
    with pytest.raises(ConfigError, match="has 10 classes, but the benchmark has 100"):
        load_source_model("toy_vit", num_classes=100)


@pytest.mark.usefixtures("toy")
def test_two_models_of_one_name_make_cells_of_two_names(tmp_path: Path) -> None:
    torch.save(toy.toy_vit().state_dict(), tmp_path / "same.pth")
    torch.save(random_weights(), tmp_path / "other.pth")
    own, same, other = (
        resolve(CellRequest(method="source", benchmark="toy", weights=file))
        for file in (None, tmp_path / "same.pth", tmp_path / "other.pth")
    )
    assert own.id == same.id
    assert other.id != own.id
    assert other.record["model"]["name"] == own.record["model"]["name"]


def test_models_show_states_name_weights_parameters_and_preprocessing() -> None:
    done = CliRunner().invoke(app, ["models", "show", "fashion_cnn", "--format", "json"])
    told = json.loads(done.stdout)
    assert (told["parameters"], told["classes"]) == (288_746, 10)
    assert told["preprocessing"]["mean"] == [0.5, 0.5, 0.5]
    text = CliRunner().invoke(app, ["models", "show", "fashion_cnn"]).stdout
    start = f"fashion_cnn: weights {told['sha256'][:8]}, 288,746 parameters, 10 classes, "
    assert text.startswith(start)
    assert text.endswith(" (mean 0.5, std 0.5, 32x32)\n")
