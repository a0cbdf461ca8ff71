"""The forgetting probe: accuracy on source images before, during and after the stream.

It is measured on training images, and on held-out ones if the benchmark has any.
"""

import json
from collections.abc import Mapping
from typing import Any, Final, Literal

from ctta_bench.errors import DataError, RunError
from ctta_bench.method import Method
from ctta_bench.record.folder import RunFolder
from ctta_bench.record.schema import BATCHES_FILE, RESULT_FILE
from ctta_bench.run.checkpoint import Progress
from ctta_bench.run.open import OpenCell, accuracy_on_source

Probe = Literal["none", "rounds", "domains"]
KEY: Final = "source_probes"  # in result.json


class ForgettingProbe:
    """Scores source images with the current state of a method, and restores this state afterwards.

    The cell's option `probe` decides when: at the end of each round ("rounds") or domain
    ("domains"), and before the stream in both cases. total: batches of the stream; all rounds have
    the same number. Raises DataError if the benchmark has no source images with the model's labels.
    """

    def __init__(self, opened: OpenCell, method: Method, total: int) -> None:
        self.benchmark, self.method = opened.benchmark, method
        self.when: Probe = opened.cell.request.probe
        self.per_round = total // opened.cell.settings.rounds

    def before_stream(self, progress: Progress) -> None:
        """Score before the first batch, unless the run was resumed."""
        if self.when != "none" and not progress.lines and not progress.probes:
            self._measure(progress)

    def domain_ended(self, progress: Progress) -> None:
        """Score at the end of a domain or a round, as the cell's option requests."""
        ends_round = len(progress.lines) % self.per_round == 0
        if self.when == "domains" or (self.when == "rounds" and ends_round):
            self._measure(progress)

    def _measure(self, progress: Progress) -> None:
        state = self.method.state_dict()
        accuracy = accuracy_on_source(self.benchmark, self.method)
        self.method.load_state_dict(state)  # predicting may change statistics or a memory
        held_out = accuracy_on_source(self.benchmark, self.method, held_out=True)
        self.method.load_state_dict(state)
        if accuracy is None and held_out is None:
            raise DataError(
                "probe: this benchmark has no source images with labels of the model's classes; "
                "run the cell without --probe."
            )
        last: Mapping[str, Any] = progress.lines[-1] if progress.lines else {}
        progress.probes.append(
            {
                "batches": len(progress.lines),
                "round": last.get("round"),
                "domain": last.get("domain"),
                "accuracy": accuracy,
                "held_out_accuracy": held_out,
            }
        )


def check_probed(folder: RunFolder, probe: Probe) -> None:
    """Raise RunError if a finished cell lacks the probes that are now requested."""
    if probe == "none":
        return
    found = json.loads(folder.file(RESULT_FILE).read_text("utf-8")).get(KEY) or []
    lines = folder.file(BATCHES_FILE).read_text("utf-8").splitlines()
    visits = {(line["round"], line["domain"]) for line in map(json.loads, lines)}
    wanted = len(visits) if probe == "domains" else len({step for step, _ in visits})
    if len(found) <= wanted:  # one more, before the stream
        raise RunError(
            f"{folder.path}: is done, but without the accuracies on source images of --probe "
            f"{probe}; rerun it with --force to measure them."
        )
