"""The suite from Python: what there is, your own data and model, results, and everyday use.

    result = ctta_bench.evaluate("tent", "fashion_c", examples=200)
    print(result.error, result.by_domain)

`ctta_bench` has the same names.
"""

from typing import TYPE_CHECKING

from ctta_bench.names import late

if TYPE_CHECKING:
    from ctta_bench.api.adapter import Adapter as Adapter
    from ctta_bench.api.adapter import adapt as adapt
    from ctta_bench.api.comparing import Comparison as Comparison
    from ctta_bench.api.comparing import compare as compare
    from ctta_bench.api.comparing import report as report
    from ctta_bench.api.compatibility import check_model as check_model
    from ctta_bench.api.discover import describe as describe
    from ctta_bench.api.discover import list_benchmarks as list_benchmarks
    from ctta_bench.api.discover import list_experiments as list_experiments
    from ctta_bench.api.discover import list_methods as list_methods
    from ctta_bench.api.discover import list_models as list_models
    from ctta_bench.api.discover import list_settings as list_settings
    from ctta_bench.api.loading import load_benchmark as load_benchmark
    from ctta_bench.api.loading import load_method as load_method
    from ctta_bench.api.loading import load_model as load_model
    from ctta_bench.api.results import Result as Result
    from ctta_bench.api.results import load_results as load_results
    from ctta_bench.api.running import Results as Results
    from ctta_bench.api.running import evaluate as evaluate
    from ctta_bench.api.running import evaluate_many as evaluate_many

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
