"""Metrics: each declares how a task is scored, for the engine, the record and the analysis.

A metric is an entry of METRICS under the name of its task. This module does not need torch; the
metric's `scorer`, which scores logits on their device, is loaded by the engine only.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from decimal import ROUND_HALF_UP, Decimal
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from ctta_bench.errors import RunError
from ctta_bench.record.schema import CELL_FILE, PREDICTIONS_FILE

Array = npt.NDArray[Any]
Arrays = dict[str, Array]
Key = tuple[int, str]  # round, domain
COLLAPSE_SHARE = 0.9  # share of the predictions in one class that counts as collapsed
_NO_DECIMALS = 1e15  # a number of this size has no decimals
EQUAL_DECIMALS = 9  # values that agree to so many decimals are equal
DOMINANT_LABEL_SHARE = 0.5  # with a class of this share of labels, no prediction is collapsed


class Count(NamedTuple):
    """Counts of a domain in a round.

    n: number of images. errors: wrong images, or wrong pixels in segmentation. recorded: name and
    value of a count in result.json. classes: number of classes among the labels. collapsed: see
    `is_collapsed`. values: metrics at full precision, None if there is nothing to score.
    """

    n: int
    errors: int
    recorded: tuple[str, int]
    classes: int
    collapsed: bool
    values: dict[str, float | None]


class Metric:
    """The headline metric of a task: a mean over images, unless a subclass sums up otherwise.

    name: in result.json and results.csv. symbol: in tables and figures. errors_text: what the
    `errors` of a batch are; count_key: the key of batches.jsonl with their number of images or
    pixels. check: the measure of `source_accuracy`, the check of the source model on source images.
    unit, decimals: of printed values. factor: what an image's value is multiplied by, 100 for a
    share in %. arrays: the arrays of predictions.npz that it is recomputed from, with their numbers
    of axes. missing_note: what a table says where domains lack classes. from_sums: computed from
    sums over images (mIoU), not a mean over images.
    """

    name: ClassVar[str]
    symbol: ClassVar[str]
    higher_is_better: ClassVar[bool] = False
    errors_text: ClassVar[str]
    count_key: ClassVar[str] = "n"
    check: ClassVar[str] = "accuracy"
    unit: ClassVar[str] = "%"
    decimals: ClassVar[int] = 1
    factor: ClassVar[float] = 100
    arrays: ClassVar[Mapping[str, int]]
    missing_note: ClassVar[str] = ""
    from_sums: ClassVar[bool] = False

    def scorer(self, num_classes: int, class_names: Sequence[str]) -> Any:
        """The `scoring.base.Scorer` for the logits of a benchmark's batches."""
        raise NotImplementedError

    def image_values(self, arrays: Mapping[str, Array]) -> Array:
        """Values [n] whose mean is the metric: whether an image is wrong, its distance, ..."""
        raise NotImplementedError

    def entry_of(self, arrays: Mapping[str, Array], rows: Array) -> dict[str, Any]:
        """The entry of result.json for the images `rows` of a domain in a round."""
        mean = self.factor * float(self.image_values(arrays)[rows].mean(dtype=np.float64))
        return {"n": len(rows), self.name: mean}

    def rounds_of(
        self,
        arrays: Mapping[str, Array],
        domains: Sequence[str],
        severity: Array | None = None,
    ) -> list[dict[str, Any]]:
        """The `rounds` of result.json; means are over the domains with a value.

        severity: int8 [n]; with several of them each round also has the mean at each.
        """
        graded = severity is not None and len(np.unique(severity)) > 1
        rounds = []
        for number in np.unique(arrays["round"]):
            by_domain = []
            for d, name in enumerate(domains):
                rows = np.flatnonzero((arrays["round"] == number) & (arrays["domain"] == d))
                if len(rows):
                    by_domain.append({"domain": name, **self.entry_of(arrays, rows)})
            means = [entry[self.name] for entry in by_domain if entry[self.name] is not None]
            mean = float(np.mean(means)) if means else None
            rounds.append({"round": int(number), "mean": mean, "domains": by_domain})
            if graded and severity is not None:
                chosen = arrays["round"] == number
                rounds[-1]["severities"] = self._severities(arrays, chosen, severity)
        return rounds

    def _severities(
        self, arrays: Mapping[str, Array], chosen: Array, severity: Array
    ) -> list[dict[str, Any]]:
        """The mean over domains at each severity, over all visits of the chosen images [n]."""
        values = None if self.from_sums else self.image_values(arrays)
        found = []
        for level in np.unique(severity[chosen]).tolist():
            here = chosen & (severity == level)
            parts = [here & (arrays["domain"] == d) for d in np.unique(arrays["domain"][here])]
            means = [
                self.entry_of(arrays, np.flatnonzero(part))[self.name]
                if values is None
                else self.factor * float(values[part].mean(dtype=np.float64))
                for part in parts
            ]
            known = [mean for mean in means if mean is not None]
            mean = float(np.mean(known)) if known else None
            found.append({"severity": level, "n": int(here.sum()), "mean": mean})
        return found

    def count(
        self, arrays: Mapping[str, Array], domains: Sequence[str], result: Mapping[str, Any]
    ) -> dict[Key, Count]:
        """Counts of each round and domain, recomputed from predictions.npz.

        arrays: those of the metric, with `domain` and `round`. Raises RunError if they contradict
        `domains` or the result.
        """
        counts = {}
        for step, position, name in visits(arrays["round"], arrays["domain"], domains):
            rows = np.flatnonzero((arrays["round"] == step) & (arrays["domain"] == position))
            value = self.entry_of(arrays, rows)[self.name]
            errors = int(np.count_nonzero(self.image_values(arrays)[rows]))
            counts[step, name] = Count(
                len(rows), errors, ("n", len(rows)), 0, False, {self.name: value}
            )
        return counts

    def micro_mean(self, arrays: Mapping[str, Array], counts: Mapping[Key, Count]) -> float | None:
        """The metric over all images at once, whatever their domain and round.

        The headline mean is over domains instead. None if there is nothing to score.
        """
        if self.from_sums:
            value: float | None = self.entry_of(arrays, np.arange(len(arrays["round"])))[self.name]
            return value
        scored = [(count.n, count.values[self.name]) for count in counts.values()]
        sums = [n * value for n, value in scored if value is not None]
        images = sum(n for n, value in scored if value is not None)
        return math.fsum(sums) / images if images else None

    @property
    def text(self) -> str:
        """The symbol with its unit and which direction is better, for axes and captions."""
        direction = "higher" if self.higher_is_better else "lower"
        return f"{self.symbol} in {self.unit} ({direction} is better)"

    @property
    def head(self) -> str:
        """The head of a table: `error %`."""
        return f"{self.symbol} {self.unit}"

    @property
    def superlative(self) -> str:
        """The name of the best value: `lowest error`."""
        return f"{'highest' if self.higher_is_better else 'lowest'} {self.symbol}"

    @property
    def gain_text(self) -> str:
        """How `gain` is computed, for captions."""
        return "method minus source" if self.higher_is_better else "source minus method"

    @property
    def sign_of_better(self) -> str:
        """The sign of method minus source if the method is better, for captions."""
        return "positive" if self.higher_is_better else "negative"

    @property
    def ascending(self) -> int:
        """1 or -1: the factor with which the best value is the smallest."""
        return -1 if self.higher_is_better else 1

    def gain(self, source: float, value: float) -> float:
        """How much better `value` is than `source`, in points; negative if it is worse."""
        return self.ascending * (source - value)

    def shown(self, value: float | None, decimals: int | None = None) -> str:
        """A value as text: `12.3 %`, or `n/a` if there is nothing to score."""
        if value is None:
            return "n/a"
        return f"{printed(value, self.decimals if decimals is None else decimals)} {self.unit}"


