"""CMF (Lee and Chang, ICLR 2024): ROID, with a Kalman filter of the weights that starts from the
source weights and takes the adapted weights as measurements.

Checked against mariodoebler/test-time-adaptation, which includes the authors' code; its merge
variants `lp` and `op` compute the same. A third set of weights h starts at the source weights.
After every step h is pulled to the source by 1 - α, then moved to the adapted weights by 1 - β, and
the adapted weights are moved to h by 1 - γ. β comes from a variance that does not depend on the
data: it starts near 1 and falls to a fixed point, 0.94 for the 38,400 values of a ViT-B/16.
Everything else is ROID.

Differs from that code, unless `faithful: true`: a reset also clears the variance.
"""

from pydantic import Field
from torch import Tensor

from ctta_bench.errors import MethodError
from ctta_bench.method import ema_update, pull_to_source
from ctta_bench.parts.families.weighted import SampleWeightingHyperparameters, SampleWeightingMethod
from ctta_bench.registry import METHODS

REFERENCE = 38_400  # number of adapted values for which q is given: a ViT-B/16
LOWEST, HIGHEST = 0.89, 0.9999  # of β: at least LOWEST, and 1 from HIGHEST on


@METHODS.register_module("cmf")
class CMF(SampleWeightingMethod):
    """Weighted self-training; the weights are smoothed by a Kalman filter."""

    display_name = "CMF"
    year = 2024
    venue = "ICLR"
    citation = "lee2024cmf"
    adapts_layers = "norm layers, pulled to their Kalman-filtered values"
    losses = "likelihood ratio, weighted, and consistency with a view"
    extra_memory = "source and filtered weights, an average prediction"
    paper = "https://openreview.net/forum?id=BllUWdpIOA"
    checked_against = "second implementation"
    passes_per_image = (1.5, 1.5)  # half of the images are seen twice

    class Hyperparameters(SampleWeightingHyperparameters):
        """Hyper-parameters of CMF."""

        lr: float = Field(2.5e-4, ge=0, description="learning rate")
        source_momentum: float = Field(
            0.99, ge=0, le=1, description="α of the filter's pull to the source"
        )
        filter_momentum: float = Field(
            0.99, ge=0, le=1, description="γ of the weights' move to the filter"
        )
        process_noise: float = Field(
            0.005,
            ge=0,
            description="q for the 38,400 values of a ViT-B/16, scaled by the model's number",
        )
        faithful: bool = Field(False, description="do not reset the variance, as in the code")

    def setup(self) -> None:
        """As ROID; also the filter's weights and variance."""
        super().setup()
        values = sum(parameter.numel() for parameter in self.trainable.values())
        self.noise = self.hp.process_noise * values / REFERENCE
        if self.noise >= 1:
            raise MethodError(
                f"CMF on {self.model.name}: process_noise {self.hp.process_noise:g} becomes "
                f"{self.noise:.3g} for {values:,} adapted values; it must be below 1, so lower it."
            )
        self.hidden = [value.clone() for value in self.source]
        self.variance = 0.0

    def adapt(self, images: Tensor) -> Tensor:
        """One step, then the filter; returns the corrected logits from before the step."""
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
        """Return to the state before the stream; with `faithful` the variance is not reset."""
        variance = self.variance
        super().reset()
        if self.hp.faithful:
            self.variance = variance
