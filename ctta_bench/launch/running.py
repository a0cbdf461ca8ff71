"""Running steps in this process, one after another: what every executor does in the end."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ctta_bench.config.cell import Cell
from ctta_bench.errors import CttaBenchError, RunError
from ctta_bench.launch.steps import Outcome, Step, lay_down, schedule
from ctta_bench.record.folder import RunFolder, check_writable
from ctta_bench.record.owner import BusyError
from ctta_bench.run.checkpoint import DEFAULT_INTERVAL, parse_interval
from ctta_bench.run.engine import run_cell
from ctta_bench.run.export import check_kept
from ctta_bench.run.loggers import Logger
from ctta_bench.run.probe import check_probed
from ctta_bench.run.warmups import run_warmup


def run_grid(
    cells: Sequence[Cell],
    directory: Path,
    *,
    device: str,
    force: bool = False,
    checkpoint: str = DEFAULT_INTERVAL,
    make_loggers: Callable[[Step], Sequence[Logger]],
    on_step: Callable[[int, Step, str], None] = lambda number, step, state: None,
) -> Outcome:
    """Run the steps of `schedule` one after another, each in its folder under `directory`.

    A step that fails keeps its reason and the others go on; KeyboardInterrupt ends the grid after
    a checkpoint. `on_step(number, step, state)` is told "running", "kept", "done", "failed", or
    "elsewhere" for a cell that another process has.
    """
    check_writable(directory)
    steps = schedule(cells)
    lay_down(steps, directory)
    return run_steps(
        steps,
        directory,
        device=device,
        force=force,
        checkpoint=checkpoint,
        make_loggers=make_loggers,
        on_step=on_step,
    )


def run_steps(
    steps: Sequence[Step],
    directory: Path,
    *,
    device: str,
    force: bool,
    checkpoint: str = DEFAULT_INTERVAL,
    make_loggers: Callable[[Step], Sequence[Logger]],
    on_step: Callable[[int, Step, str], None] = lambda number, step, state: None,
    outcome: Outcome | None = None,
) -> Outcome:
    """Run steps that are laid down, one after another, as `run_grid` says.

    What becomes of them is entered in `outcome`, where there is one.
    """
    outcome = Outcome() if outcome is None else outcome
    for number, step in enumerate(steps):

        def begins(number: int = number, step: Step = step) -> None:
            on_step(number, step, "running")

        why_not = "" if step.needs is None else outcome.failed.get(step.needs, "")
        state, reason = run_step(
            step,
            directory,
            device=device,
            force=force,
            checkpoint=checkpoint,
            make_loggers=make_loggers,
            begins=begins,
            warmup_failure=why_not,
        )
        outcome.note(step, state, reason)
        on_step(number, step, state)
    return outcome


def run_step(
    step: Step,
    directory: Path,
    *,
    device: str,
    force: bool,
    checkpoint: str = DEFAULT_INTERVAL,
    make_loggers: Callable[[Step], Sequence[Logger]],
    begins: Callable[[], None] = lambda: None,
    warmup_failure: str = "",
) -> tuple[str, str]:
    """Run one step: its state (kept, done, failed, elsewhere), and the reason for the last two.

    `checkpoint` as `checkpoint.parse_interval` reads it: `20s`, or batches. `begins` is called
    before one that is not done. `warmup_failure` says why the warm-up that it
    starts from failed: such a cell is left alone, it would only fail again.
    """
    folder = RunFolder(directory / step.id)
    try:
        if folder.is_done and not force:
            check_done(step, folder)
            return "kept", ""
        begins()
        if warmup_failure:
            error = RunError(f"its warm-up {step.needs} failed: {warmup_failure}")
            folder.write_failure(error)
            raise error
        seconds, count = parse_interval(checkpoint)
        options: dict[str, Any] = {
            "device": device,
            "force": force,
            "loggers": make_loggers(step),
            "checkpoint_seconds": seconds,
        }
        if step.warms_up:
            run_warmup(step.cell, folder, checkpoint_updates=count, **options)
        else:
            run_cell(step.cell, folder, checkpoint_batches=count, **options)
    except BusyError as error:
        return "elsewhere", str(error)
    except CttaBenchError as error:
        return "failed", str(error)
    except Exception as error:  # a method may raise anything; the folder's log has the traceback
        return "failed", f"{type(error).__name__}: {error}"
    return "done", ""


def check_done(step: Step, folder: RunFolder) -> None:
    """Raise RunError if a finished step is another one, damaged, or lacks the models asked for."""
    folder.check_configuration(step.record)
    if not step.warms_up:
        check_kept(folder, step.cell.request.keep_models)
        check_probed(folder, step.cell.request.probe)
    folder.result()