def printed(value: float, decimals: int = 1) -> str:
    """A number with so many decimals, halves away from zero; never `-0.0`.

    It is rounded to 9 decimals first, so that equal numbers from different sums print equally:
    12.35 and 12.349999999999998 are both `12.4`.
    """
    if not abs(value) < _NO_DECIMALS:  # also NaN
        return f"{value:.{decimals}f}"
    exact = Decimal(repr(round(float(value), EQUAL_DECIMALS)))
    rounded = exact.quantize(Decimal(1).scaleb(-decimals), ROUND_HALF_UP)
    return str(abs(rounded) if rounded == 0 else rounded)


def visits(round_: Array, domain: Array, domains: Sequence[str]) -> Iterator[tuple[int, int, str]]:
    """Round, number and name of each domain with images. Raises RunError for one without name."""
    check_domains(domain, domains)
    for step, position in np.unique(np.stack([round_, domain], axis=1), axis=0).tolist():
        yield step, position, str(domains[position])


def check_domains(domain: Array, domains: Sequence[str]) -> None:
    """Raise RunError for a domain [n] that has no name."""
    if len(domain) and not 0 <= domain.min() <= domain.max() < len(domains):
        raise RunError(f"contradictory: {PREDICTIONS_FILE} has domains that {CELL_FILE} lacks")


def is_collapsed(predicted: Array, labelled: Array) -> npt.NDArray[np.bool_]:
    """Whether most predictions have one class although labels do not; counts by class [..., C]."""
    total = predicted.sum(-1)
    in_one = (total > 0) & (predicted.max(-1) >= COLLAPSE_SHARE * total)
    mixed = labelled.max(-1) < DOMINANT_LABEL_SHARE * labelled.sum(-1)
    return np.asarray(in_one & mixed)
