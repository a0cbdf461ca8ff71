import dataclasses
import gzip
import json
import os
import pickle
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from filelock import FileLock
from torch import Tensor, nn
from typer.testing import CliRunner

from ctta_bench.cli import app
from ctta_bench.datasets.fashion import read
from ctta_bench.datasets.fashion_models import EMBEDDED
from ctta_bench.errors import ConfigError, DataError, RunError
from ctta_bench.model import SourceModel
from ctta_bench.registry import BENCHMARKS, MODELS
from ctta_bench.source_models.pretrained import load_source_model
from ctta_bench.stream import ArrayImages, ArrayMaps, MapSet
from ctta_bench.training.batches import TrainingBatches, mix, shift
from ctta_bench.training.loop import Training, train_source
from ctta_bench.training.recipes import Recipe, recipe_for
from ctta_bench.training.task import Task, copy_body, first_model, task_for
from tests import toy_maps
from tests.conftest import TOY
from tests.methods import toy

CPU = torch.device("cpu")
QUICK: dict[str, Any] = {"epochs": 2, "batch_size": 16}  # 3 steps an epoch on 40 pictures


def task(model: str = "toy_vit", **recipe: Any) -> Task:
    return task_for(toy.Toy(), model, Recipe(**QUICK | recipe))


def map_task(**recipe: Any) -> Task:
    """Seven pictures with label maps: 1 step an epoch in batches of 16, 4 in batches of 2."""
    return task_for(
        toy_maps.ToyMaps(), "toy_segmentor", Recipe(**QUICK | {"batch_size": 2} | recipe)
    )


class Steps:
    """Collects what a training reports; at step `interrupt_at` it sends what Ctrl-C sends."""

    def __init__(self, interrupt_at: int = 0) -> None:
        self.seen: list[dict[str, Any]] = []
        self.interrupt_at = interrupt_at

    def __call__(self, facts: dict[str, Any]) -> None:
        self.seen.append(facts)
        os.kill(os.getpid(), signal.SIGINT if facts["step"] == self.interrupt_at else 0)


class Dropping(nn.Sequential):
    """A network that draws random numbers in training."""

    def __init__(self) -> None:
        super().__init__(nn.Flatten(), nn.Dropout(0.5), nn.Linear(3 * 16 * 16, 10))


@pytest.fixture
def dropping(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MODELS, "_plugin_entries", dict(MODELS._plugin_entries))
    MODELS.register_module("dropping")(lambda: Dropping())


# -- the course of a training


@pytest.mark.parametrize(
    ("model", "recipe"),
    [
        ("toy_vit", {}),
        ("toy_cnn", {"augmentation": "crop_flip", "optimizer": "sgd", "mixup": 0.2}),
        ("toy_cnn", {"optimizer": "nesterov", "teacher": "toy_vit", "label_smoothing": 0.1}),
        ("dropping", {"precision": "bfloat16", "augmentation": "none"}),
    ],
    ids=["vit", "crops", "teacher", "dropout"],
)
@pytest.mark.parametrize("step", [1, 3, 5])
@pytest.mark.usefixtures("dropping")
def test_an_interrupted_training_is_bit_identical(
    model: str, recipe: dict[str, Any], step: int, tmp_path: Path
) -> None:
    whole, parts = tmp_path / "whole.safetensors", tmp_path / "parts.safetensors"
    record = train_source(task(model, **recipe), whole)
    with pytest.raises(KeyboardInterrupt):
        train_source(task(model, **recipe), parts, report=Steps(interrupt_at=step))
    assert not parts.exists()
    rest = Steps()
    torch.manual_seed(99)  # whatever happened meanwhile
    resumed = train_source(task(model, **recipe), parts, report=rest)
    assert [facts["step"] for facts in rest.seen] == list(range(step + 1, 7))
    assert resumed["sha256"] == record["sha256"]
    assert resumed["history"] == record["history"]
    assert sorted(p.name for p in tmp_path.glob("parts*")) == [
        "parts.json",
        "parts.md",
        "parts.safetensors",
    ]


def test_another_seed_gives_other_weights(tmp_path: Path) -> None:
    one, same, other = (
        train_source(dataclasses.replace(task(), seed=seed), tmp_path / f"{number}.safetensors")
        for number, seed in enumerate((0, 0, 1))
    )
    assert one["sha256"] == same["sha256"] != other["sha256"]


