"""A model that adapts while it is used: as a module, saved and resumed, and behind HTTP."""

import io
import json
import re
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import ctta_bench
from ctta_bench.errors import ConfigError, DataError, MethodError, RunError
from ctta_bench.registry import load_plugin
from tests.conftest import TOY

toy: Any = load_plugin(str(TOY))
PAGE = (Path(__file__).parents[2] / "docs" / "deploy.md").read_text("utf-8")
IMAGES, LABELS = toy.labelled(1, "toy_vit")
BATCHES = torch.tensor(IMAGES * 2 // 5).split(8)


def adapter(method: str = "tent", **more: Any) -> Any:
    return ctta_bench.adapt("toy_vit", method, **({"lr": 0.05} | more))


def test_it_predicts_and_adapts_as_the_method_does() -> None:
    method = ctta_bench.load_method("tent", ctta_bench.load_model("toy_vit"), lr=0.05)
    method.start()
    ours = adapter()
    for batch in BATCHES:
        assert torch.equal(ours(batch), method(batch.float() / 255))
    assert ours.images_seen == 40
    assert isinstance(ours, torch.nn.Module) and "40 images seen" in repr(ours)


def test_images_come_in_several_forms() -> None:
    forms = [BATCHES[0], BATCHES[0].numpy(), BATCHES[0].float() / 255, BATCHES[0].double() / 255]
    found = [adapter()(images) for images in forms]
    for logits in found:
        assert torch.allclose(logits, found[0], atol=1e-6)
    single = adapter()(BATCHES[0][2])
    assert single.shape == (10,) and int(adapter().predict(BATCHES[0][2])) == int(single.argmax())


@pytest.mark.parametrize(
    ("images", "words"),
    [
        (torch.randn(2, 3, 16, 16), "without normalisation, which is part of the model"),
        (torch.full((2, 3, 16, 16), torch.nan), "values from nan"),
        (torch.zeros(2, 16, 16, 3), "images of shape [2, 16, 16, 3]; give [n, 3, H, W]"),
        (torch.zeros(2, 3, 16, 16, dtype=torch.long), "images of torch.int64; give uint8"),
        (torch.zeros(0, 3, 16, 16), "images of shape [0, 3"),
    ],
)
def test_what_is_no_image_is_refused_and_changes_nothing(images: Any, words: str) -> None:
    ours = adapter()
    with pytest.raises(DataError, match=re.escape(words)):
        ours(images)
    assert torch.equal(ours(BATCHES[0]), adapter()(BATCHES[0]))


def test_frozen_predicts_without_a_change_and_reset_forgets() -> None:
    ours = adapter()
    first = ours(BATCHES[0])
    with ours.frozen():
        kept = ours(BATCHES[1])
        assert torch.equal(ours(BATCHES[1]), kept)
    assert torch.equal(ours(BATCHES[1]), kept)  # before its own update
    ours.reset()
    assert torch.equal(ours(BATCHES[0]), first) and ours.images_seen == 8


@pytest.mark.parametrize("method", ["tent", "cotta", "rotta"])
def test_a_saved_adapter_continues_bit_identically(method: str, tmp_path: Path) -> None:
    ours = adapter(method)
    for batch in BATCHES[:2]:
        ours(batch)
    file = ours.save(tmp_path / "state.pt")
    rest = [ours(batch) for batch in BATCHES[2:]]
    again = adapter(method).load(file)
    assert again.images_seen == 16
    for batch, expected in zip(BATCHES[2:], rest, strict=True):
        assert torch.equal(again(batch), expected)
    with pytest.raises(RunError, match="another hyperparameters"):
        adapter(method, lr=0.1).load(file)
    (tmp_path / "other.pt").write_bytes(b"no")
    with pytest.raises(RunError, match="is no file of adapter"):
        ours.load(tmp_path / "other.pt")


def test_the_adapted_weights_load_into_the_plain_network(tmp_path: Path) -> None:
    ours = adapter("lora", source=(IMAGES, LABELS), source_samples=16)
    ours(BATCHES[0])
    file = ours.export(tmp_path / "adapted.safetensors")
    plain = toy.toy_vit()
    plain.load_state_dict(load_file(file))
    with torch.no_grad(), ours.frozen():
        expected = ours(BATCHES[1])
        found = plain.eval()((BATCHES[1].float() / 255 - 0.5) / 0.5)
    assert torch.allclose(found, expected, atol=1e-4)
    with pytest.raises(ConfigError, match=r"are \.safetensors files"):
        ours.export(tmp_path / "adapted.pth")


def test_what_it_cannot_do_is_refused() -> None:
    with pytest.raises(MethodError, match="source data"):
        adapter("lora")
    with pytest.raises(ConfigError, match="stays on its device"):
        adapter().half()
    with pytest.raises(ConfigError, match="did you mean 'tent'"):
        adapter("tennt")
    assert adapter().train().training is adapter().training  # the method decides


def test_threads_are_handled_one_after_another() -> None:
    ours, found = adapter("cotta"), []
    threads = [
        threading.Thread(target=lambda batch=batch: found.append(ours(batch))) for batch in BATCHES
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ours.images_seen == 40 and all(bool(logits.isfinite().all()) for logits in found)


# -- the examples of docs/deploy.md


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        exec(compile(block.replace("8000", "0"), "deploy.md", "exec"), names)
    yield names
    names["server"].server_close()


def test_the_service_of_the_page_adapts_100_images_over_http(page: dict[str, Any]) -> None:
    assert Path("state.pt").is_file()  # of the video
    server = page["server"]
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    address = f"http://127.0.0.1:{server.server_address[1]}"

    def post(images: np.ndarray) -> dict[str, Any]:
        body = io.BytesIO()
        np.save(body, images)
        with urllib.request.urlopen(address, body.getvalue(), timeout=60) as answer:
            found: dict[str, Any] = json.load(answer)
            return found

    try:
        benchmark = ctta_bench.load_benchmark("scenes_c")
        images = benchmark.domain("clean").load(np.arange(100)).numpy()
        expected = ctta_bench.adapt("scenes_vit", "tent", lr=1e-3)
        for start in range(0, 100, 20):
            found = post(images[start : start + 20])
            assert found["classes"] == expected.predict(images[start : start + 20]).tolist()
        assert found["seen"] == 100
        with pytest.raises(urllib.error.HTTPError) as refused:
            post(np.zeros((2, 5)))
        assert "give [n, 3, H, W]" in json.load(refused.value)["error"]
    finally:
        server.shutdown()
        thread.join()


def test_the_service_is_thirty_lines() -> None:
    service = next(b for b in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL) if "HTTP" in b)
    assert len([line for line in service.splitlines() if line.strip()]) <= 31
