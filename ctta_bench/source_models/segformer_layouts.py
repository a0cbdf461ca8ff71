"""Checkpoints of SegFormer with other tensor names, and the conversion to and from our names.

Supported are files of the authors (NVlabs), of mmsegmentation (0.x and 1.x have equal names), of
Hugging Face's transformers, and our own. Encoder and decode head are recognised separately, so an
authors' file whose encoder was renamed for mmsegmentation can be read as well. One table per layout
maps each of our tensors to its name and row block in the file, for reading and writing.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from ctta_bench.errors import DataError

Rule = tuple[str, str | Callable[[re.Match[str]], str]]
LISTED_KEYS = 5
EXPECTED = (
    "a complete SegFormer of this size, encoder and decode head, as its authors (NVlabs), "
    "mmsegmentation or transformers save it"
)


def _after(prefix: str, rest: str = "") -> Callable[[re.Match[str]], str]:
    """Replaces a match by `prefix`, its first group plus one, and `rest`."""
    return lambda match: match.expand(f"{prefix}{int(match[1]) + 1}{rest}")


@dataclass(frozen=True)
class Layout:
    """The tensor names of an encoder or a decode head; `sign` matches in every such file.

    rules: rename our tensors, applied in order. packed: layers of ours whose rows follow each other
    in one tensor. unused: tensors of the files that the network does not need.
    """

    name: str
    sign: str
    rules: tuple[Rule, ...] = ()
    packed: tuple[str, ...] = ()
    unused: str = r"(?!)"

    def place(self, key: str) -> tuple[str, int, int]:
        """Location of our tensor: its name there, number of its row block, number of blocks."""
        for pattern, replacement in self.rules:
            key = re.sub(pattern, replacement, key)
        layer = re.search(r"<(\w)>", key)
        if layer is None:
            return key, 0, 1
        return key.replace(layer[0], ""), self.packed.index(layer[1]), len(self.packed)


_BLOCK = r"^backbone\.layers\.(\d)\.1\."
ENCODERS = OURS, MMSEG, NVLABS, TRANSFORMERS = (
    Layout("ctta-bench", r"^backbone\.layers\.0\.1\.0\.attn\.q\."),
    Layout(
        "mmsegmentation",
        r"^backbone\.layers\.0\.1\.0\.attn\.attn\.",
        rules=(
            (r"\.attn\.([qkv])\.(\w+)$", r".attn.attn.in_proj_\2<\1>"),
            (r"\.attn\.proj\.", ".attn.attn.out_proj."),
            (r"\.ffn\.fc1\.", ".ffn.layers.0."),
            (r"\.ffn\.dwconv\.", ".ffn.layers.1."),
            (r"\.ffn\.fc2\.", ".ffn.layers.4."),
        ),
        packed=("q", "k", "v"),
    ),
    Layout(
        "NVlabs",
        r"^backbone\.block1\.0\.",
        rules=(
            (r"\.attn\.([kv])\.(\w+)$", r".attn.kv.\2<\1>"),
            (r"\.ffn\.dwconv\.", ".mlp.dwconv.dwconv."),
            (r"\.ffn\.", ".mlp."),
            (r"^backbone\.layers\.(\d)\.0\.projection", _after("backbone.patch_embed", ".proj")),
            (r"^backbone\.layers\.(\d)\.0\.", _after("backbone.patch_embed", ".")),
            (_BLOCK, _after("backbone.block", ".")),
            (r"^backbone\.layers\.(\d)\.2\.", _after("backbone.norm", ".")),
        ),
        packed=("k", "v"),
    ),
    Layout(
        "transformers",
        r"^segformer\.encoder\.",
        rules=(
            (r"\.attn\.q\.", ".attention.self.query."),
            (r"\.attn\.k\.", ".attention.self.key."),
            (r"\.attn\.v\.", ".attention.self.value."),
            (r"\.attn\.sr\.", ".attention.self.sr."),
            (r"\.attn\.norm\.", ".attention.self.layer_norm."),
            (r"\.attn\.proj\.", ".attention.output.dense."),
            (r"\.ffn\.dwconv\.", ".mlp.dwconv.dwconv."),
            (r"\.ffn\.fc", ".mlp.dense"),
            (r"\.norm([12])\.", r".layer_norm_\1."),
            (r"^backbone\.layers\.(\d)\.0\.projection", r"backbone.patch_embeddings.\1.proj"),
            (r"^backbone\.layers\.(\d)\.0\.norm", r"backbone.patch_embeddings.\1.layer_norm"),
            (_BLOCK, r"backbone.block.\1."),
            (r"^backbone\.layers\.(\d)\.2\.", r"backbone.layer_norm.\1."),
            (r"^backbone\.", "segformer.encoder."),
        ),
    ),
)  # fmt: skip
HEADS = MMSEG_HEAD, NVLABS_HEAD, TRANSFORMERS_HEAD = (
    Layout("mmsegmentation", r"^decode_head\.convs\."),
    # The authors' class inherits a layer that it never calls.
    Layout("NVlabs", r"^decode_head\.linear_c1\.", unused=r"^decode_head\.conv_seg\."),
    Layout(
        "transformers",
        r"^decode_head\.linear_c\.",
        rules=(
            (r"\.linear_c(\d)\.", lambda match: f".linear_c.{int(match[1]) - 1}."),
            (r"\.linear_fuse\.conv\.", ".linear_fuse."),
            (r"\.linear_fuse\.bn\.", ".batch_norm."),
            (r"\.linear_pred\.", ".classifier."),
        ),
    ),
)


@dataclass(frozen=True)
class Naming:
    """The layouts of a file's encoder and head."""

    encoder: Layout
    head: Layout

    def place(self, key: str) -> tuple[str, int, int]:
        """`Layout.place` of the encoder or head, to which the tensor belongs."""
        return (self.encoder if key.startswith("backbone.") else self.head).place(key)

    def is_unused(self, key: str) -> bool:
        """Whether a tensor of such files is not needed by the network."""
        return any(re.search(layout.unused, key) for layout in (self.encoder, self.head))

    def __str__(self) -> str:
        halves = dict.fromkeys((self.encoder.name, self.head.name))
        return " and ".join(halves)


