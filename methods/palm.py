"""PALM (Maharana, Zhang and Guo, AAAI 2025, arXiv:2403.10650): tensors for which the model is
uncertain adapt, each with a learning rate by how much its sensitivity changes.

Official code: sarthaxxxxx/PALM. All norm layers and convolutions may adapt. A tensor is selected if
its gradient g of the cross-entropy to uniform labels is small. Its sensitivity is s = |θ g|, and
its rate is the mean of |s - ŝ| / ŝ, with the moving average ŝ. Then the model takes one step on the
entropy of certain images, and on the consistency with a view. Adam forgets its moments at every
batch, in their code and here: its step is about the rate times the sign of the gradient.

Differs from the official code, unless `faithful: true`: a tensor that is not selected does not move
(theirs keeps the rate of its last selection), as in the paper. A reset clears ŝ, and a batch
without certain images takes the step on the consistency (theirs the same, with a loss of NaN). The
cross-entropy is summed over classes, as in the code; the paper has a divergence, 1 / C of it and a
constant, so that thresholds depend on the number of classes.
"""

from collections.abc import Sequence

import torch
from pydantic import Field
from torch import Tensor, nn

from ctta_bench.method import Method, MethodHyperparameters, soft_cross_entropy, softmax_entropy
from ctta_bench.parts.views.batch import random_view
from ctta_bench.registry import METHODS

DAMPING = 1e-8  # of the ratio of change and average


@METHODS.register_module("palm")
class PALM(Method):
    """Learning rates per tensor, for those whose gradients show uncertain predictions."""

    display_name = "PALM"
    year = 2025
    venue = "AAAI"
    citation = "maharana2025palm"
    adapts_layers = "norm layers and convolutions, each tensor at its own rate"
    losses = "entropy of certain images, consistency with a view"
    extra_memory = "a sensitivity per adapted value"
    paper = "https://arxiv.org/abs/2403.10650"
    checked_against = "official code"
    passes_per_image = (2, 3)  # the first backward pass is that of the selection
    search_space = {"lr": (1e-6, 1e-2), "max_gradient": [0.03, 0.3, 3.0]}
    checked_with = {"max_gradient": 1e6, "temperature": 50.0}  # every tensor is selected

    class Hyperparameters(MethodHyperparameters):
        """Hyper-parameters of PALM."""

        lr: float = Field(5e-5, ge=0, description="κ, the base of all rates")
        weight_decay: float = Field(0.0, ge=0, description="weight decay of Adam")
        temperature: float = Field(
            1000.0, gt=0, description="T of the logits in the loss of the selection"
        )
        max_gradient: float = Field(
            0.3, ge=0, description="η: selected up to this sum of the gradient's absolute values"
        )
        sensitivity_momentum: float = Field(
            0.5, ge=0, lt=1, description="β of the moving average of sensitivities"
        )
        consistency_weight: float = Field(0.01, ge=0, description="λ of the consistency, times C")
        entropy_limit: float = Field(
            0.4, ge=0, description="certain below this entropy in nats, for any number of classes"
        )
        faithful: bool = Field(
            False, description="tensors that are not selected keep their last rate, as in the code"
        )

    def setup(self) -> None:
        """Adapt norm layers and convolutions, each tensor in a group of its own."""
        self.batch_dependent = self.model.use_batch_statistics()
        norms = self.model.norm_layers()
        self.adapt_only(
            {
                f"{name}.{key}": parameter
                for name, layer in self.model.network.named_modules()
                if name in norms or isinstance(layer, nn.Conv2d)
                for key, parameter in layer.named_parameters(recurse=False)
            }
        )
        groups = [{"params": [parameter], "lr": 0.0} for parameter in self.trainable.values()]
        self.optimizer = torch.optim.Adam(groups, weight_decay=self.hp.weight_decay)
        self.sensitivities = [torch.zeros_like(p) for p in self.trainable.values()]
        self.augment = random_view

    def adapt(self, images: Tensor) -> Tensor:
        """Set the rates, then take one step; returns the logits from before it."""
        logits = self.model(images)
        self.set_rates(self.gradients_of_uncertainty(logits))
        view_logits = self.model(self.augment(images, self.model.preprocessing.size))
        self.step(self.total_loss(logits, view_logits))
        self.optimizer.state.clear()
        return logits

    def gradients_of_uncertainty(self, logits: Tensor) -> list[Tensor]:
        """Gradients of mean_i Σ_c -log p_c of logits [n, classes] at temperature T."""
        precise = torch.promote_types(logits.dtype, torch.float32)
        log_p = (logits / self.hp.temperature).log_softmax(-1, dtype=precise)
        scaled = self._scaler.scale(-log_p.sum(-1).mean())
        parameters = list(self.trainable.values())
        found = torch.autograd.grad(scaled, parameters, retain_graph=True)
        return [gradient / self._scaler.get_scale() for gradient in found]

    @torch.no_grad()
    def set_rates(self, gradients: Sequence[Tensor]) -> None:
        """The learning rates of this batch; the average sensitivities of selected tensors move."""
        sizes = torch.stack(torch._foreach_norm(list(gradients), 1)).tolist()
        parameters = list(self.trainable.values())
        changes: dict[int, Tensor] = {}
        for number, size in enumerate(sizes):
            if size <= self.hp.max_gradient:  # false for NaN
                sensitivity = (parameters[number] * gradients[number]).abs()
                changes[number] = self.change(number, sensitivity)
            elif not self.hp.faithful:
                self.optimizer.param_groups[number]["lr"] = 0.0
        factors = torch.stack([*changes.values()]).tolist() if changes else []
        for number, factor in zip(changes, factors, strict=True):
            self.optimizer.param_groups[number]["lr"] = self.hp.lr * factor

    def change(self, number: int, sensitivity: Tensor) -> Tensor:
        """Mean of |s - ŝ| / ŝ for a selected tensor, a scalar, after ŝ ← (1 - β) s + β ŝ."""
        momentum = self.hp.sensitivity_momentum
        average = (1 - momentum) * sensitivity + momentum * self.sensitivities[number]
        self.sensitivities[number] = average
        return (((sensitivity - average).abs() + DAMPING) / (average + DAMPING)).mean()

    def total_loss(self, logits: Tensor, view_logits: Tensor) -> Tensor:
        """Mean entropy of certain images + λ C times the mean cross-entropy of the view's logits.

        The gradient passes through both.
        """
        entropy = softmax_entropy(logits)
        certain = entropy[entropy < self.hp.entropy_limit]
        consistency = soft_cross_entropy(view_logits, logits).mean()
        weight = self.hp.consistency_weight * self.model.num_classes
        return certain.sum() / max(len(certain), 1) + weight * consistency
