"""One cell: prepare, then predict and adapt batch by batch, with checkpoints.

The engine knows no method and no data set by name. It gives the images to the method and the
labels to the metrics, and nothing else to either.
"""

import contextlib
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from ctta_bench.checkpoint import DeferredInterrupt, Pace, Progress, resume, save_checkpoint
from ctta_bench.config import Cell
from ctta_bench.environment import environment, peak_memory_mb, usable_cores
from ctta_bench.errors import DataError, RunError
from ctta_bench.loggers import JsonLines, Logger, lay_lines
from ctta_bench.method import Method
from ctta_bench.metrics import FIELDS, score_batch, summarise
from ctta_bench.model import SourceModel, load_source_model
from ctta_bench.record import SCHEMA_VERSION, RunFolder, check_writable, write_json, write_yaml
from ctta_bench.registry import BENCHMARKS, METHODS
from ctta_bench.stream import Batch, Benchmark, SourceData, Stream, as_input, batch_domains

CHECKED_SOURCE_IMAGES = 256


def play(
    method: Method,
    stream: Stream,
    progress: Progress,
    *,
    loggers: Sequence[Logger] = (),
    after_batch: Any = None,
) -> None:
    """Run the rest of the stream: the loop of every benchmark.

    `after_batch`, if given, is called with no arguments after each recorded batch.
    """
    names = stream.domain_names
    reset_at_domains = stream.settings.setting == "reset"
    dtype = torch.float64 if method.precision == "float64" else torch.float32
    for batch in stream.batches(len(progress.lines)):
        if reset_at_domains and batch.starts_domain and progress.lines:
            method.reset()
        images = batch.images.to(method.device, dtype)
        counted = dict(method.counters)
        began = time.perf_counter()
        logits = method(images)
        scores = score_batch(logits, batch.labels)  # waits for the device
        spent = time.perf_counter() - began
        progress.seconds += spent
        progress.arrays.append(scores | _where(batch))
        line = {
            "batch": len(progress.lines),
            "round": batch.round,
            "domain": names[batch.domain[0]] if stream.settings.setting != "mixed" else "mixed",
            "n": len(batch.labels),
            "errors": int((scores["prediction"] != scores["label"]).sum()),
            "loss": _finite(method.loss),
            "ms": round(1000 * spent, 3),
            "skipped": method.counters["skipped_updates"] - counted["skipped_updates"],
            "resets": method.counters["resets"] - counted["resets"],
        }
        progress.lines.append(line)
        for logger in loggers:
            logger.batch(line)
        if after_batch is not None:
            after_batch()


def _where(batch: Batch) -> dict[str, np.ndarray]:
    return {
        "index": batch.index,
        "domain": batch.domain,
        "round": np.full(len(batch.index), batch.round, np.int16),
    }


def _finite(loss: torch.Tensor | None) -> float | None:
    value = float("nan") if loss is None else float(loss)
    return value if np.isfinite(value) else None


# -- building


def build_benchmark(cell: Cell) -> Benchmark:
    """The benchmark of a cell. Raises DataError if its data is missing."""
    benchmark: Benchmark = BENCHMARKS.get(cell.request.benchmark)(
        cell.settings, cell.request.data_root
    )
    problems = benchmark.problems()
    if problems:
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        raise DataError(f"{benchmark.name}: {problems[0]}{more}")
    return benchmark


def build_method(cell: Cell, device: torch.device) -> Method:
    """The method of a cell on a freshly loaded model."""
    request = cell.request
    model = load_source_model(
        request.model or "", weights=request.weights, preprocessing=request.preprocessing
    )
    model = model.to(device, torch.float64 if request.precision == "float64" else torch.float32)
    method: Method = METHODS.get(request.method)(
        model,
        cell.hyperparameters,
        seed=request.seed,
        precision=request.precision,
        window=request.window,
    )
    return method


def source_data(benchmark: Benchmark, method: Method, seed: int) -> SourceData | None:
    """The source set as the method may see it: nothing, images, or images with labels.

    Raises DataError if the method needs source data and the benchmark has none.
    """
    if method.source_access == "none":
        return None
    images = benchmark.source()
    if images is None:
        raise DataError(
            f"{type(method).__name__} reads {method.source_access} source data, but "
            f"{benchmark.name} has no source set at hand."
        )
    return SourceData(
        images,
        labelled=method.source_access == "labelled",
        seed=seed,
        device=method.device,
        dtype=torch.float64 if method.precision == "float64" else torch.float32,
    )


