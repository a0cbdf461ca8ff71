"""Dropout at test time in the head of a segmentation network, for its uncertainty."""

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
    """Raise MethodError if the network's decode head has no dropout layer."""
    if not dropouts_of(model):
        raise MethodError(
            f"{asked_by} does not support {model.name}: its uncertainty needs the dropout of a "
            "`decode_head`, which this network lacks."
        )


@contextlib.contextmanager
def dropping(model: SourceModel, share: float) -> Iterator[None]:
    """Context manager: every dropout layer of the head drops this share of single values."""

    def drop(module: nn.Module, inputs: tuple[Tensor], output: Tensor) -> Tensor:
        return dropout(inputs[0], share, training=True)

    handles = [module.register_forward_hook(drop) for module in dropouts_of(model)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
