"""Running steps in this process, one after another; every executor uses this."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from ctta_bench.config.cell import Cell
from ctta_bench.errors import CttaBenchError, RunError
from ctta_bench.launch.steps import Outcome, Step, schedule, write_planned
from ctta_bench.record.folder import RunFolder, check_writable
from ctta_bench.record.owner import BusyError
from ctta_bench.run.engine import run_cell
from ctta_bench.run.export import check_kept
from ctta_bench.run.loggers import Logger
from ctta_bench.run.options import RunOptions
from ctta_bench.run.probe import check_probed
from ctta_bench.run.provenance import Known, check_unchanged
from ctta_bench.run.warmups import run_warmup
from ctta_bench.source_models.shared import Models

MakeLoggers = Callable[[Step], Sequence[Logger]]
OnStep = Callable[[int, Step, str], None]


def run_grid(
    cells: Sequence[Cell],
    directory: Path,
    options: RunOptions,
    *,
    make_loggers: MakeLoggers,
    on_step: OnStep = lambda number, step, state: None,
    models: Models | None = None,
) -> Outcome:
    """Plan the steps of `schedule` under `directory`, and run them with `run_steps`."""
    check_writable(directory)
    steps = schedule(cells)
    write_planned(steps, directory)
    return run_steps(
        steps, directory, options, make_loggers=make_loggers, on_step=on_step, models=models
    )


def run_steps(
    steps: Sequence[Step],
    directory: Path,
    options: RunOptions,
    *,
    make_loggers: MakeLoggers,
    on_step: OnStep = lambda number, step, state: None,
    outcome: Outcome | None = None,
    models: Models | None = None,
) -> Outcome:
    """Run planned steps one after another, each in its folder under `directory`.

    If a step fails, its reason is recorded and the others run; a KeyboardInterrupt ends the grid
    after a checkpoint. `on_step(number, step, state)` gets "running", then a final state: "kept",
    "done", "failed", or "elsewhere" for a cell that another process runs. Final states are recorded
    in `outcome`, which is returned. models: cache with which the cells were resolved.
    """
    outcome = Outcome() if outcome is None else outcome
    models = models or Models(several=True)
    known: Known = {}
    for number, step in enumerate(steps):

        def begins(number: int = number, step: Step = step) -> None:
            on_step(number, step, "running")

        state, reason = run_step(
            step,
            directory,
            options,
            make_loggers=make_loggers,
            begins=begins,
            warmup_failure=outcome.failed.get(step.needs or "", ""),
            models=models,
            known=known,
        )
        outcome.record(step, state, reason)
        on_step(number, step, state)
    return outcome


def run_step(
    step: Step,
    directory: Path,
    options: RunOptions,
    *,
    make_loggers: MakeLoggers,
    begins: Callable[[], None] = lambda: None,
    warmup_failure: str = "",
    models: Models | None = None,
    known: Known | None = None,
) -> tuple[str, str]:
    """Run one step; returns its final state (kept, done, failed, elsewhere) and a reason or "".

    begins: called if the step is not done yet. warmup_failure: why its warm-up failed; the cell is
    not run then, because it would fail, too. known: as for `check_unchanged`.
    """
    folder = RunFolder(directory / step.id)
    try:
        if folder.is_done and not options.force:
            check_done(step, folder, known)
            return "kept", ""
        begins()
        if warmup_failure:
            error = RunError(f"its warm-up {step.needs} failed: {warmup_failure}")
            folder.write_failure(error)
            raise error
        run = run_warmup if step.warms_up else run_cell
        run(step.cell, folder, replace(options, loggers=make_loggers(step)), models=models)
    except BusyError as error:
        return "elsewhere", str(error)
    except CttaBenchError as error:
        return "failed", str(error)
    except Exception as error:  # methods may raise any error; log.txt has the traceback
        return "failed", f"{type(error).__name__}: {error}"
    return "done", ""


def check_done(step: Step, folder: RunFolder, known: Known | None = None) -> None:
    """Raise RunError if a finished step has another configuration, or lacks requested results.

    Likewise if it was run with other plug-ins or data; `known` as for `check_unchanged`.
    """
    folder.check_configuration(step.record)
    check_unchanged(folder, step.cell, warms_up=step.warms_up, known=known)
    if not step.warms_up:
        check_kept(folder, step.cell.request.keep_models)
        check_probed(folder, step.cell.request.probe)
    folder.result()
