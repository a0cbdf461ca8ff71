"""Every reader under every setting, on rehearsals, as `ctta-bench run` takes them."""

import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import pytest
from _pytest.mark.structures import ParameterSet
from click.testing import Result
from PIL import Image
from typer.testing import CliRunner

from ctta_bench.cli import app
from ctta_bench.datasets.io.image_lists import ROBUSTBENCH, read_list
from ctta_bench.datasets.rehearsal import benchmarks as rehearsal
from ctta_bench.datasets.rehearsal.model import Network, write_rehearsal_model
from ctta_bench.registry import BENCHMARKS
from ctta_bench.stream.settings import SETTINGS

EXAMPLES, BATCH = 3, 2
TWO = ("contrast", "brightness")
STREAMS = ("baseline_20_transition+speed_1000_seed_43", "baseline_20_transition+speed_5000_seed_45")
# The benchmark, the rehearsal that it reads, the domains that are streamed, further settings.
READERS: dict[str, tuple[str, str, tuple[str, ...], tuple[str, ...]]] = {
    "cifar10_c": ("cifar10_c", "cifar10_c", TWO, ()),
    "cifar100_c": ("cifar100_c", "cifar100_c", TWO, ()),
    "imagenet_c": ("imagenet_c", "imagenet_c", TWO, ()),
    "imagenet_c-list": ("imagenet_c", "listed", TWO, ("images=list",)),
    "imagenet_c-all": ("imagenet_c", "listed", TWO, ("images=all",)),
    "imagenet_3dcc": ("imagenet_3dcc", "imagenet_3dcc", ("color_quant", "flash"), ()),
    "imagenet_r": ("imagenet_r", "imagenet_r", ("imagenet_r",), ()),
    "imagenet_a": ("imagenet_a", "imagenet_a", ("imagenet_a",), ()),
    "imagenet_sketch": ("imagenet_sketch", "imagenet_sketch", ("imagenet_sketch",), ()),
    "imagenet_v2": ("imagenet_v2", "imagenet_v2", ("imagenet_v2",), ()),
    "imagenet_d109": ("imagenet_d109", "imagenet_d109", ("clipart", "real"), ()),
    "domainnet126": ("domainnet126", "domainnet126", ("clipart", "sketch"), ()),
    "ccc": ("ccc", "ccc", STREAMS, ()),
    "image_folder": ("image_folder", "image_folder", TWO, ("image_size=32",)),
    "fashion_c": ("fashion_c", "", TWO, ()),
    "fashion_rotation": ("fashion_rotation", "", ("rotation",), ()),
    "scenes_c": ("scenes_c", "", TWO, ()),
    "scenes_rotation": ("scenes_rotation", "", ("rotation",), ()),
}
CLASSES = {"cifar10_c": 10, "cifar100_c": 100, "image_folder": 10, "domainnet126": 126}
WALKS = ("gradual", "gradual_cotta", "gradual_correlated")
SHIFTS = ("label_shift", "reset_label_shift")
# With one image per state, the chain stays in a domain until its quota is used up.
MORE = {"markov": ("domain_correlation=1",)}
NO_SEVERITIES = (
    "imagenet_r", "imagenet_a", "imagenet_sketch", "imagenet_v2", "imagenet_d109", "domainnet126",
    "ccc", "image_folder",
    "fashion_rotation", "scenes_rotation",
)  # fmt: skip
# The whole names of the list are 5,000: these selections run under one setting of each kind.
OF_LISTS = ("continual", "reset", "gradual", "ptta")
PAIRS = [(r, s) for r in READERS for s in SETTINGS if "-" not in r or s in OF_LISTS]
# All that is refused, with words of the sentence; every other pair runs.
REFUSED = {(r, s): f"setting {s} needs severities" for r in NO_SEVERITIES for s in WALKS}


def default_and_slow(pairs: Iterable[tuple[str, str]]) -> list[ParameterSet]:
    """By default each reader of files under one setting: embedded benchmarks have tests of their
    own, and test_protocols.py runs every setting."""
    return [
        pytest.param(
            reader,
            setting,
            marks=() if setting == "continual" and READERS[reader][1] else pytest.mark.slow,
        )
        for reader, setting in pairs
    ]


Run = Callable[..., Result]


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The data root of a rehearsal, made when it is first asked for, with weights of a tiny ViT."""
    made: dict[str, Path] = {}

    def get(layout: str) -> Path:
        if layout not in made:
            made[layout] = tmp_path_factory.mktemp(layout or "embedded")
            _make(layout, made[layout])
        return made[layout]

    return get


def _make(layout: str, root: Path) -> None:
    if layout == "image_folder":
        _own_images(root)
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rehearsal, "MADE", TWO)
        patch.setattr(rehearsal, "TRAINING", 10)
        patch.setattr(rehearsal, "STAND_INS", {"contrast": "color_quant", "brightness": "flash"})
        known = "imagenet_c" if layout == "listed" else layout
        rehearsal.rehearse(known, root, images=EXAMPLES)
    if layout == "listed":
        _whole_list(root / "ImageNet-C")
    classes = CLASSES.get(layout, 1000)
    write_rehearsal_model(known, root, Network("test_vit", classes, "test_vit.r160_in1k"))


def _whole_list(home: Path) -> None:
    """All names of RobustBench's list at each severity: links to one picture, and to one folder."""
    picture = next((home / TWO[0] / "5").rglob("*.JPEG"))
    whole = home / "whole"
    for name in read_list(ROBUSTBENCH):
        file = whole / name
        file.parent.mkdir(parents=True, exist_ok=True)
        os.link(picture, file)
    for domain in TWO:
        for severity in (1, 2):
            old = home / domain / str(severity)
            old.rename(home.parent / f"{domain}-{severity}")
            old.symlink_to(whole)


