"""A published checkpoint of adapters as the finished warm-up of a cell."""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ctta_bench.config.cell import Cell
from ctta_bench.errors import ConfigError, DataError, RunError
from ctta_bench.method import Method
from ctta_bench.method.warmup import RANDOM_STATE, load_warmed
from ctta_bench.record.folder import RunFolder, write_json, write_yaml
from ctta_bench.record.schema import (
    CELL_FILE,
    ENVIRONMENT_FILE,
    RESULT_FILE,
    SCHEMA_VERSION,
    WARM_UP,
    CellRecord,
    ImportedWarmup,
)
from ctta_bench.run.environment import environment
from ctta_bench.run.open import accuracy_on_source, open_cell
from ctta_bench.run.warmups import write_learnt
from ctta_bench.source_models.shared import Models
from ctta_bench.source_models.weight_sets import chosen_set
from ctta_bench.source_models.weights import check_finite, read_tensors

TOLERANCE = 1e-5  # of the largest value of a tensor: what float16 files exceed is another model
_LISTED = 3


def import_warmup(
    cell: Cell, file: Path, directory: Path, *, force: bool = False, models: Models | None = None
) -> ImportedWarmup:
    """Store the tensors of a file as the warm-up that a cell starts from; returns its result.

    file: of the official code of the method, recognised by its names. directory: of the runs, in
    which the warm-up gets its folder, as if it had run there.

    Every name of the file must be known and every name must be there; the tensors that a warm-up
    does not change must be those of the cell's source model. Raises ConfigError for a cell without
    a warm-up, MethodError for a method without a published file, DataError for a file that does not
    fit, and RunError if there is a finished warm-up, unless `force`.
    """
    record = cell.warmup
    if record is None:
        raise ConfigError(
            f"warmup import: this cell of {cell.request.method} has no warm-up; choose a preset "
            "with one, e.g. --preset paper for PAID, as_run for ViDA."
        )
    opened = open_cell(cell, "cpu", models)
    method = opened.method()
    learnt = _learnt(method, file)
    folder = RunFolder(directory / record["id"])
    with folder.work(record, force=force) as heartbeat:
        if heartbeat is None:
            raise RunError(f"{folder.path}: is a finished warm-up; --force replaces it.")
        before = accuracy_on_source(opened.benchmark, method)
        load_warmed(method, learnt)
        method.warmed_up()
        write_yaml(folder.file(CELL_FILE), dict(record) | {"num_batches": 0})
        write_json(folder.file(ENVIRONMENT_FILE), environment(opened.device))
        result = ImportedWarmup(
            schema_version=SCHEMA_VERSION,
            cell=record["id"],
            kind=WARM_UP,
            updates=0,
            skipped_updates=0,
            source_images=0,
            loss_by_epoch=[],
            trained_parameters=sum(v.numel() for k, v in learnt.items() if k != RANDOM_STATE),
            seconds=0.0,
            source_accuracy={
                "before": before,
                "after": accuracy_on_source(opened.benchmark, method),
            },
            model_sha256=record["model"]["sha256"],
            learnt_sha256=write_learnt(folder, learnt, record),
            imported={"file": file.name, "sha256": hashlib.sha256(file.read_bytes()).hexdigest()},
        )
        write_json(folder.file(RESULT_FILE), result)
        folder.append_log(f"imported {file.name}")
    return result


def import_notes(warmup: CellRecord | None, directory: Path) -> list[str]:
    """The note of a cell whose warm-up was imported: its recipe is not known to be the recorded."""
    if warmup is None:
        return []
    found: Mapping[str, Any] = RunFolder(directory / warmup["id"]).result()
    if "imported" not in found:
        return []
    file, sha256 = found["imported"]["file"], found["imported"]["sha256"][:8]
    return [
        f"the warm-up is that of the published file {file} (SHA-256 {sha256}), trained by others"
    ]


def _learnt(method: Method, file: Path) -> dict[str, Tensor]:
    """The tensors of `warmup_result`, from a file with the right names, shapes and fixed values."""
    names, source = method.published_names()
    wanted = dict(method.warmup_result())
    tensors, _ = chosen_set(read_tensors(file), "", [*names, *source], file)
    check_finite(tensors, file)
    _refuse(file, "lacks", sorted({*names, *source} - set(tensors)), method)
    _refuse(file, "has the unknown", sorted(set(tensors) - {*names, *source}), method)
    shapes = {**{n: wanted[ours].shape for n, ours in names.items()}}
    shapes |= {name: tensor.shape for name, tensor in source.items()}
    odd = [
        f"{name} {list(tensor.shape)} instead of {list(shapes[name])}"
        for name, tensor in tensors.items()
        if tensor.shape != shapes[name]
    ]
    _refuse(file, "has other shapes:", odd, method)
    changed = [name for name, own in source.items() if not _equal(tensors[name], own)]
    _refuse(file, f"belongs to another source model than {method.model.name}:", changed, method)
    found = {ours: tensors[name].to(wanted[ours].dtype) for name, ours in names.items()}
    return found | {RANDOM_STATE: method._rng.clone()}


def _equal(found: Tensor, own: Tensor) -> bool:
    own = own.to("cpu", torch.float64)
    most = float(own.abs().max()) if own.numel() else 0.0
    return torch.allclose(found.double(), own, rtol=0, atol=TOLERANCE * max(most, 1e-12))


def _refuse(file: Path, what: str, names: Sequence[str], method: Method) -> None:
    if names:
        more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
        raise DataError(
            f"{file}: {what} {', '.join(names[:_LISTED])}{more}; it is no warm-up of "
            f"{type(method).__name__} with these hyper-parameters and this source model (see "
            "--preset, --set rank, --set skip_last_blocks, --weights)."
        )
