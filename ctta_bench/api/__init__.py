"""The suite from Python: what there is, your own data and model, results, and everyday use.

    result = ctta_bench.evaluate("tent", "scenes_c", examples=200)
    print(result.error, result.by_domain)

`ctta_bench` has the same names.
"""

from typing import TYPE_CHECKING

from ctta_bench.names import late

if TYPE_CHECKING:
    from ctta_bench.api.adapter import Adapter, adapt
    from ctta_bench.api.comparing import Comparison, compare, report
    from ctta_bench.api.compatibility import check_model
    from ctta_bench.api.discover import (
        describe,
        list_benchmarks,
        list_experiments,
        list_methods,
        list_models,
        list_settings,
    )
    from ctta_bench.api.loading import load_benchmark, load_method, load_model
    from ctta_bench.api.results import Result, load_results
    from ctta_bench.api.running import Results, evaluate, evaluate_many

__all__ = [
    "Adapter",
    "Comparison",
    "Result",
    "Results",
    "adapt",
    "check_model",
    "compare",
    "describe",
    "evaluate",
    "evaluate_many",
    "list_benchmarks",
    "list_experiments",
    "list_methods",
    "list_models",
    "list_settings",
    "load_benchmark",
    "load_method",
    "load_model",
    "load_results",
    "report",
]

__getattr__ = late(
    __name__,
    "discover",
    "loading",
    "results",
    "comparing",
    "running",
    "adapter",
    "compatibility",
)
