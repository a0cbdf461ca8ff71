"""SourceModel, one interface for all networks that methods adapt: images in [0, 1] to logits."""

from ctta_bench.model.preprocessing import Preprocessing, Regime
from ctta_bench.model.source_model import (
    BATCH_NORMS,
    INSTANCE_NORMS,
    NORMS,
    PassCounts,
    SourceModel,
    Task,
    find_classifier,
    fingerprint,
)

__all__ = [
    "BATCH_NORMS",
    "INSTANCE_NORMS",
    "NORMS",
    "PassCounts",
    "Preprocessing",
    "Regime",
    "SourceModel",
    "Task",
    "find_classifier",
    "fingerprint",
]
