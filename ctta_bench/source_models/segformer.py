"""SegFormer (Xie et al., 2021, arXiv:2105.15203) as in mmsegmentation, with adaptable layers.

Patch embeddings, blocks, norms and the layers of the decode head are mmsegmentation's own classes.
Layers that methods adapt are linear layers here: q, k, v and output of attention, and the two 1x1
convolutions of the MLP. Maps are fused before they are resized. Results are equal. Norms are never
synchronised; dropout and stochastic depth act only in training mode. Importing this module imports
mmsegmentation.
"""

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from torch import Tensor, nn

from ctta_bench.errors import ConfigError, DataError
from ctta_bench.model.preprocessing import BUILT_IN
from ctta_bench.source_models import segformer_layouts as layouts
from ctta_bench.source_models.segformer_parts import AuthorsHead, Head, as_map, unpack

try:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of an unused operator that needs a compiler
        from mmseg.models.backbones import MixVisionTransformer
        from mmseg.models.decode_heads import SegformerHead
except ImportError as error:
    raise ConfigError(
        f"SegFormer needs mmsegmentation ({error}): pip install 'ctta-bench[seg]'."
    ) from error

Form = Literal["mmseg", "nvlabs"]
# In the first stage, attention sees the map at an eighth of its side, a fourth of the image's.
LEAST_SIDE = 29
MEAN = tuple(value / 255 for value in (123.675, 116.28, 103.53))
STD = tuple(value / 255 for value in (58.395, 57.12, 57.375))


@dataclass(frozen=True)
class Size:
    """Widths and depths of the four stages; all else is equal for every SegFormer."""

    width: int  # of the first stage; the others are `heads` times that
    depths: tuple[int, int, int, int]
    heads: tuple[int, int, int, int] = (1, 2, 5, 8)
    # Width of the decode head: mmsegmentation has 256 for every size, the authors 768 from B2 on.
    decoder: int = 256
    authors_decoder: int = 768

    @property
    def widths(self) -> list[int]:
        """Channels of the four stages."""
        return [self.width * heads for heads in self.heads]


SIZES = {
    "b0": Size(32, (2, 2, 2, 2), authors_decoder=256),
    "b1": Size(64, (2, 2, 2, 2), authors_decoder=256),
    "b2": Size(64, (3, 4, 6, 3)),
    "b3": Size(64, (3, 4, 18, 3)),
    "b4": Size(64, (3, 8, 27, 3)),
    "b5": Size(64, (3, 6, 40, 3)),
}


class SegFormer(nn.Module):
    """Normalised images [n, 3, H, W] to logits [n, classes, H/4, W/4] (rounded up).

    form: mmsegmentation's, or NVlabs' (the authors'), which has another decode head and other
    epsilons in some norms. Weights read from a file determine the form.
    """

    task = "segmentation"

    def __init__(self, size: Size, num_classes: int = 19, *, form: Form = "mmseg") -> None:
        super().__init__()
        self.size, self.num_classes = size, num_classes
        self.backbone = Encoder(size)
        self.take_form(form)
        self.pretrained_cfg: dict[str, Any] = {
            "mean": MEAN,
            "std": STD,
            BUILT_IN: True,  # published segmentation codes normalise as well
            "num_classes": num_classes,
        }

    def take_form(self, form: Form) -> None:
        """Switch to this form: its epsilons, and its decode head with random weights."""
        if form == getattr(self, "form", None):
            return
        self.form: Form = form
        self.backbone.set_epsilons(1e-6 if form == "mmseg" else 1e-5)
        head = build_head(self.size, self.num_classes, form)
        self.decode_head: nn.Module = head.train(self.training)

    @property
    def encoder_stages(self) -> list[nn.Module]:
        """The four stages in order."""
        return list(self.backbone.layers)

    def forward_maps(self, images: Tensor) -> list[Tensor]:
        """The stages' outputs after their norms: [n, C, h, w] at strides 4, 8, 16, 32.

        Raises DataError for images too small for attention in the first stage.
        """
        height, width = images.shape[-2:]
        if min(height, width) < LEAST_SIDE:
            raise DataError(
                f"a SegFormer needs images, and views of them, of at least {LEAST_SIDE} x "
                f"{LEAST_SIDE} pixels, but got {height} x {width}: use larger ones."
            )
        return self.backbone(images)

    def decode(self, maps: Sequence[Tensor]) -> Tensor:
        """Logits [n, classes, h, w] at stride 4 of the four maps."""
        return self.decode_head(maps)

    def forward(self, images: Tensor) -> Tensor:
        """Logits [n, classes, h, w] at stride 4."""
        return self.decode(self.forward_maps(images))

    def read_layout(self, tensors: dict[str, Tensor], file: Path) -> dict[str, Tensor]:
        """A file's tensors under the network's names; the network switches to the file's form.

        Raises DataError for unknown names and for missing or unexpected tensors; then the network
        is unchanged.
        """
        tensors = layouts.with_backbone(tensors)
        naming = layouts.recognise(tensors, file)
        before = self.form, self.decode_head
        self.take_form("mmseg" if naming.head is layouts.MMSEG_HEAD else "nvlabs")
        try:
            return layouts.read(tensors, self.state_dict(), naming, file)
        except DataError:
            self.form, self.decode_head = before
            self.backbone.set_epsilons(1e-6 if self.form == "mmseg" else 1e-5)
            raise


