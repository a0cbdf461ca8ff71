"""Dropout at test time in the head of a segmentor: what changes under it is uncertain."""

import contextlib
from collections.abc import Iterator

from torch import Tensor, nn
from torch.nn.functional import dropout

from ctta_bench.errors import MethodError
from ctta_bench.model import SourceModel

DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)


def dropouts_of(model: SourceModel) -> list[nn.Module]:
    """The dropout layers of the decode head, in order."""
    head = getattr(model.network, "decode_head", nn.Identity())
    return [module for module in head.modules() if isinstance(module, DROPOUTS)]


def check_dropout(model: SourceModel, *, asked_by: str) -> None:
    """Raise MethodError for a segmentor whose decode head has none."""
    if not dropouts_of(model):
        raise MethodError(
            f"{asked_by} cannot serve {model.name}: its uncertainty is that under the dropout of a "
            "`decode_head`, of which this network has none."
        )


@contextlib.contextmanager
def dropping(model: SourceModel, share: float) -> Iterator[None]:
    """Let every dropout of the head, which is in evaluation mode, drop single values."""

    def drop(module: nn.Module, inputs: tuple[Tensor], output: Tensor) -> Tensor:
        return dropout(inputs[0], share, training=True)

    handles = [module.register_forward_hook(drop) for module in dropouts_of(model)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
