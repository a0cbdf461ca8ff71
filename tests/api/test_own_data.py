"""Your own data in every form that users have, and one sentence on what cannot be read."""

import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, TensorDataset
from torchvision.datasets import ImageFolder

import ctta_bench
from ctta_bench.errors import ConfigError, CttaBenchError, DataError
from ctta_bench.registry import load_plugin
from ctta_bench.stream import Benchmark, Stream, batch_domains
from tests import toy_maps
from tests.conftest import TOY

COUNT, CLASSES = 40, 10
toy: Any = load_plugin(str(TOY))
IMAGES, LABELS = toy.labelled(1, "toy_vit")
DARK = (IMAGES * 0.4).astype(np.uint8)


class Pictures(Dataset[Any]):
    """A Dataset as users write it: PIL images and Python integers, and a random transform."""

    def __init__(self, images: np.ndarray = IMAGES, jitter: bool = False) -> None:
        self.images, self.jitter = images, jitter

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, number: int) -> tuple[Any, int]:
        image = self.images[number].transpose(1, 2, 0)
        if self.jitter:
            image = np.random.permutation(image.ravel()).reshape(image.shape)
        return Image.fromarray(image), int(LABELS[number])


class Endless(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        yield from Pictures()


class Rows:
    """What Hugging Face's datasets give: rows as mappings, columns, and names of classes."""

    column_names = ("image", "label")

    class Names:
        names = list("abcdefghij")

    features = {"image": None, "label": Names()}

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, key: Any) -> Any:
        if key == "label":
            return LABELS.tolist()
        return {"image": Pictures()[key][0], "label": int(LABELS[key])}


def stream_of(benchmark: Benchmark) -> tuple[torch.Tensor, torch.Tensor]:
    batches = [*Stream(batch_domains(benchmark), benchmark.settings, 0).batches()]
    return torch.cat([b.images for b in batches]), torch.cat([b.labels for b in batches])


