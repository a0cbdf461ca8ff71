"""BatchNorm statistics re-estimated at test time; no parameter learns.

Prediction-time BatchNorm (Nado et al. 2020, arXiv:2006.10963) uses the statistics of the batch;
Schneider et al. (NeurIPS 2020, arXiv:2006.16971) mix them with the source statistics. Official
code: the `norm` of DequanWang/tent ("batch"), mariodoebler/test-time-adaptation ("alpha", "ema").

Layers keep their class and forward pass: their running statistics are set before each pass. Differs
from the codes: BatchNorm of every dimension is included ("alpha" of theirs: 2d only), a layer with
one value per channel uses the source statistics, and batches that are not finite change nothing.
`faithful: true` puts the layers in training mode as theirs do: "batch" then updates running
statistics that no prediction uses, "ema" switches dropout on in its first pass.
"""

import functools
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from ctta_bench.errors import MethodError
from ctta_bench.method import Method, MethodHyperparameters
from ctta_bench.model import BATCH_NORMS
from ctta_bench.registry import METHODS


@METHODS.register_module("norm")
class Norm(Method):
    """BatchNorm statistics of the test batch, alone or mixed with the source statistics."""

    display_name = "BN adapt"
    year = 2020
    venue = "NeurIPS"
    citation = "schneider2020norm"
    adapts_layers = "BatchNorm statistics"
    losses = "none"
    extra_memory = "moving statistics (`ema`)"
    needs_batch_norm = True
    paper = "https://arxiv.org/abs/2006.16971"
    checked_against = "official code and one more"
    passes_per_image = (1, 0)
    search_space = {"statistics": ["batch", "alpha", "prior", "ema"]}

    class Hyperparameters(MethodHyperparameters):
        """Hyper-parameters of BN adapt."""

        statistics: Literal["batch", "alpha", "prior", "ema"] = Field(
            "batch",
            description="of the batch; mixed by α; mixed by n / (n + N); a moving average",
        )
        alpha: float = Field(0.1, ge=0, le=1, description="α, share of the batch")
        prior: int = Field(16, ge=0, description="N, number of images that the source counts as")
        momentum: float = Field(0.1, gt=0, le=1, description="share of the batch in the average")
        allow_noop: bool = Field(
            False, description="on models without BatchNorm, predict as Source"
        )
        faithful: bool = Field(False, description="layers in training mode, as in the codes")

    def setup(self) -> None:
        """Store the source statistics, and set those of every layer before it runs."""
        hp, norms = self.hp, self.norms()
        bare = [m for m in self.model.network.modules() if isinstance(m, BATCH_NORMS)]
        if bare and not norms and not hp.allow_noop:
            raise MethodError(
                f"{self.title} re-estimates the stored statistics of BatchNorm layers, and the "
                f"{len(bare)} of {self.model.name} store none (track_running_stats is off, so that "
                "they always use those of the batch); choose a model with stored statistics, or "
                "set allow_noop to predict as `source`."
            )
        if not norms and not hp.allow_noop:
            raise MethodError(
                f"{self.title} re-estimates the stored statistics of BatchNorm layers, and "
                f"{self.model.name} has none; choose a model that has them, or set allow_noop to "
                "predict as `source`."
            )
        # A moving average depends on earlier batches only: within a batch, images are independent.
        self.batch_dependent = bool(norms) and hp.statistics != "ema"
        kinds = {"batch": "batch", "alpha": "mixed", "prior": "mixed", "ema": "moving"}
        self.norm_statistics = kinds[hp.statistics] if norms else ""
        self.source = {
            name: (norm.running_mean.clone(), norm.running_var.clone())
            for name, norm in norms.items()
        }
        for name, norm in norms.items():
            if hp.statistics == "ema":
                norm.momentum = hp.momentum
                norm.register_forward_pre_hook(rest_on_one_value)
            elif hp.statistics == "batch" and hp.faithful:
                norm.train()
            else:
                norm.register_forward_pre_hook(functools.partial(self.mix, name))

    def norms(self) -> dict[str, Any]:
        """The BatchNorm layers with stored source statistics, by name."""
        modules = self.model.network.named_modules()
        return {
            n: m for n, m in modules if isinstance(m, BATCH_NORMS) and m.running_mean is not None
        }

    @torch.no_grad()
    def adapt(self, images: Tensor) -> Tensor:
        """Logits with the new statistics."""
        if self.hp.statistics == "ema":
            self.update_statistics(images)
        return self.model(images)

    @torch.no_grad()
    def mix(self, name: str, norm: Any, inputs: tuple[Tensor]) -> None:
        """Set a layer's statistics to the source's mixed with its input's, [n, channels, ...].

        Earlier layers are already set: the input is that of the adapted network.
        """
        source, share = self.source[name], self.share(len(inputs[0]))
        batch = source
        if values_per_channel(inputs[0]) > 1:
            # The source variance is unbiased; that of the batch alone is biased.
            batch = moments(inputs[0], unbiased=self.hp.statistics != "batch")
        for kept, old, new in zip(
            (norm.running_mean, norm.running_var), source, batch, strict=True
        ):
            mixed = (1 - share) * old + share * new
            kept.copy_(torch.where(mixed.isfinite(), mixed, kept))

    def share(self, n: int) -> float:
        """The share of a batch of `n` images in the mixed statistics."""
        if self.hp.statistics == "prior":
            return n / (n + self.hp.prior)
        return self.hp.alpha if self.hp.statistics == "alpha" else 1.0

    def update_statistics(self, images: Tensor) -> None:
        """Update the running statistics in a forward pass whose output is not used."""
        norms = list(self.norms().values())
        statistics = [buffer for norm in norms for buffer in norm.buffers()]
        before = [buffer.clone() for buffer in statistics]
        for module in [self.model.network] if self.hp.faithful else norms:
            module.train()
        self.model(images)
        self.model.network.eval()
        if norms and not bool(torch.stack([b.isfinite().all() for b in statistics]).all()):
            torch._foreach_copy_(statistics, before)
            self.skip_update()


def moments(x: Tensor, *, unbiased: bool) -> tuple[Tensor, Tensor]:
    """Mean and variance [channels] of x [n, channels, ...], in float32 or better."""
    x = x if x.dtype == torch.float64 else x.float()
    axes = [axis for axis in range(x.ndim) if axis != 1]
    variance, mean = torch.var_mean(x, axes, correction=int(unbiased))
    return mean, variance


def values_per_channel(x: Tensor) -> int:
    """Number of values per channel of x [n, channels, ...]."""
    return x.numel() // x.shape[1]


def rest_on_one_value(norm: nn.Module, inputs: tuple[Tensor]) -> None:
    """Use the running statistics, unchanged, of a layer whose channels have one value."""
    if values_per_channel(inputs[0]) < 2:
        norm.eval()
