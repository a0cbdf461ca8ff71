"""DePT (Gao et al., arXiv:2210.04831): prompts among a transformer's tokens learn from pseudo
labels of nearest neighbours and from their own moving average, the teacher.

Official code: yhygao/DePT, for many epochs over a target set; its entry point for streams was never
released. The online form here is a choice of this suite: one step per batch, a memory bank that is
filled from the stream, a constant learning rate. P prompts are put before the class token, new ones
at each of S stages. The scored logits are the student's on the plain images before the step. The
teacher averages prompts, classifier and heads; everything else is frozen and shared.

Prompts always change the logits, so the start is not the source model. Published figures start from
prompts and DINO heads that were trained together with the whole network on labelled source data;
`warmup_epochs` trains both with the network frozen. Without a warm-up the heads would be random, so
they and all their losses are left out (`dino` overrides this); the pseudo labels and the diversity
of classes remain.

The form for segmentation, another algorithm, is in dept_maps.py.

Differs from the official code, unless `faithful: true`: one pass of the teacher before the step
gives both the query and the bank's new entries (theirs queries with the student, and fills the bank
from the teacher after the step); the centre is an average of batch means (theirs, in a single
process, of batch sums); the gradients of the heads are clipped, too; batches of fewer than eight
images have no diversity of classes.
"""

import contextlib
import copy
import functools
import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from ctta_bench.method import (
    NEWER,
    Method,
    OptimizerHyperparameters,
    WarmupHyperparameters,
    ema_update,
)
from ctta_bench.parts.encoder import stage_starts
from ctta_bench.parts.memory import Bank, neighbour_probs
from ctta_bench.parts.prompts.learner import (
    DINOHead,
    PromptLearner,
    consistency_of_prompts,
    distillation,
    diversity_of_classes,
    diversity_of_prompts,
    next_centre,
)
from ctta_bench.parts.views.image import strong_view, weak_view
from ctta_bench.registry import METHODS

SMALLEST_DIVERSE_BATCH = 8
View = Callable[[Tensor, tuple[int, int] | None], Tensor]


class ForwardPass(NamedTuple):
    """Result of a pass: logits, class feature [n, d], prompts' outputs [n, P, d] per stage."""

    logits: Tensor
    features: Tensor
    prompts: list[Tensor]


