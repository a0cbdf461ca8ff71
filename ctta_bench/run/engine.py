"""One cell: prepare, then predict and adapt batch by batch, with checkpoints.

The engine knows no method, data set or task by name. It gives the images to the method and the
labels to the metrics, and nothing else to either.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from ctta_bench.config.cell import Cell
from ctta_bench.method import Method
from ctta_bench.record.folder import RunFolder, write_json, write_yaml
from ctta_bench.record.schema import (
    CELL_FILE,
    ENVIRONMENT_FILE,
    PICTURES_FILE,
    PREDICTIONS_FILE,
    RESULT_FILE,
    SCHEMA_VERSION,
)
from ctta_bench.run.allocator import keep_freed_memory
from ctta_bench.run.checkpoint import (
    DeferredInterrupt,
    Pace,
    Progress,
    drop_states,
    resume,
    save_checkpoint,
    say,
)
from ctta_bench.run.environment import environment, peak_memory_mb, usable_cores
from ctta_bench.run.export import ModelKeeper, check_kept
from ctta_bench.run.loggers import JsonLines, Logger, lay_lines
from ctta_bench.run.open import (
    build_benchmark,
    build_method,
    build_model,
    loading_workers,
    norm_statistics,
    notes,
    scorer_of,
    source_accuracy,
    source_data,
)
from ctta_bench.run.probe import KEY, SourceProbe, check_probed
from ctta_bench.run.warmups import warmed
from ctta_bench.scoring.base import mean_of
from ctta_bench.stream import Batch, Stream, batch_domains
from ctta_bench.stream.loading import named_failures


def play(
    method: Method,
    stream: Stream,
    progress: Progress,
    *,
    workers: int = 0,
    loggers: Sequence[Logger] = (),
    after_batch: Callable[[], None] = lambda: None,
    domain_ended: Callable[[], None] = lambda: None,
) -> None:
    """Run the rest of the stream: the loop of every benchmark. `workers` load images ahead.

    `after_batch` is called after each recorded batch, `domain_ended` before the first batch of
    another domain and before any reset.
    """
    names, mixed = stream.domain_names, stream.settings.kind.join == "pool"
    dtype = torch.float64 if method.precision == "float64" else torch.float32
    batches = stream.batches(len(progress.lines), workers=workers, device=method.device)
    for batch in batches:
        if batch.starts_domain and progress.lines:
            domain_ended()
        if batch.reset:
            method.reset()
        images = batch.images.to(dtype)
        counted = dict(method.counters)
        began = time.perf_counter()
        logits = method(images)
        scores = progress.scorer.score(logits, batch.labels)  # waits for the device
        spent = time.perf_counter() - began
        progress.seconds += spent
        progress.arrays.append(scores | _where(batch))
        progress.frames += progress.scorer.frames(batch, logits, progress.frames)
        line = {
            "batch": len(progress.lines),
            "round": batch.round,
            "domain": "mixed" if mixed else names[np.bincount(batch.domain).argmax()],
            "n": len(batch.labels),
            **progress.scorer.figures(scores),
            "loss": _finite(method.loss),
            "ms": round(1000 * spent, 3),
            "skipped": method.counters["skipped_updates"] - counted["skipped_updates"],
            "resets": method.counters["resets"] - counted["resets"],
        }
        progress.lines.append(line)
        for logger in loggers:
            logger.batch(line)
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
    the errors of `ctta_bench.errors`; KeyboardInterrupt passes after a checkpoint, and one within
    the last batch after the result.
    """
    keep_freed_memory()
    with folder.work(cell.record, force=force) as heartbeat:
        if heartbeat is None:
            check_kept(folder, cell.request.keep_models)
            check_probed(folder, cell.request.probe)
            return folder.result()
        with named_failures(loading_workers(cell)):
            result, interrupt = _run(
                cell,
                folder,
                torch.device(device),
                [JsonLines(), *loggers],
                Pace(checkpoint_seconds, checkpoint_batches),
                heartbeat,
            )
    if interrupt.asked:  # the cell was done by then, what comes after it is not
        raise KeyboardInterrupt(interrupt.asked)
    return result


