"""Supervised fine-tuning on the benchmark's labels: a control of PAID's geometry, not an
adaptation.

The PAID paper fine-tunes its model on CIFAR-100 (3 epochs, warm-up and cosine; learning rate and
batch size not given) as the semantic shift to compare with adaptation to corruptions. Here all
linear layers of the blocks learn freely, with a new head, or through the adapter of another method:
`adapter: paid` preserves the angles between neurons under labels, too. All learning is in the
warm-up; on the stream the model only predicts.
"""

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from ctta_bench.errors import MethodError
from ctta_bench.method import NEWER, Method, WarmupHyperparameters
from ctta_bench.parts.adapters.injection import bare_weights, inject, role_layers
from ctta_bench.registry import METHODS


@METHODS.register_module("finetune")
class Finetune(Method):
    """Supervised fine-tuning on labelled source data before the stream; no adaptation."""

    display_name = "Fine-tuning"
    adapts_layers = "all linear layers, with labels, before the stream"
    losses = "cross-entropy to the labels, before the stream"
    extra_memory = "nothing"
    checked_against = "the formula alone"
    passes_per_image = (1, 0)
    warmup_access = "labelled"
    learns_labels = True
    exempt = {
        "every_declared_tensor_changes": "all learning is before the stream",
        "nan_images": "there is no update on the stream that could be skipped",
    }

    class Hyperparameters(WarmupHyperparameters):
        """Hyper-parameters of fine-tuning."""

        adapter: Literal["none", "paid", "lora", "dora"] = Field(
            "none", description="method whose adapter (with its defaults) learns; none: weights"
        )
        labels: int = Field(0, ge=0, description="classes of a new head; 0: the model's own head")
        warmup_epochs: int = Field(3, ge=0, description="epochs", json_schema_extra=NEWER)
        warmup_batch_size: int = Field(64, ge=1, description="batch size", json_schema_extra=NEWER)
        warmup_schedule: Literal["constant", "cosine", "steps"] = Field(
            "cosine",
            description="of the rate; cosine and steps rise in the first epoch",
            json_schema_extra=NEWER,
        )
        warmup_cosine_epochs: int = Field(
            3, ge=1, description="epochs until a cosine reaches 0", json_schema_extra=NEWER
        )

    def setup(self) -> None:
        """Let the layers learn, or replace them by adapters; a new head starts at zero."""
        head = self.model.classifier
        parameters = self._adapters() if self.hp.adapter != "none" else self._layers()
        if self.hp.labels:
            _renew(head, self.hp.labels)
        parameters |= {f"head.{name}": value for name, value in head.named_parameters()}
        self.adapt_only(parameters)
        # Never used: the warm-up has its own optimiser, and there are no updates on the stream.
        self.optimizer = torch.optim.SGD(list(parameters.values()), lr=0.0)

    def _layers(self) -> dict[str, nn.Parameter]:
        """Weights and biases of all linear layers with a role in the blocks."""
        found = {
            f"{layer.name}.{name}": value
            for layer in role_layers(self.model)
            for name, value in layer.module.named_parameters()
        }
        bare = bare_weights(self.model)
        found |= {f"{w.name}.{w.parameter}": getattr(w.module, w.parameter) for w in bare}
        if not found:
            raise MethodError(
                f"{self.title} does not support {self.model.name}: it trains linear layers of "
                "attention and MLP blocks, and this model has none."
            )
        return found

    def _adapters(self) -> dict[str, nn.Parameter]:
        owner = METHODS.get(self.hp.adapter)
        settings = owner.Hyperparameters()
        return inject(self.model, "qkvom", lambda weight: owner.adapter(weight, settings))

    def adapt(self, images: Tensor) -> Tensor:
        """Logits; nothing is updated."""
        with torch.no_grad():
            return self.model(images)


def _renew(head: nn.Linear, labels: int) -> None:
    """Replace the parameters of a linear layer by `labels` outputs at zero, in place."""
    head.weight = nn.Parameter(head.weight.new_zeros(labels, head.in_features))
    if head.bias is not None:
        head.bias = nn.Parameter(head.bias.new_zeros(labels))
    head.out_features = labels
