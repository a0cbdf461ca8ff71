"""CMF (Lee and Chang, ICLR 2024): ROID whose weights follow those of a filter, Kalman's, that knows
the source and sees the learning weights as measurements.

Checked against mariodoebler/test-time-adaptation, which took the authors' code over; its merge
variants `lp` and `op` compute the same. A third set of weights h starts at the source's: after
every step it goes back to them by α, then towards the learnt ones by 1 - β, and these go towards h
by 1 - γ. β comes from a variance that the data never enter: it starts near 1 and falls to a fixed
point, 0.94 for the 38,400 values of a ViT-B/16. All else is that of ROID.

Differs from that code, unless `faithful: true`: a reset also forgets the variance.
"""

from pydantic import Field
from torch import Tensor

from ctta_bench.errors import MethodError
from ctta_bench.method import ema_update, pull_to_source
from ctta_bench.parts.families.weighted import SampleWeightingHyperparameters, SampleWeightingMethod
from ctta_bench.registry import METHODS

REFERENCE = 38_400  # adapted values that q is given for: those of a ViT-B/16
LOWEST, HIGHEST = 0.89, 0.9999  # β: clipped below, 1 from here on


@METHODS.register_module("cmf")
class CMF(SampleWeightingMethod):
    """Weighted self-training with weights that follow a momentum filter."""

    display_name = "CMF"
    year = 2024
    venue = "ICLR"
    citation = "lee2024cmf"
    adapts_layers = "norm layers, pulled to a filter of them"
    paper = "https://openreview.net/forum?id=BllUWdpIOA"
    checked_against = "second implementation"
    passes_per_image = (1.5, 1.5)  # half of the images are seen twice

    class Hyperparameters(SampleWeightingHyperparameters):
        """Hyper-parameters of CMF."""

        lr: float = Field(2.5e-4, ge=0, description="learning rate")
        source_momentum: float = Field(
            0.99, ge=0, le=1, description="α: share that the filter keeps of itself"
        )
        filter_momentum: float = Field(
            0.99, ge=0, le=1, description="γ: share that the weights keep of themselves"
        )
        process_noise: float = Field(
            0.005,
            ge=0,
            description="q for the 38,400 values of a ViT-B/16; grows with their number",
        )
        faithful: bool = Field(False, description="reproduce the fault of the published reset")

    def setup(self) -> None:
        """As ROID's, with the filter's weights and variance."""
        super().setup()
        values = sum(parameter.numel() for parameter in self.trainable.values())
        self.noise = self.hp.process_noise * values / REFERENCE
        if self.noise >= 1:
            raise MethodError(
                f"CMF's process_noise {self.hp.process_noise:g} comes to {self.noise:.3g} for the "
                f"{values:,} adapted values of {self.model.name}, and must stay below 1; lower it."
            )
        self.hidden = [value.clone() for value in self.source]
        self.variance = 0.0

    def adapt(self, images: Tensor) -> Tensor:
        """One step, after which the weights are filtered; returns corrected logits from before."""
        logits = self.model(images)
        if self.update(images, logits):
            self.filter_weights()
        return self.corrected(logits.detach())

    def filter_weights(self) -> None:
        """h ← α h + (1 - α) θ_source, then h ← β h + (1 - β) θ, then θ ← γ θ + (1 - γ) h."""
        alpha = self.hp.source_momentum
        pull_to_source(self.hidden, self.source, alpha)
        ema_update(self.hidden, self.trainable.values(), self.gain(alpha))
        ema_update(self.trainable.values(), self.hidden, self.hp.filter_momentum)

    def gain(self, alpha: float) -> float:
        """β of this step, from the variance v ← β (α² v + q)."""
        predicted = alpha**2 * self.variance + self.noise
        measured = 1 - self.noise
        beta = max(measured / (predicted + measured), LOWEST)
        beta = 1.0 if beta >= HIGHEST else beta
        self.variance = beta * predicted
        return beta

    def reset(self) -> None:
        """Back to the state before the stream; `faithful` keeps the variance."""
        variance = self.variance
        super().reset()
        if self.hp.faithful:
            self.variance = variance
