"""What a headline metric is: its names, its good direction, and what batches count for it."""

from collections.abc import Mapping
from dataclasses import dataclass

from ctta_bench.record.read import UnusableCellError
from ctta_bench.record.schema import CELL_FILE, RESULT_FILE

CLASS_PREFIX = "iou/"  # of the metric of one class: `iou/road`


@dataclass(frozen=True)
class Metric:
    """A metric in % by which a group of cells is compared.

    name: in result.json and results.csv. symbol: in print. mistakes: what the `errors` of a batch
    are; of: the key of batches.jsonl that counts of how many. check: what the source model was
    checked by on its own domain, `source_accuracy`.
    """

    name: str
    symbol: str
    higher_is_better: bool
    mistakes: str
    of: str
    check: str

    @property
    def text(self) -> str:
        """With its unit and good direction, for axes and captions."""
        direction = "higher" if self.higher_is_better else "lower"
        return f"{self.symbol} in % ({direction} is better)"

    @property
    def superlative(self) -> str:
        """`lowest error`."""
        return f"{'highest' if self.higher_is_better else 'lowest'} {self.symbol}"

    @property
    def gain_text(self) -> str:
        """How `gain` is computed."""
        return "method minus source" if self.higher_is_better else "source minus method"

    @property
    def sign_of_better(self) -> str:
        """The sign of method minus source where the method is better."""
        return "positive" if self.higher_is_better else "negative"

    @property
    def ascending(self) -> int:
        """1 or -1: the factor that makes the best value the smallest."""
        return -1 if self.higher_is_better else 1

    def gain(self, source: float, value: float) -> float:
        """Points that `value` is better than `source`; negative where it is worse."""
        return self.ascending * (source - value)


METRICS: Mapping[str, Metric] = {
    metric.name: metric
    for metric in (
        Metric("error", "error", False, mistakes="error", of="n", check="accuracy"),
        Metric("miou", "mIoU", True, mistakes="wrong pixels", of="pixels", check="pixel accuracy"),
    )
}
METRIC_OF_TASK: Mapping[str, str] = {"classification": "error", "segmentation": "miou"}


def metric_named(name: str) -> Metric:
    """The metric with this name in result.json; UnusableCellError for one that is not known."""
    if name not in METRICS:
        raise UnusableCellError(
            f"newer: {RESULT_FILE} has the metric {name!r}; this ctta-bench knows "
            f"{', '.join(METRICS)}"
        )
    return METRICS[name]


def metric_of_task(benchmark: Mapping[str, object]) -> str:
    """Name of the metric that a benchmark is scored by, from its section of cell.yaml."""
    task = str(benchmark.get("task", "classification"))
    if task not in METRIC_OF_TASK:
        raise UnusableCellError(
            f"newer: {CELL_FILE} has the task {task!r}; this ctta-bench knows "
            f"{', '.join(METRIC_OF_TASK)}"
        )
    return METRIC_OF_TASK[task]
