"""From what a user asks for to validated cells: options, presets, experiment files."""

from typing import TYPE_CHECKING

from ctta_bench.names import late

if TYPE_CHECKING:
    from ctta_bench.config.cell import (
        Cell,
        CellRequest,
        hyperparameters_of_start,
        model_options,
        request_with,
        resolve,
        warmup_record,
    )
    from ctta_bench.record.schema import cell_id, identity, slug_of

__all__ = [
    "Cell",
    "CellRequest",
    "cell_id",
    "hyperparameters_of_start",
    "identity",
    "model_options",
    "request_with",
    "resolve",
    "slug_of",
    "warmup_record",
]

__getattr__ = late(__name__, "cell")
