"""ImageNet's validation images in one folder: the files that tell their classes, and the traps."""

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.io import savemat

from ctta_bench.config.validation import validate
from ctta_bench.datasets.imagenet_c import ImageNetC
from ctta_bench.datasets.io.decoding import Geometry
from ctta_bench.datasets.io.flat_val import flat_classes
from ctta_bench.datasets.io.image_lists import ROBUSTBENCH, read_list
from ctta_bench.datasets.io.imagenet import synsets
from ctta_bench.datasets.making.clean import clean_images
from ctta_bench.errors import DataError
from tests.datasets.layouts import SIDE, colour, picture, synset_tree

# Twelve images whose classes the list tells, in the order of their numbers.
KNOWN = sorted(read_list(ROBUSTBENCH)[:12], key=lambda line: line.rpartition("/")[2])
SYNSETS = [line.partition("/")[0] for line in KNOWN]
FILES = [line.rpartition("/")[2] for line in KNOWN]
PLACES = [synsets().index(synset) for synset in SYNSETS]
# The development kit's numbers: any order but the sorted one will do for it.
KIT = {synset: 1 + (7 * number + 3) % 1000 for number, synset in enumerate(synsets())}


@pytest.fixture
def val(tmp_path: Path) -> Path:
    """ROOT/imagenet2012/val with the twelve, each in the colour of its class."""
    folder = tmp_path / "imagenet2012" / "val"
    for file, place in zip(FILES, PLACES, strict=True):
        picture(folder / file, place)
    return folder


def pairs(values: list[Any], between: str = " ") -> str:
    return "".join(f"{f}{between}{v}\n" for f, v in zip(FILES, values, strict=True))


def by_number(values: dict[str, Any], rest: Any) -> str:
    """A line for each of the 50,000 images; those that are not ours have some value."""
    lines = [str(rest)] * 50_000
    for file, value in values.items():
        lines[int(file[15:23]) - 1] = str(value)
    # The list's other images must not contradict it.
    for line in read_list(ROBUSTBENCH):
        synset, _, file = line.partition("/")
        lines[int(file[15:23]) - 1] = str(_same_kind(synset, rest))
    return "\n".join(lines) + "\n"


def _same_kind(synset: str, like: Any) -> Any:
    return synset if isinstance(like, str) else KIT[synset]


def kit(folder: Path) -> None:
    """meta.mat as the development kit has it, with a synset above the thousand."""
    dtype = [("ILSVRC2012_ID", "O"), ("WNID", "O"), ("num_children", "O")]
    rows = [(number, synset, 0) for synset, number in KIT.items()] + [(1001, "n00001740", 9)]
    savemat(folder / "meta.mat", {"synsets": np.array(rows, dtype)})


def write_kit(val: Path) -> None:
    folder = val.parent / "ILSVRC2012_devkit_t12" / "data"
    folder.mkdir(parents=True)
    kit(folder)
    text = by_number({}, 5)
    (folder / "ILSVRC2012_validation_ground_truth.txt").write_text(text)


WRITERS: dict[str, Callable[[Path], Any]] = {
    "synsets by number": lambda val: (
        val.parent / "imagenet_2012_validation_synset_labels.txt"
    ).write_text(by_number({}, synsets()[0])),
    "kaggle": lambda val: (val / "LOC_val_solution.csv").write_text(
        "ImageId,PredictionString\n"
        + "".join(
            f"{f[:-5]},{s} 1 2 3 4 {s} 5 6 7 8\n" for f, s in zip(FILES, SYNSETS, strict=True)
        )
    ),
    "numbers": lambda val: (val.parent / "val_map.txt").write_text(pairs(PLACES, "\t")),
    "paths and synsets": lambda val: (val / "val_labels.txt").write_text(
        "".join(f"val/{f} {s}\n" for f, s in zip(FILES, SYNSETS, strict=True))
    ),
    "development kit": write_kit,
}


def benchmark(root: Path, **settings: Any) -> ImageNetC:
    values = {"domains": ("clean",), "crop": SIDE, "resize": SIDE} | settings
    return ImageNetC(validate(ImageNetC.Settings, values, "benchmark"), root)