def _own_images(root: Path) -> None:
    """ROOT/DOMAIN/CLASS/IMAGE of embedded images, with a domain `source`."""
    for domain, count in ((TWO[0], 10), (TWO[1], 10), ("source", 40)):
        images, labels = rehearsal.embedded("source" if domain == "source" else "test", count)
        for number, (image, label) in enumerate(zip(images, labels, strict=True)):
            folder = root / domain / f"class {label}"
            folder.mkdir(parents=True, exist_ok=True)
            Image.fromarray(np.pad(image, 2)).save(folder / f"{number}.png")


@pytest.fixture
def run(
    place: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Result]:
    """`ctta-bench run METHOD READER` in this process, on a few images of a domain or two."""
    monkeypatch.chdir(tmp_path)

    def call(reader: str, setting: str, *more: str, method: str = "tent") -> Result:
        benchmark, layout, domains, settings = READERS[reader]
        root = ["--root", str(place(layout))] if layout else []
        own = layout in ("", "image_folder")
        model = "fashion_vit" if own else "timm:test_vit.r160_in1k"
        chosen = [
            f"examples={EXAMPLES}",
            f"batch_size={BATCH}",
            f"domains=[{','.join(domains)}]",
            *settings,
            *(() if reader in NO_SEVERITIES else ("severity=2",)),
        ]
        words = [word for value in (*chosen, *more) for word in ("--set", value)]
        return CliRunner().invoke(
            app,
            [
                *("run", method, benchmark, "--setting", setting, "--model", model),
                *root,
                *words,
                *("--workers", "0", "--device", "cpu", "--format", "json"),
            ],
        )

    return call


def told(result: Result) -> dict[str, int]:
    """Images by domain, of a run that went well."""
    assert result.exit_code == 0, result.output
    (only,) = json.loads(result.stdout)["rounds"]
    return {d["domain"]: d["n"] for d in only["domains"]}


def test_the_readers_are_all_that_there_are() -> None:
    shipped = {
        name
        for name, entry in BENCHMARKS.entries().items()
        if entry.module.startswith("ctta_bench.")
        and getattr(BENCHMARKS.get(name), "task", "classification") == "classification"
    }
    assert shipped == {benchmark for benchmark, *_ in READERS.values()}


TAKEN = default_and_slow(p for p in PAIRS if p not in REFUSED)


@pytest.mark.parametrize(("reader", "setting"), TAKEN)
def test_the_reader_runs_under_the_setting(reader: str, setting: str, run: Run) -> None:
    found = told(run(reader, setting, *MORE.get(setting, ())))
    assert tuple(found) == READERS[reader][2]
    # Severities 1, 2, 1; the published walk of CoTTA begins at the top.
    visits = 3 if setting in WALKS else 1
    wanted = [EXAMPLES * visits] * len(found)
    if setting == "gradual_cotta":
        wanted[0] = EXAMPLES * 2
    if setting in SHIFTS:  # twice as many drawn, in equal steps a class, of which there are three
        wanted = [2 * EXAMPLES] * len(found)
    assert list(found.values()) == wanted


@pytest.mark.parametrize(("reader", "setting"), default_and_slow(REFUSED))
def test_what_cannot_be_is_refused_in_a_sentence(reader: str, setting: str, run: Run) -> None:
    result = run(reader, setting)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("error: ")
    assert REFUSED[reader, setting] in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("reader", ["cifar100_c", "domainnet126", "ccc", "image_folder"])
def test_a_method_that_reads_source_images_finds_them(reader: str, run: Run) -> None:
    told(run(reader, "continual", "source_samples=4", method="paid"))


def test_a_result_says_that_it_is_a_rehearsal_s(run: Run, tmp_path: Path) -> None:
    for reader in ("imagenet_3dcc", "imagenet_sketch", "ccc"):
        told(run(reader, "continual", method="source"))
    notes = {json.loads(f.read_text())["corruptions"] for f in tmp_path.rglob("env.json")}
    assert len(notes) == 2  # corrupted or not
    assert all("rehearsal images" in note for note in notes)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("layout", ["cifar10_c", "imagenet_c"])
def test_the_true_network_runs_on_a_rehearsal(
    layout: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ViT-B/16 at 384 and at 224 pixels, with random weights and a head that was fitted."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(rehearsal, "MADE", TWO)
    monkeypatch.setattr(rehearsal, "TRAINING", 10)
    domains = f"domains=[{TWO[0]}]"
    root = ("--root", str(tmp_path))
    few = [
        w for v in (domains, "examples=1", "source_samples=2", "batch_size=1") for w in ("--set", v)
    ]
    make = ("data", "make", "--layout", layout, "--with-model", "--images", "1")
    for words in (make, ("run", "paid", layout, *few, "--workers", "0")):
        result = CliRunner().invoke(app, [*words, *root])
        assert result.exit_code == 0, result.output
    (found,) = tmp_path.rglob("result.json")
    cost = json.loads(found.read_text())["cost"]
    assert cost["trainable_parameters"] == 9 * (12 + 1) * 768 * 12  # of the paper's 1.08 M