def test_the_rate_rises_linearly_then_falls_as_a_cosine() -> None:
    training = Training(task(epochs=8, lr=0.8, warmup=0.17), CPU, Path("unused"))
    assert (training.steps, training.warm_up) == (24, 4)
    rates = []
    for index in [torch.arange(16)] * training.steps:
        training.step(index)
        training.progress.step += 1
        rates.append(training.optimizer.param_groups[0]["lr"])
    falling = 0.4 * (1 + np.cos(np.pi * np.arange(20) / 20))
    assert rates == pytest.approx([0.2, 0.4, 0.6, 0.8, *falling])


# The first losses of the script that trained the shipped weights, on the first 320 embedded images.
SHIPPED = {
    "fashion_cnn": [2.3330721855163574, 2.11491060256958, 1.911111831665039, 1.7677795886993408],
    "fashion_vit": [2.3264951705932617, 2.499885320663452, 2.377194404602051, 2.268220901489258],
}


@pytest.mark.parametrize("name", SHIPPED)
def test_the_embedded_models_recipes_take_the_steps_that_made_the_shipped_weights(
    name: str, tmp_path: Path
) -> None:
    images, labels = read("source")
    few = ArrayImages(images[:320], labels[:320])
    recipe = recipe_for(name, {"epochs": 2})
    steps = Steps(interrupt_at=4)
    with pytest.raises(KeyboardInterrupt):
        train_source(
            Task("fashion_c", name, recipe, few, None, 10),
            tmp_path / "few.safetensors",
            report=steps,
        )
    # To the bit on the machine that made them; elsewhere sums are rounded in another order.
    assert [facts["loss"] for facts in steps.seen] == pytest.approx(SHIPPED[name], rel=1e-3)


@pytest.mark.parametrize("name", SHIPPED)
def test_the_recipes_of_the_embedded_models_are_those_stored_with_the_weights(name: str) -> None:
    stored = json.loads((EMBEDDED / f"{name}.json").read_text())["recipe"]
    recipe = recipe_for(name)
    assert (recipe.epochs, recipe.batch_size) == (stored["epochs"], stored["batch"])
    assert (recipe.lr, recipe.weight_decay) == (stored["lr"], stored["weight_decay"])
    assert (recipe.teacher, recipe.optimizer) == (stored["teacher"], stored["optimizer"].lower())
    assert (recipe.warmup, recipe.augmentation, recipe.stored) == (0.05, "flip", "float16")


def test_training_learns_and_reports_each_epoch(tmp_path: Path) -> None:
    images = toy.Toy().source()
    learning = dataclasses.replace(task("toy_cnn", epochs=30, lr=0.01), test=images)
    steps = Steps()
    record = train_source(learning, tmp_path / "m.safetensors", report=steps)
    assert record["clean_accuracy"] >= 90
    assert [f["epoch"] for f in steps.seen if f["ends_epoch"]] == list(range(1, 31))
    assert record["history"][-1]["accuracy"] == pytest.approx(record["clean_accuracy"], abs=0.01)
    assert record["history"][-1]["loss"] < record["history"][0]["loss"] / 2


def test_a_loss_that_is_no_number_ends_the_training(tmp_path: Path) -> None:
    wild = task("toy_cnn", lr=1e30, optimizer="sgd", clip=0, epochs=9)
    with pytest.raises(RunError, match=r"the loss is nan at step .*; lower lr"):
        train_source(wild, tmp_path / "m.safetensors")


# -- images and targets


def test_shifted_images_are_windows_of_the_zero_padded_ones() -> None:
    images = torch.rand(6, 3, 16, 24)
    moved = shift(images, torch.Generator().manual_seed(3))
    corners = torch.randint(0, 5, (2, 6), generator=torch.Generator().manual_seed(3))
    padded = nn.functional.pad(images, (2, 2, 2, 2))
    for number, (row, column) in enumerate(corners.T.tolist()):
        window = padded[number, :, row : row + 16, column : column + 24]
        assert torch.equal(moved[number], window)


def test_each_image_of_a_batch_is_mirrored_or_not_and_its_teacher_target_too() -> None:
    index = torch.arange(40)
    images, targets = TrainingBatches(task(teacher="toy_cnn"), CPU).batch(index)
    plain = toy.Toy().source().load(index.numpy()) / 255
    mirrored = torch.tensor([not torch.equal(a, b) for a, b in zip(images, plain, strict=True)])
    assert 8 < int(mirrored.sum()) < 32
    assert torch.equal(images[mirrored], plain.flip(-1)[mirrored])
    with torch.no_grad():
        taught = SourceModel(toy.toy_cnn().eval())(images).softmax(-1)
    labels = nn.functional.one_hot(torch.from_numpy(toy.Toy().source().labels), 10)
    torch.testing.assert_close(targets, (labels + taught) / 2)


