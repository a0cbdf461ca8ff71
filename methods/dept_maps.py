"""DePT for segmentation (the method: dept.py).

The published method does not fit these encoders; this form is ours. Prompts are additional keys and
values in the attention of each stage, behind gates that start closed. Labels are the most likely
classes that an averaged teacher predicts for the plain images. The consistency compares the stages'
mean features. There are no bank, no heads and no diversity. Prompts and gates learn, and the start
is the source model.
"""

import contextlib
import copy
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from ctta_bench.errors import MethodError
from ctta_bench.methods.dept import DePT
from ctta_bench.model import SourceModel
from ctta_bench.parts.prompts.learner import consistency_of_prompts
from ctta_bench.parts.segmentation.scales import hard_loss


class PrefixPrompts(nn.Module):
    """Prompts [P, C] per stage of an encoder, and gates [heads] per block."""

    def __init__(self, model: SourceModel, prompts: int, *, asked_by: str) -> None:
        super().__init__()
        blocks = blocks_by_stage(model, asked_by=asked_by)
        widths = [of_stage[0].attn.q.in_features for of_stage in blocks]
        self.prompts = nn.ParameterList(torch.empty(prompts, width) for width in widths)
        for prompt in self.prompts:
            nn.init.xavier_uniform_(prompt)
        self.gates = nn.ParameterList(
            torch.zeros(block.attn.num_heads) for of_stage in blocks for block in of_stage
        )


def blocks_by_stage(model: SourceModel, *, asked_by: str) -> list[list[Any]]:
    """The blocks of each stage. Raises MethodError if attention has no separate q, k and v."""
    stages = getattr(model.network, "encoder_stages", [])
    blocks = [list(stage.blocks) for stage in stages]
    parts = ("q", "k", "v", "proj", "num_heads")
    if not blocks or not all(hasattr(b.attn, p) for of in blocks for b in of for p in parts):
        raise MethodError(
            f"{asked_by} does not support {model.name}: its prompts need attention with linear "
            "layers q, k, v and proj in every stage; choose a SegFormer."
        )
    return blocks


@contextlib.contextmanager
def prefixed(model: SourceModel, prefix: PrefixPrompts) -> Iterator[None]:
    """Within the block every attention of the model's encoder also attends to these prompts."""
    gates = iter(prefix.gates)
    with contextlib.ExitStack() as stack:
        stages = zip(model.network.encoder_stages, prefix.prompts, strict=True)
        for stage, prompts in stages:
            for block in stage.blocks:
                for handle in _attach(block.attn, prompts, next(gates)):
                    stack.callback(handle.remove)
        yield


def _attach(attention: Any, prompts: Tensor, gate: Tensor) -> list[Any]:
    """Hooks that store the queries and add their attention to the prompts before `proj`."""
    queries: list[Tensor] = []

    def keep(module: nn.Module, inputs: Any, output: Tensor) -> None:
        queries.append(output)

    def add(module: nn.Module, inputs: tuple[Tensor]) -> tuple[Tensor]:
        found = among_prompts(queries.pop(), attention, prompts)
        opened = gate.tanh().repeat_interleave(found.shape[-1] // len(gate))
        return (inputs[0] + opened.to(found.dtype) * found,)

    return [
        attention.q.register_forward_hook(keep),
        attention.proj.register_forward_pre_hook(add),
    ]


def among_prompts(queries: Tensor, attention: Any, prompts: Tensor) -> Tensor:
    """Attention [n, N, C] of queries [n, N, C] to the prompts [P, C] only."""

    def by_head(tokens: Tensor) -> Tensor:
        return tokens.unflatten(-1, (attention.num_heads, -1)).transpose(-3, -2)

    prompts = prompts.to(queries.dtype)
    keys, values = (by_head(layer(prompts)) for layer in (attention.k, attention.v))
    keys, values = (x.to(queries.dtype).expand(len(queries), -1, -1, -1) for x in (keys, values))
    found = scaled_dot_product_attention(by_head(queries), keys, values)
    return found.transpose(1, 2).flatten(2)


class DePTMaps(DePT):
    """Segmentation: prompts in attention, hard labels, consistency with an averaged teacher."""

    passes_per_image = (2, 1)
    checked_with = {"optimizer": "adam", "lr": 1e-3, "prompts": 4}
    exempt = {}

    def setup(self) -> None:
        """Prompts and gates for each stage, and a copy of them as teacher."""
        if self.hp.dino or self.hp.stages != len(self.model.blocks):
            raise MethodError(
                f"DePT on {self.model.name}, a segmentation model, has no DINO heads, and prompts "
                f"in each of its {len(self.model.blocks)} stages; leave `dino` and `stages` out."
            )
        self.student = PrefixPrompts(self.model, self.hp.prompts, asked_by=self.title)
        self.student.to(self.model.mean)
        self.adapt_only(dict(self.student.named_parameters()))
        self.teacher = copy.deepcopy(self.student).requires_grad_(False)
        self.optimizer = self.build_optimizer()
        self.steps, self.teacher_is_behind = 0, False

    def adapt(self, images: Tensor) -> Tensor:
        """One step on the teacher's labels; returns the student's logits from before the step."""
        self.ema_update_teacher()
        with torch.no_grad():
            target, theirs = self.map_pass(images, self.teacher)
        torch.clear_autocast_cache()  # half-precision weights in it have no gradients
        logits, ours = self.map_pass(images, self.student)
        self.set_rate()
        apart = consistency_of_prompts(ours, theirs)
        if self.update(hard_loss(logits, target) + self.hp.prompt_weight * apart, []):
            self.steps += 1
        return logits

    def predict(self, images: Tensor) -> Tensor:
        """The student's logits [n, classes, h, w]."""
        return self.map_pass(images, self.student)[0]

    def map_pass(self, images: Tensor, learner: PrefixPrompts) -> tuple[Tensor, list[Tensor]]:
        """Logits [n, classes, h, w] and mean features [n, C] of each stage, with the prompts."""
        with prefixed(self.model, learner):
            maps = self.model.feature_maps(images)
        return self.model.decode(maps), [m.to(images.dtype).mean((2, 3)) for m in maps]
