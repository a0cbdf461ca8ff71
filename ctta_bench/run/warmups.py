"""Warm-ups as separate steps, each in a folder next to the cells that start from it.

cell.yaml           everything that decides the warm-up (kind: warm-up)
batches.jsonl       one line per update: epoch, learning rate, loss
warmup.safetensors  the learnt tensors
result.json         losses, accuracies on source images, updates; written last: the warm-up is done
state.pt, log.txt, env.json, failed.json: as in the folder of a cell (record/schema.py)
"""

import hashlib
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import safetensors
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from ctta_bench.config.cell import Cell
from ctta_bench.errors import RunError
from ctta_bench.method.warmup import Warmup, load_warmed
from ctta_bench.record.folder import (
    RunFolder,
    atomic,
    write_json,
    write_yaml,
)
from ctta_bench.record.schema import (
    CELL_FILE,
    DATA,
    ENVIRONMENT_FILE,
    LEARNT_FILE,
    RESULT_FILE,
    SCHEMA_VERSION,
    WARM_UP,
    CellRecord,
    WarmupResult,
    warmup_facts,
)
from ctta_bench.run.allocator import reuse_freed_memory
from ctta_bench.run.checkpoint import (
    DeferredInterrupt,
    Pace,
    delete_checkpoints,
    newest_intact,
    say,
    write_state,
)
from ctta_bench.run.environment import environment
from ctta_bench.run.loggers import JsonLines, Logger, rewrite_lines
from ctta_bench.run.open import OpenCell, accuracy_on_source, open_cell, source_data
from ctta_bench.run.options import RunOptions
from ctta_bench.run.provenance import check_unchanged, data_facts, earlier_parts
from ctta_bench.source_models.shared import Models


def warmed(
    opened: OpenCell,
    directory: Path,
    loggers: Sequence[Logger] = (),
    beat: Callable[[], None] = lambda: None,
) -> dict[str, Tensor] | None:
    """The tensors learnt by a cell's warm-up, which runs first if it is not done.

    directory: the folder that contains the warm-up's folder. None for a cell without warm-up.
    `beat` is called after each update.
    """
    warmup = opened.cell.warmup
    if warmup is None:
        return None
    folder = RunFolder(directory / warmup["id"])
    make_warmup(lambda: opened, opened.cell, folder, RunOptions(loggers=loggers), beat)
    return read_learnt(folder, warmup)


def run_warmup(
    cell: Cell,
    folder: RunFolder,
    options: RunOptions | None = None,
    *,
    models: Models | None = None,
) -> WarmupResult:
    """Run the warm-up of a cell as a separate step; arguments as those of `engine.run_cell`."""
    assert cell.warmup is not None
    options = options or RunOptions()
    reuse_freed_memory()
    return make_warmup(lambda: open_cell(cell, options.device, models), cell, folder, options)


def make_warmup(
    open_it: Callable[[], OpenCell],
    cell: Cell,
    folder: RunFolder,
    options: RunOptions,
    beat: Callable[[], None] = lambda: None,
) -> WarmupResult:
    """Run a warm-up and return its result; resume an interrupted one, keep a finished one.

    open_it: opens `cell`, which starts from the warm-up; called only if there is work to do. Errors
    and interrupts are those of `engine.run_cell`.
    """
    record = cell.warmup
    assert record is not None
    with folder.work(record, force=options.force) as heartbeat:
        check_unchanged(folder, cell, warms_up=True)
        if heartbeat is None:
            return cast(WarmupResult, folder.result())
        owner = heartbeat

        def alive() -> None:
            owner.beat()
            beat()

        result, signal_name = _run(open_it(), record, folder, options, alive)
    if signal_name:
        raise KeyboardInterrupt(signal_name)
    return result


def _run(
    opened: OpenCell,
    record: CellRecord,
    folder: RunFolder,
    options: RunOptions,
    alive: Callable[[], None],
) -> tuple[WarmupResult, str]:
    """The result of a warm-up, and the signal that came during its last update, "" without one."""
    benchmark, method = opened.benchmark, opened.method()
    opened.models.release()
    before = accuracy_on_source(benchmark, method)
    warmup = Warmup(method, source_data(benchmark, method, opened.seed))
    write_yaml(folder.file(CELL_FILE), record | {"num_batches": warmup.total})
    found = environment(opened.device)
    found[DATA] = data_facts(benchmark, None, source=True)
    write_json(folder.file(ENVIRONMENT_FILE), found | earlier_parts(folder, found))
    lines, seconds = _resume(folder, warmup, options.loggers)
    rewrite_lines(folder, lines)
    started = time.monotonic() - seconds
    signal_name = _update(warmup, lines, started, record, folder, options, alive)
    learnt = warmup.finish()
    load_warmed(method, learnt)
    method.warmed_up()
    found = _summary(record["id"], lines, warmup) | {
        "seconds": time.monotonic() - started,
        "source_accuracy": {"before": before, "after": accuracy_on_source(benchmark, method)},
        "model_sha256": record["model"]["sha256"],
        "learnt_sha256": write_learnt(folder, learnt, record),
    }
    result = cast(WarmupResult, found)
    write_json(folder.file(RESULT_FILE), result)
    folder.append_log(f"done: {warmup.total} updates")
    delete_checkpoints(folder)
    return result, signal_name