def test_mixup_mixes_images_and_targets_with_one_share() -> None:
    images = torch.eye(6).reshape(6, 1, 2, 3)
    mixed, targets = mix(images, torch.eye(6), 0.4, torch.Generator().manual_seed(1))
    assert torch.equal(mixed.reshape(6, 6), targets)
    share = targets.diag()[targets.diag() < 1]
    assert len(share) and torch.allclose(share, share[:1].expand_as(share))
    torch.testing.assert_close(targets.sum(1), torch.ones(6))


def test_a_label_out_of_range_is_refused() -> None:
    images, labels = toy.labelled(2, "toy_vit")
    wrong = dataclasses.replace(task(), train=ArrayImages(images, labels + 3))
    with pytest.raises(DataError, match=r"a label is out of 0\.\.9"):
        TrainingBatches(wrong, CPU).batch(torch.arange(40))


# -- where it starts


def test_a_start_gives_all_but_a_head_of_other_classes() -> None:
    start, network = toy.tiny_vit(), toy.tiny_vit()
    with torch.no_grad():
        for parameter in start.parameters():
            parameter.fill_(3.0)
    start.reset_classifier(7)
    before = network.head.weight.clone()
    copy_body(start, network, network.head, "start")
    assert torch.equal(network.head.weight, before)
    assert all(bool((v == 3).all()) for k, v in network.state_dict().items() if "head" not in k)


def test_a_start_of_the_same_classes_gives_its_head_too() -> None:
    assert first_model(task(start="toy_vit")).sha256() == SourceModel(toy.toy_vit()).sha256()


def test_a_start_of_another_shape_is_refused() -> None:
    with pytest.raises(DataError, match=r"recipe: toy_cnn does not fit the model: 0\.weight"):
        first_model(task(start="toy_cnn"))


def test_weights_without_a_start_and_models_of_other_classes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--weights: this recipe starts from random weights"):
        first_model(dataclasses.replace(task(), weights=tmp_path))
    with pytest.raises(ConfigError, match="model toy_vit has 10 classes, but toy has 3"):
        first_model(dataclasses.replace(task(), num_classes=3))


# -- what it leaves


def test_the_stored_values_are_the_measured_ones_and_say_how_they_are_fed(tmp_path: Path) -> None:
    raw = dataclasses.replace(
        task("toy_cnn", stored="float16", epochs=20, lr=0.01), regime="lineage"
    )
    record = train_source(raw, tmp_path / "m.safetensors")
    model = load_source_model("toy_cnn", weights=tmp_path / "m.safetensors").eval()
    assert model.sha256() == record["sha256"]
    assert model.preprocessing.mean == (0.0, 0.0, 0.0)  # raw images are what is true of it
    images = toy.Toy().source()
    with torch.no_grad():
        right = model(images.load(np.arange(40)) / 255).argmax(-1) == torch.from_numpy(
            images.labels
        )
    assert record["clean_accuracy"] == pytest.approx(100 * float(right.double().mean()), abs=0.01)
    card = (tmp_path / "m.md").read_text()
    assert f"{record['clean_accuracy']:.2f} % of the training images: no test set" in card
    assert "| epochs | 20 |" in card
    assert json.loads((tmp_path / "m.json").read_text()) == record
    assert (tmp_path / "m.safetensors").stat().st_mode & 0o777 == 0o644


def test_weights_that_are_there_are_kept_unless_forced(tmp_path: Path) -> None:
    out = tmp_path / "m.safetensors"
    train_source(task(), out)
    before = out.read_bytes()
    with pytest.raises(RunError, match="already exists"):
        train_source(task(), out)
    assert out.read_bytes() == before
    train_source(dataclasses.replace(task(), seed=1), out, force=True)
    assert out.read_bytes() != before


@pytest.fixture
def stopped(tmp_path: Path) -> Path:
    """The file of a training that was interrupted after two steps."""
    out = tmp_path / "m.safetensors"
    with pytest.raises(KeyboardInterrupt):
        train_source(task(), out, report=Steps(interrupt_at=2))
    return out


