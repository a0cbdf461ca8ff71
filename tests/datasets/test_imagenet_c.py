"""ImageNet-C's folders: classes by synset, images by list, and what is missing or damaged."""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from ctta_bench.config.cell import CellRequest, resolve
from ctta_bench.config.validation import validate
from ctta_bench.datasets.imagenet_c import CORRUPTIONS_3D, ImageNet3DCC, ImageNetC
from ctta_bench.datasets.io import image_lists
from ctta_bench.datasets.io.image_lists import ROBUSTBENCH, read_list
from ctta_bench.datasets.io.imagenet import positions, synsets
from ctta_bench.datasets.making.corruptions import CORRUPTIONS, HOLD_OUT
from ctta_bench.errors import ConfigError, CttaBenchError, DataError
from ctta_bench.record.folder import RunFolder
from ctta_bench.run.engine import run_cell
from ctta_bench.stream import batch_domains
from tests.datasets.layouts import SIDE, load_class_reader, picture, synset_tree, val

# Four classes that are not the first ones, with their files: numbers run across the classes.
TREE = {5: [val(3), val(9)], 77: [val(1)], 400: [val(8), val(2)], 999: [val(4)]}
IN_ORDER = [(77, 1), (400, 2), (5, 3), (999, 4), (400, 8), (5, 9)]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in ("fog", "snow"):
        synset_tree(tmp_path / "ImageNet-C" / name / "5", TREE)
    return tmp_path


def benchmark(root: Path, **settings: Any) -> ImageNetC:
    values = {"domains": ("fog", "snow"), "crop": SIDE, "resize": SIDE} | settings
    return ImageNetC(validate(ImageNetC.Settings, values, "benchmark"), root)


def run(root: Path, out: Path, method: str = "source", **settings: Any) -> dict[str, Any]:
    load_class_reader()
    values = {"domains": ["fog", "snow"], "crop": SIDE, "resize": SIDE, "batch_size": 4} | settings
    request = CellRequest(
        method=method, benchmark="imagenet_c", model="class_reader", data_root=root, set=values
    )
    return run_cell(resolve(request), RunFolder(out))


def names(images: Any) -> list[str]:
    return list(images.names)


# -- classes


def test_the_thousand_synsets_are_sorted_and_end_as_everywhere() -> None:
    known = synsets()
    assert (len(known), known[0], known[999]) == (1000, "n01440764", "n15075141")
    assert list(known) == sorted(known)
    assert len(positions("imagenet_r")) == len(positions("imagenet_a")) == 200


@pytest.mark.parametrize("images", ["list", "all"])
def test_labels_are_places_among_the_thousand_not_among_the_folders_present(
    root: Path, images: str, tmp_path: Path
) -> None:
    result = run(root, tmp_path / "out", images=images)
    assert result["mean"] == 0
    with np.load(tmp_path / "out" / "predictions.npz") as scores:
        assert scores["label"].tolist() == 2 * [label for label, _ in IN_ORDER]


@pytest.mark.parametrize("name", ["0", "n00000000", "cat"])
def test_a_folder_that_is_no_synset_is_refused_by_name(root: Path, name: str) -> None:
    (root / "ImageNet-C" / "snow" / "5" / name).mkdir()
    with pytest.raises(DataError, match=f"'{name}' is none of the 1,000 synsets"):
        benchmark(root).domain("snow")
    assert len(benchmark(root).problems()) == 1


# -- which images, in which order


def test_the_list_of_the_package_is_robustbench_s_own() -> None:
    # Size and hash of the published file.
    content = ROBUSTBENCH.read_bytes()
    expected = "d4121626d07722a0126c35b1563042e46a546f1a05ce705f2cdc635896d58574"
    assert (len(content), hashlib.sha256(content).hexdigest()) == (194_999, expected)
    listed = read_list(ROBUSTBENCH)
    assert len(set(listed)) == len(listed) == 5000
    assert len({name.partition("/")[0] for name in listed}) == 997
    assert listed[0] == "n09468604/ILSVRC2012_val_00015253.JPEG"


def test_all_images_come_by_their_numbers_and_mix_the_classes(root: Path) -> None:
    images: Any = benchmark(root, images="all").domain("fog")
    assert names(images) == [f"{synsets()[c]}/{val(n)}" for c, n in IN_ORDER]
    assert images.labels.tolist() == [c for c, _ in IN_ORDER]


def test_a_set_smaller_than_the_list_is_streamed_whole_and_says_so(root: Path) -> None:
    read = benchmark(root)
    assert read.provenance is None
    assert len(read.domain("fog").labels) == 6
    assert read.provenance == "all images of a set smaller than RobustBench's list of 5,000"


def listing(tmp_path: Path, *lines: str, end: str = "") -> Path:
    file = tmp_path / "list.txt"
    file.write_text("\n".join(lines) + end)
    return file


CHOSEN = [f"{synsets()[c]}/{val(n)}" for c, n in [(999, 4), (5, 9), (400, 2)]]


