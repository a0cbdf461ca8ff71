"""The method contract: base class, hyper-parameters, shared losses and updates, warm-up, state.

from ctta_bench.method import Method, OptimizerHyperparameters, softmax_entropy
"""

from typing import TYPE_CHECKING

from ctta_bench.names import late

if TYPE_CHECKING:
    from ctta_bench.method.base import Method, Precision, SourceAccess
    from ctta_bench.method.hyperparameters import (
        NEWER,
        MethodHyperparameters,
        OptimizerHyperparameters,
        WarmupHyperparameters,
    )
    from ctta_bench.method.updates import (
        ema_update,
        pull_to_source,
        soft_cross_entropy,
        softmax_entropy,
        stochastic_restore,
        symmetric_cross_entropy,
    )

__all__ = [
    "NEWER",
    "Method",
    "MethodHyperparameters",
    "OptimizerHyperparameters",
    "Precision",
    "SourceAccess",
    "WarmupHyperparameters",
    "ema_update",
    "pull_to_source",
    "soft_cross_entropy",
    "softmax_entropy",
    "stochastic_restore",
    "symmetric_cross_entropy",
]

__getattr__ = late(__name__, "hyperparameters", "updates", "base")