def _run(
    cell: Cell,
    folder: RunFolder,
    device: torch.device,
    loggers: Sequence[Logger],
    pace: Pace,
    heartbeat: Any,
) -> tuple[dict[str, Any], DeferredInterrupt]:
    benchmark = build_benchmark(cell)

    def report(what: str, done: int, total: int) -> None:
        for logger in loggers:
            logger.preparing(what, done, total)

    asked = cell.request.workers
    benchmark.make_ready(report, usable_cores() if asked is None else asked)
    stream = Stream(batch_domains(benchmark), cell.settings, cell.request.seed)
    method = build_method(cell, device)
    # As it came: some methods swap layers, or replace norm statistics, when they are built.
    untouched = build_model(cell, device)
    accuracy = None if method.learns_labels else source_accuracy(benchmark, untouched)
    del untouched
    source = source_data(
        benchmark,
        method,
        cell.request.seed,
        loading_workers(cell),
        model_sha256=cell.record["model"]["sha256"],
        say=lambda text: say(folder, loggers, text),
    )
    method.start(source, warmed(cell, folder.path.parent, device, loggers, heartbeat.beat))
    keeper = ModelKeeper(folder, method, cell.record, cell.request.keep_models)
    noticed = [*cell.notes, *notes(method, cell.settings, source)]
    beside = {"num_batches": len(stream), "notes": noticed}
    if (statistics := norm_statistics(method)) is not None:
        beside["norm_statistics"] = statistics
    write_yaml(folder.file(CELL_FILE), cell.record | beside)
    provenance = {"corruptions": benchmark.provenance}
    write_json(folder.file(ENVIRONMENT_FILE), environment(device) | provenance)
    progress = resume(folder, method, stream, loggers, scorer_of(benchmark))
    keeper.check_resumed(progress.lines)
    probe = SourceProbe(benchmark, method, cell.request.probe, len(stream), cell.settings.rounds)
    lay_lines(folder, progress.lines)
    for logger in loggers:
        logger.start(folder.path, cell.record, len(progress.lines), len(stream))
        for note in noticed:
            logger.note(note)

    result = None
    try:
        probe.began(progress)
        with DeferredInterrupt() as interrupt:

            def after_batch() -> None:
                heartbeat.beat()
                if interrupt.asked or pace.due(len(progress.lines)):
                    save_checkpoint(folder, method, progress)
                if interrupt.asked and len(progress.lines) < len(stream):
                    told = f"{interrupt.asked} after {len(progress.lines)} batches"
                    folder.append_log(f"interrupted by {told}")
                    raise KeyboardInterrupt(interrupt.asked)

            def domain_ended() -> None:
                keeper.domain_ended(progress.lines)
                probe.domain_ended(progress)

            play(
                method,
                stream,
                progress,
                workers=loading_workers(cell),
                loggers=loggers,
                after_batch=after_batch,
                domain_ended=domain_ended,
            )
        keeper.stream_ended(progress.lines)
        probe.domain_ended(progress)
        result = make_result(cell.record["id"], method, stream, progress)
        result |= {"model_sha256": cell.record["model"]["sha256"], "source_accuracy": accuracy}
        result["model_parameters"] = method.model.source_parameters
        result |= {KEY: progress.probes} if progress.probes else {}
        arrays = progress.joined()
        if stream.order.severity.any():
            arrays["severity"] = stream.order.severity
        folder.write_arrays(PREDICTIONS_FILE, arrays)
        if gallery := progress.scorer.gallery(progress.frames):
            folder.write_arrays(PICTURES_FILE, gallery)
        write_json(folder.file(RESULT_FILE), result)
        folder.append_log(f"done: {progress.scorer.words(result['mean'])}")
    finally:
        for logger in loggers:
            logger.finish(result)
    drop_states(folder)
    return result, interrupt


def make_result(cell_id: str, method: Method, stream: Stream, progress: Progress) -> dict[str, Any]:
    """The content of result.json."""
    scorer, arrays = progress.scorer, progress.joined()
    images = len(arrays["index"])
    rounds = scorer.summarise(arrays, stream.domain_names, stream.order.severity[:images])
    updated = method.trainable if method.adapts else {}
    return {
        "schema_version": SCHEMA_VERSION,
        "cell": cell_id,
        "metric": scorer.metric,
        "mean": mean_of(rounds),
        "rounds": rounds,
        **scorer.facts(rounds),
        "source_access": method.source_access,
        "counters": dict(method.counters),
        "cost": {
            "trainable_parameters": sum(p.numel() for p in updated.values()),
            "trainable_tensors": {n: p.numel() for n, p in updated.items()},
            "extra_state_bytes": method.extra_state_bytes,
            "forward_per_image": method.passes.forward_images / images,
            "backward_per_image": method.passes.backward_images / images,
            "seconds": progress.seconds,
            "images_per_second": images / progress.seconds,
            "peak_memory_mb": peak_memory_mb(method.device),
        },
        "order_sha256": stream.order.sha256(),
    }