FORMS: dict[str, Callable[[], Any]] = {
    "arrays": lambda: (IMAGES, LABELS),
    "channels last": lambda: (IMAGES.transpose(0, 2, 3, 1), LABELS.tolist()),
    "floats": lambda: (torch.tensor(IMAGES).float() / 255, torch.tensor(LABELS)),
    "tensors": lambda: TensorDataset(torch.tensor(IMAGES), torch.tensor(LABELS)),
    "dataset of PIL images": Pictures,
    "loader": lambda: DataLoader(
        TensorDataset(torch.tensor(IMAGES), torch.tensor(LABELS)), 7, shuffle=True
    ),
    "loader with its own batches": lambda: DataLoader(
        Pictures(), 7, collate_fn=lambda rows: tuple(zip(*rows, strict=True))
    ),
    "iterable dataset": lambda: DataLoader(Endless(), None),
    "generator": lambda: (pair for pair in Pictures()),  # type: ignore[attr-defined]
    "list": lambda: [*Pictures()],  # type: ignore[call-overload]
    "subset": lambda: Subset(Pictures(), range(COUNT)),
    "Hugging Face": Rows,
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_same_images_and_labels(form: str) -> None:
    found, labels = stream_of(Benchmark.from_domains({"day": FORMS[form]()}, batch_size=16))
    assert labels.tolist() == LABELS.tolist()
    assert torch.equal((found * 255).round().byte(), torch.tensor(IMAGES))
    assert found.dtype == torch.float32


def test_grey_images_get_three_channels() -> None:
    for grey in (IMAGES[:, 0], IMAGES[:, :1], IMAGES[:, 0, :, :, None]):
        found, _ = stream_of(Benchmark.from_domains({"day": (grey, LABELS)}))
        assert found.shape == (COUNT, 3, *IMAGES.shape[2:])
        assert torch.equal(found[:, 0], found[:, 2])


def test_an_image_folder_is_matched_with_the_classes_by_name(tmp_path: Path) -> None:
    for domain, classes in {"day": "ab", "night": ["ba", "c"]}.items():
        for name in classes:
            folder = tmp_path / domain / name
            folder.mkdir(parents=True)
            Image.fromarray(np.full((9, 12, 3), ord(name[0]), np.uint8)).save(folder / "1.png")
    sets = {domain: ImageFolder(str(tmp_path / domain)) for domain in ("day", "night")}
    with pytest.raises(DataError, match=r"different classes \(a, b, .* classes="):
        Benchmark.from_domains(sets)
    benchmark = Benchmark.from_domains(sets, classes=["c", "b", "ba", "a"], size=8)
    assert benchmark.domain("day").labels.tolist() == [3, 1]
    assert benchmark.domain("night").labels.tolist() == [2, 0]
    images, _ = stream_of(benchmark)
    assert images.shape == (4, 3, 8, 8)
    assert (255 * images[:, 0, 0, 0]).round().int().tolist() == [97, 98, 98, 99]
    with pytest.raises(DataError, match="has the class 'a', which is not in classes="):
        Benchmark.from_domains(sets, classes=["b", "ba", "c"])
    with pytest.raises(DataError, match="images of different shapes"):
        uneven = [(Image.new("RGB", (8, 9)), 0), (Image.new("RGB", (8, 8)), 1)]
        stream_of(Benchmark.from_domains({"day": uneven}))


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ("photos", "domain day: is a str; give a pair (images, labels) of arrays"),
        (3, "domain day: is an int; give"),
        ((IMAGES, LABELS[:3]), "40 images, but 3 labels"),
        ((IMAGES.astype(np.float32), LABELS), "without normalisation, which is part of the source"),
        ((IMAGES / 255 - 0.5, LABELS), "floats from -0.5"),
        ((IMAGES.astype(np.int64), LABELS), "images of int64; give uint8 (0 to 255) or floats"),
        ((IMAGES[:, 0, 0], LABELS), "images of shape [40, 16]; give [n, 3, H, W]"),
        ((IMAGES, LABELS - 5), "class numbers begin at 0"),
        ((IMAGES, LABELS + 0.5), "labels of float64"),
        ((IMAGES, np.eye(10)[LABELS]), "give one class number for each image"),
        (Pictures(jitter=True), "differs from one reading to the next; leave random"),
        ([1, 2], "an item is an int, not a pair (image, label)"),
        ([("a.png", 1)], "is a str; give a PIL image, an array or a tensor"),
        (iter([]), "has no images"),
        ([], "has no images"),
        ([{"pixels": IMAGES[0], "label": 1}], "say which are image and label: columns="),
        (
            DataLoader(Pictures(), sampler=torch.utils.data.SubsetRandomSampler([1])),
            "give torch.utils.data.Subset(dataset, indices) in its place",
        ),
        (
            DataLoader(Pictures(), shuffle=True, collate_fn=lambda rows: rows),
            "give shuffle=False",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_refused_in_a_sentence(data: Any, words: str) -> None:
    with pytest.raises(DataError, match=re.escape(words)) as told:
        Benchmark.from_domains({"day": data})
    assert str(told.value).endswith(".") and "day" in str(told.value)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Benchmark.from_domains([IMAGES]), "domains must be a mapping"),  # type: ignore[arg-type]
        (lambda: Benchmark.from_domains({"d": (IMAGES, LABELS)}, batchsize=3), "'batch_size'?"),
        (lambda: Benchmark.from_domains({"d": (IMAGES, LABELS)}, setting="mixt"), "'mixed'?"),
        (lambda: Benchmark.from_domains({"d": (IMAGES, LABELS)}, classes=3), "has the label 9"),
        (lambda: Benchmark.from_clean((IMAGES, LABELS), corruptions=["fogg"]), "'fog'?"),
        (lambda: Benchmark.from_clean((IMAGES, LABELS), corruptions="fog"), "a list, ['fog']"),
        (lambda: Benchmark.from_clean((IMAGES, LABELS), severity=6), "severity"),
        (lambda: Benchmark.from_clean((IMAGES, LABELS), corruptions={"a": 3}), "a function"),
        (
            lambda: Benchmark.from_clean((IMAGES, LABELS), corruptions={"a": lambda i: i[:4]}),
            "corruption a: returns uint8 [4, 16, 3]",
        ),
        (
            lambda: Benchmark.from_clean((IMAGES, LABELS), corruptions=["fog"], domains=["fgo"]),
            "no domain 'fgo'; did you mean 'fog'?",
        ),
        (
            lambda: ctta_bench.load_benchmark({"fog": (IMAGES, LABELS)}, domains=["fgo"]),
            "no domain 'fgo'; did you mean 'fog'?",
        ),
        (lambda: ctta_bench.load_benchmark("fashion_c", domains=["fgo"]), "did you mean 'fog'?"),
        (lambda: ctta_bench.load_benchmark(3), "is an int; give a pair"),
    ],
)  # fmt: skip
def test_a_wrong_argument_fails_at_once(make: Callable[[], object], words: str) -> None:
    with pytest.raises(CttaBenchError, match=re.escape(words)):
        make()


def test_settings_rounds_and_orders_work_as_on_any_benchmark() -> None:
    days = {"day": (IMAGES, LABELS), "night": (DARK, LABELS)}
    benchmark = ctta_bench.load_benchmark(
        days, setting="mixed", rounds=2, batch_size=8, order="shuffled", examples=12
    )
    batches = [*Stream(batch_domains(benchmark), benchmark.settings, 3).batches()]
    assert len(batches) == 6 and {int(d) for b in batches for d in b.domain} == {0, 1}
    other = ctta_bench.load_benchmark(benchmark, setting="cdc", batch_size=3)
    assert (other.settings.slots, other.settings.rounds, other.settings.order) == (3, 2, "shuffled")
    back = ctta_bench.load_benchmark(other, setting="continual")
    assert back.settings.slots is None and back.facts() == benchmark.facts()


