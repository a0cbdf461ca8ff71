"""ctta-bench: continual test-time adaptation, every method on every benchmark by one protocol.

    model = ctta_bench.load_model("fashion_vit")
    benchmark = ctta_bench.load_benchmark("fashion_c", examples=200)
    method = ctta_bench.load_method("tent", model)
    result = ctta_bench.evaluate(method, benchmark)

The names below load on first use, so that `import ctta_bench` is fast.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ctta_bench.names import find_renamed_modules

__version__ = "0.2.0"

_LAZY = {
    "load_model": "ctta_bench.api",
    "load_benchmark": "ctta_bench.api",
    "load_method": "ctta_bench.api",
    "evaluate": "ctta_bench.api",
    "Result": "ctta_bench.api",
    "Method": "ctta_bench.method",
    "METHODS": "ctta_bench.registry",
    "BENCHMARKS": "ctta_bench.registry",
    "MODELS": "ctta_bench.registry",
}
__all__ = ["__version__", *_LAZY]

if TYPE_CHECKING:
    from ctta_bench.api import Result, evaluate, load_benchmark, load_method, load_model
    from ctta_bench.method import Method
    from ctta_bench.registry import BENCHMARKS, METHODS, MODELS

find_renamed_modules()


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'ctta_bench' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