@torch.no_grad()
def source_accuracy(benchmark: Benchmark, model: SourceModel) -> float | None:
    """Accuracy in % of the unadapted model on some source images, None if there are none.

    Raises DataError near chance: then the weights are not those of this benchmark, and every
    number after it would be meaningless.
    """
    images = benchmark.source()
    if images is None:
        return None
    step = max(1, len(images.labels) // CHECKED_SOURCE_IMAGES)
    index = np.arange(0, len(images.labels), step)
    inputs = as_input(images.load(index)).to(model.mean.device, model.mean.dtype)
    labels = torch.from_numpy(np.asarray(images.labels)[index].astype(np.int64))
    before = model.passes.forward_images
    outputs = [model(part).argmax(-1).cpu() for part in inputs.split(64)]
    model.passes.forward_images = before  # a check of ours, not a cost of the method
    accuracy = 100 * float((torch.cat(outputs) == labels).double().mean())
    chance = 100 / benchmark.num_classes
    # Four standard deviations of guessing: a merely bad model passes, an unloaded one does not.
    if accuracy < chance + 4 * (chance * (100 - chance) / len(index)) ** 0.5:
        raise DataError(
            f"model {model.name} is right on {accuracy:.1f} % of {len(index)} source images of "
            f"{benchmark.name}, near chance ({chance:.1f} %): these weights are not of this "
            "benchmark, or the classes are in another order."
        )
    return accuracy


# -- one cell


def run_cell(
    cell: Cell,
    folder: RunFolder,
    *,
    device: str = "cpu",
    force: bool = False,
    loggers: Sequence[Logger] = (),
    checkpoint_seconds: float = 20.0,
    checkpoint_batches: int | None = None,
) -> dict[str, Any]:
    """Run a cell to its result, or go on where an earlier attempt stopped; a done one is kept.

    Checkpoints every `checkpoint_seconds` (or `checkpoint_batches`), and when interrupted. Raises
    the errors of `ctta_bench.errors`; KeyboardInterrupt passes after a checkpoint.
    """
    check_writable(folder.path)
    with folder.locked() as heartbeat:
        if force:
            folder.clear()
        folder.check_configuration(cell.record)
        if folder.is_done:
            return folder.result()
        folder.file("failed.json").unlink(missing_ok=True)
        write_yaml(folder.file("cell.yaml"), cell.record)
        try:
            return _run(
                cell,
                folder,
                torch.device(device),
                [JsonLines(), *loggers],
                Pace(checkpoint_seconds, checkpoint_batches),
                heartbeat,
            )
        except Exception as error:
            # Kept beside the cell so that `status` can tell; the caller still sees the error.
            with contextlib.suppress(OSError, RunError):
                folder.append_log(f"failed: {error}")
                folder.write_failure(error)
            if isinstance(error, OSError):
                raise RunError(f"{folder.path}: {error.strerror or error}.") from error
            raise


def _run(
    cell: Cell,
    folder: RunFolder,
    device: torch.device,
    loggers: Sequence[Logger],
    pace: Pace,
    heartbeat: Any,
) -> dict[str, Any]:
    benchmark = build_benchmark(cell)

    def report(what: str, done: int, total: int) -> None:
        for logger in loggers:
            logger.preparing(what, done, total)

    benchmark.make_ready(report, usable_cores())
    stream = Stream(batch_domains(benchmark), cell.settings, cell.request.seed)
    method = build_method(cell, device)
    accuracy = source_accuracy(benchmark, method.model)
    method.start(source_data(benchmark, method, cell.request.seed))
    write_yaml(folder.file("cell.yaml"), cell.record | {"num_batches": len(stream)})
    provenance = {"corruptions": benchmark.provenance}
    write_json(folder.file("env.json"), environment(device) | provenance)
    progress = resume(folder, method, stream, loggers)
    lay_lines(folder, progress.lines)
    for logger in loggers:
        logger.start(folder.path, cell.record, len(progress.lines), len(stream))

    result = None
    try:
        with DeferredInterrupt() as interrupt:

            def after_batch() -> None:
                heartbeat.beat()
                if interrupt.asked or pace.due(len(progress.lines)):
                    save_checkpoint(folder, method, progress)
                if interrupt.asked and len(progress.lines) < len(stream):
                    folder.append_log(f"interrupted after {len(progress.lines)} batches")
                    raise KeyboardInterrupt

            play(method, stream, progress, loggers=loggers, after_batch=after_batch)
        result = make_result(cell.record["id"], method, stream, progress)
        result |= {"model_sha256": cell.record["model"]["sha256"], "source_accuracy": accuracy}
        folder.write_predictions({name: getattr(progress.scores(), name) for name in FIELDS})
        write_json(folder.file("result.json"), result)
        folder.append_log(f"done: mean error {result['mean']:.2f} %")
    finally:
        for logger in loggers:
            logger.finish(result)
    for name in ("state.pt", "state.previous.pt"):
        folder.file(name).unlink(missing_ok=True)
    return result


def make_result(cell_id: str, method: Method, stream: Stream, progress: Progress) -> dict[str, Any]:
    """The content of result.json."""
    scores = progress.scores()
    rounds = summarise(scores, stream.domain_names)
    images = len(scores.label)
    return {
        "schema_version": SCHEMA_VERSION,
        "cell": cell_id,
        "metric": "error",
        "mean": float(np.mean([entry["mean"] for entry in rounds])),
        "rounds": rounds,
        "source_access": method.source_access,
        "counters": dict(method.counters),
        "cost": {
            "trainable_parameters": sum(p.numel() for p in method.trainable.values()),
            "extra_state_bytes": method.extra_state_bytes,
            "forward_per_image": method.passes.forward_images / images,
            "backward_per_image": method.passes.backward_images / images,
            "seconds": progress.seconds,
            "images_per_second": images / progress.seconds,
            "peak_memory_mb": peak_memory_mb(method.device),
        },
        "order_sha256": stream.order.sha256(),
    }
