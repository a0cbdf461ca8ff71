"""Norm layers that methods put in the place of a network's own."""

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ctta_bench.model import BATCH_NORMS


class RobustNorm(nn.Module):
    """A BatchNorm that, in training mode, moves its statistics by α and uses the moved ones."""

    def __init__(self, norm: _BatchNorm, rate: float) -> None:
        super().__init__()
        self.mean: Tensor
        self.var: Tensor
        self.rate, self.eps = rate, norm.eps
        self.weight, self.bias = norm.weight, norm.bias
        self.register_buffer("mean", norm.get_buffer("running_mean").clone())
        self.register_buffer("var", norm.get_buffer("running_var").clone())
        # timm's BatchNorm may carry the activation that follows it.
        followers = [getattr(norm, name, None) for name in ("drop", "act")]
        self.after = nn.Sequential(*[f for f in followers if f is not None])

    def forward(self, x: Tensor) -> Tensor:
        """x [n, channels, ...] normalised; the gradient goes through the batch's part."""
        mean, var = self.mean, self.var
        if self.training:
            axes = [axis for axis in range(x.ndim) if axis != 1]
            batch_var, batch_mean = torch.var_mean(x.to(mean.dtype), axes, correction=0)
            mean = (1 - self.rate) * mean + self.rate * batch_mean
            var = (1 - self.rate) * var + self.rate * batch_var
            self.mean.copy_(mean.detach())
            self.var.copy_(var.detach())
        shape = (1, -1) + (1,) * (x.ndim - 2)
        scale = self.weight / (var + self.eps).sqrt()
        shift = self.bias - mean * scale
        return self.after(x * scale.view(shape) + shift.view(shape))


def make_robust(network: nn.Module, rate: float) -> bool:
    """Put robust norms in the place of every BatchNorm with statistics and a scale of its own.

    Returns whether there was any.
    """
    found = {
        name: module
        for name, module in network.named_modules()
        if isinstance(module, BATCH_NORMS) and module.affine and module.track_running_stats
    }
    for name, module in found.items():
        network.set_submodule(name, RobustNorm(module, rate).train(module.training))
    return bool(found)
