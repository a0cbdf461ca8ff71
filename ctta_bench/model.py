"""SourceModel: one face for every network that methods adapt.

Images enter in [0, 1]; resizing and normalisation are layers inside, so that methods and their
augmentations never see another range. `features` and `head` split the network before its last
linear layer; `norm_parameters` and `ctta_bench.parts.injection` address layers by what they are.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ctta_bench.errors import MethodError
from ctta_bench.source_models.preprocessing import Preprocessing, Regime, recorded_preprocessing
from ctta_bench.source_models.weights import fingerprint

BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
INSTANCE_NORMS = (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)
NORMS = (nn.LayerNorm, nn.GroupNorm, *BATCH_NORMS, *INSTANCE_NORMS)


@dataclass
class PassCounts:
    """Images that went through the network forward and backward (copies of a model share it)."""

    forward_images: int = 0
    backward_images: int = 0

    def __deepcopy__(self, memo: dict[int, Any]) -> "PassCounts":
        return self


class SourceModel(nn.Module):
    """A network that maps images float [n, 3, H, W] in [0, 1] to logits [n, classes].

    `network` is a timm classifier or any module from normalised images to logits. Its own
    `pretrained_cfg` (mean, std, input size), if any, is what regime "true" uses.
    """

    def __init__(
        self, network: nn.Module, *, name: str = "", preprocessing: Regime | Preprocessing = "true"
    ) -> None:
        super().__init__()
        self.network: Any = network
        self.name = name or type(network).__name__
        if not isinstance(preprocessing, Preprocessing):
            preprocessing = recorded_preprocessing(network, preprocessing)
        self.preprocessing = preprocessing
        self.mean: Tensor
        self.std: Tensor
        self.register_buffer("mean", torch.tensor(preprocessing.mean).view(1, 3, 1, 1))
        self.register_buffer("std", torch.tensor(preprocessing.std).view(1, 3, 1, 1))
        self.passes = PassCounts()
        self.keys = frozenset(network.state_dict())  # before any method changes the network
        self.source_parameters = sum(p.numel() for p in network.parameters())
        self._classifier = (
            find_classifier(network),
        )  # a tuple: no second registration of the layer
        self._is_timm = hasattr(network, "forward_features") and hasattr(network, "forward_head")

    def forward(self, images: Tensor) -> Tensor:
        """Logits [n, classes]."""
        if self._is_timm:
            return self.head(self.features(images))
        return self._count(self.network(self.preprocess(images)))

    def features(self, images: Tensor) -> Tensor:
        """What the last linear layer sees, [n, d]: a ViT's class token after the final norm."""
        inputs = self.preprocess(images)
        if self._is_timm:
            tokens = self.network.forward_features(inputs)
            return self._count(self.network.forward_head(tokens, pre_logits=True))
        seen: list[Tensor] = []
        handle = self.classifier.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
        try:
            self.network(inputs)
        finally:
            handle.remove()
        return self._count(seen[0])

    def head(self, features: Tensor) -> Tensor:
        """Logits [n, classes] of features [n, d]."""
        return self.classifier(features)

    def preprocess(self, images: Tensor) -> Tensor:
        """Resize to the network's input size, if it has one, and normalise."""
        return (self.preprocessing.resize(images) - self.mean) / self.std

    @property
    def classifier(self) -> nn.Linear:
        """The last linear layer. Raises MethodError if the network has none."""
        (classifier,) = self._classifier
        if classifier is None:
            raise MethodError(
                f"{self.name} has no last linear layer, so its features cannot be told from its "
                "logits; methods that align features cannot serve it."
            )
        return classifier

    @property
    def has_classifier(self) -> bool:
        """Whether the logits come from a last linear layer."""
        return self._classifier[0] is not None

    @property
    def num_classes(self) -> int:
        """Number of logits."""
        return self.classifier.out_features

    @torch.no_grad()
    def keep_classes(self, classes: Sequence[int]) -> None:
        """Cut the last linear layer to these logits, in this order; all else stays as it is.

        Benchmarks of 200 ImageNet classes (-R, -A) are scored so: every method sees the 200 alone,
        as through the masking layer that this field puts behind the model. Raises MethodError if
        there is no last linear layer.
        """
        layer, kept = self.classifier, torch.as_tensor(classes)
        layer.weight = nn.Parameter(layer.weight[kept], layer.weight.requires_grad)
        if layer.bias is not None:
            layer.bias = nn.Parameter(layer.bias[kept], layer.bias.requires_grad)
        layer.out_features = len(kept)

    @property
    def blocks(self) -> list[nn.Module]:
        """The encoder blocks of a transformer or the four stages of a ResNet, in order; else []."""
        if hasattr(self.network, "layer4"):
            return [self.network.get_submodule(f"layer{number}") for number in (1, 2, 3, 4)]
        lists = [m for m in self.network.modules() if isinstance(m, nn.Sequential | nn.ModuleList)]
        alike = [
            list(m)
            for m in lists
            if len(m) > 1
            and len({type(c) for c in m}) == 1
            and any(isinstance(x, nn.LayerNorm) for x in m[0].modules())
        ]
        return max(alike, key=len, default=[])

    def norm_layers(
        self, *, skip_last_blocks: int = 0, skip_final: bool = False
    ) -> dict[str, nn.Module]:
        """Normalisation layers with affine parameters, by their name in the network.

        Chosen by type and position, never by name: `skip_last_blocks` leaves out the norms of the
        last blocks, `skip_final` those that follow the blocks.
        """
        blocks = self.blocks
        kept_blocks = blocks[: max(0, len(blocks) - skip_last_blocks)]
        kept = {id(m) for b in kept_blocks for m in b.modules()}
        inside = {id(m) for b in blocks for m in b.modules()}
        behind = False  # whether a norm of the blocks has been met
        found: dict[str, nn.Module] = {}
        for name, module in self.network.named_modules():
            if not isinstance(module, NORMS) or getattr(module, "weight", None) is None:
                continue
            behind = behind or id(module) in inside
            if id(module) in inside and id(module) not in kept:
                continue
            if skip_final and behind and id(module) not in inside:
                continue
            found[name] = module
        return found

    def norm_parameters(
        self, *, skip_last_blocks: int = 0, skip_final: bool = False
    ) -> dict[str, nn.Parameter]:
        """Affine parameters of `norm_layers`, by their name in the network."""
        layers = self.norm_layers(skip_last_blocks=skip_last_blocks, skip_final=skip_final)
        return {
            f"{name}.{key}": parameter
            for name, module in layers.items()
            for key, parameter in module.named_parameters(recurse=False)
        }

    def use_batch_statistics(self) -> bool:
        """Let every BatchNorm normalise by its batch and forget the source's statistics.

        Returns whether there is any BatchNorm.
        """
        norms = [m for m in self.network.modules() if isinstance(m, BATCH_NORMS)]
        for norm in norms:
            norm.track_running_stats = False
            norm.running_mean = norm.running_var = norm.num_batches_tracked = None
        return bool(norms)

    def sha256(self) -> str:
        """Fingerprint of the weights: equal weights have equal ones, whatever file they came in."""
        return fingerprint(self.network)

    def _count(self, output: Tensor) -> Tensor:
        n = len(output)
        self.passes.forward_images += n
        if output.requires_grad:
            output.register_hook(lambda _: self._count_backward(n))
        return output

    def _count_backward(self, n: int) -> None:
        self.passes.backward_images += n


def find_classifier(network: nn.Module) -> nn.Linear | None:
    """The linear layer that makes the logits: timm's own answer, else the last one defined."""
    get_classifier: Any = getattr(network, "get_classifier", None)
    if get_classifier is not None:
        classifier = get_classifier()
        return classifier if isinstance(classifier, nn.Linear) else None
    linears = [m for m in network.modules() if isinstance(m, nn.Linear)]
    return linears[-1] if linears else None
