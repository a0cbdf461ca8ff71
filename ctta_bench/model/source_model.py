"""SourceModel: one interface for all networks that methods adapt.

Images are in [0, 1]; resizing and normalisation are layers inside the model, so that methods and
their augmentations work on one range. The forward pass is the network's own. `features` and `head`
split it before its last linear layer, if a check of one random image shows that they give the same
logits; `norm_parameters` and `ctta_bench.parts.adapters.injection` select layers by type.

A network whose class has `task = "segmentation"` gives logits per pixel, on a coarser grid than the
image. `rows` reshapes them to samples, so that one loss works for both tasks.
"""

import contextlib
import hashlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from ctta_bench.errors import MethodError
from ctta_bench.model.feature_point import FeaturePoint, find_point
from ctta_bench.model.inside import TransformerHooks
from ctta_bench.model.preprocessing import Preprocessing, Regime, recorded_preprocessing
from ctta_bench.names import OldNames

BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
INSTANCE_NORMS = (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)
NORMS = (nn.LayerNorm, nn.GroupNorm, *BATCH_NORMS, *INSTANCE_NORMS)
Task = str  # "classification", "segmentation", or another entry of METRICS
# Largest difference between logits by features and head and the network's own, as a share of the
# largest logit.
SPLIT_TOLERANCE = 1e-4
UNKNOWN_SIZE = (64, 64)  # of the images that check features of a network without a recorded size


@dataclass
class PassCounts:
    """Numbers of images in forward and backward passes; copies of a model share one object."""

    forward_images: int = 0
    backward_images: int = 0

    def __deepcopy__(self, memo: dict[int, Any]) -> "PassCounts":
        return self


