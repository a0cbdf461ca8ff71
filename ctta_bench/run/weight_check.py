"""Whether a file holds the weights of a published source model: right, wrong or unknown."""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ctta_bench.errors import DataError
from ctta_bench.registry import BENCHMARKS
from ctta_bench.run.open import HELD_OUT_TIMES, scorer_of, source_accuracy
from ctta_bench.source_models.pretrained import load_source_model, stored_weights
from ctta_bench.stream import Benchmark

DEVIATIONS = 4  # of a measured accuracy, within which it is the expected one
UNKNOWN = "unknown"


@dataclass(frozen=True)
class WeightCheck:
    """The verdict on weights, and what it is based on, in sentences."""

    verdict: Literal["right", "wrong", "unknown"]
    findings: tuple[str, ...]


def check_weights(
    name: str, facts: Mapping[str, str], *, weights: Path | None = None, root: Path | None = None
) -> WeightCheck:
    """Compare weights with what is known of a published source model.

    facts: of the model in datasets/checkpoints.yaml (`ctta-bench models list`). The fingerprint
    decides if it is known. Else the weights are wrong if they do not fit the network, are near
    chance on source images or far from the expected clean accuracy; right if they have that
    accuracy; unknown if there are no images or no expected accuracy.

    Raises DataError if there are no weights at all.
    """
    stored = weights or stored_weights(name, root)
    file = Path(str(stored).partition("#")[0]) if stored else None
    expected = str(facts.get("sha256", UNKNOWN))
    if file is not None and file.is_file() and not expected.startswith(UNKNOWN):
        is_same = hashlib.sha256(file.read_bytes()).hexdigest() == expected
        found = "equal to" if is_same else "not"
        return WeightCheck(
            "right" if is_same else "wrong", (f"its SHA-256 is {found} the published one",)
        )
    try:
        model = load_source_model(name, weights=weights, root=root)
    except DataError as error:
        if file is None or not file.exists():
            raise
        return WeightCheck("wrong", (f"does not fit the network: {error}",))
    findings = ["fits the network in every name and shape", "no fingerprint is published"]
    benchmark = _benchmark_of(name, root)
    try:
        accuracy = None if benchmark is None else source_accuracy(benchmark, model.eval())
    except DataError as error:
        return WeightCheck("wrong", (*findings, str(error)))
    if benchmark is None or accuracy is None:
        return WeightCheck("unknown", (*findings, "there are no source images to test it on"))
    findings.append(f"{accuracy:.1f} % right on source images of {benchmark.name}")
    wanted = re.match(r"[\d.]+", str(facts.get("clean", "")))
    held_out = source_accuracy(benchmark, model, held_out=True) if wanted else None
    if wanted is None or held_out is None:
        findings.append("its clean accuracy is not published, or there are no test images")
        return WeightCheck("unknown", tuple(findings))
    clean = float(wanted[0])
    images = HELD_OUT_TIMES * scorer_of(benchmark).num_check_images
    allowed = DEVIATIONS * (clean * (100 - clean) / images) ** 0.5
    findings.append(f"{held_out:.1f} % on clean test images, {clean} % is published")
    is_close = abs(held_out - clean) <= allowed
    return WeightCheck("right" if is_close else "wrong", tuple(findings))


def _benchmark_of(name: str, root: Path | None) -> Benchmark | None:
    """The first benchmark whose source model this is."""
    for known, entry in BENCHMARKS.entries().items():
        if entry.attributes.get("default_model") == name:
            benchmark: Benchmark = BENCHMARKS.get(known)(None, root)
            return benchmark
    return None
