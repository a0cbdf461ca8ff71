"""DePT on segmentation (the method: dept.py).

Nothing of the method could be built here, the form is ours: prompts are further keys and values of
each stage's attention behind gates that start closed; labels are the most likely classes of an
averaged teacher on the images themselves; consistency is that of the stages' mean features; neither
bank, heads nor diversity. Prompts and gates learn, and the start is the source model.
"""

import copy

import torch
from torch import Tensor

from ctta_bench.errors import MethodError
from ctta_bench.methods.dept import DePT
from ctta_bench.parts.prompts.learner import consistency_of_prompts
from ctta_bench.parts.prompts.prefix import PrefixPrompts, prefixed
from ctta_bench.parts.segmentation.scales import hard_loss


class DePTMaps(DePT):
    """Prompts in each stage's attention, hard labels and consistency with an averaged self."""

    passes_per_image = (2, 1)
    checked_with = {"optimizer": "adam", "lr": 1e-3, "prompts": 4}
    exempt = {}

    def setup(self) -> None:
        """Prompts and gates of a segmentor, and a teacher equal to them."""
        if self.hp.dino or self.hp.stages != len(self.model.blocks):
            raise MethodError(
                f"DePT has no DINO heads on {self.model.name}, which segments, and prompts in each "
                f"of its {len(self.model.blocks)} stages; leave `dino` and `stages` out."
            )
        self.student = PrefixPrompts(self.model, self.hp.prompts, asked_by="DePT")
        self.student.to(self.model.mean)
        self.adapt_only(dict(self.student.named_parameters()))
        self.teacher = copy.deepcopy(self.student).requires_grad_(False)
        self.optimizer = self.build_optimizer()
        self.steps, self.teacher_is_behind = 0, False

    def adapt(self, images: Tensor) -> Tensor:
        """One step on the teacher's labels; returns the logits from before it."""
        self.follow()
        with torch.no_grad():
            target, theirs = self.map_pass(images, self.teacher)
        torch.clear_autocast_cache()  # its halves of the weights were made without gradients
        logits, ours = self.map_pass(images, self.student)
        self.set_rate()
        apart = consistency_of_prompts(ours, theirs)
        if self.learn(hard_loss(logits, target) + self.hp.prompt_weight * apart, []):
            self.steps += 1
        return logits

    def predict(self, images: Tensor) -> Tensor:
        """The student's logits [n, classes, h, w]."""
        return self.map_pass(images, self.student)[0]

    def map_pass(self, images: Tensor, learner: PrefixPrompts) -> tuple[Tensor, list[Tensor]]:
        """Logits [n, classes, h, w] and mean features [n, C] of each stage under the prompts."""
        with prefixed(self.model, learner):
            maps = self.model.feature_maps(images)
        return self.model.decode(maps), [m.to(images.dtype).mean((2, 3)) for m in maps]