def test_corruptions_of_the_suite_and_of_ones_own_are_graded_and_repeatable() -> None:
    def noise(image: np.ndarray, severity: int, generator: np.random.Generator) -> np.ndarray:
        return (image // (1 + severity) + generator.integers(2, size=image.shape)).astype(np.uint8)

    both = {"fog": None, "noise": noise}
    benchmark = Benchmark.from_clean(
        (IMAGES, LABELS), corruptions=both, severity=3, setting="gradual", batch_size=10
    )
    domains = batch_domains(benchmark)
    assert [domain.name for domain in domains] == ["fog", "noise"]
    assert benchmark.settings.severities == (1, 2, 3, 2, 1)
    first, again = (domains[1].at_severity[3].load(np.arange(4)) for _ in (0, 1))
    assert torch.equal(first, again) and first.max() <= 255 // 4 + 1
    weaker = domains[1].at_severity[1].load(np.arange(4))
    assert weaker.float().mean() > first.float().mean()
    assert torch.equal(domains[1].images.load(np.array([2]))[0], first[2])  # whatever the batch
    assert benchmark.extra_domains() == ("clean",) and benchmark.same_images
    assert benchmark.held_out_source() is benchmark.domain("clean")
    other = Benchmark.from_clean(
        (IMAGES, LABELS), corruptions={**both, "noise": lambda i, s, g: i // s}, severity=3
    )
    assert other.facts() != benchmark.facts()


def test_corruptions_without_grades_have_one_severity() -> None:
    benchmark = Benchmark.from_clean((IMAGES, LABELS), corruptions={"half": lambda i: i // 2})
    assert benchmark.severities == ()
    assert torch.equal(benchmark.domain("half").load(np.arange(3)), torch.tensor(IMAGES[:3] // 2))
    with pytest.raises(ConfigError, match="needs severities"):
        ctta_bench.load_benchmark(benchmark, setting="gradual")


def test_built_in_corruptions_are_those_of_the_suite() -> None:
    from ctta_bench.datasets.making.corruptions import CORRUPTIONS, corrupt

    benchmark = Benchmark.from_clean((IMAGES, LABELS), severity=2)
    assert benchmark.domain_names() == CORRUPTIONS
    expected = corrupt(IMAGES[5].transpose(1, 2, 0), "contrast", 2, seed=0, index=5)
    found = benchmark.domain("contrast").load(np.array([5]))[0]
    assert np.array_equal(found.permute(1, 2, 0), expected)


def test_label_maps_are_scored_by_miou_and_a_fingerprint_tells_data_apart() -> None:
    images, maps = toy_maps.labelled(1)
    days = {"day": (images, maps), "dark": (images // 2, maps)}
    benchmark = Benchmark.from_domains(days, source=(images, maps), classes=10, batch_size=2)
    assert benchmark.task == "segmentation"
    found = ctta_bench.evaluate("source", benchmark, model=toy_maps.toy_segmentor())
    assert found.by_domain["day"] == 100 > found.miou
    assert found.predictions["correct"].iloc[0] == 1
    changed = maps.copy()
    changed[3, 5, 20] = 255
    other = Benchmark.from_domains({**days, "day": (images, changed)}, classes=10)
    assert other.facts()["data"] != benchmark.facts()["data"]
    with pytest.raises(DataError, match="some domains have label maps"):
        Benchmark.from_domains({"day": (images, maps), "night": (IMAGES, LABELS)})


def brighter(image: np.ndarray, severity: int) -> np.ndarray:
    return np.minimum(image.astype(int) + 15 * severity, 255).astype(np.uint8)


def test_images_with_label_maps_are_corrupted_and_their_maps_are_not() -> None:
    images, maps = toy_maps.labelled(1)
    benchmark = Benchmark.from_clean(
        (images, maps),
        corruptions={"fog": None, "brighter": brighter},
        classes=10,
        severity=2,
        setting="gradual",
    )
    assert benchmark.task == "segmentation" and benchmark.settings.batch_size == 1
    assert [one for one in ctta_bench.check_benchmark(benchmark) if not one.passed] == []
    found: Any = benchmark.domain("brighter", 1)
    assert np.array_equal(found.maps(np.arange(7)).numpy(), maps)
    assert found.load(np.array([2]))[0].float().mean() > images[2].mean()
    network = toy_maps.toy_segmentor()
    source = ctta_bench.evaluate("source", benchmark, model=network)
    tent = ctta_bench.evaluate("tent", benchmark, model=network, lr=1e-3)
    board = ctta_bench.compare(source, tent).to_frame()
    assert board.loc["source", "mean"] == pytest.approx(source.miou) and source.miou < 100
    first = source.record["rounds"][0]
    assert [(at["severity"], at["n"]) for at in first["severities"]] == [(1, 28), (2, 14)]
    confusion, domain = source.scores.confusion, source.scores.domain  # type: ignore[union-attr]
    severity = np.tile(np.repeat([1, 2, 1], 7), 2)
    by_domain = []
    for number in (0, 1):
        counts = confusion[(severity == 2) & (domain == number)].sum(0)
        hits, pixels = counts.diagonal(), counts.sum(1) + counts.sum(0)[:10]
        present = pixels > 0
        by_domain.append(100 * (hits[present] / (pixels - hits)[present]).mean())
    assert first["severities"][1]["mean"] == pytest.approx(np.mean(by_domain))


def test_corruptions_that_move_pixels_do_not_fit_label_maps() -> None:
    images, maps = toy_maps.labelled(1)
    whole = Benchmark.from_clean((images, maps))
    assert len(whole.domain_names()) == 14 and "elastic_transform" not in whole.domain_names()
    with pytest.raises(ConfigError, match="elastic_transform moves pixels, so that label maps do"):
        Benchmark.from_clean((images, maps), corruptions=["fog", "elastic_transform"])
    with pytest.raises(ConfigError, match="no single class: choose continual, reset, mixed, grad"):
        Benchmark.from_clean((images, maps), corruptions=["fog"], setting="correlated")


def test_arrays_in_accuracy_out() -> None:
    found = ctta_bench.evaluate("source", (IMAGES, LABELS), model=toy.toy_vit())
    assert found.accuracy == 100
    assert found.cell["benchmark"]["data"] and found.cell["model"]["sha256"]
    fewer = LABELS.copy()
    fewer[LABELS > 7] = 0
    assert ctta_bench.evaluate("source", (IMAGES, fewer), model=toy.toy_vit()).accuracy < 100
    with pytest.raises(DataError, match=r"has 11 classes and VisionTransformer 10 logits"):
        ctta_bench.evaluate("source", (IMAGES, LABELS + 1), model=toy.toy_vit())


def test_a_run_on_own_data_resumes_and_is_compared_but_never_with_other_data(
    tmp_path: Path,
) -> None:
    def run(method: str, images: np.ndarray, **more: Any) -> ctta_bench.Result:
        days = {"day": (images, LABELS), "night": (DARK, LABELS)}
        benchmark = Benchmark.from_domains(days, source=(IMAGES, LABELS), name="Cameras")
        return ctta_bench.evaluate(
            method, benchmark, model=toy.toy_vit(), batch_size=8, out=tmp_path / "runs", **more
        )

    def stop(line: Any) -> None:
        if line["batch"] == 6:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        run("tent", IMAGES, lr=0.01, callbacks=stop)
    lines: list[Any] = []
    tent = run("tent", IMAGES, lr=0.01, callbacks=lines.append)
    assert [line["batch"] for line in lines] == [7, 8, 9]
    assert "resumed after 7 of 10 batches" in tent.files["log.txt"].decode()
    lines.clear()
    assert run("tent", IMAGES, lr=0.01, callbacks=lines.append).files == tent.files
    assert lines == []  # it was done
    source = run("source", IMAGES)
    assert source.by_domain["day"] == 0
    assert sorted(ctta_bench.compare(source, tent).to_frame().index) == ["source", "tent"]
    changed = IMAGES.copy()
    changed[7, 0, 3, 3] ^= 1
    with pytest.raises(ConfigError, match=r"differ in benchmark or stream \(data: "):
        ctta_bench.compare(source, run("tent", changed, lr=0.01))


def test_an_interval_counts_an_image_once_only_where_it_is_said_to_be_the_same() -> None:
    halves = {}
    for same in (True, False):
        days = {"day": (IMAGES // 3, LABELS), "dusk": (IMAGES // 4, LABELS)}
        benchmark = Benchmark.from_domains(days, same_images=same)
        found = ctta_bench.evaluate("source", benchmark, model=toy.toy_vit())
        board = ctta_bench.compare(found).to_frame()
        halves[same] = found.interval.half_width
        assert board.loc["source", "half_interval"] == pytest.approx(halves[same])
    assert halves[False] < halves[True]  # alike errors in both domains are no further evidence


def test_the_argument_of_the_last_release_is_read_with_a_warning() -> None:
    with pytest.warns(FutureWarning, match="'name' is called 'benchmark'"):
        assert ctta_bench.load_benchmark(name="toy").name == "toy"
