"""The embedded benchmark: its images, its cache, and its source models."""

from pathlib import Path

import numpy as np
import pytest
import torch

from ctta_bench.datasets.fashion import EMBEDDED, FashionC, FashionSettings, photographs
from ctta_bench.datasets.making.cache import SHARD, CorruptedCache, padded
from ctta_bench.datasets.making.corruptions import CORRUPTIONS, HOLD_OUT, corrupt
from ctta_bench.errors import ConfigError
from ctta_bench.source_models.pretrained import load_source_model
from ctta_bench.stream import as_input


@pytest.fixture
def few(tmp_path: Path) -> CorruptedCache:
    """A cache over 260 small pictures: two shards."""
    rng = np.random.RandomState(0)
    images = rng.randint(0, 255, (SHARD + 10, 14, 14), dtype=np.uint8)
    np.savez(tmp_path / "clean.npz", images=images, labels=np.zeros(len(images), np.uint8))
    return CorruptedCache(tmp_path / "clean.npz", tmp_path / "cache", side=16)


def test_the_package_holds_2000_test_and_1000_source_images_of_ten_balanced_classes() -> None:
    benchmark = FashionC()
    test, source = benchmark.domain("clean"), benchmark.source()
    assert np.bincount(test.labels).tolist() == [200] * 10
    assert np.bincount(source.labels).tolist() == [100] * 10
    assert tuple(test.load(np.array([0, 5])).shape) == (2, 3, 32, 32)


def test_the_domains_are_the_fifteen_and_the_hold_out_ones_are_extra() -> None:
    assert FashionC().domain_names() == CORRUPTIONS
    assert set(HOLD_OUT) < set(FashionC().extra_domains())
    chosen = FashionC(FashionSettings(domains=("spatter", "clean"))).chosen_domains()
    assert chosen == ("spatter", "clean")
    with pytest.raises(ConfigError, match="no domain 'rain'"):
        FashionC(FashionSettings(domains=("rain",))).chosen_domains()


def test_hold_out_corruptions_show_other_photographs_than_the_scored_ones() -> None:
    scored, apart = photographs("test")[0], photographs("holdout")[0]
    assert not {image.tobytes() for image in scored} & {image.tobytes() for image in apart}
    assert np.bincount(photographs("holdout")[1][:50]).tolist() == [5] * 10
    benchmark = FashionC()
    assert {benchmark.domain(name).cache.stored.stem for name in CORRUPTIONS} == {"fashion_test"}
    assert {benchmark.domain(name).cache.stored.stem for name in HOLD_OUT} == {"fashion_holdout"}
    assert benchmark.separate_hold_out


def test_cached_images_are_those_of_the_corruption_whatever_the_number_of_workers(
    few: CorruptedCache,
) -> None:
    other = CorruptedCache(few.stored, few.root.with_name("other"), few.side)
    few.make([("fog", 5), ("snow", 3)], SHARD + 10, workers=1)
    other.make([("fog", 5), ("snow", 3)], SHARD + 10, workers=2)
    index = np.array([SHARD + 3, 0, 7])
    ours = few.load("fog", 5, index)
    np.testing.assert_array_equal(ours, other.load("fog", 5, index))
    with np.load(few.stored) as arrays:
        clean = padded(arrays["images"], 16)
    for i, image in zip(index, ours, strict=True):
        expected = corrupt(clean[i], "fog", 5, parameters="cifar", seed=0, index=int(i))
        np.testing.assert_array_equal(image.transpose(1, 2, 0), expected)


def test_only_the_images_that_are_needed_are_made(few: CorruptedCache) -> None:
    few.make([("contrast", 1)], 10, workers=1)
    assert [f.name for f in few.folder.iterdir()] == ["contrast-1-000.npy"]


def test_what_is_there_is_not_made_again_and_a_damaged_shard_is(few: CorruptedCache) -> None:
    few.make([("contrast", 1)], SHARD + 10, workers=1)
    first, second = sorted(few.folder.iterdir())
    expected = second.read_bytes()
    stamp = first.stat().st_mtime_ns
    second.write_bytes(expected[:100])
    few.make([("contrast", 1)], SHARD + 10, workers=1)
    assert first.stat().st_mtime_ns == stamp
    assert second.read_bytes() == expected


def test_progress_is_reported_up_to_the_total(few: CorruptedCache) -> None:
    seen: list[tuple[int, int]] = []
    few.make([("contrast", 1)], 10, workers=1, report=lambda *state: seen.append(state))
    assert seen[-1] == (1, 1)


def test_a_hash_of_the_pictures_is_in_the_name_of_the_cache(few: CorruptedCache) -> None:
    before = few.folder
    np.savez(few.stored, images=np.zeros((3, 14, 14), np.uint8), labels=np.zeros(3, np.uint8))
    assert CorruptedCache(few.stored, few.root, few.side).folder != before


@pytest.mark.parametrize("name", ["fashion_vit", "fashion_cnn"])
def test_the_shipped_models_are_right_on_nine_of_ten_clean_images(name: str) -> None:
    model = load_source_model(name).eval()
    test = FashionC().domain("clean")
    with torch.no_grad():
        right = sum(
            int((model(as_input(test.load(part))).argmax(1).numpy() == test.labels[part]).sum())
            for part in np.array_split(np.arange(2000), 20)
        )
    assert right / 2000 >= 0.9


def test_the_shipped_models_have_at_most_a_million_parameters_and_no_wild_weights() -> None:
    for name in ("fashion_vit", "fashion_cnn"):
        model = load_source_model(name)
        assert sum(p.numel() for p in model.parameters()) <= 1_000_000


def test_everything_embedded_is_a_few_megabytes() -> None:
    assert sum(f.stat().st_size for f in EMBEDDED.rglob("*") if f.is_file()) < 18_000_000
