"""Run methods on benchmarks from Python: one cell, or all of a grid."""

import contextlib
import itertools
import multiprocessing
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import nn

from ctta_bench.api.cells import MethodLike, cell_of, class_of, method_name
from ctta_bench.api.comparing import Comparison, compare, report
from ctta_bench.api.progress import Bar, Callback, Callbacks, is_shown
from ctta_bench.api.results import Result
from ctta_bench.errors import ConfigError, CttaBenchError
from ctta_bench.method import Method, Precision
from ctta_bench.record.folder import RunFolder
from ctta_bench.registry import METHODS
from ctta_bench.run.checkpoint import DEFAULT_INTERVAL
from ctta_bench.run.engine import run_cell
from ctta_bench.run.environment import chosen_device
from ctta_bench.run.loggers import Logger
from ctta_bench.run.options import RunOptions
from ctta_bench.source_models.shared import Models

if TYPE_CHECKING:
    import pandas as pd

_NO_CHECKPOINTS = "99999999s"


def evaluate(
    method: MethodLike,
    benchmark: Any,
    *,
    model: str | nn.Module | None = None,
    seed: int = 0,
    preset: str = "default",
    precision: Precision = "float32",
    window: int = 0,
    out: Path | str | None = None,
    force: bool = False,
    root: Path | str | None = None,
    weights: Path | str | None = None,
    device: str | None = None,
    workers: int = 0,
    progress: bool | None = None,
    callbacks: Callback | Sequence[Callback] = (),
    loggers: Sequence[Logger] = (),
    near_chance: Literal["refuse", "accept"] = "refuse",
    probe: Literal["none", "rounds", "domains"] = "none",
    keep_models: Literal["none", "last", "domains"] = "none",
    **settings: Any,
) -> Result:
    """Run a method on the stream of a benchmark, and return its result.

        evaluate("tent", "scenes_c", examples=100, lr=1e-3)
        evaluate("tent", (images, labels), model=network).accuracy
        evaluate("cotta", "scenes_c", out="runs/mine")  # resumes if called again
        evaluate(load_method("tent", model), load_benchmark("scenes_c"))

    Args:
        method: a registered name (`list_methods()`), a class, or a method that is built and has not
            been run, which is changed.
        benchmark: a name, a Benchmark, or data as `load_benchmark` takes them.
        model: the source model: a name, or a module with its weights, which is not changed. By
            default that of the benchmark.
        seed: chooses the order of the images, and seeds the method.
        preset: the hyper-parameters that `settings` do not set: "default", "paper", "code", another
            that `describe(NAME).presets` has, or a file of `ctta-bench tune`.
        precision: "float64", "float32", "bfloat16" or "float16".
        window: images that are gathered before an update (single-image streams); 0 for none.
        out: a folder of runs. The run folder is written there, with checkpoints; an interrupted
            run resumes, a finished one is read. By default nothing stays on disk but statistics of
            source images, in the cache.
        force: run again what is in `out` already.
        root, weights: folder of data sets, and file of weights, for names.
        device: "cpu", "cuda", "cuda:1"; by default a GPU if there is one.
        workers: processes that load images in advance; 0 loads in this process.
        progress: show a bar; by default in notebooks and terminals.
        callbacks: called after each batch with its line: `batch`, `round`, `domain`, `n`, `errors`,
            `loss`, `ms`.
        loggers: receive all events of the run.
        near_chance: "accept" runs a model that is near chance on source images; a note of the
            result then says so.
        probe, keep_models: as the options of `ctta-bench run`; kept models need `out`.
        settings: hyper-parameters of the method (`describe(NAME)` has them) and settings of the
            stream, as in `load_benchmark`: lr=1e-3, batch_size=10, domains=["fog"].

    Raises ConfigError for an unknown name or key, DataError if data are missing, if model and
    benchmark have different classes, or if the model is near chance on source images, MethodError
    if the method does not support the model.
    """
    request = {
        "seed": seed,
        "preset": preset,
        "precision": precision,
        "window": window,
        "data_root": root,
        "weights": weights,
        "workers": workers,
        "near_chance": near_chance,
        "probe": probe,
        "keep_models": keep_models,
        "experiment": "runs" if out is None else Path(out).expanduser().resolve().name,
    }
    if keep_models != "none" and out is None:
        raise ConfigError("keep_models: adapted networks are stored in a run folder; give out=.")
    models = Models()
    cell = cell_of(method, benchmark, model, request, settings, models)
    if isinstance(method, Method):
        device = str(method.device)
    named = f"{METHODS.display_name(cell.request.method)} on {cell.request.benchmark}"
    functions = [callbacks] if callable(callbacks) else list(callbacks)
    options = RunOptions(
        device=chosen_device(device),
        force=force,
        loggers=[
            *loggers,
            *([Callbacks(functions)] if functions else []),
            *([Bar(named)] if is_shown(progress) else []),
        ],
        checkpoint=_NO_CHECKPOINTS if out is None else DEFAULT_INTERVAL,
    )
    with contextlib.ExitStack() as stack:
        folder = out or stack.enter_context(tempfile.TemporaryDirectory())
        path = Path(folder).expanduser() / cell.id
        run_cell(cell, RunFolder(path), options, models=models)
        return Result.load(path)


