"""Benchmarks and their streams: domains, settings, orders, batches and source data.

The file of a benchmark imports everything it needs from here.
"""

from typing import TYPE_CHECKING

from ctta_bench.names import late

if TYPE_CHECKING:
    from ctta_bench.stream.benchmark import (
        CLEAN,
        Batch,
        Benchmark,
        Domain,
        SourceData,
        Stream,
        Task,
        as_input,
        batch_domains,
    )
    from ctta_bench.stream.fingerprint import file_fingerprint
    from ctta_bench.stream.image_sets import ArrayImages, ArrayMaps, ImageSet, MapSet, labels_of
    from ctta_bench.stream.settings import (
        CorruptionSettings,
        ImageOrder,
        SegmentationSettings,
        SettingName,
        StreamSettings,
    )

__all__ = [
    "CLEAN",
    "ArrayImages",
    "ArrayMaps",
    "Batch",
    "Benchmark",
    "CorruptionSettings",
    "Domain",
    "ImageOrder",
    "ImageSet",
    "MapSet",
    "SegmentationSettings",
    "SettingName",
    "SourceData",
    "Stream",
    "StreamSettings",
    "Task",
    "as_input",
    "batch_domains",
    "file_fingerprint",
    "labels_of",
]

__getattr__ = late(__name__, "settings", "image_sets", "benchmark", "fingerprint")
