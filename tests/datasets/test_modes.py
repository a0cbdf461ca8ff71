"""Image files of every mode: scaled rightly, or refused by the file's name; never clipped."""

import warnings
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from ctta_bench.datasets.io.decoding import Geometry, decode
from ctta_bench.datasets.io.label_files import read_map
from ctta_bench.datasets.io.street_files import StreetImages
from ctta_bench.errors import DataError

ONE = Geometry(2)


def read(file: Path) -> list[int]:
    """The red, green and blue of an image of one colour."""
    made = decode(file, ONE)
    assert made.dtype == np.uint8
    assert made.shape == (3, 2, 2)
    assert (made == made[:, :1, :1]).all()
    return [int(value) for value in made[:, 0, 0]]


@pytest.mark.parametrize("suffix", ["png", "tif"])
@pytest.mark.parametrize(
    ("value", "expected"), [(32896, 128), (0, 0), (65535, 255), (257 * 77, 77), (257, 1), (128, 0)]
)
def test_grey_of_16_bits_is_scaled(value: int, expected: int, suffix: str, tmp_path: Path) -> None:
    file = tmp_path / f"a.{suffix}"
    Image.fromarray(np.full((2, 2), value, np.uint16)).save(file)
    assert read(file) == [expected] * 3


@pytest.mark.parametrize(
    ("highest", "value", "expected"), [(65535, 32896, 128), (1023, 1023, 255), (100, 100, 255)]
)
def test_pgm_is_scaled_by_its_highest_value(
    highest: int, value: int, expected: int, tmp_path: Path
) -> None:
    content = value.to_bytes(2 if highest > 255 else 1, "big") * 4
    file = tmp_path / "a.pgm"
    file.write_bytes(b"P5 2 2 %d\n" % highest + content)
    assert read(file) == [expected] * 3


@pytest.mark.parametrize("channels", [3, 4])
def test_colours_of_16_bits_are_scaled(channels: int, tmp_path: Path) -> None:
    import cv2

    file = tmp_path / "a.png"
    assert cv2.imwrite(str(file), np.full((2, 2, channels), 32896, np.uint16))
    assert read(file) == [128] * 3


@pytest.mark.parametrize(
    ("dtype", "words"), [(np.int32, "32-bit integers"), (np.float32, "floating-point values")]
)
def test_values_of_unknown_range_are_refused_by_name(
    dtype: type, words: str, tmp_path: Path
) -> None:
    file = tmp_path / "depth.tif"
    image = Image.fromarray(np.full((2, 2), 3, dtype))
    image.save(file)
    with pytest.raises(DataError, match=r"depth\.tif: is not a readable image \(it holds") as told:
        decode(file, ONE)
    assert words in str(told.value) or "signed or floating-point" in str(told.value)
    assert "convert it to 8 bits" in str(told.value)


def test_a_portable_float_map_is_refused_by_name(tmp_path: Path) -> None:
    file = tmp_path / "a.pfm"
    file.write_bytes(b"Pf\n2 2\n-1.0\n" + np.ones(4, "<f4").tobytes())
    with pytest.raises(DataError, match=r"a\.pfm: is not a readable image"):
        decode(file, ONE)


def palette(transparency: int | bytes | None) -> Image.Image:
    image = Image.new("P", (2, 2), 1)
    image.putpalette([10, 20, 30, 40, 50, 60])
    if transparency is not None:
        image.info["transparency"] = transparency
    return image


@pytest.mark.parametrize(
    ("image", "expected"),
    [
        (Image.new("L", (2, 2), 9), [9, 9, 9]),
        (Image.new("1", (2, 2), 1), [255, 255, 255]),
        (Image.new("LA", (2, 2), (9, 0)), [9, 9, 9]),
        (Image.new("RGBA", (2, 2), (1, 2, 3, 0)), [1, 2, 3]),
        (palette(None), [40, 50, 60]),
        (palette(1), [40, 50, 60]),
        (palette(b"\x00\x80"), [40, 50, 60]),
    ],
)
def test_other_modes_are_read_as_by_torchvision(
    image: Image.Image, expected: list[int], tmp_path: Path
) -> None:
    file = tmp_path / "a.png"
    image.save(file)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert read(file) == expected


def test_cmyk_becomes_rgb(tmp_path: Path) -> None:
    file = tmp_path / "a.tif"
    Image.new("CMYK", (2, 2), (0, 255, 0, 0)).save(file)
    assert read(file) == [255, 0, 255]


def test_the_orientation_in_exif_is_not_applied(tmp_path: Path) -> None:
    file, exif = tmp_path / "a.png", Image.Exif()
    exif[0x0112] = 3  # turned by 180 degrees
    Image.fromarray(np.array([[0, 1], [2, 3]], np.uint8)).save(file, exif=exif)
    assert decode(file, ONE)[0].tolist() == [[0, 1], [2, 3]]


def test_street_images_of_16_bits_are_scaled(tmp_path: Path) -> None:
    Image.fromarray(np.full((4, 4), 32896, np.uint16)).save(tmp_path / "a.png")
    images = StreetImages(tmp_path, ["a.png"], (4, 4)).load(np.array([0]))
    assert images.unique().tolist() == [128]


@pytest.mark.parametrize("raw_ids", [False, True])
@pytest.mark.parametrize(
    "values",
    [
        np.full((2, 2), 26001, np.uint16),  # a map of instances: 26001 % 256 is 145
        np.full((2, 2), -1, np.int32),
        np.full((2, 2), 1.5, np.float32),
    ],
)
def test_label_maps_of_other_values_are_refused(
    values: np.ndarray, raw_ids: bool, tmp_path: Path
) -> None:
    file = tmp_path / "a.tif"
    Image.fromarray(values).save(file)
    with pytest.raises(DataError, match=r"a\.tif: holds values other than the numbers 0 to 255"):
        read_map(file, raw_ids=raw_ids)


def test_label_maps_of_16_bits_with_small_values_are_read(tmp_path: Path) -> None:
    file = tmp_path / "a.png"
    Image.fromarray(np.full((2, 2), 7, np.uint16)).save(file)
    assert read_map(file, raw_ids=True).tolist() == [[0, 0], [0, 0]]
