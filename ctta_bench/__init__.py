"""ctta-bench: continual test-time adaptation, every method on every benchmark by one protocol.

    result = ctta_bench.evaluate("tent", "scenes_c", examples=200)
    result = ctta_bench.evaluate("tent", (images, labels), model=network)
    ctta_bench.compare(source, result)

The names below load on first use, so that `import ctta_bench` is fast.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ctta_bench.names import find_renamed_modules

__version__ = "0.2.0"
__all__ = [
    "BENCHMARKS",
    "METHODS",
    "MODELS",
    "Adapter",
    "Benchmark",
    "Comparison",
    "Method",
    "Result",
    "Results",
    "__version__",
    "adapt",
    "check_benchmark",
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
# Where a name is; the others are in `api`.
_HOMES = {
    "BENCHMARKS": "registry",
    "METHODS": "registry",
    "MODELS": "registry",
    "Benchmark": "stream",
    "Method": "method",
    "check_benchmark": "authoring.benchmark_checks",
}
# What other suites call it: timm, RobustBench, mteb.
_ELSEWHERE = {
    "create_model": "load_model(NAME)",
    "get_model": "load_model(NAME)",
    "list_pretrained": 'list_models("timm:*")',
    "clean_accuracy": 'evaluate("source", (images, labels), model=network).accuracy',
    "load_cifar10c": 'load_benchmark("cifar10_c", root=FOLDER)',
    "load_cifar100c": 'load_benchmark("cifar100_c", root=FOLDER)',
    "load_imagenetc": 'load_benchmark("imagenet_c", root=FOLDER)',
    "get_benchmark": "load_benchmark(NAME)",
    "get_benchmarks": "list_benchmarks()",
    "get_task": "load_benchmark(NAME)",
    "get_tasks": "list_benchmarks()",
    "MTEB": "evaluate_many(METHODS, BENCHMARKS)",
}

if TYPE_CHECKING:
    from ctta_bench.api import (
        Adapter,
        Comparison,
        Result,
        Results,
        adapt,
        check_model,
        compare,
        describe,
        evaluate,
        evaluate_many,
        list_benchmarks,
        list_experiments,
        list_methods,
        list_models,
        list_settings,
        load_benchmark,
        load_method,
        load_model,
        load_results,
        report,
    )
    from ctta_bench.authoring.benchmark_checks import check_benchmark
    from ctta_bench.method import Method
    from ctta_bench.registry import BENCHMARKS, METHODS, MODELS
    from ctta_bench.stream import Benchmark

find_renamed_modules()


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(import_module(f"{__name__}.{_HOMES.get(name, 'api')}"), name)
    here = f"; here it is {_ELSEWHERE[name]}" if name in _ELSEWHERE else ""
    raise AttributeError(f"module 'ctta_bench' has no attribute {name!r}{here}")


def __dir__() -> list[str]:
    return sorted(__all__)