def _update(
    warmup: Warmup,
    lines: list[dict[str, Any]],
    started: float,
    record: CellRecord,
    folder: RunFolder,
    options: RunOptions,
    alive: Callable[[], None],
) -> str:
    """Do the remaining updates and append their lines; returns the signal that came, or "".

    Raises KeyboardInterrupt, after a checkpoint, if a signal came before the last update.
    """
    pace, log = Pace.of(options.checkpoint), JsonLines()
    log.start(folder.path, record, len(lines), warmup.total)
    try:
        with DeferredInterrupt() as interrupt:
            for line in warmup.updates():
                lines.append(line)
                log.batch(line)
                alive()
                for logger in options.loggers:
                    logger.preparing(
                        f"warming up {record['method']['name']}", len(lines), warmup.total
                    )
                stops = interrupt.signal_name and len(lines) < warmup.total
                if stops or pace.due(len(lines)):
                    content = {"lines": lines, "seconds": time.monotonic() - started}
                    write_state(folder, content | {"warmup": warmup.state_dict()})
                if stops:
                    folder.append_log(
                        f"interrupted by {interrupt.signal_name} after {len(lines)} updates"
                    )
                    raise KeyboardInterrupt(interrupt.signal_name)
    finally:
        log.finish(None)
    return interrupt.signal_name


def _resume(
    folder: RunFolder, warmup: Warmup, loggers: Sequence[Logger]
) -> tuple[list[dict[str, Any]], float]:
    found = newest_intact(folder, lambda c: (c["lines"], c["seconds"], c["warmup"]), loggers)
    if found is None:
        return [], 0.0
    lines, seconds, tree = found
    warmup.load_state_dict(tree)
    say(folder, loggers, f"resumed after {len(lines)} of {warmup.total} updates")
    return lines, seconds


def _summary(name: str, lines: Sequence[dict[str, Any]], warmup: Warmup) -> dict[str, Any]:
    """The values of result.json about the training: mean loss per epoch, updates, images."""
    by_epoch: dict[int, list[float]] = {}
    for line in lines:
        if line["loss"] is not None:
            by_epoch.setdefault(line["epoch"], []).append(line["loss"])
    return {
        "schema_version": SCHEMA_VERSION,
        "cell": name,
        "kind": WARM_UP,
        "updates": len(lines),
        "skipped_updates": warmup.skipped,
        "source_images": len(warmup.source),
        "loss_by_epoch": [float(np.mean(losses)) for losses in by_epoch.values()],
        "trained_parameters": sum(p.numel() for p in warmup.parameters.values()),
    }


# -- the file of learnt tensors


def write_learnt(folder: RunFolder, learnt: dict[str, Tensor], record: CellRecord) -> str:
    """Write warmup.safetensors with the warm-up's record; returns the file's SHA-256."""
    tensors = {name: value.cpu().contiguous() for name, value in learnt.items()}
    with atomic(folder.file(LEARNT_FILE)) as temporary:
        save_file(tensors, temporary, metadata={"record": warmup_facts(record)})
    return hashlib.sha256(folder.file(LEARNT_FILE).read_bytes()).hexdigest()


def read_learnt(folder: RunFolder, record: CellRecord) -> dict[str, Tensor]:
    """The learnt tensors of a finished warm-up.

    Raises RunError if the file is damaged, or was made with another model, method or source set.
    """
    file = folder.file(LEARNT_FILE)
    try:
        content = file.read_bytes()
        with safetensors.safe_open(file, framework="pt") as tensors:
            stored = json.loads((tensors.metadata() or {})["record"])
            learnt = {name: tensors.get_tensor(name) for name in tensors.keys()}  # noqa: SIM118
    except (OSError, SafetensorError, ValueError, KeyError) as error:
        raise RunError(
            f"{file}: is missing or damaged ({type(error).__name__}); delete the folder, and the "
            "warm-up runs again."
        ) from error
    wanted = json.loads(warmup_facts(record))
    odd = sorted(key for key in wanted | stored if wanted.get(key) != stored.get(key))
    if odd:
        raise RunError(
            f"{file}: is the warm-up of another {odd[0]}; delete the folder, and it runs again."
        )
    if hashlib.sha256(content).hexdigest() != folder.result().get("learnt_sha256"):
        raise RunError(
            f"{file}: was changed after the warm-up; delete the folder, and it runs again."
        )
    return learnt