@pytest.mark.parametrize("kind", WRITERS)
def test_a_file_next_to_the_images_states_their_classes(
    kind: str, val: Path, tmp_path: Path
) -> None:
    WRITERS[kind](val)
    built = benchmark(tmp_path)
    images = built.domain("clean")
    assert images.labels.tolist() == PLACES
    loaded = images.load(np.arange(12))
    assert loaded[:, :, 2, 2].tolist() == [list(colour(place)) for place in PLACES]
    assert "smaller than RobustBench's list" in (built.provenance or "")
    assert benchmark(tmp_path, images="all").domain("clean").labels.tolist() == PLACES


def test_a_list_is_streamed_in_its_order_and_lacks_nothing(val: Path, tmp_path: Path) -> None:
    WRITERS["kaggle"](val)
    chosen = tmp_path / "mine.txt"
    chosen.write_text(f"{KNOWN[7]}\n{KNOWN[2]}\n")
    images = benchmark(tmp_path, images=str(chosen)).domain("clean")
    assert images.labels.tolist() == [PLACES[7], PLACES[2]]
    (val / FILES[2]).unlink()
    with pytest.raises(DataError, match=f"lacks 1 of the 2 images of .*first {KNOWN[2]}"):
        benchmark(tmp_path, images=str(chosen)).domain("clean")


def test_the_development_kit_s_numbers_are_refused_without_its_table(val: Path) -> None:
    write_kit(val)
    (val.parent / "ILSVRC2012_devkit_t12" / "data" / "meta.mat").unlink()
    with pytest.raises(DataError, match=r"in its own order, which meta\.mat"):
        flat_classes(val)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        # Numbers of the kit, counted from 0, under a name that promises sorted ones.
        ("val.txt", pairs([KIT[s] - 1 for s in SYNSETS]), "numbered in another order"),
        ("val.txt", pairs(PLACES).replace(str(PLACES[0]), "1000"), "is not an image of ImageNet's"),
        ("val.txt", "".join(pairs(PLACES).splitlines(True)[:4]), "too few images to find out"),
        ("val.txt", "0\n1\n", "has 2 lines instead of 50,000"),
        ("synset_labels.txt", pairs(SYNSETS[:-1] + SYNSETS[:1]), "but it is"),
        ("synset_labels.txt", pairs(SYNSETS).partition("\n")[0], "has no class for"),
        ("synset_labels.txt", "", "has no class for"),
    ],
)
def test_a_file_that_cannot_be_trusted_is_refused(
    name: str, content: str, words: str, val: Path
) -> None:
    (val / name).write_text(content)
    with pytest.raises(DataError, match=words) as caught:
        flat_classes(val)
    assert str(val / name) in str(caught.value)


def test_for_images_without_classes_the_error_says_how_to_sort_them(
    val: Path, tmp_path: Path
) -> None:
    with pytest.raises(DataError, match=r"move each to val/SYNSET/ .* or put imagenet_2012_valid"):
        benchmark(tmp_path).domain("clean")


def test_a_folder_of_synsets_is_no_flat_one(tmp_path: Path) -> None:
    synset_tree(tmp_path, {3: ["ILSVRC2012_val_00000001.JPEG"]})
    assert flat_classes(tmp_path) is None


def test_images_to_corrupt_count_as_in_folders_of_their_synsets(val: Path, tmp_path: Path) -> None:
    WRITERS["paths and synsets"](val)
    for line, place in zip(KNOWN, PLACES, strict=True):
        picture(tmp_path / "sorted" / line, place)
    geometry = Geometry(SIDE, "crop", SIDE)
    flat = clean_images(val, geometry, tmp_path)
    folders = clean_images(tmp_path / "sorted", geometry, tmp_path)
    again = pickle.loads(pickle.dumps(flat))
    for other in (folders, again):
        assert (flat.names, flat.labels.tolist()) == (other.names, other.labels.tolist())
        assert flat.sha256() == other.sha256()
        np.testing.assert_array_equal(flat.image(5), other.image(5))
