"""Workers that load ahead: results are bit-identical, and failures are reported in a sentence."""

import json
import multiprocessing
import os
import signal
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ctta_bench.config.cell import CellRequest, resolve
from ctta_bench.datasets.io.decoding import Geometry
from ctta_bench.datasets.io.file_images import FileImages
from ctta_bench.errors import DataError
from ctta_bench.record.folder import RunFolder
from ctta_bench.run.engine import run_cell
from ctta_bench.run.loggers import Logger
from ctta_bench.run.options import RunOptions
from ctta_bench.stream import ArrayImages, Domain, SourceData, Stream, StreamSettings, as_input
from ctta_bench.stream.loading import default_workers, find_damaged, load_ahead, named_failures
from tests.datasets.layouts import picture

WORKERS = pytest.mark.parametrize("workers", [0, 1, 2])


def square(number: int) -> torch.Tensor:
    return torch.full((2, 3), number**2)


@WORKERS
def test_results_come_in_the_order_asked_for(workers: int) -> None:
    numbers = [5, 0, 3, 3, 11, 2]
    got = [int(t[0, 0]) for t in load_ahead(square, numbers, workers)]
    assert got == [25, 0, 9, 9, 121, 4]


@WORKERS
def test_nothing_is_loaded_of_nothing(workers: int) -> None:
    assert list(load_ahead(square, [], workers)) == []


@WORKERS
def test_the_random_stream_of_the_process_is_not_moved(workers: int) -> None:
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    list(load_ahead(square, range(4), workers))
    assert torch.equal(torch.rand(4), expected)


def fails_at_three(number: int) -> int:
    if number == 3:
        raise DataError("x.JPEG: is not a readable image (cut).")
    return number


@WORKERS
def test_an_error_of_the_data_arrives_as_the_sentence_it_was(workers: int) -> None:
    got: list[int] = []
    with pytest.raises(DataError) as caught:
        got.extend(load_ahead(fails_at_three, range(6), workers))
    assert str(caught.value) == "x.JPEG: is not a readable image (cut)."
    assert got == [0, 1, 2]


def dies_at_two(number: int) -> int:
    if number == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def test_a_killed_worker_is_reported_with_the_option_to_change() -> None:
    with (
        pytest.raises(DataError, match=r"worker was killed, for lack of memory.* --workers 0"),
        named_failures(1),
    ):
        list(load_ahead(dies_at_two, range(6), 1))


def test_ctrl_c_leaves_the_workers_at_work_until_the_parent_has_saved() -> None:
    results = load_ahead(square, range(12), 2)
    next(results), next(results)  # one of each worker: both are at work
    for process in multiprocessing.active_children():
        assert process.pid is not None
        os.kill(process.pid, signal.SIGINT)
    assert len(list(results)) == 10


@pytest.mark.parametrize(
    "words",
    [
        "unable to open shared memory object </torch_1_2> in read-write mode: No space left",
        "DataLoader worker (pid 3) is killed by signal: Bus error. It is possible that "
        "dataloader's workers are out of shared memory.",
        "unable to write to file </torch_1_2>: No space left on device (28) [shm]",
    ],
)
def test_full_shared_memory_is_reported_with_what_to_enlarge(words: str) -> None:
    with pytest.raises(DataError, match=r"/dev/shm.*--workers 4 or 0"), named_failures(8):
        raise RuntimeError(words)


def test_other_errors_pass_unchanged() -> None:
    with pytest.raises(RuntimeError, match=r"^mat1 and mat2"), named_failures(8):
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")


@pytest.mark.parametrize(
    ("decodes", "cores", "expected"),
    [(False, 64, 0), (True, 1, 0), (True, 2, 1), (True, 16, 15), (True, 128, 16)],
)
def test_arrays_need_no_workers_and_files_a_core_each(
    decodes: bool, cores: int, expected: int
) -> None:
    assert default_workers(decodes, cores) == expected


@pytest.mark.slow
def test_workers_may_be_spawned_as_well_as_forked() -> None:
    stream = numbered()
    got = list(load_ahead(stream.stored, range(len(stream)), 1, start_method="spawn"))
    assert [b.labels.tolist() for b in got] == [b.labels.tolist() for b in stream.batches()]


# -- streams


def numbered(**settings: Any) -> Stream:
    """Two domains of 7 pictures, each of its own grey."""
    values = np.arange(14, dtype=np.uint8)
    pictures = np.broadcast_to(values[:, None, None, None], (14, 3, 4, 4))
    sets = [ArrayImages(pictures[7 * d : 7 * d + 7], values[7 * d : 7 * d + 7]) for d in (0, 1)]
    chosen = StreamSettings(**{"batch_size": 3, "order": "shuffled"} | settings)
    return Stream([Domain("a", sets[0]), Domain("b", sets[1])], chosen, 0)


@WORKERS
@pytest.mark.parametrize("setting", ["continual", "mixed", "reset"])
def test_batches_are_the_same_bit_identically_from_any_batch_on(workers: int, setting: str) -> None:
    stream = numbered(setting=setting, rounds=2)
    expected = [stream.batch(b) for b in range(2, len(stream))]
    got = list(stream.batches(2, workers=workers))
    assert len(got) == len(expected) > 4
    for ours, theirs in zip(got, expected, strict=True):
        assert torch.equal(ours.images, theirs.images)
        assert torch.equal(ours.labels, theirs.labels)
        assert ours.domain.tolist() == theirs.domain.tolist()
        assert ours.index.tolist() == theirs.index.tolist()
        assert (ours.round, ours.starts_domain, ours.reset) == (
            theirs.round, theirs.starts_domain, theirs.reset,
        )  # fmt: skip


