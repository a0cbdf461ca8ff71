"""Pictures of files: their geometry, their colours, and those that are none."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2 import functional as transforms

from ctta_bench.datasets.io.decoding import Geometry, decode
from ctta_bench.errors import DataError

MODES = {"bilinear": InterpolationMode.BILINEAR, "bicubic": InterpolationMode.BICUBIC}


def noise(width: int, height: int) -> Image.Image:
    pixels = np.random.RandomState(width * height).randint(0, 255, (height, width, 3), np.uint8)
    return Image.fromarray(pixels)


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize("size", [(40, 30), (31, 77), (32, 50), (33, 33), (9, 200), (64, 32)])
@pytest.mark.parametrize(("resize", "crop"), [(32, 28), (32, 32), (37, 28)])
def test_resize_and_crop_are_those_of_torchvision(
    size: tuple[int, int], interpolation: str, resize: int, crop: int
) -> None:
    image = noise(*size)
    expected = transforms.center_crop(
        transforms.resize(image, [resize], interpolation=MODES[interpolation]), [crop, crop]
    )
    ours = Geometry(crop, "crop", resize, interpolation).apply(image)  # type: ignore[arg-type]
    assert np.array_equal(np.asarray(ours), np.asarray(expected))


def test_pixels_of_the_right_size_pass_untouched(tmp_path: Path) -> None:
    image = noise(16, 16)
    image.save(tmp_path / "a.png")
    decoded = decode(tmp_path / "a.png", Geometry(16))
    assert np.array_equal(decoded, np.asarray(image).transpose(2, 0, 1))


@pytest.mark.parametrize(
    ("mode", "value", "expected"),
    [
        ("L", 90, (90, 90, 90)),
        ("RGBA", (10, 20, 30, 128), (10, 20, 30)),
        ("CMYK", (0, 0, 0, 0), (255, 255, 255)),
        ("1", 1, (255, 255, 255)),
    ],
)
def test_every_colour_mode_becomes_rgb(
    mode: str, value: object, expected: tuple[int, ...], tmp_path: Path
) -> None:
    file = tmp_path / ("a.jpg" if mode == "CMYK" else "a.png")
    Image.new(mode, (8, 8), value).save(file)  # type: ignore[arg-type]
    decoded = decode(file, Geometry(8))
    assert decoded.reshape(3, -1).T.tolist() == [list(expected)] * 64


def test_an_image_of_another_size_than_published_is_refused_by_name(tmp_path: Path) -> None:
    noise(20, 16).save(tmp_path / "a.png")
    with pytest.raises(DataError, match=r"a\.png: .*20x16 pixels, expected 16x16"):
        decode(tmp_path / "a.png", Geometry(16))


def jpeg(keep: float) -> bytes:
    from io import BytesIO

    stream = BytesIO()
    noise(32, 32).save(stream, "JPEG")
    return stream.getvalue()[: int(keep * len(stream.getvalue()))]


def png(keep: float) -> bytes:
    from io import BytesIO

    stream = BytesIO()
    noise(32, 32).save(stream, "PNG")
    return stream.getvalue()[: int(keep * len(stream.getvalue()))]


DAMAGED = {
    "empty": b"",
    "text": b"<html>404 Not Found</html>",
    "half a jpeg": jpeg(0.5),
    "header of a jpeg": jpeg(0.03),
    "half a png": png(0.5),
    "a png with a broken chunk": png(1).replace(b"IDAT", b"IDXT"),
}


@pytest.mark.parametrize("content", DAMAGED.values(), ids=list(DAMAGED))
def test_what_does_not_decode_is_named_in_one_sentence(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "bad.JPEG"
    file.write_bytes(content)
    with pytest.raises(DataError, match=r"bad\.JPEG: is not a readable image") as caught:
        decode(file, Geometry(32))
    assert "\n" not in str(caught.value)


def test_an_image_that_has_gone_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"gone\.png: no such image"):
        decode(tmp_path / "gone.png", Geometry(32))
