"""ETA and EATA (Niu et al., ICML 2022, arXiv:2204.02610): entropy minimisation on images that are
reliable and not redundant; EATA also penalises changes of parameters by their Fisher information.

Official code: mr-eggplant/EATA (its copy in mr-eggplant/SAR supports LayerNorm). Differs from it,
unless `faithful: true`: a reset also clears the average prediction. The Fisher information comes
from the benchmark's source set (theirs: from the clean versions of the test images). As in their
code, it is the mean over batches of the squared *batch* gradient: it depends on
`fisher_batch_size`, and so does the right β.
"""

from typing import Any

from pydantic import Field
from torch import Tensor

from ctta_bench.method import Method, OptimizerHyperparameters, softmax_entropy
from ctta_bench.parts.fisher import fisher_of_source, weighted_drift
from ctta_bench.parts.selection import Selection
from ctta_bench.registry import METHODS


@METHODS.register_module("eta")
class ETA(Method):
    """Weighted entropy minimisation on images that are reliable and not redundant."""

    display_name = "ETA"
    year = 2022
    venue = "ICML"
    citation = "niu2022eata"
    adapts_layers = "norm layers"
    losses = "entropy of certain and new images, weighted"
    extra_memory = "an average prediction"
    paper = "https://arxiv.org/abs/2204.02610"
    checked_against = "official code"
    passes_per_image = (1, 1)
    search_space = {"lr": (1e-5, 1e-1), "max_similarity": [0.05, 0.1, 0.4]}
    checked_with = {"margin": 1.0, "max_similarity": 2.0}  # every image is selected

    class Hyperparameters(OptimizerHyperparameters):
        """Hyper-parameters of ETA."""

        margin: float = Field(0.4, ge=0, description="E0 as a share of ln C: reliable below it")
        max_similarity: float = Field(
            0.05,
            ge=0,
            description="ε: redundant if more similar (cosine) to the average prediction",
        )
        faithful: bool = Field(
            False, description="do not reset the average prediction, as in the code"
        )

    def setup(self) -> None:
        """Adapt the affine parameters of every norm layer."""
        self.batch_dependent = self.model.use_batch_statistics()
        self.adapt_only(self.model.norm_parameters())
        self.optimizer = self.build_optimizer()
        self.selection = Selection(self.hp.margin, self.hp.max_similarity, self.model.num_classes)

    def adapt(self, images: Tensor) -> Tensor:
        """One step on the selected images; returns the logits from before the step."""
        logits = self.model(images)
        entropy = softmax_entropy(logits)
        predictions = logits.detach().softmax(-1, dtype=entropy.dtype)
        selected = self.selection.choose(entropy.detach(), predictions)
        if not bool(selected.any()):
            self.skip_update()
        elif self.step(self.total_loss(entropy[selected])):
            self.selection.update_average(predictions[selected])
        return logits

    def total_loss(self, entropy: Tensor) -> Tensor:
        """The weighted mean of the selected images' entropies [n]."""
        return self.selection.weigh(entropy)

    def reset(self) -> None:
        """Return to the state before the stream; with `faithful` the average is not reset."""
        average = self.selection.average
        super().reset()
        if self.hp.faithful:
            self.selection.average = average


@METHODS.register_module("eata")
class EATA(ETA):
    """ETA, with a Fisher penalty on changes of parameters from their source values."""

    display_name = "EATA"
    year = 2022
    venue = "ICML"
    citation = "niu2022eata"
    adapts_layers = "norm layers"
    losses = "as ETA, and a pull to the source weights by Fisher information"
    extra_memory = "an average prediction and the Fisher information"
    paper = "https://arxiv.org/abs/2204.02610"
    checked_against = "second implementation, and the authors' code without the Fisher term"
    passes_per_image = (1, 1)
    checked_with = {"margin": 1.0, "max_similarity": 2.0}  # every image is selected
    source_access = "unlabelled"

    class Hyperparameters(ETA.Hyperparameters):
        """Hyper-parameters of EATA."""

        fisher_weight: float = Field(2000.0, ge=0, description="β of the Fisher term")
        source_samples: int = Field(
            2000, ge=1, description="source images for the Fisher information"
        )
        fisher_batch_size: int = Field(64, ge=1, description="images per squared gradient")

    def prepare(self, source: Any) -> None:
        """Fisher information F of the adapted parameters, for the model's own predictions."""
        parameters = list(self.trainable.values())
        self.start_values = [p.detach().clone() for p in parameters]
        self.fisher, self.source_used = fisher_of_source(
            self.model, parameters, source, self.hp, asked_by=self.title, instead="eta"
        )

    def total_loss(self, entropy: Tensor) -> Tensor:
        """The weighted entropy plus β Σ F (θ - θ_source)²."""
        drift = weighted_drift(self.fisher, self.trainable.values(), self.start_values)
        return super().total_loss(entropy) + self.hp.fisher_weight * drift
