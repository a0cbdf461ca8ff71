"""The headline metric of a cell: the entry of METRICS that its files name."""

from collections.abc import Mapping

from ctta_bench.record.read import UnusableCellError
from ctta_bench.record.schema import CELL_FILE, RESULT_FILE
from ctta_bench.registry import METRICS
from ctta_bench.scoring.metric import Metric


def metric_names() -> dict[str, str]:
    """The name of the metric of each task."""
    return {task: str(entry.attributes["name"]) for task, entry in METRICS.entries().items()}


def metric_named(name: str) -> Metric:
    """The metric with this name in result.json; UnusableCellError if it is unknown."""
    names = metric_names()
    for task, known in names.items():
        if known == name:
            metric: Metric = METRICS.get(task)()
            return metric
    raise UnusableCellError(
        f"newer: {RESULT_FILE} has the metric {name!r}; this ctta-bench has "
        f"{', '.join(names.values())}"
    )


def metric_of_task(benchmark: Mapping[str, object]) -> str:
    """Name of the metric that a benchmark is scored by, from its section of cell.yaml."""
    names, task = metric_names(), str(benchmark.get("task", "classification"))
    if task not in names:
        raise UnusableCellError(
            f"newer: {CELL_FILE} has the task {task!r}; this ctta-bench has {', '.join(names)}"
        )
    return names[task]