def other_images() -> ArrayImages:
    images, labels = toy.labelled(5, "toy_vit")
    return ArrayImages(images, labels)


@pytest.mark.parametrize(
    "other",
    [
        lambda: task(lr=2e-3),
        lambda: dataclasses.replace(task(), seed=1),
        lambda: dataclasses.replace(task(), regime="lineage"),
        lambda: dataclasses.replace(task(), train=other_images()),
    ],
    ids=["recipe", "seed", "regime", "data"],
)
def test_a_checkpoint_of_another_training_is_refused(other: Any, stopped: Path) -> None:
    with pytest.raises(RunError, match=r"m\.training\.pt: belongs to a training with another"):
        train_source(other(), stopped)


@pytest.mark.parametrize("content", [b"", b"PK", b"<html>", None])
def test_a_damaged_checkpoint_is_refused(content: bytes | None, stopped: Path) -> None:
    file = stopped.with_suffix(".training.pt")
    file.write_bytes(file.read_bytes()[:500] if content is None else content)
    with pytest.raises(RunError, match=r"m\.training\.pt: is damaged"):
        train_source(task(), stopped)


def test_force_resumes_from_its_own_checkpoint_and_ignores_others(
    stopped: Path,
) -> None:
    own, other = Steps(), Steps()
    train_source(task(), stopped, force=True, report=own)
    assert own.seen[0]["step"] == 3
    with pytest.raises(KeyboardInterrupt):
        train_source(task(), stopped, force=True, report=Steps(interrupt_at=2))
    train_source(task(lr=2e-3), stopped, force=True, report=other)
    assert other.seen[0]["step"] == 1


def test_two_processes_never_train_one_file(tmp_path: Path) -> None:
    with (
        FileLock(tmp_path / ".m.lock"),
        pytest.raises(RunError, match="another process is training this model"),
    ):
        train_source(task(), tmp_path / "m.safetensors")


# -- label maps


def test_an_interrupted_training_of_a_segmentor_is_bit_identical(
    tmp_path: Path,
) -> None:
    whole, parts = tmp_path / "whole.safetensors", tmp_path / "parts.safetensors"
    record = train_source(map_task(), whole)
    with pytest.raises(KeyboardInterrupt):
        train_source(map_task(), parts, report=Steps(interrupt_at=5))
    rest = Steps()
    torch.manual_seed(99)
    resumed = train_source(map_task(), parts, report=rest)
    assert [facts["step"] for facts in rest.seen] == [6, 7, 8]
    assert resumed["sha256"] == record["sha256"]


def test_a_segmentor_learns_and_its_card_contains_the_miou(tmp_path: Path) -> None:
    images = toy_maps.ToyMaps().source()
    learning = dataclasses.replace(map_task(epochs=10, lr=0.02), test=images)
    steps = Steps()
    record = train_source(learning, tmp_path / "m.safetensors", report=steps)
    first, last = record["history"][0], record["history"][-1]
    assert last["loss"] < 0.7 * first["loss"]
    assert last["miou"] > first["miou"] + 5
    assert last["miou"] == pytest.approx(record["clean_miou"], abs=0.01)
    assert "clean_accuracy" not in record
    assert f"| clean mIoU | {record['clean_miou']:.2f} % on 7 test images |" in (
        tmp_path / "m.md"
    ).read_text(encoding="utf-8")


def test_the_miou_is_that_of_the_stored_weights(tmp_path: Path) -> None:
    out = tmp_path / "m.safetensors"
    record = train_source(map_task(epochs=5, lr=0.01, stored="float16"), out)
    model = load_source_model("toy_segmentor", weights=out).eval()
    images = toy_maps.ToyMaps().source()
    with torch.no_grad():
        logits = model(images.load(np.arange(7)) / 255)
    large = nn.functional.interpolate(logits, size=(64, 96), mode="bilinear").argmax(1).numpy()
    maps = images.maps(np.arange(7)).numpy()
    found, labels = large[maps != 255], maps[maps != 255]
    overlaps = [
        np.sum((found == k) & (labels == k)) / np.sum((found == k) | (labels == k))
        for k in np.union1d(found, labels)
    ]
    assert record["clean_miou"] == pytest.approx(100 * np.mean(overlaps), abs=0.006)