@pytest.mark.parametrize("end", ["", "\n", "\n\n"])
def test_a_list_of_ones_own_decides_images_and_order_in_every_domain(
    root: Path, tmp_path: Path, end: str
) -> None:
    read = benchmark(root, images=str(listing(tmp_path, *CHOSEN, end=end)))
    for domain in ("fog", "snow"):
        images: Any = read.domain(domain)
        assert names(images) == CHOSEN
        assert images.labels.tolist() == [999, 5, 400]


def test_robustbench_s_list_is_followed_where_its_classes_are(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(image_lists, "ROBUSTBENCH", listing(tmp_path, *CHOSEN))
    read = benchmark(root)
    images: Any = read.domain("fog")
    assert names(images) == CHOSEN
    assert read.provenance is None


@pytest.mark.parametrize("chosen", ["list", "own"])
def test_a_list_that_names_an_absent_image_is_an_error(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chosen: str
) -> None:
    file = listing(tmp_path, *CHOSEN, f"{synsets()[5]}/{val(33)}")
    monkeypatch.setattr(image_lists, "ROBUSTBENCH", file)
    read = benchmark(root, images={"list": "list", "own": str(file)}[chosen])
    words = rf"fog/5: lacks 1 of the 4 images of .*, first {synsets()[5]}/{val(33)}; .*images=all"
    with pytest.raises(DataError, match=words):
        read.domain("fog")


def test_a_large_set_that_lacks_a_class_of_the_list_is_no_small_set(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = listing(tmp_path, *CHOSEN, f"{synsets()[6]}/{val(33)}")
    monkeypatch.setattr(image_lists, "ROBUSTBENCH", file)
    with pytest.raises(DataError, match="lacks 1 of the 4 images of RobustBench's list"):
        benchmark(root).domain("fog")  # 6 images, the list has 4


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ([CHOSEN[0], "../etc/passwd"], r"list.txt:2: '../etc/passwd' is not SYNSET/FILE"),
        (["n00000000/a.JPEG"], r"list.txt:1: .* is not SYNSET/FILE with a synset"),
        ([CHOSEN[0], CHOSEN[1], CHOSEN[0]], r"list.txt:3: .* is listed twice"),
        ([""], "lists no images"),
    ],
)
def test_a_list_that_is_none_is_refused_with_its_line(
    root: Path, tmp_path: Path, lines: list[str], words: str
) -> None:
    with pytest.raises(DataError, match=words):
        benchmark(root, images=str(listing(tmp_path, *lines))).domain("fog")


def test_a_list_that_is_not_there_is_an_error(root: Path) -> None:
    with pytest.raises(DataError, match=r"nowhere.txt: no such list"):
        benchmark(root, images="nowhere.txt").domain("fog")


def test_a_cell_is_known_by_the_content_of_its_list_not_by_its_place(
    root: Path, tmp_path: Path
) -> None:
    load_class_reader()

    def cell_id(file: Path) -> str:
        request = CellRequest(
            method="source", benchmark="imagenet_c", model="class_reader", set={"images": str(file)}
        )
        return resolve(request).id

    (tmp_path / "there").mkdir()
    here, there = listing(tmp_path, *CHOSEN), listing(tmp_path / "there", *CHOSEN)
    assert cell_id(here) == cell_id(there)
    assert cell_id(here) != cell_id(listing(tmp_path / "there", *CHOSEN[:2]))


def test_more_examples_than_images_are_refused_with_the_folder(root: Path) -> None:
    words = r"examples: 50 images requested, but .*ImageNet-C/fog/5 has 6"
    with pytest.raises(DataError, match=words):
        batch_domains(benchmark(root, examples=50))


def test_as_many_examples_as_there_are_run_and_are_recorded(root: Path, tmp_path: Path) -> None:
    result = run(root, tmp_path / "out", examples=6)
    assert [d["n"] for d in result["rounds"][0]["domains"]] == [6, 6]
    assert (
        yaml.safe_load((tmp_path / "out" / "cell.yaml").read_text())["benchmark"]["examples"] == 6
    )
    environment = json.loads((tmp_path / "out" / "env.json").read_text())
    assert "smaller than RobustBench's list" in environment["corruptions"]
    assert environment["pillow"] and environment["libjpeg"]


# -- which domains


def test_the_stream_is_the_fifteen_in_order_whatever_else_lies_there(root: Path) -> None:
    for name in ("tmp", "speckle_noise", "extra.tar.d"):
        (root / "ImageNet-C" / name / "5").mkdir(parents=True)
    read = ImageNetC(None, root)
    assert read.chosen_domains() == CORRUPTIONS
    assert read.extra_domains() == (*HOLD_OUT, "clean")
    assert read.unknown_folders() == ["extra.tar.d", "tmp"]


def test_a_hold_out_corruption_is_streamed_when_named(root: Path) -> None:
    synset_tree(root / "ImageNet-C" / "spatter" / "5", TREE)
    (domain,) = batch_domains(benchmark(root, domains=("spatter",)))
    assert len(domain) == 6
    with pytest.raises(ConfigError, match="has no domain 'tmp'"):
        benchmark(root, domains=("tmp",)).chosen_domains()


