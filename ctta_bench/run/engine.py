"""The engine: prepare a cell, then predict and adapt batch by batch, with checkpoints.

The engine has no code for a particular method, data set or task. Methods get only the images,
metrics only predictions and labels.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
import torch

from ctta_bench.config.cell import Cell
from ctta_bench.method import Method
from ctta_bench.record.folder import RunFolder, write_json, write_yaml
from ctta_bench.record.owner import Heartbeat
from ctta_bench.record.read import arrays_sha256
from ctta_bench.record.schema import (
    CELL_FILE,
    DATA,
    ENVIRONMENT_FILE,
    PICTURES_FILE,
    PREDICTIONS_FILE,
    RESULT_FILE,
    SCHEMA_VERSION,
    BatchLine,
    ResultRecord,
)
from ctta_bench.run.allocator import reuse_freed_memory
from ctta_bench.run.checkpoint import (
    DeferredInterrupt,
    Pace,
    Progress,
    delete_checkpoints,
    resume,
    save_checkpoint,
    say,
)
from ctta_bench.run.environment import environment, forget_peak_memory, peak_memory_mb
from ctta_bench.run.export import ModelKeeper, check_kept
from ctta_bench.run.imported import import_notes
from ctta_bench.run.loggers import JsonLines, Logger, rewrite_lines
from ctta_bench.run.open import OpenCell, norm_statistics, notes, open_cell, source_accuracy
from ctta_bench.run.options import RunOptions
from ctta_bench.run.probe import KEY, ForgettingProbe, check_probed
from ctta_bench.run.provenance import check_unchanged, data_facts, earlier_parts
from ctta_bench.run.warmups import warmed
from ctta_bench.scoring.base import mean_of
from ctta_bench.source_models.shared import Models
from ctta_bench.stream import Batch, Stream
from ctta_bench.stream.loading import named_failures


def run_stream(
    method: Method,
    stream: Stream,
    progress: Progress,
    *,
    workers: int = 0,
    loggers: Sequence[Logger] = (),
    after_batch: Callable[[], None] = lambda: None,
    domain_ended: Callable[[], None] = lambda: None,
) -> None:
    """Run the rest of the stream; the same loop for every benchmark.

    workers: processes that load images in advance. after_batch: called after each recorded batch.
    domain_ended: called before the first batch of the next domain, and before its reset.
    """
    names, mixed = stream.domain_names, stream.settings.kind.join == "shuffle"
    dtype = torch.float64 if method.precision == "float64" else torch.float32
    batches = stream.batches(len(progress.lines), workers=workers, device=method.device)
    for batch in batches:
        if batch.starts_domain and progress.lines:
            domain_ended()
        if batch.reset:
            method.reset()
        images = batch.images.to(dtype)
        counted = dict(method.counters)
        started = time.perf_counter()
        logits = method(images)
        scores = progress.scorer.score(logits, batch.labels)  # waits for the device
        spent = time.perf_counter() - started
        progress.seconds += spent
        progress.arrays.append(scores | _where(batch))
        progress.frames += progress.scorer.frames(batch, logits, progress.frames)
        line = {
            "batch": len(progress.lines),
            "round": batch.round,
            "domain": "mixed" if mixed else names[np.bincount(batch.domain).argmax()],
            "n": len(batch.labels),
            **progress.scorer.line_values(scores),
            "loss": _finite(method.loss),
            "ms": round(1000 * spent, 3),
            "skipped": method.counters["skipped_updates"] - counted["skipped_updates"],
            "resets": method.counters["resets"] - counted["resets"],
        }
        progress.lines.append(cast(BatchLine, line))
        for logger in loggers:
            logger.batch(progress.lines[-1])
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
    options: RunOptions | None = None,
    *,
    models: Models | None = None,
) -> ResultRecord:
    """Run a cell and return its result; resume an interrupted cell, keep a finished one.

    Example: `run_cell(resolve(request), RunFolder(Path("runs/demo") / cell.id))`. models: cache of
    source models that cells of one process share. Raises the errors of `ctta_bench.errors`. A
    KeyboardInterrupt is raised again after a checkpoint, during the last batch after the result.
    """
    options = options or RunOptions()
    reuse_freed_memory()
    with folder.work(cell.record, force=options.force) as heartbeat:
        check_unchanged(folder, cell)
        if heartbeat is None:
            check_kept(folder, cell.request.keep_models)
            check_probed(folder, cell.request.probe)
            return folder.result()
        opened = open_cell(cell, options.device, models)
        with named_failures(opened.workers):
            result, signal_name = _run(opened, folder, options, heartbeat)
    if signal_name:  # this cell is done, but later cells must not start
        raise KeyboardInterrupt(signal_name)
    return result


@dataclass(frozen=True)
class _Prepared:
    """A cell that is ready for its stream."""

    method: Method
    stream: Stream
    source_accuracy: float | None
    held_out_accuracy: float | None
    notes: list[str]


def _run(
    opened: OpenCell, folder: RunFolder, options: RunOptions, heartbeat: Heartbeat
) -> tuple[ResultRecord, str]:
    """The result of a cell, and the signal that came during its last batch, "" without one."""
    loggers = [JsonLines(), *options.loggers]
    prepared = _prepare(opened, folder, loggers, heartbeat)
    method, stream = prepared.method, prepared.stream
    keeper = ModelKeeper(folder, method, opened.cell.record, opened.cell.request.keep_models)
    _write_configuration(opened, folder, prepared)
    progress = resume(folder, method, stream, loggers, opened.scorer())
    keeper.check_resumed(progress.lines)
    probe = ForgettingProbe(opened, method, len(stream))
    forget_peak_memory(method.device)
    rewrite_lines(folder, progress.lines)
    _start_loggers(opened.cell, folder, prepared, progress, loggers)
    pace, result = Pace.of(options.checkpoint), None

    def after_batch() -> None:
        heartbeat.beat()
        if interrupt.signal_name or pace.due(len(progress.lines)):
            save_checkpoint(folder, method, progress)
        if interrupt.signal_name and len(progress.lines) < len(stream):
            folder.append_log(
                f"interrupted by {interrupt.signal_name} after {len(progress.lines)} batches"
            )
            raise KeyboardInterrupt(interrupt.signal_name)

    def domain_ended() -> None:
        keeper.domain_ended(progress.lines)
        probe.domain_ended(progress)

    try:
        probe.before_stream(progress)
        with DeferredInterrupt() as interrupt:
            run_stream(
                method,
                stream,
                progress,
                workers=opened.workers,
                loggers=loggers,
                after_batch=after_batch,
                domain_ended=domain_ended,
            )
        keeper.stream_ended(progress.lines)
        probe.domain_ended(progress)
        result = _record(opened, folder, prepared, progress)
    finally:
        for logger in loggers:
            logger.finish(result)
    delete_checkpoints(folder)
    return result, interrupt.signal_name


def _prepare(
    opened: OpenCell, folder: RunFolder, loggers: Sequence[Logger], heartbeat: Heartbeat
) -> _Prepared:
    """Make missing data, check the model on source images, warm up and start the method."""

    def report(what: str, done: int, total: int) -> None:
        for logger in loggers:
            logger.preparing(what, done, total)

    cell, stream = opened.cell, opened.stream(report)
    method, accuracy, held_out = opened.method(), None, None
    told: list[str] = []
    if not method.learns_labels:
        # The model as read: some methods swap layers or replace norm statistics when created.
        untouched = opened.model(last=cell.warmup is None)
        accepted = told if cell.request.near_chance == "accept" else None
        accuracy = source_accuracy(opened.benchmark, untouched, accepted=accepted)
        held_out = opened.held_out_accuracy(untouched, lambda text: say(folder, loggers, text))
        del untouched
    source = opened.source(method, lambda text: say(folder, loggers, text))
    method.start(source, warmed(opened, folder.path.parent, loggers, heartbeat.beat))
    opened.models.release()
    told += import_notes(cell.warmup, folder.path.parent)
    noticed = [*cell.notes, *told, *notes(method, cell.settings, source)]
    return _Prepared(method, stream, accuracy, held_out, noticed)


def _write_configuration(opened: OpenCell, folder: RunFolder, prepared: _Prepared) -> None:
    """Write cell.yaml, with the facts known after the preparation, and env.json."""
    shown = {"num_batches": len(prepared.stream), "notes": prepared.notes}
    if (statistics := norm_statistics(prepared.method)) is not None:
        shown["norm_statistics"] = statistics
    if opened.cell.tuned is not None:
        shown["tuned"] = dict(opened.cell.tuned)
    write_yaml(folder.file(CELL_FILE), opened.cell.record | shown)
    found = environment(opened.device)
    found["corruptions"] = opened.benchmark.provenance
    found[DATA] = data_facts(
        opened.benchmark,
        prepared.stream.domains,
        source=prepared.method.source_access != "none",
    )
    write_json(folder.file(ENVIRONMENT_FILE), found | earlier_parts(folder, found))


def _start_loggers(
    cell: Cell,
    folder: RunFolder,
    prepared: _Prepared,
    progress: Progress,
    loggers: Sequence[Logger],
) -> None:
    for logger in loggers:
        logger.start(folder.path, cell.record, len(progress.lines), len(prepared.stream))
        for note in prepared.notes:
            logger.note(note)


def _record(
    opened: OpenCell, folder: RunFolder, prepared: _Prepared, progress: Progress
) -> ResultRecord:
    """Write predictions, pictures and last result.json; returns the content of result.json."""
    cell, method, stream = opened.cell, prepared.method, prepared.stream
    result = make_result(cell.id, method, stream, progress)
    result["model_sha256"] = cell.record["model"]["sha256"]
    result["source_accuracy"] = prepared.source_accuracy
    result["held_out_accuracy"] = prepared.held_out_accuracy
    result["same_images"] = opened.benchmark.same_images
    result["model_parameters"] = method.model.source_parameters
    if progress.probes:
        result[KEY] = progress.probes
    arrays = progress.concatenated()
    if stream.order.severity.any():
        arrays["severity"] = stream.order.severity
    folder.write_arrays(PREDICTIONS_FILE, arrays)
    result["predictions_sha256"] = arrays_sha256(arrays)
    if gallery := progress.scorer.gallery(progress.frames):
        folder.write_arrays(PICTURES_FILE, gallery)
    write_json(folder.file(RESULT_FILE), result)
    folder.append_log(f"done: {progress.scorer.mean_text(result['mean'])}")
    return result


def make_result(cell_id: str, method: Method, stream: Stream, progress: Progress) -> ResultRecord:
    """The content of result.json."""
    scorer, arrays = progress.scorer, progress.concatenated()
    images = len(arrays["index"])
    rounds = scorer.summarise(arrays, stream.domain_names, stream.order.severity[:images])
    updated = method.trainable if method.adapts else {}
    found = {
        "schema_version": SCHEMA_VERSION,
        "cell": cell_id,
        "metric": scorer.metric.name,
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
    return cast(ResultRecord, found)
