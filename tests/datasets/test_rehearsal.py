"""Rehearsals have the true layout: what reads the published files reads them."""

import pickle
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from ctta_bench.datasets.fetching.verify import Finding, verify
from ctta_bench.datasets.imagenet_c import CORRUPTIONS_3D
from ctta_bench.datasets.io.imagenet import synsets
from ctta_bench.datasets.io.roots import provenance
from ctta_bench.datasets.making.corruptions import CORRUPTIONS, HOLD_OUT, VERSION
from ctta_bench.datasets.rehearsal import benchmarks as module
from ctta_bench.datasets.rehearsal.benchmarks import embedded, rehearse
from ctta_bench.datasets.rehearsal.model import (
    MARGIN,
    Network,
    confident,
    fit_head,
    write_rehearsal_model,
)
from ctta_bench.datasets.rehearsal.photos import SHARED, SYNSETS
from ctta_bench.datasets.rehearsal.pickled_batches import pickled_batch
from ctta_bench.errors import ConfigError, DataError
from ctta_bench.registry import BENCHMARKS

FEW = ("contrast", "frost", "pixelate")
WITH_CORRUPTIONS = ("imagenet_c", "cifar10_c", "cifar100_c")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The three rehearsals under one root, of three corruptions and two images each."""
    folder = tmp_path_factory.mktemp("rehearsal")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "MADE", FEW)
        for layout in WITH_CORRUPTIONS:
            rehearse(layout, folder, images=12 if "cifar" in layout else 2)
    return folder


def test_a_pickled_batch_is_what_python_reads_from_cifars_own() -> None:
    pixels = np.random.RandomState(0).randint(0, 255, (3, 3072), dtype=np.uint8)
    entries = {b"batch_label": b"x" * 300, b"labels": [1, -2, 300], b"data": pixels, b"n": 7}
    told = pickle.loads(pickled_batch(entries), encoding="bytes")
    np.testing.assert_array_equal(told.pop(b"data"), pixels)
    del entries[b"data"]
    assert told == entries


@pytest.mark.parametrize("name", ["CIFAR10", "CIFAR100"])
def test_torchvision_reads_the_source_set(
    name: str, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = getattr(pytest.importorskip("torchvision.datasets"), name)
    monkeypatch.setattr(theirs, "_check_integrity", lambda _: True)
    monkeypatch.setattr(theirs, "_load_meta", lambda _: None)  # it holds them to their checksum
    train, test = theirs(root, train=True), theirs(root, train=False)
    assert (len(train), len(test)) == (module.TRAINING, 12)
    image, label = test[11]
    images, labels = embedded("test", 12)
    np.testing.assert_array_equal(np.asarray(image)[2:-2, 2:-2, 1], images[11])
    assert label == {"CIFAR10": labels[11], "CIFAR100": labels[11] * 10 + 1}[name]


@pytest.mark.parametrize("name", ["CIFAR-10-C", "CIFAR-100-C"])
def test_arrays_have_the_published_shape_but_for_the_number(name: str, root: Path) -> None:
    fog = np.load(root / name / "contrast.npy")
    assert (fog.shape, fog.dtype) == ((60, 32, 32, 3), np.uint8)
    labels = np.load(root / name / "labels.npy")
    assert (labels.shape, labels.dtype) == ((60,), np.uint8)
    assert {p.name for p in (root / name).glob("*.npy")} == {f"{n}.npy" for n in FEW} | {
        "labels.npy"
    }


def test_folders_have_the_published_names_and_sizes(root: Path) -> None:
    files = sorted((root / "ImageNet-C" / "contrast" / "5").rglob("*.JPEG"))
    assert [f.relative_to(root / "ImageNet-C").as_posix() for f in files] == [
        f"contrast/5/{SYNSETS[1]}/ILSVRC2012_val_00000002.JPEG",
        f"contrast/5/{SYNSETS[0]}/ILSVRC2012_val_00000001.JPEG",
    ]
    with Image.open(files[0]) as image:
        assert (image.size, image.mode, image.format) == ((224, 224), "RGB", "JPEG")
    assert len(list((root / "imagenet2012" / "train").rglob("*.JPEG"))) == module.TRAINING


def test_the_synsets_are_true_ones() -> None:
    info = pytest.importorskip("timm.data").ImageNetInfo()
    names = [info.label_name_to_description(synset) for synset in SYNSETS]
    words = "jersey jean sweatshirt hoopskirt trench sandal lab running backpack cowboy"
    assert [name.replace(",", " ").split()[0] for name in names] == words.split()
    assert set(SYNSETS) <= set(info.label_names())


@pytest.mark.parametrize("layout", WITH_CORRUPTIONS)
def test_the_readers_read_a_rehearsal_and_find_no_fault(layout: str, root: Path) -> None:
    entry = BENCHMARKS.get(layout)
    settings = entry.Settings(domains=FEW)
    benchmark = entry(settings, root)
    assert benchmark.problems() == []
    for severity in (1, 5):
        images = benchmark.domain("frost", severity)
        assert len(images.load(np.array([0, 1]))) == 2
    source = benchmark.source()
    assert source is not None
    assert len(source.labels) == module.TRAINING
    assert "rehearsal" in (benchmark.provenance or "")


def test_labels_of_folders_are_places_among_the_thousand(root: Path) -> None:
    benchmark = BENCHMARKS.get("imagenet_c")(None, root)
    info = pytest.importorskip("timm.data").ImageNetInfo()
    place = [sorted(info.label_names()).index(synset) for synset in SYNSETS[:2]]
    assert sorted(benchmark.domain("contrast", 5).labels.tolist()) == sorted(place)


def test_few_images_show_all_classes() -> None:
    _, labels = embedded("test", 25)
    assert labels.tolist() == [*range(10), *range(10), *range(5)]


def test_a_second_call_changes_nothing(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MADE", FEW)
    before = {f: f.stat().st_mtime_ns for f in root.rglob("*.npy")}
    rehearse("cifar10_c", root, images=12)
    assert {f: f.stat().st_mtime_ns for f in root.rglob("*.npy")} == before


def test_true_data_in_the_way_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MADE", ("contrast",))
    (tmp_path / "cifar-10-batches-py").mkdir()
    (tmp_path / "cifar-10-batches-py" / "test_batch").write_bytes(b"true")
    with pytest.raises(DataError, match="test_batch: exists with other content"):
        rehearse("cifar10_c", tmp_path, images=1)
    assert (tmp_path / "cifar-10-batches-py" / "test_batch").read_bytes() == b"true"


@pytest.mark.parametrize(
    ("wish", "message"),
    [
        (("acdc", 1), "--layout 'acdc': choose imagenet_c, cifar10_c, cifar100_c"),
        (("cifar10_c", 0), "--images 0"),
        (("cifar10_c", 2001), "--images 2001: give a number from 1 to 2000"),
    ],
)
def test_an_invalid_rehearsal_is_reported(
    wish: tuple[str, int], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=message):
        rehearse(wish[0], tmp_path, images=wish[1])


def test_the_footnote_says_that_it_is_a_rehearsal(root: Path) -> None:
    told = provenance(root / "ImageNet-C")
    assert told == (
        f"self-made corruptions of rehearsal images (version {VERSION}, seed 0, JPEG quality 85)"
    )


def test_the_whole_rehearsal_has_the_published_files() -> None:
    assert (*CORRUPTIONS, *HOLD_OUT) == module.MADE
    assert sorted(module.STAND_INS.values()) == sorted(CORRUPTIONS_3D)


# The sets of ImageNet's relatives, which tests/test_rehearsals.py streams.


def test_images_of_two_hundred_classes_lie_under_classes_of_both_sets() -> None:
    assert len(set(SHARED)) == len(SYNSETS)
    assert set(SHARED) <= set(synsets("imagenet_r")) & set(synsets("imagenet_a"))


@pytest.mark.parametrize("layout", ["imagenet_v2", "imagenet_sketch", "ccc"])
def test_a_rehearsal_is_proven_and_made_once(layout: str, tmp_path: Path) -> None:
    made = rehearse(layout, tmp_path, images=10)
    before = {f: f.read_bytes() for f in tmp_path.rglob("*.*") if f.name != "manifest.json"}
    assert rehearse(layout, tmp_path, images=10) == made
    assert all(f.read_bytes() == content for f, content in before.items())
    assert set(verdicts(verify(layout, tmp_path)).values()) == {"whole"}
    images = BENCHMARKS.get(layout)(None, tmp_path)
    assert images.problems() == []
    labels = images.domain(images.domain_names()[0]).labels.tolist()
    assert sorted(labels) == sorted(list(synsets()).index(synset) for synset in SYNSETS)


def test_true_images_are_not_mixed_with_a_rehearsal_s(tmp_path: Path) -> None:
    (tmp_path / "imagenet-r" / "n01443537").mkdir(parents=True)
    with pytest.raises(DataError, match="imagenet-r: holds files that are not a rehearsal's"):
        rehearse("imagenet_r", tmp_path, images=1)
    assert [p.name for p in (tmp_path / "imagenet-r").iterdir()] == ["n01443537"]


# Verified.


def verdicts(findings: list[Finding]) -> dict[str, str]:
    return {finding.place: finding.verdict for finding in findings}


def test_a_self_made_set_is_compared_with_its_manifest(root: Path) -> None:
    found = verify("imagenet_c", root)
    assert set(verdicts(found).values()) == {"whole"}
    assert len(found) == len(FEW) * 5
    assert "its manifest" in found[0].against


@pytest.mark.parametrize(("change", "verdict"), [("byte", "differs"), ("delete", "missing")])
def test_a_change_of_one_byte_is_found(
    change: str, verdict: str, root: Path, tmp_path: Path
) -> None:
    import shutil

    shutil.copytree(root / "CIFAR-10-C", tmp_path / "CIFAR-10-C")
    shutil.copytree(root / "cifar-10-batches-py", tmp_path / "cifar-10-batches-py")
    file = tmp_path / "CIFAR-10-C" / "frost.npy"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.unlink()
    if change == "byte":
        file.write_bytes(content)
    found = verdicts(verify("cifar10_c", tmp_path))
    assert found.pop("CIFAR-10-C/frost.npy") == verdict
    assert set(found.values()) == {"whole"}


def test_published_files_are_compared_with_the_published_md5(tmp_path: Path) -> None:
    (tmp_path / "CIFAR-100-C").mkdir()
    (tmp_path / "CIFAR-100-C" / "fog.npy").write_bytes(b"not it")
    found = verify("cifar100_c", tmp_path)
    by_place = verdicts(found)
    assert by_place["CIFAR-100-C/fog.npy"] == "differs"
    assert by_place["CIFAR-100-C/snow.npy"] == "missing"
    assert by_place["cifar-100-python"] == "missing"
    assert found[0].against == "the published md5"


def test_a_folder_without_any_checksum_is_never_called_whole(tmp_path: Path) -> None:
    (tmp_path / "ImageNet-C" / "fog" / "1").mkdir(parents=True)
    (finding,) = verify("imagenet_c", tmp_path)
    assert finding.verdict == "unknown"


# The head of a rehearsal's network.


def test_a_fitted_head_is_right_where_it_was_fitted_and_shuns_absent_classes() -> None:
    rng = np.random.default_rng(0)
    features, labels = rng.normal(size=(12, 40)) + 5, np.arange(12) % 3 * 7
    weight, bias = fit_head(features, labels, 20)
    logits = features @ weight.T + bias
    np.testing.assert_array_equal(logits.argmax(1), labels)
    assert logits[:, 1].tolist() == [-1] * 12
    weight, bias = confident(weight, bias, features)
    wide = features @ weight.T + bias
    np.testing.assert_array_equal(wide.argmax(1), labels)
    assert (wide.max(1) - wide.mean(1)).mean() == pytest.approx(MARGIN, rel=1e-4)


def test_a_head_is_fitted_again_when_there_are_other_source_images(tmp_path: Path) -> None:
    tiny = Network("test_vit", 1000, "tiny")
    rehearse("imagenet_v2", tmp_path, images=1)
    file = write_rehearsal_model("imagenet_v2", tmp_path, tiny)
    first = file.read_bytes()
    assert write_rehearsal_model("imagenet_v2", tmp_path, tiny).read_bytes() == first
    rehearse("imagenet_r", tmp_path, images=1)  # brings other classes
    assert write_rehearsal_model("imagenet_r", tmp_path, tiny).read_bytes() != first
    file.write_bytes(b"true weights")
    with pytest.raises(DataError, match=r"tiny\.safetensors: is not a rehearsal's"):
        write_rehearsal_model("imagenet_r", tmp_path, tiny)