@METHODS.register_module("dept")
class DePT(Method):
    """Prompts in the encoder, pseudo labels of neighbours, consistency with an averaged teacher."""

    display_name = "DePT"
    year = 2022
    venue = "arXiv"
    citation = "gao2022dept"
    adapts_layers = "prompts between stages, with a teacher and a memory"
    losses = "cross-entropy to labels of neighbours, class diversity"
    extra_memory = "teacher and a bank of features"
    paper = "https://arxiv.org/abs/2210.04831"
    checked_against = "official code"
    warmup_access = "labelled"
    stream_only = frozenset(
        {"cosine_steps", "train_head", "neighbours", "bank_size", "bank_start"}
        | {"prompt_diversity", "class_diversity"}
    )
    tasks = frozenset({"classification", "segmentation"})
    passes_per_image = (4, 1)  # scored; teacher weak and strong; student; 3 without heads
    search_space = {"lr": (1e-5, 1e-1)}
    checked_with = {
        "dino": True,
        "bank_start": 10,
        "prompts": 4,
        "hidden": 16,
        "bottleneck": 8,
        "outputs": 12,
    }
    exempt = {"learning_rate_zero_is_source": "prompts change the attention from the start"}
    segmentation_form = "dept_maps:DePTMaps"

    class Hyperparameters(OptimizerHyperparameters, WarmupHyperparameters):
        """Hyper-parameters of DePT."""

        lr: float = Field(5e-3, ge=0, description="learning rate")
        nesterov: bool = Field(True, description="Nesterov's momentum (SGD)")
        weight_decay: float = Field(1e-4, ge=0, description="weight decay")
        cosine_steps: int = Field(0, ge=0, description="steps until a rate of 0; 0: constant")
        clip: float = Field(1.0, gt=0, description="largest norm of each tensor's gradient")
        stages: int = Field(4, ge=0, description="S, stages with prompts of their own")
        prompts: int = Field(50, ge=1, description="P, prompts per stage")
        train_head: bool = Field(True, description="the classifier learns, too")
        teacher_momentum: float = Field(0.99, ge=0, le=1, description="m of the teacher's EMA")
        neighbours: int = Field(10, ge=1, description="k, neighbours that make a pseudo label")
        bank_size: int = Field(1024, ge=1, description="entries of the memory bank")
        bank_start: int = Field(64, ge=1, description="entries before neighbours are used")
        dino: bool | None = Field(None, description="use DINO heads; unset: if there is a warm-up")
        hidden: int = Field(2048, ge=1, description="width of a head's hidden layer")
        bottleneck: int = Field(256, ge=1, description="width of a head's bottleneck")
        outputs: int = Field(2048, ge=1, description="outputs of a head")
        label_weight: float = Field(
            1.0, ge=0, description="α of the pseudo-label loss", json_schema_extra=NEWER
        )
        teacher_temperature: float = Field(
            0.07,
            gt=0,
            description="of the teacher's outputs in the consistency",
            json_schema_extra=NEWER,
        )
        cls_weight: float = Field(0.1, ge=0, description="β of the class token's consistency")
        prompt_weight: float = Field(0.1, ge=0, description="β₂ of the prompts' consistency")
        prompt_diversity: float = Field(0.05, ge=0, description="λ of the prompts' diversity")
        class_diversity: float = Field(1.0, ge=0, description="η of the classes' diversity")
        warmup_epochs: int = Field(
            0, ge=0, description="epochs of prompts and heads on source labels"
        )
        warmup_optimizer: Literal["sgd", "adamw"] = Field(
            "sgd", description="of the warm-up; SGD has momentum 0.9", json_schema_extra=NEWER
        )
        warmup_lr: float = Field(5e-3, ge=0, description="learning rate of the warm-up")
        warmup_batch_size: int = Field(128, ge=1, description="batch size of the warm-up")
        faithful: bool = Field(False, description="order, centre and clipping of the official code")

    weak_view: View
    strong_view: View
    student: Any  # PromptLearner; for segmentation: PrefixPrompts
    teacher: Any

    def setup(self) -> None:
        """Add prompts and heads to the network; copy them as teacher; start with an empty bank."""
        stage_starts(self.model, self.hp.stages, asked_by=self.title)  # may raise
        width, classifier = self.model.network.embed_dim, self.model.classifier
        self.student = PromptLearner(width, self.hp.stages, self.hp.prompts, classifier)
        if self.hp.dino or (self.hp.dino is None and self.hp.warms_up):
            sizes = (width, self.hp.hidden, self.hp.bottleneck, self.hp.outputs)
            self.student.heads.extend(DINOHead(*sizes) for _ in range(self.hp.stages))
        self.student.to(self.model.mean)
        named = dict(self.student.named_parameters())
        self.adapt_only(
            {n: p for n, p in named.items() if self.hp.train_head or "classifier" not in n}
        )
        self.teacher = copy.deepcopy(self.student).requires_grad_(False)
        self.optimizer = self.build_optimizer()
        like = self.model.mean
        self.bank = Bank(self.hp.bank_size, classifier.in_features, classifier.out_features, like)
        self.centre = like.new_zeros(1, self.hp.outputs)
        self.steps, self.teacher_is_behind = 0, False
        self.weak_view, self.strong_view = weak_view, strong_view

    def warmup_parameters(self) -> dict[str, nn.Parameter]:
        """Prompts and heads; network and classifier are frozen."""
        return {n: p for n, p in self.student.named_parameters() if "classifier" not in n}

    def warm_up(self, images: Tensor, labels: Tensor | None) -> None:
        """A clipped step on a strong view: labels, and consistency with the teacher."""
        assert labels is not None
        self.ema_update_teacher()
        logits, ours, theirs = self.strong_passes(images)
        self.update(cross_entropy(logits, labels) + self.consistency(ours, theirs), theirs)

    def warmed_up(self) -> None:
        """Copy the student to the teacher again, and set its centre to zero."""
        self.teacher.load_state_dict(self.student.state_dict())
        self.centre = torch.zeros_like(self.centre)
        self.teacher_is_behind = False

    def adapt(self, images: Tensor) -> Tensor:
        """One step on a strong view; returns the student's plain logits from before the step."""
        with torch.no_grad():
            logits = self.predict(images)
        self.ema_update_teacher()
        weak = self.weak_view(images, self.model.preprocessing.size)
        labels = self.pseudo_labels(weak)
        strong, ours, theirs = self.strong_passes(images)
        self.set_rate()
        if self.update(self.total_loss(strong, ours, theirs, labels), theirs):
            self.steps += 1
            if self.hp.faithful:
                self.memorise(weak)
        return logits

    def predict(self, images: Tensor) -> Tensor:
        """The student's logits."""
        return self.forward_pass(images, self.student).logits

    def forward_pass(self, images: Tensor, learner: PromptLearner) -> ForwardPass:
        """A pass through the network with the prompts and the classifier of `learner`."""
        seen: list[Tensor] = []
        count = self.hp.prompts

        def enter(stage: int, module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
            tokens, prompts = inputs[0], learner.prompts[stage]
            if stage:
                seen.append(tokens[:, :count])
                tokens = tokens[:, count:]
            prompts = prompts.to(tokens.dtype).expand(len(tokens), -1, -1)
            return torch.cat([prompts, tokens], dim=1), *inputs[1:]

        def leave(module: nn.Module, inputs: tuple[Any, ...], tokens: Tensor) -> Tensor:
            seen.append(tokens[:, :count])
            return tokens[:, count:]  # the class token is first again

        with contextlib.ExitStack() as stack:
            starts = stage_starts(self.model, self.hp.stages, asked_by=self.title)
            for stage, block in enumerate(starts):
                hook = functools.partial(enter, stage)
                stack.callback(block.register_forward_pre_hook(hook).remove)
            if starts:
                stack.callback(self.model.network.norm.register_forward_hook(leave).remove)
            features = self.model.features(images)
        outputs = [features, learner.classifier(features), *seen]
        features, logits, *prompts = (output.to(images.dtype) for output in outputs)
        return ForwardPass(logits, features, prompts)

    def ema_update_teacher(self) -> None:
        """Move the teacher towards the student, at the beginning of the batch after a step."""
        if self.teacher_is_behind:
            momentum = self.hp.teacher_momentum
            ema_update(self.teacher.parameters(), self.student.parameters(), momentum)
            self.teacher_is_behind = False

    def memorise(self, weak: Tensor) -> ForwardPass:
        """Add the teacher's features and probabilities of a batch to the bank."""
        with torch.no_grad():
            found = self.forward_pass(weak, self.teacher)
        self.bank.add(found.features, found.logits.softmax(1))
        return found

    @torch.no_grad()
    def pseudo_labels(self, weak: Tensor) -> Tensor:
        """Labels int64 [n] from the mean probabilities of neighbours, once there are enough."""
        query = self.forward_pass(weak, self.student) if self.hp.faithful else self.memorise(weak)
        filled, needed = self.bank.filled, max(self.hp.bank_start, self.hp.neighbours)
        if filled < min(needed, len(self.bank.features)):
            return query.logits.argmax(1)
        bank = self.bank.features[:filled], self.bank.probs[:filled]
        return neighbour_probs(query.features, *bank, self.hp.neighbours).argmax(1)

    def strong_passes(self, images: Tensor) -> tuple[Tensor, list[Tensor], list[Tensor]]:
        """The student's logits on a strong view, and the outputs of its and the teacher's heads.

        The teacher gets another view. Without heads both lists are empty.
        """
        size, theirs = self.model.preprocessing.size, []
        if self.student.heads:
            with torch.no_grad():
                teacher = self.forward_pass(self.strong_view(images, size), self.teacher)
                theirs = self.through_heads(teacher, self.teacher)
        torch.clear_autocast_cache()  # half-precision weights in it have no gradients
        student = self.forward_pass(self.strong_view(images, size), self.student)
        return student.logits, self.through_heads(student, self.student), theirs

    def through_heads(self, seen: ForwardPass, learner: PromptLearner) -> list[Tensor]:
        """Head outputs of each stage's prompts [n, P, outputs] and, last, of the class token."""
        if not learner.heads:
            return []
        with torch.autocast(self.device.type, enabled=False):
            prompts = zip(learner.heads, seen.prompts, strict=True)
            return [*(head(tokens) for head, tokens in prompts), learner.heads[-1](seen.features)]

    def total_loss(
        self, logits: Tensor, ours: list[Tensor], theirs: list[Tensor], labels: Tensor
    ) -> Tensor:
        """Pseudo-label loss, consistency with the teacher, diversity of prompts and of classes."""
        loss = self.hp.label_weight * cross_entropy(logits, labels)
        loss = loss + self.consistency(ours, theirs)
        if ours:
            loss = loss + self.hp.prompt_diversity * diversity_of_prompts(ours[:-1])
        if self.hp.faithful or len(labels) >= SMALLEST_DIVERSE_BATCH:
            loss = loss + self.hp.class_diversity * diversity_of_classes(logits)
        return loss

    def consistency(self, ours: list[Tensor], theirs: list[Tensor]) -> Tensor:
        """Distance of the heads' outputs from the teacher's, a scalar; 0 without heads."""
        if not ours:
            return self.centre.new_zeros(())
        temperature = self.hp.teacher_temperature
        of_class = distillation(ours[-1], theirs[-1], self.centre, temperature)
        of_prompts = consistency_of_prompts(ours[:-1], theirs[:-1])
        return self.hp.cls_weight * of_class + self.hp.prompt_weight * of_prompts

    def update(self, loss: Tensor, theirs: list[Tensor]) -> bool:
        """One clipped step; if it is made, update the centre, and the teacher in the next batch."""
        if not self.backward(loss):
            return False
        self.clip_gradients()
        if not self.optimizer_step():
            return False
        self.teacher_is_behind = True
        if theirs:
            self.centre = next_centre(self.centre, theirs[-1], summed=self.hp.faithful)
        return True

    def set_rate(self) -> None:
        """Set the learning rate of half a cosine over `cosine_steps`, if that is set."""
        if self.hp.cosine_steps:
            share = min(self.steps / self.hp.cosine_steps, 1.0)
            for group in self.optimizer.param_groups:
                group["lr"] = self.hp.lr * (1 + math.cos(math.pi * share)) / 2

    def clip_gradients(self) -> None:
        """Clip the gradient of each tensor; the official code leaves out the heads."""
        limit = self.hp.clip * self._scaler.get_scale()
        for name, parameter in self.trainable.items():
            if not (self.hp.faithful and name.startswith("heads")):
                nn.utils.clip_grad_norm_(parameter, limit)