class SourceModel(TransformerHooks, OldNames, nn.Module):
    """A network that maps images float [n, 3, H, W] in [0, 1] to logits [n, classes] (or a map).

        model = SourceModel(timm.create_model("resnet50", pretrained=True))
        logits = model(images)
        features, logits = model.features_and_logits(images)

    Hooks on attention, tokens and patch embeddings are in `ctta_bench.model.inside`.

    Args:
        network: a timm classifier or any module from normalised images to logits. Its
            `pretrained_cfg` (mean, std, input size), if any, is used by regime "true".
        name: the name in messages; by default that of the class.
        preprocessing: "true", "lineage", or a `Preprocessing`.
        features: the name of the module of the network whose output are the features, e.g.
            "backbone.norm"; by default they are the inputs of the last linear layer.
        head: the name of the module that gives the logits of these features.

    Raises MethodError if features and head do not give the network's own logits.

    A segmentation network has `num_classes`, `encoder_stages`, `forward_maps(images)`, a list of
    maps [n, C, h, w] by growing stride, and `decode(maps)`, logits [n, classes, h, w] at the finest
    of them.
    """

    def __init__(
        self,
        network: nn.Module,
        *,
        name: str = "",
        preprocessing: Regime | Preprocessing = "true",
        features: str = "",
        head: str = "",
    ) -> None:
        super().__init__()
        self.network: Any = network
        self.name = name or type(network).__name__
        self.task: Task = getattr(network, "task", "classification")
        if not isinstance(preprocessing, Preprocessing):
            preprocessing = recorded_preprocessing(network, preprocessing)
        self.preprocessing = self._stated = preprocessing
        self.mean: Tensor
        self.std: Tensor
        self.register_buffer("mean", torch.tensor(preprocessing.mean).view(1, 3, 1, 1))
        self.register_buffer("std", torch.tensor(preprocessing.std).view(1, 3, 1, 1))
        self.passes = PassCounts()
        self.keys = frozenset(network.state_dict())  # before any method changes the network
        self.source_parameters = sum(p.numel() for p in network.parameters())
        # In a tuple, so that the layer is not registered twice.
        self._classifier = (None if self.task == "segmentation" else find_classifier(network),)
        self._is_timm = hasattr(network, "forward_features") and hasattr(network, "forward_head")
        # Positions of the logits that `keep_classes` chose, of a network without features.
        self.kept: Tensor | None
        self.register_buffer("kept", None, persistent=False)
        self._outputs: int | None = None  # logits per image
        self.weights_note = ""  # which of a file's sets of weights these are, if it has several
        self.point: FeaturePoint | None = None  # where the features are, if it was chosen
        if self.task != "segmentation":
            self._check_split()
        if features or head:
            self._choose_point(features, head)

    def __repr__(self) -> str:
        classes = self.known_classes
        return (
            f"<SourceModel {self.name}: {self.source_parameters:,} parameters, "
            f"{'unknown' if classes is None else classes} classes, normalisation "
            f"{self.preprocessing}; .network has the layers>"
        )

    def forward(self, images: Tensor) -> Tensor:
        """Logits [n, classes] of images; of a segmentation network [n, classes, h, w]."""
        logits = self._count(self.network(self.preprocess(images)))
        return logits if self.kept is None else logits[:, self.kept]

    def features(self, images: Tensor) -> Tensor:
        """The inputs [n, d] of the last linear layer: a ViT's class token after the final norm.

        Of a segmentation network the rows [n·h·w, C] of its deepest map. Raises MethodError if the
        logits of a classifier are not those of a last linear layer.
        """
        if self.task == "segmentation":
            return self.rows(self.feature_maps(images)[-1])
        self.require_features()
        return self._count(self._features(self.preprocess(images)))

    def _features(self, inputs: Tensor) -> Tensor:
        """The features of normalised images."""
        if self.point is not None:
            return self.point.read(self.network, inputs)
        if self._is_timm:
            tokens = self.network.forward_features(inputs)
            features: Tensor = self.network.forward_head(tokens, pre_logits=True)
            return features
        (classifier,) = self._classifier
        assert classifier is not None
        seen: list[tuple[Tensor, Tensor]] = []
        handle = classifier.register_forward_hook(
            lambda _, args, output: seen.append((args[0], output))
        )
        try:
            logits = self.network(inputs)
        finally:
            handle.remove()
        # Its size may not be known, so that the check when it is loaded is left out.
        if len(seen) != 1 or not (seen[0][1] is logits or torch.equal(seen[0][1], logits)):
            raise MethodError(self._no_features())
        return seen[0][0]

    @torch.no_grad()
    def _choose_point(self, features: str, head: str) -> None:
        """Read features at a module, if its head gives the network's own logits on some images."""
        if self.task == "segmentation" or not features:
            raise MethodError(
                "features= and head= are for classifiers: name the module of the features, and if "
                "it is not followed by the last linear layer, that of the head."
            )
        first = next(self.network.parameters())
        size = self.preprocessing.size or UNKNOWN_SIZE
        shown = torch.randn(2, 3, *size, generator=torch.Generator().manual_seed(0)).to(first)
        training = self.network.training
        classifier = find_classifier(self.network)
        try:
            self.point = find_point(
                self.network.eval(), features, head, classifier, shown, SPLIT_TOLERANCE, self.name
            )
        except (RuntimeError, ValueError, AssertionError) as error:
            raise MethodError(
                f"features={features!r}: {self.name} cannot run on images of {size[0]} x {size[1]} "
                f"pixels ({error}); give the size of its input."
            ) from error
        finally:
            self.network.train(training)
        self._classifier = (classifier if isinstance(classifier, nn.Linear) and not head else None,)
        self._is_timm = False

    @torch.no_grad()
    def _check_split(self) -> None:
        """Compare `head(features)` with the network's own logits of one random image.

        If they differ, the model offers no features. Left out if the network's input size is not
        known, or if it cannot run yet.
        """
        first, size = next(self.network.parameters(), None), self.preprocessing.size
        if first is None or size is None or first.is_meta:
            return
        shown = torch.randn(1, 3, *size, generator=torch.Generator().manual_seed(0)).to(first)
        modes = {module: module.training for module in self.network.modules()}
        self.network.eval()
        try:
            with torch.random.fork_rng():
                own = self.network(shown)
                self._outputs = int(own.shape[-1])
                if self.has_classifier and not self._splits(shown, own):
                    self._classifier = (None,)
        except (RuntimeError, ValueError, AssertionError, AttributeError, TypeError):
            return  # of the network itself: a wrong input is reported where it is used
        finally:
            for module, mode in modes.items():
                module.training = mode

    def _splits(self, inputs: Tensor, own: Tensor) -> bool:
        """Whether features and head give the network's own logits."""
        try:
            composed = self.head(self._features(inputs))
        except Exception:  # of any kind: the two functions do not belong together
            return False
        if composed.shape != own.shape:
            return False
        limit = SPLIT_TOLERANCE * float(own.abs().max())
        return bool(torch.allclose(composed, own, rtol=0, atol=limit, equal_nan=True))

    def head(self, features: Tensor) -> Tensor:
        """Logits [n, classes] of features [n, d]."""
        if self.point is not None and self.point.head:
            logits: Tensor = self.network.get_submodule(self.point.head)(features)
            return logits if self.kept is None else logits[:, self.kept]
        return self.classifier(features)

    def feature_maps(self, images: Tensor) -> list[Tensor]:
        """The inputs of a segmentation network's decoder: maps [n, C, h, w] by growing stride.

        Raises MethodError for a classifier.
        """
        self._check_dense()
        maps: list[Tensor] = self.network.forward_maps(self.preprocess(images))
        # Every backward pass reaches the first map that has a gradient, and is counted there.
        first = next((m for m in maps if m.requires_grad), maps[0])
        self._count(first)
        return maps

    def decode(self, maps: Sequence[Tensor]) -> Tensor:
        """Logits [n, classes, h, w] of a segmentation network's feature maps."""
        self._check_dense()
        return self.network.decode(maps)

    def features_and_logits(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """`features(images)` and `self(images)` by one forward pass."""
        if self.task == "segmentation":
            maps = self.feature_maps(images)
            return self.rows(maps[-1]), self.decode(maps)
        features = self.features(images)
        return features, self.head(features)

    def rows(self, outputs: Tensor) -> Tensor:
        """Outputs as samples: unchanged for a classifier, maps [n, K, h, w] as [n·h·w, K].

        The samples of an image are contiguous, row by row of its map.
        """
        if self.task == "classification":
            return outputs
        return outputs.movedim(1, -1).flatten(0, -2)

    def _check_dense(self) -> None:
        if self.task != "segmentation":
            raise MethodError(f"{self.name} is a classifier: it has no feature maps to decode.")

    def preprocess(self, images: Tensor) -> Tensor:
        """Resize images [n, 3, H, W] in [0, 1] to the network's input, if fixed, and normalise."""
        return (self.preprocessing.resize(images) - self.mean) / self.std

    def trained_preprocessing(self) -> Preprocessing:
        """Regime "true", the normalisation of the weights, at the present input size."""
        if self._stated.regime != "lineage":
            return replace(self._stated, size=self.preprocessing.size)
        return recorded_preprocessing(self.network, "true", self.preprocessing.size)

    @contextlib.contextmanager
    def with_trained_preprocessing(self) -> Iterator[None]:
        """Context manager: the model uses `trained_preprocessing`, whatever its regime is."""
        before = self.preprocessing, self.mean, self.std
        self.preprocessing = given = self.trained_preprocessing()
        self.mean = self.mean.new_tensor(given.mean).view(1, 3, 1, 1)
        self.std = self.std.new_tensor(given.std).view(1, 3, 1, 1)
        try:
            yield
        finally:
            self.preprocessing, self.mean, self.std = before

    @property
    def classifier(self) -> nn.Linear:
        """The last linear layer. Raises MethodError if the network has none."""
        (classifier,) = self._classifier
        if classifier is None and self.task == "segmentation":
            raise MethodError(
                f"{self.name} is for segmentation: its logits come from a decoder, not from a last "
                "linear layer."
            )
        if classifier is None and self.point is not None:
            raise MethodError(
                f"{self.name} has the head {self.point.head!r}, which is no linear layer: choose a "
                "method that does not use its weights."
            )
        if classifier is None:
            raise MethodError(self._no_features())
        return classifier

    @property
    def has_classifier(self) -> bool:
        """Whether the logits come from a last linear layer, whose inputs are the features."""
        return self._classifier[0] is not None

    @property
    def has_features(self) -> bool:
        """Whether features and head are known; the head may be another than a linear layer."""
        return self.has_classifier or self.point is not None

    def require_features(self, *, asked_by: str = "") -> None:
        """Raise MethodError if the model offers no features; `asked_by`: the method, for it."""
        if self.task != "segmentation" and not self.has_features:
            raise MethodError(self._no_features(asked_by))

    def _no_features(self, asked_by: str = "") -> str:
        start = f"{asked_by} does not support {self.name}: it uses features, but this model"
        return (
            f"{start if asked_by else self.name} offers no features: its logits are not those of "
            "one last linear layer; choose another model, or a method that uses no features."
        )

    @property
    def num_classes(self) -> int:
        """Number of logits per image or pixel. Raises MethodError if it is not known."""
        if self.known_classes is None:
            return self.classifier.out_features  # raises
        return self.known_classes

    @property
    def known_classes(self) -> int | None:
        """Number of logits per image or pixel; None if only a forward pass would show it."""
        if self.task == "segmentation":
            return int(self.network.num_classes)
        if self.has_classifier:
            return self.classifier.out_features
        return self._outputs if self.kept is None else len(self.kept)

    @torch.no_grad()
    def keep_classes(self, classes: Sequence[int]) -> None:
        """Reduce the logits to these, in this order: the rows of the last linear layer.

        It is for benchmarks of 200 ImageNet classes (-R, -A): every method gets 200 logits, as
        with the masking layer that is common in this field. Without features the network stays
        whole, and its logits are selected. Raises MethodError for segmentation.
        """
        if self.task != "segmentation" and not self.has_classifier:
            self.kept = torch.as_tensor(classes, device=self.mean.device)
            return
        layer, kept = self.classifier, torch.as_tensor(classes)
        layer.weight = nn.Parameter(layer.weight[kept], layer.weight.requires_grad)
        if layer.bias is not None:
            layer.bias = nn.Parameter(layer.bias[kept], layer.bias.requires_grad)
        layer.out_features = len(kept)

    @property
    def blocks(self) -> list[nn.Module]:
        """The encoder blocks of a transformer or the four stages of a ResNet, in order; else [].

        Of a transformer with stages (`encoder_stages`), the stages.
        """
        if hasattr(self.network, "encoder_stages"):
            return list(self.network.encoder_stages)
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

        They are selected by type and position, never by name: `skip_last_blocks` excludes the norms
        of that many last blocks, `skip_final` those after the blocks.
        """
        blocks = self.blocks
        kept_blocks = blocks[: max(0, len(blocks) - skip_last_blocks)]
        kept = {id(m) for b in kept_blocks for m in b.modules()}
        inside = {id(m) for b in blocks for m in b.modules()}
        after = False  # whether a norm of the blocks has been found
        found: dict[str, nn.Module] = {}
        for name, module in self.network.named_modules():
            if not isinstance(module, NORMS) or getattr(module, "weight", None) is None:
                continue
            after = after or id(module) in inside
            if id(module) in inside and id(module) not in kept:
                continue
            if skip_final and after and id(module) not in inside:
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

    def early_norm_parameters(
        self, skip_last_blocks: int | None = None, *, skip_final: bool = True
    ) -> dict[str, nn.Parameter]:
        """Norm parameters except those of the last blocks (default: a quarter) and the final norm.

        SAR, DeYO and REM adapt these.
        """
        if skip_last_blocks is None:
            skip_last_blocks = math.ceil(len(self.blocks) / 4)
        return self.norm_parameters(skip_last_blocks=skip_last_blocks, skip_final=skip_final)

    def weight_parameters(self) -> dict[str, nn.Parameter]:
        """Parameters named weight or bias, by name; class token and position table are not."""
        named = self.network.named_parameters()
        return {n: p for n, p in named if n.rpartition(".")[2] in ("weight", "bias")}

    def use_batch_statistics(self) -> bool:
        """Make every BatchNorm use batch statistics, and delete its source statistics.

        Returns whether there is any BatchNorm.
        """
        norms = [m for m in self.network.modules() if isinstance(m, BATCH_NORMS)]
        for norm in norms:
            norm.track_running_stats = False
            norm.running_mean = norm.running_var = norm.num_batches_tracked = None
        return bool(norms)

    def sha256(self) -> str:
        """SHA-256 of the weights, which does not depend on the file that they came from."""
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
    """The linear layer of the logits: timm's `get_classifier()`, else the last one defined."""
    get_classifier: Any = getattr(network, "get_classifier", None)
    if get_classifier is not None:
        classifier = get_classifier()
        return classifier if isinstance(classifier, nn.Linear) else None
    linears = [m for m in network.modules() if isinstance(m, nn.Linear)]
    return linears[-1] if linears else None


def fingerprint(network: nn.Module) -> str:
    """SHA-256 of names, types, shapes and bytes of all tensors, sorted by name."""
    digest = hashlib.sha256()
    for name, tensor in sorted(network.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)};".encode())
        values = tensor.detach().cpu().contiguous().reshape(-1)
        digest.update(values.view(torch.uint8).numpy().data)
    return digest.hexdigest()