def test_all_256_values_become_the_floats_of_a_division() -> None:
    values = torch.arange(256, dtype=torch.uint8)
    expected = torch.from_numpy(np.arange(256, dtype=np.float32) / np.float32(255))
    assert torch.equal(as_input(values), expected)


@WORKERS
def test_source_batches_are_the_same_whoever_loads_them(workers: int) -> None:
    images = numbered().domains[0].images
    options: dict[str, Any] = {"device": torch.device("cpu"), "dtype": torch.float32}
    source = SourceData(images, labelled=True, seed=1, workers=workers, **options)
    plain = SourceData(images, labelled=True, seed=1, **options)
    for ours, theirs in zip(source.labelled_batches(3), plain.labelled_batches(3), strict=True):
        assert torch.equal(ours[0], theirs[0]) and torch.equal(ours[1], theirs[1])


def files(folder: Path, count: int, side: int) -> FileImages:
    names = [f"{i}.png" for i in range(count)]
    for i, name in enumerate(names):
        picture(folder / name, i, (side, side))
    return FileImages(folder, names, np.zeros(count, np.int64), Geometry(side))


@WORKERS
def test_damaged_images_are_found_by_number(workers: int, tmp_path: Path) -> None:
    images = files(tmp_path, 130, 4)
    for number in (0, 64, 129):
        (tmp_path / f"{number}.png").write_bytes(b"junk")
    told: list[tuple[int, int]] = []
    bad = find_damaged(images, lambda *t: told.append(t), workers)
    assert sorted(bad) == [0, 64, 129]
    assert "64.png: is not a readable image" in bad[64]
    assert told == [(64, 130), (128, 130), (130, 130)]
    assert sorted(find_damaged(images, lambda *t: None, workers, wanted=63)) == [0]


def test_memory_does_not_grow_with_the_number_of_domains(tmp_path: Path) -> None:
    images = files(tmp_path, 24, 64)
    settings = StreamSettings(batch_size=8)

    def peak(domains: int) -> int:
        stream = Stream([Domain(f"d{i}", images) for i in range(domains)], settings, 0)
        tracemalloc.start()
        for _ in stream.batches():
            pass
        _, highest = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return highest

    peak(1)  # what is loaded lazily
    assert peak(10) < 1.1 * peak(1)


# -- whole runs


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for domain in ("fog", "snow"):
        for label in range(10):
            for i in range(2):
                file = tmp_path / "data" / domain / str(label) / f"{i}.png"
                picture(file, 90 * label + i + 3 * (domain == "fog"), (16, 16))
    return tmp_path / "data"


def run(
    root: Path,
    out: Path,
    method: str,
    workers: int | None,
    cache: Path | None = None,
    **options: Any,
) -> dict[str, Any]:
    request = CellRequest(
        method=method,
        benchmark="image_folder",
        model="toy_vit",
        data_root=root,
        workers=workers,
        cache_decoded=cache,
        set={"image_size": 16, "batch_size": 6, "order": "shuffled"},
    )
    cell = resolve(request)
    run_cell(cell, RunFolder(out), RunOptions(**options))
    lines = [json.loads(line) for line in (out / "batches.jsonl").read_text().splitlines()]
    return {
        "id": cell.id,
        "lines": [{k: v for k, v in line.items() if k != "ms"} for line in lines],
        "predictions": (out / "predictions.npz").read_bytes(),
    }


@pytest.mark.usefixtures("toy")
@pytest.mark.parametrize("method", ["source", "cotta", "rotta"])
def test_the_number_of_workers_changes_no_bit_of_a_run_and_no_name(
    method: str, root: Path, tmp_path: Path
) -> None:
    runs = [run(root, tmp_path / f"out{w}", method, w) for w in (0, 1, 2)]
    assert runs[0] == runs[1] == runs[2]


class CtrlC(Logger):
    """What a terminal does on Ctrl-C: every process of the group gets the signal."""

    def __init__(self, at: int) -> None:
        self.at = at

    def batch(self, record: dict[str, Any]) -> None:
        if record["batch"] == self.at:
            for process in multiprocessing.active_children():
                assert process.pid is not None
                os.kill(process.pid, signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.usefixtures("toy")
def test_a_run_interrupted_with_its_workers_resumes_with_any_other_number(
    root: Path, tmp_path: Path
) -> None:
    whole = run(root, tmp_path / "whole", "tent", 0)
    with pytest.raises(KeyboardInterrupt):
        run(root, tmp_path / "out", "tent", 2, loggers=[CtrlC(at=2)])
    lines = (tmp_path / "out" / "batches.jsonl").read_text().splitlines()
    assert len(lines) == 3
    assert run(root, tmp_path / "out", "tent", 1) == whole


@pytest.mark.usefixtures("toy")
@pytest.mark.parametrize("workers", [0, 2])
def test_a_run_on_cached_images_is_the_same_run(workers: int, root: Path, tmp_path: Path) -> None:
    plain = run(root, tmp_path / "plain", "tent", 0)
    for time in ("first", "second"):
        assert run(root, tmp_path / time, "tent", workers, tmp_path / "cache") == plain
    assert len(list((tmp_path / "cache").glob("*/manifest.json"))) == 2