def test_maps_are_mirrored_with_their_images() -> None:
    images, maps = toy_maps.labelled(2)
    maps = maps.copy()
    maps[:, :, -1] = 9  # no map is its own mirror image
    given = dataclasses.replace(map_task(), train=ArrayMaps(images, maps))
    seen, targets = TrainingBatches(given, CPU).batch(torch.arange(7))
    plain = torch.from_numpy(images) / 255
    mirrored = torch.tensor([not torch.equal(a, b) for a, b in zip(seen, plain, strict=True)])
    assert 0 < int(mirrored.sum()) < 7
    expected = torch.from_numpy(maps).long()
    expected[mirrored] = expected[mirrored].flip(-1)
    assert torch.equal(targets, expected)


def test_the_loss_of_maps_is_the_mean_over_labelled_pixels_at_their_size() -> None:
    objective = TrainingBatches(map_task(), CPU).objective
    logits = torch.randn(2, 10, 3, 4, generator=torch.Generator().manual_seed(0))
    targets = torch.arange(2 * 6 * 8).view(2, 6, 8) % 10
    targets[0, :, :3] = 255
    large = nn.functional.interpolate(logits, scale_factor=2, mode="bilinear")
    picked = large.log_softmax(1).gather(1, targets.clamp(max=9)[:, None])[:, 0]
    expected = -picked[targets != 255].mean()
    torch.testing.assert_close(objective.loss(logits, targets, 0.0), expected)
    ignored = torch.full_like(targets, 255)
    assert objective.loss(logits, ignored, 0.0) == 0  # and not 0 / 0


@pytest.mark.parametrize(
    "recipe", [{"teacher": "toy_segmentor"}, {"augmentation": "crop_flip"}, {"mixup": 0.1}]
)
def test_what_maps_do_not_know_is_refused(recipe: dict[str, Any]) -> None:
    with pytest.raises(
        ConfigError, match="supports classification only, but these labels are maps"
    ):
        TrainingBatches(map_task(**recipe), CPU)


def test_an_unknown_value_in_a_map_is_refused() -> None:
    images, maps = toy_maps.labelled(2)
    wrong = dataclasses.replace(map_task(), train=ArrayMaps(images, np.full_like(maps, 33)))
    with pytest.raises(
        DataError, match=r"the value 33 in a label map is none of 0\.\.9, and not 255"
    ):
        TrainingBatches(wrong, CPU).batch(torch.arange(7))


def test_a_checkpoint_of_other_maps_is_refused(tmp_path: Path) -> None:
    out = tmp_path / "m.safetensors"
    with pytest.raises(KeyboardInterrupt):
        train_source(map_task(), out, report=Steps(interrupt_at=2))
    images, maps = toy_maps.labelled(2)
    other = dataclasses.replace(map_task(), train=ArrayMaps(images, maps[:, ::-1]))
    with pytest.raises(RunError, match="belongs to a training with another"):
        train_source(other, out)


@pytest.mark.parametrize(("model", "benchmark"), [("toy_vit", "maps"), ("toy_segmentor", "toy")])
def test_a_model_of_another_task_is_refused(model: str, benchmark: str) -> None:
    given = dataclasses.replace(map_task() if benchmark == "maps" else task(), model=model)
    with pytest.raises(
        ConfigError, match=f"model {model} does not support .*; choose another --model"
    ):
        first_model(given)


def test_a_segmentor_can_start_from_anothers_weights() -> None:
    start = first_model(map_task(start="toy_segmentor"))
    assert start.sha256() == SourceModel(toy_maps.toy_segmentor()).sha256()


def test_a_segmentation_benchmark_brings_its_training_maps() -> None:
    assert isinstance(map_task().train, MapSet)


# -- recipes and the command


