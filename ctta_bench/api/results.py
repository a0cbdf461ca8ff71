"""A result: its numbers, frames by domain and by image, picture, summary, and its run folder."""

import contextlib
import functools
import html
import io
import json
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from ctta_bench.api.pictures import Picture, picture
from ctta_bench.errors import ConfigError, RunError
from ctta_bench.record.read import read_cell
from ctta_bench.record.schema import (
    BATCHES_FILE,
    CELL_FILE,
    ENVIRONMENT_FILE,
    OWNER_FILES,
    PREDICTIONS_FILE,
    RESULT_FILE,
    STATE_FILES,
    CellRecord,
    ResultRecord,
)
from ctta_bench.registry import BENCHMARKS, METHODS, METRICS, MODELS
from ctta_bench.scoring.classification import Scores
from ctta_bench.scoring.metric import Metric, printed
from ctta_bench.scoring.segmentation import MapScores

if TYPE_CHECKING:
    import pandas as pd

    from ctta_bench.analysis.read.collect import Runs
    from ctta_bench.analysis.read.error_model import Estimate

_NOT_KEPT = (*OWNER_FILES, *STATE_FILES)


@dataclass(frozen=True, eq=False, repr=False)
class Result:
    """The result of `evaluate`: its numbers, and the files that a run leaves on disk.

        result = ctta_bench.evaluate("tent", "scenes_c", examples=50)
        result.error, result.by_domain  # in %
        result.to_frame()               # one row per round and domain
        result.predictions              # one row per image
        result.plot()                   # errors along the stream
        print(result.summary())         # with 95 % intervals
        result.save("runs/mine")        # a run folder, which `ctta-bench report` reads

    `record` has the keys of result.json, and `notes` and `plugins` of the run; `cell` has those of
    cell.yaml; `scores` has arrays over the images of the stream; `files` are those of the run
    folder.
    """

    record: ResultRecord
    scores: Scores | MapScores
    cell: CellRecord
    files: Mapping[str, bytes] = field(repr=False)

    # -- made from a folder, and written to one

    @classmethod
    def load(cls, folder: Path | str) -> "Result":
        """The result in a finished run folder, or in a folder that has one.

        Example: `Result.load("runs/mine/tent-scenes_c-scenes_vit-seed0-1a2b3c4d").error`

        Raises RunError for a folder without a finished cell, or with several.
        """
        path = Path(folder).expanduser()
        if not (path / CELL_FILE).is_file():
            cells = sorted(found.parent for found in path.glob(f"*/{RESULT_FILE}"))
            cells = [found for found in cells if read_cell(found).get("kind") is None]
            if len(cells) != 1:
                raise RunError(
                    f"{path}: has {len(cells)} finished cells; name the folder of one, or read all "
                    "with ctta_bench.load_results(FOLDER)."
                )
            path = cells[0]
        if not (path / RESULT_FILE).is_file():
            raise RunError(f"{path}: is not finished (it has no {RESULT_FILE}).")
        files = {
            file.name: file.read_bytes()
            for file in sorted(path.iterdir())
            if file.is_file() and file.name not in _NOT_KEPT and not file.name.startswith(".")
        }
        cell, record = read_cell(path), json.loads(files[RESULT_FILE])
        environment = json.loads(files.get(ENVIRONMENT_FILE, b"{}"))
        record |= {"notes": list(cell.get("notes") or ())}
        record |= {"plugins": list(environment.get("plugins") or ())}
        metric = _metric(cell)
        classes = record.get("classes") or ()
        scorer = metric.scorer(len(classes) or 1, tuple(classes))
        return cls(record, scorer.named(_arrays(files)), cell, files)

    def save(self, folder: Path | str, *, force: bool = False) -> Path:
        """Write the run folder below `folder`, and return its path.

        `ctta-bench report FOLDER` and `load_results(FOLDER)` read it. Raises RunError if it is
        there already, unless `force` is given.
        """
        path = Path(folder).expanduser() / self.name
        if path.exists() and not force:
            raise RunError(f"{path}: exists; give another folder, or force=True to replace it.")
        path.mkdir(parents=True, exist_ok=True)
        for name, content in self.files.items():
            (path / name).write_bytes(content)
        return path

    @contextlib.contextmanager
    def _on_disk(self) -> Iterator[Path]:
        with tempfile.TemporaryDirectory() as folder:
            yield self.save(folder)

    # -- what was run

    @property
    def name(self) -> str:
        """The name of the cell."""
        return str(self.cell["id"])

    @property
    def method(self) -> str:
        """The method's registry name."""
        return str(self.cell["method"]["name"])

    @property
    def benchmark(self) -> str:
        """The benchmark's name."""
        return str(self.cell["benchmark"]["name"])

    @property
    def model(self) -> str:
        """The source model's name."""
        return str(self.cell["model"]["name"])

    @property
    def seed(self) -> int:
        """The seed."""
        return int(self.cell["seed"])

    @property
    def hyperparameters(self) -> dict[str, Any]:
        """The hyper-parameters of the method."""
        return dict(self.cell["method"]["hyperparameters"])

    # -- numbers

    @property
    def error(self) -> float:
        """Mean error in % (0 to 100): over domains, then over rounds. For classification.

        Raises ConfigError for another metric.
        """
        return self._mean("error")

    @property
    def accuracy(self) -> float:
        """Mean accuracy in % (0 to 100): 100 minus the error. For classification."""
        return 100 - self.error

    @property
    def miou(self) -> float:
        """Mean mIoU in % (0 to 100): over domains, then over rounds. For segmentation.

        It is nan if no pixel was scored. Raises ConfigError for another metric.
        """
        return self._mean("miou")

    def _mean(self, metric: str) -> float:
        if self.record["metric"] != metric:
            raise ConfigError(
                f"this result has no {metric}: its metric is {self.record['metric']}."
            )
        return float("nan") if self.record["mean"] is None else float(self.record["mean"])

    @property
    def by_domain(self) -> dict[str, float | None]:
        """Error or mIoU in % of each domain in the last round; None if nothing was scored."""
        metric, last = self.record["metric"], self.record["rounds"][-1]
        return {domain["domain"]: domain[metric] for domain in last["domains"]}

    @functools.cached_property
    def interval(self) -> "Estimate":
        """The mean with its 95 % interval (`low`, `high`, `half_width`) for other images.

        docs/analysis.md has the model. One seed says nothing about other seeds.
        """
        from ctta_bench.analysis.read.statistics import mean_estimate

        same = self.record.get("same_images", True)
        with self._on_disk() as folder:
            return mean_estimate([folder], metric=self.record["metric"], same_images=bool(same))

    def to_frame(self) -> "pd.DataFrame":
        """One row per round and domain: images, and every metric and measure in its unit."""
        import pandas as pd

        rows = [
            {"method": self.method, "seed": self.seed, "round": part["round"], **domain}
            for part in self.record["rounds"]
            for domain in part["domains"]
        ]
        return pd.DataFrame(rows)

    @property
    def predictions(self) -> "pd.DataFrame":
        """One row per image, in the order of the stream.

        `round`, `domain`, `index` (its number within the domain) and, for classification,
        `prediction`, `label`, `correct`, `confidence` and the measures of the image. For
        segmentation `pixels`, the number of labelled ones, and the share of them that is `correct`.
        """
        import pandas as pd

        arrays = _arrays(self.files)
        names = np.asarray(self.cell["benchmark"]["domains"], object)
        found: dict[str, Any] = {
            "round": arrays.pop("round"),
            "domain": names[arrays.pop("domain")],
            "index": arrays.pop("index"),
        }
        if isinstance(self.scores, Scores):
            found["correct"] = self.scores.correct
        confusion = arrays.get("confusion")
        if confusion is not None:
            found["pixels"] = pixels = confusion.sum((1, 2))
            right = confusion.diagonal(axis1=1, axis2=2).sum(1)
            found["correct"] = right / np.maximum(pixels, 1)
        return pd.DataFrame(found | {k: v for k, v in arrays.items() if v.ndim == 1})

    @property
    def batches(self) -> "pd.DataFrame":
        """One row per batch: round, domain, number of images, errors, loss, time in ms."""
        import pandas as pd

        lines = self.files[BATCHES_FILE].decode().splitlines()
        return pd.DataFrame([json.loads(line) for line in lines])

    # -- what is shown

    def plot(self, figure: str = "stream") -> Picture:
        """A figure of the report on this result; by default errors along the stream.

        figure: a name of `ctta_bench.registry.FIGURES`. A notebook shows the picture, and
        `.save("stream.pdf")` writes it. Raises ConfigError if these data have no such figure.
        """
        with self._on_disk() as folder:
            return picture(_loaded(folder.parent), figure)

    def summary(self) -> str:
        """A few lines: the mean with its interval, each domain, cost, and what was run."""
        metric, cost = _metric(self.cell), self.record["cost"]
        shown = metric.shown(self.record["mean"])
        half = self.interval.half_width
        if np.isfinite(half) and self.record["mean"] is not None:
            shown = (
                f"{printed(self.interval.mean)} ± {printed(half)} {metric.unit} "
                "(95 % interval, for other images)"
            )
        width = max(map(len, self.by_domain), default=0)
        domains = [f"  {name:{width}}  {metric.shown(v)}" for name, v in self.by_domain.items()]
        accuracy = self.record.get("source_accuracy")
        lines = [
            repr(self),
            f"mean {metric.symbol}: {shown}",
            *domains,
            f"time: {cost['seconds']:.1f} s, {cost['images_per_second']:.0f} images/s; "
            f"{cost['trainable_parameters']:,} adapted values; per image "
            f"{cost['forward_per_image']:.2g} forward and {cost['backward_per_image']:.2g} "
            "backward passes",
            "" if accuracy is None else f"source model on source images: {accuracy:.1f} % right",
            *(f"note: {note}" for note in self.cell.get("notes") or ()),
        ]
        return "\n".join(filter(None, lines))

    def __repr__(self) -> str:
        metric, benchmark = _metric(self.cell), self.cell["benchmark"]
        domains = [f"{k} {metric.shown(v)}" for k, v in self.by_domain.items()]
        more = [f"... ({len(domains)} domains)"] if len(domains) > 5 else []
        values = ", ".join(f"{k}={v}" for k, v in self.hyperparameters.items() if v is not None)
        return "\n".join(
            [
                f"Result: {METHODS.display_name(self.method)} on "
                f"{BENCHMARKS.display_name(self.benchmark)}, {MODELS.display_name(self.model)}, "
                f"seed {self.seed}",
                f"  mean {metric.symbol} {metric.shown(self.record['mean'])}",
                f"  {', '.join([*domains[:5], *more])}",
                f"  {benchmark['setting']}, batches of {benchmark['batch_size']}, "
                f"{len(self.scores.index)} images, {self.record['cost']['seconds']:.1f} s",
                f"  {shortened(values)}" if values else "  no hyper-parameters",
            ]
        )

    def _repr_html_(self) -> str:
        shown = self.to_frame().drop(columns=["method", "seed"]).dropna(axis=1, how="all")
        plain = shown[[c for c in shown if not isinstance(shown[c].iloc[0], list)]]
        table = plain.round(2).to_html(index=False)
        return f'<pre style="white-space: pre-wrap">{html.escape(repr(self))}</pre>{table}'


def load_results(folder: Path | str) -> list[Result]:
    """The results of all finished cells at most three levels below a folder, sorted by name.

    Example: `compare(*load_results("runs/quickstart"))`
    """
    from ctta_bench.record.find import find_cells

    found, _ = find_cells(Path(folder).expanduser())
    done = [cell for cell in found if (cell / RESULT_FILE).is_file()]
    return [Result.load(cell) for cell in sorted(done) if read_cell(cell).get("kind") is None]


def shortened(text: str, width: int = 88) -> str:
    """A text of at most `width` characters."""
    return text if len(text) <= width else f"{text[: width - 4]} ..."


def _metric(cell: CellRecord) -> Metric:
    return cast(Metric, METRICS.get(str(cell["benchmark"].get("task", "classification")))())


def _arrays(files: Mapping[str, bytes]) -> dict[str, np.ndarray]:
    with np.load(io.BytesIO(files[PREDICTIONS_FILE]), allow_pickle=False) as stored:
        return dict(stored)


def _loaded(folder: Path) -> "Runs":
    from ctta_bench.analysis.read.collect import load

    return load(folder)
