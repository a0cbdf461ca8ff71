"""ctta-bench: continual test-time adaptation, every method on every benchmark by one protocol.

    result = ctta_bench.evaluate("tent", "fashion_c", examples=200)
    result = ctta_bench.evaluate("tent", (images, labels), model=network)

The names below load on first use, so that `import ctta_bench` is fast.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ctta_bench.names import find_renamed_modules

__version__ = "0.2.0"

_DISCOVER = (
    "list_methods",
    "list_benchmarks",
    "list_models",
    "list_settings",
    "list_experiments",
    "describe",
)
_LAZY = {
    **dict.fromkeys(_DISCOVER, "ctta_bench.api"),
    "load_model": "ctta_bench.api",
    "load_benchmark": "ctta_bench.api",
    "load_method": "ctta_bench.api",
    "adapt": "ctta_bench.api",
    "check_model": "ctta_bench.api",
    "evaluate": "ctta_bench.api",
    "evaluate_many": "ctta_bench.api",
    "compare": "ctta_bench.api",
    "report": "ctta_bench.api",
    "load_results": "ctta_bench.api",
    "Result": "ctta_bench.api",
    "Benchmark": "ctta_bench.stream",
    "Method": "ctta_bench.method",
    "METHODS": "ctta_bench.registry",
    "BENCHMARKS": "ctta_bench.registry",
    "MODELS": "ctta_bench.registry",
}
__all__ = ["__version__", *_LAZY]

if TYPE_CHECKING:
    from ctta_bench.api import (
        Result,
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
    from ctta_bench.method import Method
    from ctta_bench.registry import BENCHMARKS, METHODS, MODELS
    from ctta_bench.stream import Benchmark

find_renamed_modules()


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'ctta_bench' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