@pytest.mark.parametrize(
    ("model", "overrides", "message"),
    [
        ("toy_vit", {"epoch": 3}, "recipe of toy_vit: unknown key 'epoch'; did you mean 'epochs'"),
        ("toy_vit", {"lr": -1}, r"recipe of toy_vit\.lr: -1: "),
        ("toy_vit", {"teacher": "toy_cnn", "augmentation": "crop_flip"}, "not crop_flip"),
    ],
)
def test_a_wrong_recipe_is_refused(model: str, overrides: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        recipe_for(model, overrides)


def test_a_timm_model_starts_from_its_own_weights_by_default() -> None:
    assert recipe_for("timm:resnet18.a1_in1k").start == "timm:resnet18.a1_in1k"
    assert recipe_for("timm:resnet18.a1_in1k", {"start": ""}).start == ""
    assert recipe_for("CIFAR10-ViT-base").start.startswith("timm:vit_base_patch16_384.augreg_in21k")


def test_a_model_that_the_command_trained_is_run_with(tmp_path: Path) -> None:
    plugin = ["--plugin", str(TOY)]
    train = ["train-source", "toy", "--model", "toy_cnn", "--set", "epochs=25", "--set", "lr=0.01"]
    out = tmp_path / "m.safetensors"
    done = CliRunner().invoke(app, [*train, *plugin, "--out", str(out)])
    assert done.exit_code == 0, done.output
    assert "epoch 25/25" in done.stderr
    assert str(out) in done.stdout
    run = ["run", "source", "toy", "--model", "toy_cnn", "--weights", str(out), "--format", "json"]
    ran = CliRunner().invoke(app, [*run, *plugin, "--out", str(tmp_path / "runs")])
    assert ran.exit_code == 0, ran.output
    assert json.loads(ran.stdout)["source_accuracy"] >= 80


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["image_folder"], "has no default model: give --model"),
        (["fashion_c", "--train-data", "nowhere"], "no folder nowhere with Fashion-MNIST's four"),
        (["fashion_c", "--out", "m.pth"], "--out m.pth: the name must end in .safetensors"),
        (["fashion_c", "--preprocessing", "raw"], "choose 'true' or 'lineage'"),
    ],
)
def test_what_cannot_be_trained_is_refused_with_one_sentence(
    arguments: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    done = CliRunner().invoke(app, ["train-source", *arguments, "--data-root", "data"])
    assert done.exit_code == 2
    assert message in done.stderr


def idx(array: np.ndarray) -> bytes:
    sizes = b"".join(n.to_bytes(4, "big") for n in array.shape)
    return bytes([0, 0, 8, array.ndim]) + sizes + array.tobytes()


def tensors_of(images: Any) -> Tensor:
    return images.load(np.arange(len(images.labels)))


def test_fashion_c_reads_its_training_images_from_idx_files(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    train, test = (rng.integers(0, 256, (n, 28, 28), np.uint8) for n in (6, 4))
    files = {"train-images-idx3": train, "t10k-images-idx3": test}
    files |= {"train-labels-idx1": np.arange(6, dtype=np.uint8)}
    for name, array in files.items():
        (tmp_path / f"{name}-ubyte").write_bytes(idx(array))
    packed = gzip.compress(idx(np.full(4, 9, np.uint8)))
    (tmp_path / "t10k-labels-idx1-ubyte.gz").write_bytes(packed)
    ours, clean = BENCHMARKS.get("fashion_c")(None, None).training_sets(tmp_path)
    assert tensors_of(ours)[:, 1, 2:30, 2:30].numpy().tobytes() == train.tobytes()
    assert int(tensors_of(ours)[:, :, :2].sum()) == 0
    assert (ours.labels.tolist(), clean.labels.tolist()) == ([0, 1, 2, 3, 4, 5], [9, 9, 9, 9])
    (tmp_path / "t10k-images-idx3-ubyte").write_bytes(idx(test)[:-1])
    with pytest.raises(DataError, match="t10k-images-idx3-ubyte: is not a complete idx file"):
        BENCHMARKS.get("fashion_c")(None, None).training_sets(tmp_path)


def test_cifar_is_trained_on_its_python_batches_and_measured_on_its_test_batch(
    tmp_path: Path,
) -> None:
    rng = np.random.default_rng(0)
    for number, name in enumerate([*(f"data_batch_{n}" for n in range(1, 6)), "test_batch"]):
        data = rng.integers(0, 256, (2, 3072), np.uint8)
        content = {b"data": data, b"labels": [number, number + 1]}
        (tmp_path / name).write_bytes(pickle.dumps(content, protocol=2))
    train, test = BENCHMARKS.get("cifar10_c")(None, None).training_sets(tmp_path)
    assert train.labels.tolist() == [0, 1, 1, 2, 2, 3, 3, 4, 4, 5]
    assert test is not None
    assert test.labels.tolist() == [5, 6]
    assert tensors_of(test)[1].flatten().tolist() == data[1].tolist()
    with pytest.raises(DataError, match=r"no folder .*nowhere; expected are data_batch_1"):
        BENCHMARKS.get("cifar10_c")(None, None).training_sets(tmp_path / "nowhere")