class Encoder(nn.Module):
    """The four stages, under mmsegmentation's names: layers.STAGE.{0: embedding, 1: blocks, 2}."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        packed: Any = MixVisionTransformer(
            embed_dims=size.width,
            num_layers=size.depths,
            num_heads=size.heads,
            drop_path_rate=0.1,
        )
        packed.init_weights()
        self.layers = nn.ModuleList([Stage(layers) for layers in packed.layers])

    def set_epsilons(self, epsilon: float) -> None:
        """Set the epsilons of norms after patch embeddings and reduced maps; others have 1e-6."""
        stages: Any = self.layers
        for stage in stages:
            norms = [stage.embed.norm, *(b.attn.norm for b in stage.blocks if b.attn.reduced)]
            for norm in norms:
                norm.eps = epsilon

    def forward(self, images: Tensor) -> list[Tensor]:
        """The stages' outputs after their norms: [n, C, h, w] at strides 4, 8, 16, 32."""
        maps: list[Tensor] = []
        for stage in self.layers:
            images = stage(images)
            maps.append(images)
        return maps


class Stage(nn.ModuleList):
    """Patch embedding, blocks and norm: a map [n, c, H, W] to [n, C, h, w]."""

    def __init__(self, packed: Iterable[nn.Module]) -> None:
        super().__init__(packed)
        for block in self.blocks:
            unpack(block)

    @property
    def embed(self) -> Any:
        """An overlapping convolution and a norm: a map to tokens and their shape."""
        return self[0]

    @property
    def blocks(self) -> Any:
        """The encoder blocks, from tokens to tokens."""
        return self[1]

    @property
    def norm(self) -> Any:
        """The norm after the blocks."""
        return self[2]

    def forward(self, images: Tensor) -> Tensor:
        """The map after the stage's norm."""
        tokens, shape = self.embed(images)
        for block in self.blocks:
            tokens = block(tokens, shape)
        return as_map(self.norm(tokens), shape)


def build_head(size: Size, num_classes: int, form: Form) -> nn.Module:
    """A decode head with random weights, as in mmsegmentation or in the authors' code."""
    if form == "nvlabs":
        return AuthorsHead(size.widths, size.authors_decoder, num_classes)
    head: Any = SegformerHead(
        in_channels=size.widths,
        in_index=[0, 1, 2, 3],
        channels=size.decoder,
        num_classes=num_classes,
        dropout_ratio=0.1,
        norm_cfg={"type": "BN"},  # never SyncBN, which needs several devices
        align_corners=False,
        # Unused, but mmsegmentation's default prints a warning.
        loss_decode={"type": "CrossEntropyLoss", "avg_non_ignore": True},
    )
    nn.init.normal_(head.conv_seg.weight, std=0.01)  # as its init_weights does, without its log
    nn.init.zeros_(head.conv_seg.bias)
    return Head(head)