def with_backbone(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The encoder's tensors under `backbone.`, also if the file omits this prefix."""
    bare = re.compile(r"(patch_embed\d|block\d|norm\d|layers\.\d)\.")
    return {f"backbone.{k}" if bare.match(k) else k: v for k, v in tensors.items()}


def recognise(keys: Iterable[str], file: Path) -> Naming:
    """The naming of a file's keys. Raises DataError if encoder or head has unknown names."""
    names = list(keys)
    halves = [
        next((x for x in layouts if any(re.search(x.sign, k) for k in names)), None)
        for layouts in (ENCODERS, HEADS)
    ]
    encoder, head = halves
    if encoder is None or head is None:
        lacking = "encoder" if encoder is None else "decode head"
        first = f"it starts with {names[0]!r}" if names else "it holds no tensor"
        raise DataError(f"{file}: has no {lacking} of a SegFormer ({first}); give {EXPECTED}.")
    return Naming(encoder, head)


def read(
    tensors: Mapping[str, Tensor], wanted: Mapping[str, Tensor], naming: Naming, file: Path
) -> dict[str, Tensor]:
    """A file's tensors under the network's names, which are the keys of `wanted`.

    Raises DataError that names, as in the file, missing, wrongly shaped and unexpected tensors.
    """
    places = {key: naming.place(key) for key in wanted}
    problems = list(_problems(tensors, wanted, naming, places))
    if problems:
        more = f"; and {len(problems) - LISTED_KEYS} more" if len(problems) > LISTED_KEYS else ""
        raise DataError(
            f"{file}: does not fit (its names are those of {naming}): "
            f"{'; '.join(problems[:LISTED_KEYS])}{more}; give {EXPECTED}."
        )
    return {
        key: _block(tensors[name], number, count).reshape(wanted[key].shape)
        for key, (name, number, count) in places.items()
    }


def _block(rows: Tensor, number: int, count: int) -> Tensor:
    return rows if count == 1 else rows.chunk(count)[number]


def _problems(
    tensors: Mapping[str, Tensor],
    wanted: Mapping[str, Tensor],
    naming: Naming,
    places: Mapping[str, tuple[str, int, int]],
) -> Iterator[str]:
    needed = {name: (wanted[key], count) for key, (name, _, count) in places.items()}
    for name, (ours, count) in needed.items():
        if name not in tensors:
            yield f"key {name!r} is missing"
            continue
        theirs = tuple(tensors[name].shape)
        expected = (count * ours.shape[0], *ours.shape[1:]) if ours.dim() else ()
        # A linear layer may be a 1x1 convolution.
        if theirs not in (expected, (*expected, 1, 1)):
            yield f"key {name!r} has shape {theirs} where the model has {expected}"
    for name in tensors:
        if name not in needed and not naming.is_unused(name):
            yield f"key {name!r} belongs to no layer of the model"


def write(state: Mapping[str, Tensor], naming: Naming) -> dict[str, Tensor]:
    """The network's tensors under the names of a layout; the inverse of `read`."""
    blocks: dict[str, dict[int, Tensor]] = {}
    for key, value in state.items():
        name, number, _ = naming.place(key)
        if naming.encoder is MMSEG and re.search(r"\.ffn\.fc\d\.weight", key):
            value = value[:, :, None, None]
        blocks.setdefault(name, {})[number] = value
    return {
        name: torch.cat([rows[i] for i in sorted(rows)]) if len(rows) > 1 else rows[0]
        for name, rows in blocks.items()
    }


def published(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Our tensors of a SegFormer under the names of mmsegmentation or of the authors' code.

    The decode head determines which. Tensors of other networks are returned unchanged.
    """
    if not any(re.search(OURS.sign, key) for key in state):
        return dict(state)
    mmseg = any(re.search(MMSEG_HEAD.sign, key) for key in state)
    naming = Naming(MMSEG, MMSEG_HEAD) if mmseg else Naming(NVLABS, NVLABS_HEAD)
    return write(state, naming)
