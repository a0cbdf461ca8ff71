"""The order of a stream comes from names and the seed, never from the file system's listing."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from safetensors.torch import save_file

from ctta_bench.config.cell import CellRequest, resolve
from ctta_bench.datasets.image_folder import FolderSettings, ImageFolder
from ctta_bench.errors import DataError
from ctta_bench.record.folder import RunFolder
from ctta_bench.run.engine import run_cell

pytestmark = pytest.mark.usefixtures("toy")
FILES = [
    (domain, str(label), f"{number:02d}.png")
    for domain in ("fog", "snow")
    for label in range(10)
    for number in range(3)
]


def picture(name: tuple[str, str, str]) -> Image.Image:
    seed = sum(ord(c) * 31**i for i, c in enumerate("/".join(name))) % 2**32
    return Image.fromarray(np.random.RandomState(seed).randint(0, 255, (16, 16, 3), np.uint8))


def write(root: Path, files: list[tuple[str, str, str]]) -> Path:
    for name in files:
        path = root.joinpath(*name)
        path.parent.mkdir(parents=True, exist_ok=True)
        picture(name).save(path)
    return root


def linked(root: Path, target: Path) -> Path:
    root.mkdir()
    for domain in sorted(target.iterdir(), reverse=True):
        (root / domain.name).symlink_to(domain, target_is_directory=True)
    return root


def weights(file: Path) -> Path:
    from ctta_bench.registry import MODELS

    save_file(dict(MODELS.get("toy_vit")().state_dict()), file)
    return file


def run(root: Path, out: Path, method: str, file: Path) -> dict[str, Any]:
    request = CellRequest(
        method=method,
        benchmark="image_folder",
        model="toy_vit",
        weights=file,
        data_root=root,
        set={"image_size": 16, "batch_size": 7, "order": "shuffled"},
    )
    run_cell(resolve(request), RunFolder(out))
    lines = [json.loads(line) for line in (out / "batches.jsonl").read_text().splitlines()]
    return {
        "order": json.loads((out / "result.json").read_text())["order_sha256"],
        "lines": [{k: v for k, v in line.items() if k != "ms"} for line in lines],
        "predictions": (out / "predictions.npz").read_bytes(),
    }


@pytest.mark.parametrize("method", ["source", "tent"])
def test_the_order_of_creation_and_links_change_no_bit(method: str, tmp_path: Path) -> None:
    forward = write(tmp_path / "a", FILES)
    backward = write(tmp_path / "b", FILES[::-1])
    links = linked(tmp_path / "c", forward)
    file = weights(tmp_path / "w.safetensors")
    runs = [
        run(root, tmp_path / f"out-{root.name}", method, file)
        for root in (forward, backward, links)
    ]
    assert runs[0] == runs[1] == runs[2]


def benchmark(root: Path | None, **settings: Any) -> ImageFolder:
    return ImageFolder(FolderSettings(image_size=16, **settings), root)


def test_labels_are_positions_of_sorted_class_names_over_all_domains(tmp_path: Path) -> None:
    write(tmp_path, [("d1", "b", "0.png"), ("d1", "c", "0.png"), ("d2", "a", "0.png")])
    found = benchmark(tmp_path)
    assert found.num_classes == 3
    assert found.domain("d1").labels.tolist() == [1, 2]


def test_the_source_folder_is_no_domain(tmp_path: Path) -> None:
    write(tmp_path, [("source", "a", "0.png"), ("fog", "a", "0.png")])
    found = benchmark(tmp_path)
    assert found.domain_names() == ("fog",)
    source = found.source()
    assert source is not None and len(source.labels) == 1


def test_images_are_resized_and_grey_ones_become_rgb(tmp_path: Path) -> None:
    file = write(tmp_path, [("fog", "a", "0.png")]) / "fog" / "a" / "0.png"
    Image.new("L", (40, 20), 200).save(file)
    images = benchmark(tmp_path).domain("fog").load(np.array([0]))
    assert tuple(images.shape) == (1, 3, 16, 16)
    assert images.unique().tolist() == [200]


def test_an_undecodable_image_is_named(tmp_path: Path) -> None:
    file = write(tmp_path, [("fog", "a", "0.png")]) / "fog" / "a" / "0.png"
    file.write_bytes(file.read_bytes()[:30])
    with pytest.raises(DataError, match=r"0\.png: is not a readable image"):
        benchmark(tmp_path).domain("fog").load(np.array([0]))


@pytest.mark.parametrize(("root", "words"), [(None, "--data-root"), (Path("no"), "no folder no")])
def test_a_missing_root_is_a_problem_that_names_the_option(root: Path | None, words: str) -> None:
    assert words in benchmark(root).problems()[0]


def test_a_root_without_classes_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "fog").mkdir()
    assert "no DOMAIN/CLASS" in benchmark(tmp_path).problems()[0]