def test_problems_name_each_missing_domain_and_what_fetches_it(root: Path) -> None:
    found = benchmark(root, domains=("fog", "frost", "brightness")).problems()
    assert [problem.partition(":")[0] for problem in found] == ["domain frost", "domain brightness"]
    assert "no folder" in found[0] and "`ctta-bench data download imagenet_c" in found[0]


def test_a_missing_root_is_one_problem(tmp_path: Path) -> None:
    assert len(ImageNetC(None, tmp_path).problems()) == 1


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ({"severity": 6}, "severity: 6"),
        ({"batch_size": 0}, "batch_size: 0"),
        ({"crop": 300}, "crop 300 is larger than resize"),
        ({"undecodable": "ignore"}, "'stop' or 'skip'"),
    ],
)
def test_settings_out_of_range_are_refused(root: Path, setting: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        benchmark(root, **setting)


def test_3dcc_has_its_own_twelve_and_the_same_layout(tmp_path: Path) -> None:
    synset_tree(tmp_path / "ImageNet-3DCC" / "flash" / "3", TREE)
    values = {"domains": ("flash",), "severity": 3, "crop": SIDE}
    read = ImageNet3DCC(validate(ImageNet3DCC.Settings, values, "benchmark"), tmp_path)
    assert read.problems() == []
    assert ImageNet3DCC(None, tmp_path).chosen_domains() == CORRUPTIONS_3D
    assert len(set(CORRUPTIONS_3D)) == 12


# -- images that are damaged


def spoil(root: Path) -> Path:
    file = root / "ImageNet-C" / "fog" / "5" / synsets()[400] / val(2)
    file.write_bytes(file.read_bytes()[:40])
    return file


def test_a_damaged_image_stops_the_run_and_is_named(root: Path, tmp_path: Path) -> None:
    file = spoil(root)
    with pytest.raises(DataError, match=f"{file}: is not a readable image"):
        run(root, tmp_path / "out")
    failed = json.loads((tmp_path / "out" / "failed.json").read_text())
    assert failed["type"] == "DataError"


@pytest.mark.parametrize("workers", [0, 2])
def test_a_damaged_image_is_left_out_counted_and_named_when_asked(
    root: Path, tmp_path: Path, workers: int
) -> None:
    spoil(root)
    result = run(root, tmp_path / "out", undecodable="skip")
    assert [d["n"] for d in result["rounds"][0]["domains"]] == [5, 6]
    assert result["mean"] == 0
    notes = json.loads((tmp_path / "out" / "env.json").read_text())["corruptions"]
    assert f"fog without 1 damaged ({synsets()[400]}/{val(2)})" in notes


def test_examples_are_counted_after_damaged_images_are_left_out(root: Path, tmp_path: Path) -> None:
    spoil(root)
    result = run(root, tmp_path / "out", undecodable="skip", examples=5)
    assert [d["n"] for d in result["rounds"][0]["domains"]] == [5, 5]
    with pytest.raises(DataError, match="6 images requested"):
        run(root, tmp_path / "other", undecodable="skip", examples=6)


def test_an_image_of_another_size_than_published_is_refused(root: Path) -> None:
    file = picture(root / "ImageNet-C" / "fog" / "5" / synsets()[5] / val(3), 5, (9, 8))
    with pytest.raises(DataError, match=f"{file}: .*9x8 pixels, expected 8x8"):
        benchmark(root).domain("fog").load(np.arange(6))


# -- clean images


def test_clean_images_are_resized_cropped_and_follow_the_same_list(
    root: Path, tmp_path: Path
) -> None:
    synset_tree(root / "imagenet2012" / "val", TREE, size=(30, 20))
    read = benchmark(root, images=str(listing(tmp_path, *CHOSEN)), domains=("clean",))
    images: Any = read.domain("clean")
    assert names(images) == CHOSEN
    assert tuple(images.load(np.arange(3)).shape) == (3, 3, SIDE, SIDE)


def test_the_source_is_the_training_folder_with_the_same_class_numbers(root: Path) -> None:
    assert benchmark(root).source() is None
    synset_tree(root / "imagenet2012" / "train", {77: ["b.JPEG", "a.JPEG"], 3: ["c.JPEG"]})
    source: Any = benchmark(root).source()
    assert names(source) == [
        f"{synsets()[3]}/c.JPEG", f"{synsets()[77]}/a.JPEG", f"{synsets()[77]}/b.JPEG",
    ]  # fmt: skip
    assert source.labels.tolist() == [3, 77, 77]


def test_a_missing_source_set_is_reported_with_its_folder(root: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no source set; put it in .*imagenet2012/train"):
        run(root, tmp_path / "out", "eata")


def test_every_complaint_is_one_sentence(root: Path, tmp_path: Path) -> None:
    spoil(root)
    with pytest.raises(CttaBenchError) as caught:
        run(root, tmp_path / "out")
    assert "\n" not in str(caught.value)
