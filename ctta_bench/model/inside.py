"""What happens inside a transformer: hooks on attention, tokens, blocks, patch and class tokens.

`SourceModel` has them as methods. Each is a context manager around forward passes; it records, or
changes, what passes a place in the network, and leaves the network as it was:

    with model.attention(layers=(-1,)) as matrices:
        logits = model(images)
    from_class_token = matrices[0][:, :, 0, model.prefix_tokens :]  # [n, heads, patches]
    with model.drop_tokens(keep=positions):
        logits = model(images)
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from ctta_bench.errors import MethodError

Change = Callable[[Tensor], Tensor]


class TransformerHooks:
    """Hooks on the network of a `SourceModel`; those for attention support every transformer.

    The others need a timm VisionTransformer, whose tokens are [n, prefix tokens + patches, d], and
    raise MethodError for another network.
    """

    network: Any
    name: str

    @contextlib.contextmanager
    def attention(self, layers: Sequence[int] | None = None) -> Iterator[list[Tensor]]:
        """Each forward pass appends attention matrices [n, heads, queries, keys], rows sum to 1.

        In the order of the attention layers; `layers` chooses some (-1: the last). Supports timm's
        attention, torch's MultiheadAttention, and attention with separate q and k, as SegFormer's.
        Fused kernels, which do not build the matrices, are switched off for the chosen layers:
        logits are the same except for rounding. Raises MethodError if the network has no such
        layer.
        """
        with recorded_matrices(self.network, layers, name=self.name) as matrices:
            yield matrices

    @contextlib.contextmanager
    def queries_keys_values(
        self, layers: Sequence[int] | None = None
    ) -> Iterator[list[tuple[Tensor, Tensor, Tensor]]]:
        """Each forward pass appends q, k and v [n, heads, tokens, d] of attention layers.

        Before norms of q and k, if any. Supports attention with one linear layer qkv (timm's) or
        three, q, k and v (SegFormer's).
        Raises MethodError if the network has no such layer.
        """
        seen: list[tuple[Tensor, Tensor, Tensor]] = []
        with contextlib.ExitStack() as stack:
            for module in chosen_layers(self.network, layers, projected, self.name):
                stack.enter_context(_projections(module, seen))
            yield seen

    @contextlib.contextmanager
    def block_tokens(self) -> Iterator[list[Tensor]]:
        """Each forward pass appends the tokens [n, T, d] after every encoder block, in order."""
        self.require_tokens()
        seen: list[Tensor] = []
        with contextlib.ExitStack() as stack:
            for block in self.network.blocks:
                stack.enter_context(after(block, lambda tokens: _noted(seen, tokens)))
            yield seen

    def tokens_and_logits(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Tokens [n, T, d] after the final norm, and logits [n, classes], by one forward pass.

        Patches begin at `prefix_tokens`; `class_token(tokens)` is the class token [n, d].
        """
        self.require_tokens()
        seen: list[Tensor] = []
        with after(self.network.norm, lambda tokens: _noted(seen, tokens)):
            logits: Tensor = self(images)  # type: ignore[operator]
        return seen[0], logits

    @property
    def prefix_tokens(self) -> int:
        """Tokens before those of the patches: class, distillation and register tokens."""
        self.require_tokens()
        return int(self.network.num_prefix_tokens)

    def class_token(self, tokens: Tensor) -> Tensor:
        """The class token [n, d] among tokens [n, T, d]. Raises MethodError if there is none."""
        self.require_tokens(class_token=True)
        return tokens[:, 0]

    def change_patch_embeddings(self, change: Change) -> contextlib.AbstractContextManager[None]:
        """`change` gets and returns the embeddings of all patches, before positions are added.

        They are [n, patches, d], or [n, rows, columns, d] where the network keeps the grid.
        """
        self.require_tokens()
        return after(self.network.patch_embed, change)

    def change_tokens(
        self, change: Change, block: int = 0
    ) -> contextlib.AbstractContextManager[None]:
        """`change` gets and returns the tokens [n, T, d] that enter a block; it may add tokens.

        At block 0 they have their positions.
        """
        self.require_tokens()
        return before(self.network.blocks[block], change)

    def drop_tokens(self, *, keep: Tensor) -> contextlib.AbstractContextManager[None]:
        """Only the patches at positions `keep`, int64 [n, k], go through the blocks.

        They have been embedded and have their positions; prefix tokens stay. The cost of a forward
        pass falls with their number.
        """
        prefix = self.prefix_tokens

        def kept(tokens: Tensor) -> Tensor:
            chosen = keep.unsqueeze(-1).expand(-1, -1, tokens.shape[-1])
            return torch.cat([tokens[:, :prefix], tokens[:, prefix:].gather(1, chosen)], dim=1)

        return self.change_tokens(kept)

    def require_tokens(self, *, class_token: bool = False, asked_by: str = "") -> None:
        """Raise MethodError unless the network is a timm ViT, with a class token if asked for.

        `asked_by`: the method, for the message.
        """
        network = self.network
        start = f"{asked_by} does not support {self.name}" if asked_by else self.name
        if not isinstance(network, VisionTransformer):
            lacks = "no class token" if class_token else "not the tokens"
            raise MethodError(f"{start}: it has {lacks} of a timm VisionTransformer; choose a ViT.")
        if class_token and network.cls_token is None:
            raise MethodError(f"{start}: it has no class token; choose a ViT with one.")


@contextlib.contextmanager
def after(module: nn.Module, change: Change) -> Iterator[None]:
    """Context manager: the output of `module` becomes `change(output)`."""
    handle = module.register_forward_hook(lambda _, inputs, output: change(output))
    try:
        yield
    finally:
        handle.remove()


@contextlib.contextmanager
def before(module: nn.Module, change: Change) -> Iterator[None]:
    """Context manager: the first input of `module` becomes `change(input)`."""
    handle = module.register_forward_pre_hook(lambda _, inputs: (change(inputs[0]), *inputs[1:]))
    try:
        yield
    finally:
        handle.remove()


def _noted(seen: list[Tensor], tokens: Tensor) -> Tensor:
    seen.append(tokens)
    return tokens


# -- attention


def of_timm(module: nn.Module) -> bool:
    """Attention with a dropout after the softmax, as timm's."""
    return hasattr(module, "fused_attn") and isinstance(
        getattr(module, "attn_drop", None), nn.Module
    )


def separate(module: nn.Module) -> bool:
    """Attention with linear layers q, k and v, as SegFormer's here."""
    layers = (getattr(module, name, None) for name in "qkv")
    return hasattr(module, "num_heads") and all(isinstance(x, nn.Module) for x in layers)


def readable(module: nn.Module) -> bool:
    """Whether the matrices of this attention can be recorded."""
    return isinstance(module, nn.MultiheadAttention) or of_timm(module) or separate(module)


def projected(module: nn.Module) -> bool:
    """Whether q, k and v of this attention can be recorded."""
    one = hasattr(module, "num_heads") and isinstance(getattr(module, "qkv", None), nn.Module)
    return one or separate(module)


def chosen_layers(
    network: nn.Module, layers: Sequence[int] | None, kind: Callable[[nn.Module], bool], name: str
) -> list[nn.Module]:
    """The attention layers of a kind, all or those with these numbers.

    Raises MethodError, which calls the network `name`, if there is none, or none of a number.
    """
    found = [module for module in network.modules() if kind(module)]
    if not found:
        raise MethodError(
            f"{name}: no attention layer with readable matrices; choose a plain vision transformer."
        )
    wrong = [number for number in layers or () if not -len(found) <= number < len(found)]
    if wrong:
        raise MethodError(
            f"{name}: attention layer {wrong[0]} was asked for, but it has {len(found)}; choose "
            f"{-len(found)} to {len(found) - 1}."
        )
    return found if layers is None else [found[number] for number in layers]


@contextlib.contextmanager
def recorded_matrices(
    network: nn.Module, layers: Sequence[int] | None = None, *, name: str = ""
) -> Iterator[list[Tensor]]:
    """`SourceModel.attention` of any module, which messages call `name`."""
    matrices: list[Tensor] = []
    name = name or getattr(network, "name", type(network).__name__)
    with contextlib.ExitStack() as undo:
        for module in chosen_layers(network, layers, readable, name):
            for handle in _matrix_hooks(module, matrices):
                undo.callback(handle.remove)
            if isinstance(fused := getattr(module, "fused_attn", None), bool):
                undo.callback(setattr, module, "fused_attn", fused)
                module.fused_attn = False  # type: ignore[assignment]
        yield matrices


def _matrix_hooks(module: Any, matrices: list[Tensor]) -> Iterator[Any]:
    if isinstance(module, nn.MultiheadAttention):
        wanted = {"need_weights": True, "average_attn_weights": False}
        yield module.register_forward_pre_hook(
            lambda _, args, kwargs: (args, kwargs | wanted), with_kwargs=True
        )
        yield module.register_forward_hook(lambda _, __, output: matrices.append(output[1]))
    elif of_timm(module):
        # timm applies this layer to the softmax; its rate is 0 in evaluation.
        heads = getattr(module, "num_heads", None)
        yield module.attn_drop.register_forward_pre_hook(
            lambda _, args: _record(args[0], heads, matrices)
        )
    else:
        seen: list[Tensor] = []  # q, until k is there

        def with_keys(_: nn.Module, __: Any, keys: Tensor) -> None:
            queries, split = seen.pop(), by_head(keys, module.num_heads)
            scores = by_head(queries, module.num_heads) @ split.mT * split.shape[-1] ** -0.5
            matrices.append(scores.softmax(-1))

        yield module.q.register_forward_hook(lambda _, __, output: seen.append(output))
        yield module.k.register_forward_hook(with_keys)


def _record(matrix: Tensor, heads: int | None, matrices: list[Tensor]) -> None:
    if heads is not None and matrix.ndim > 1 and matrix.shape[1] != heads:
        raise MethodError(
            f"an attention layer has {heads} heads but {matrix.shape[1]} matrices (as in "
            "differential attention): rollout is not defined for it; choose a plain vision "
            "transformer."
        )
    matrices.append(matrix)


@contextlib.contextmanager
def _projections(module: Any, seen: list[tuple[Tensor, Tensor, Tensor]]) -> Iterator[None]:
    if not separate(module):

        def split(joint: Tensor) -> Tensor:
            q, k, v = joint.chunk(3, dim=-1)
            seen.append(tuple(by_head(x, module.num_heads) for x in (q, k, v)))  # type: ignore
            return joint

        with after(module.qkv, split):
            yield
        return
    parts: list[Tensor] = []

    def note(_: nn.Module, __: Any, output: Tensor) -> None:
        parts.append(by_head(output, module.num_heads))
        if len(parts) == 3:
            seen.append((parts[0], parts[1], parts[2]))
            parts.clear()

    with contextlib.ExitStack() as stack:
        for layer in (module.q, module.k, module.v):
            stack.callback(layer.register_forward_hook(note).remove)
        yield


def by_head(values: Tensor, heads: int) -> Tensor:
    """Values [n, T, heads · d] as [n, heads, T, d]."""
    return values.unflatten(-1, (heads, -1)).transpose(1, 2)