class Results(list[Result]):
    """The results of `evaluate_many`, in the order of the grid.

    failures: why a cell has no result, by its name in words.
    """

    def __init__(self, results: Iterable[Result] = (), failures: Mapping[str, str] | None = None):
        super().__init__(results)
        self.failures = dict(failures or {})

    def to_frame(self) -> "pd.DataFrame":
        """One row per result: method, benchmark, model, seed, mean metric, seconds, values."""
        import pandas as pd

        return pd.DataFrame(
            {
                "method": result.method,
                "benchmark": result.benchmark,
                "model": result.model,
                "seed": result.seed,
                result.record["metric"]: result.record["mean"],
                "seconds": result.record["cost"]["seconds"],
                "hyperparameters": result.hyperparameters,
            }
            for result in self
        )

    def compare(self) -> Comparison:
        """The methods next to each other; see `compare`."""
        return compare(*self)

    def report(self, out: Path | str = "report") -> Path:
        """Write the report's page; see `report`."""
        return report(self, out)

    def __repr__(self) -> str:
        shown = self.to_frame().drop(columns="hyperparameters").round(2).to_string() if self else ""
        failed = [f"failed: {name}: {why}" for name, why in self.failures.items()]
        return "\n".join([f"{len(self)} results", *([shown] if shown else []), *failed])

    def _repr_html_(self) -> str:
        failed = "".join(f"<p>failed: {name}: {why}</p>" for name, why in self.failures.items())
        frame = self.to_frame().drop(columns="hyperparameters") if self else None
        return ("" if frame is None else frame.round(2).to_html(index=False)) + failed


def evaluate_many(
    methods: Iterable[MethodLike] | Mapping[str, Mapping[str, Any]],
    benchmarks: Any,
    *,
    models: str | nn.Module | Iterable[str | nn.Module | None] = (None,),
    seeds: int | Iterable[int] = (0,),
    jobs: int = 1,
    out: Path | str | None = None,
    progress: bool | None = None,
    **settings: Any,
) -> Results:
    """Run every method on every benchmark, with every model and seed.

        results = evaluate_many(["source", "tent"], "scenes_c", seeds=range(3), examples=50)
        results.compare()
        evaluate_many({"tent": {"lr": 1e-3}, "cotta": {}}, ["scenes_c"], out="runs/mine")

    Args:
        methods: names or classes, or a mapping of names to their own hyper-parameters.
        benchmarks: one, or a list of them, in the forms that `evaluate` takes.
        models: one source model or several; None: the benchmark's own.
        seeds: one or several.
        jobs: processes of one thread each; more than one needs the CPU and a system with fork
            (Linux).
        out: a folder of runs, where an interrupted grid resumes; by default nothing stays on disk.
        progress: show a bar for each cell; by default in notebooks and terminals, with one job.
        settings: further arguments of `evaluate`, for all.

    A hyper-parameter is given to the methods that have it. A cell that fails does not stop the
    others: `failures` of the result has the reasons.
    """
    if isinstance(methods, str | type | Method | nn.Module):
        methods = [methods]  # a network is refused below
    models = [models] if isinstance(models, str | nn.Module) else models
    seeds = [seeds] if isinstance(seeds, int) else seeds
    built = [one for one in methods if isinstance(one, Method)]
    if built:
        raise ConfigError(
            f"evaluate_many: {built[0].title} is built on a model, which one run changes; give its "
            "name or its class."
        )
    own = methods if isinstance(methods, Mapping) else {method: {} for method in methods}
    for method in own:
        class_of(method)  # a misspelt one fails before the first cell runs
    several = benchmarks if isinstance(benchmarks, list) else [benchmarks]
    product = itertools.product(own.items(), several, list(models), list(seeds))
    tasks = {
        _label(method, benchmark, model, seed): partial(
            evaluate,
            method,
            benchmark,
            model=model,
            seed=seed,
            out=out,
            progress=progress if jobs == 1 else False,
            **{**_of_method(settings, method, own), **values},
        )
        for (method, values), benchmark, model, seed in product
    }
    finished = map(_outcome, tasks.values()) if jobs == 1 else _in_processes(tasks, jobs)
    outcomes = dict(zip(tasks, finished, strict=True))
    return Results(
        [found for found in outcomes.values() if isinstance(found, Result)],
        {name: found for name, found in outcomes.items() if isinstance(found, str)},
    )


def _of_method(
    settings: Mapping[str, Any], method: MethodLike, methods: Iterable[MethodLike]
) -> dict[str, Any]:
    """The settings without hyper-parameters that only other methods of the grid have."""
    keys = {one: set(class_of(one).Hyperparameters.model_fields) for one in methods}
    others = set().union(*keys.values()) - keys[method]
    return {key: value for key, value in settings.items() if key not in others}


def _label(method: Any, benchmark: Any, model: Any, seed: int) -> str:
    parts = [method if isinstance(method, str) else method_name(method)]
    parts.append(benchmark if isinstance(benchmark, str) else getattr(benchmark, "name", "data"))
    if model is not None:
        parts.append(
            model if isinstance(model, str) else getattr(model, "name", type(model).__name__)
        )
    return f"{' on '.join(parts[:2])}{f', {parts[2]}' if parts[2:] else ''}, seed {seed}"


def _outcome(task: Callable[[], Result]) -> Result | str:
    try:
        return task()
    except CttaBenchError as error:
        return str(error)


_tasks: list[Callable[[], Result]] = []  # of the grid that forked workers share


def _in_processes(tasks: Mapping[str, Callable[[], Result]], jobs: int) -> list[Result | str]:
    """The outcomes of tasks in forked processes, which need no copy of models and data."""
    if "fork" not in multiprocessing.get_all_start_methods() or torch.cuda.is_initialized():
        raise ConfigError(
            "jobs: several processes need a system with fork and no GPU; give jobs=1."
        )
    _tasks[:] = tasks.values()
    try:
        context = multiprocessing.get_context("fork")
        # One thread each: OpenMP does not survive a fork.
        with ProcessPoolExecutor(jobs, context, torch.set_num_threads, (1,)) as pool:
            return list(pool.map(_numbered, range(len(tasks))))
    finally:
        _tasks.clear()


def _numbered(number: int) -> Result | str:
    return _outcome(_tasks[number])
