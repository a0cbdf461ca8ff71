"""DePT (Gao et al., arXiv:2210.04831): prompts among a transformer's tokens, taught by pseudo
labels from nearest neighbours, and by a moving average of themselves.

Official code: yhygao/DePT, for many epochs over a target set; its entry point for streams was never
released. What one pass makes of it here is a choice of this suite: one step a batch, a memory bank
that fills from the stream, a constant learning rate. P prompts stand before the class token, new
ones at each of S stages. The scored logits are the student's on the plain images before the step.
The teacher is averaged from prompts, classifier and heads: all else is frozen, and shared.

Prompts are never neutral: at the start, not even the logits are the source model's. Published
figures start from prompts and DINO heads that were trained with the whole network on labelled
source data; `warmup_epochs` trains both before the frozen network. Without it the heads, which
would be random, are left out with all losses on them (`dino` overrides), which leaves the pseudo
labels and the diversity of classes.

Differs from the official code, unless `faithful: true`: the query and the bank's new entries are
one pass of the teacher before the step (theirs asks the student, and fills in the teacher's after
it); the centre follows the mean of a batch (theirs, in a single process, its sum); the gradients of
heads are clipped, too; batches below eight go without diversity of classes.
"""

import contextlib
import copy
import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from pydantic import Field
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn
from torch.nn.functional import (
    cosine_similarity,
    cross_entropy,
    grid_sample,
    linear,
    normalize,
    pad,
)
from torchvision.transforms.v2 import functional as colour

from ctta_bench.errors import MethodError
from ctta_bench.method import Method, OptimizerHyperparameters, SourceAccess, ema_update
from ctta_bench.model import SourceModel
from ctta_bench.registry import METHODS

STUDENT_TEMPERATURE, TEACHER_TEMPERATURE = 0.1, 0.07
CENTRE_MOMENTUM = 0.9
SMALLEST_DIVERSE_BATCH = 8
# The augmentation: shares of the image, and probabilities an image.
WEAK_CROP = 224 / 256
STRONG_AREA, RATIO = (0.2, 1.0), (3 / 4, 4 / 3)
JITTER, HUE, JITTERED = 0.4, 0.1, 0.8
GREYED, BLURRED = 0.2, 0.5
SIGMA, SIGMA_SIDE = (0.1, 2.0), 224  # of the blur, in pixels of an image of that side

View = Callable[[Tensor, tuple[int, int] | None], Tensor]


class Pass(NamedTuple):
    """What a pass gives: logits, class feature [n, d], output tokens [n, P, d] of each stage."""

    logits: Tensor
    features: Tensor
    prompts: list[Tensor]


class DINOHead(nn.Module):
    """Two linear layers to a unit vector, and its cosines with learnt directions."""

    def __init__(self, width: int, hidden: int, bottleneck: int, outputs: int) -> None:
        super().__init__()
        first, second = nn.Linear(width, hidden), nn.Linear(hidden, bottleneck)
        self.mlp = nn.Sequential(first, nn.GELU(), second)
        for layer in (first, second):
            nn.init.trunc_normal_(layer.weight, std=0.02)
            nn.init.zeros_(layer.bias)
        self.directions = nn.Parameter(nn.Linear(bottleneck, outputs, bias=False).weight.detach())

    def forward(self, tokens: Tensor) -> Tensor:
        """Tokens [..., d] to [..., outputs]."""
        return linear(normalize(self.mlp(tokens), dim=-1), normalize(self.directions, dim=1))


class Learner(nn.Module):
    """What student and teacher each have of their own: prompts, DINO heads, classifier."""

    def __init__(self, width: int, stages: int, prompts: int, classifier: nn.Linear) -> None:
        super().__init__()
        self.prompts = nn.ParameterList(torch.empty(1, prompts, width) for _ in range(stages))
        for prompt in self.prompts:
            nn.init.xavier_uniform_(prompt)
        self.heads = nn.ModuleList()
        self.classifier = classifier


class Bank:
    """The last `size` features [size, d] and probabilities [size, classes], first in, first out."""

    def __init__(self, size: int, width: int, classes: int, like: Tensor) -> None:
        self.features, self.probs = like.new_zeros(size, width), like.new_zeros(size, classes)
        self.pointer = self.filled = 0

    @torch.no_grad()
    def add(self, features: Tensor, probs: Tensor) -> None:
        """Overwrite the oldest entries; rows that are not finite stay out."""
        size, finite = len(self.features), features.isfinite().all(1) & probs.isfinite().all(1)
        features, probs = features[finite][-size:], probs[finite][-size:]
        places = (self.pointer + torch.arange(len(features), device=features.device)) % size
        self.features[places], self.probs[places] = features, probs
        self.pointer = (self.pointer + len(features)) % size
        self.filled = min(self.filled + len(features), size)


@METHODS.register_module("dept")
class DePT(Method):
    """Prompts in the encoder, pseudo labels from neighbours, consistency with an averaged self."""

    paper = "https://arxiv.org/abs/2210.04831"
    checked_against = "official code"
    source_access: SourceAccess = "labelled"
    passes_per_image = (4, 1)  # scored, teacher's weak and strong, student's; 3 without heads
    checked_with = {
        "dino": True,
        "bank_start": 10,
        "prompts": 4,
        "hidden": 16,
        "bottleneck": 8,
        "outputs": 12,
    }
    exempt = {"learning_rate_zero_is_source": "prompts take part in attention from the start"}

    class Hyperparameters(OptimizerHyperparameters):
        """Hyper-parameters of DePT."""

        lr: float = Field(5e-3, ge=0, description="learning rate")
        nesterov: bool = Field(True, description="Nesterov's momentum (SGD)")
        weight_decay: float = Field(1e-4, ge=0, description="weight decay")
        cosine_steps: int = Field(0, ge=0, description="steps until a rate of 0; 0: constant")
        clip: float = Field(1.0, gt=0, description="largest norm of each tensor's gradient")
        stages: int = Field(4, ge=0, description="S, runs of blocks with prompts of their own")
        prompts: int = Field(50, ge=1, description="P, prompts a stage")
        train_head: bool = Field(True, description="whether the classifier learns, too")
        teacher_momentum: float = Field(0.99, ge=0, le=1, description="m of the teacher")
        neighbours: int = Field(10, ge=1, description="k, neighbours that make a pseudo label")
        bank_size: int = Field(1024, ge=1, description="entries of the memory bank")
        bank_start: int = Field(64, ge=1, description="entries before neighbours are asked")
        dino: bool | None = Field(None, description="DINO heads; unset: with a warm-up")
        hidden: int = Field(2048, ge=1, description="width of a head's hidden layer")
        bottleneck: int = Field(256, ge=1, description="width of a head's bottleneck")
        outputs: int = Field(2048, ge=1, description="outputs of a head")
        cls_weight: float = Field(0.1, ge=0, description="β of the class token's consistency")
        prompt_weight: float = Field(0.1, ge=0, description="β₂ of the prompts' consistency")
        prompt_diversity: float = Field(0.05, ge=0, description="λ of the prompts' diversity")
        class_diversity: float = Field(1.0, ge=0, description="η of the classes' diversity")
        warmup_epochs: int = Field(0, ge=0, description="epochs of prompts, heads on source labels")
        warmup_lr: float = Field(5e-3, ge=0, description="SGD's learning rate in the warm-up")
        warmup_batch_size: int = Field(128, ge=1, description="batch size of the warm-up")
        faithful: bool = Field(False, description="order, centre, clipping of the official code")

    weak_view: View
    strong_view: View

    def setup(self) -> None:
        """Prompts and heads beside the network; a teacher equal to them; an empty bank."""
        if not self.hp.warmup_epochs:
            self.source_access = "none"  # only a warm-up reads
        stage_starts(self.model, self.hp.stages)  # or it cannot be served
        width, classifier = self.model.network.embed_dim, self.model.classifier
        self.student = Learner(width, self.hp.stages, self.hp.prompts, classifier)
        if self.hp.dino or (self.hp.dino is None and self.hp.warmup_epochs):
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

    def prepare(self, source: Any) -> None:
        """Train prompts and heads on labelled source data, if there is a warm-up."""
        if self.hp.warmup_epochs:
            self.warm_up(source)
            self.teacher.load_state_dict(self.student.state_dict())
            self.centre = torch.zeros_like(self.centre)
            self.teacher_is_behind = False

    @torch.enable_grad()
    def warm_up(self, source: Any) -> None:
        """Cross-entropy and consistency over prompts and heads by SGD; the network stays."""
        everything, optimizer = self.trainable, self.optimizer
        self.adapt_only({n: p for n, p in everything.items() if "classifier" not in n})
        self.optimizer = torch.optim.SGD(self.trainable.values(), self.hp.warmup_lr, momentum=0.9)
        for _ in range(self.hp.warmup_epochs):
            for images, labels in source.labelled_batches(self.hp.warmup_batch_size):
                self.follow()
                logits, ours, theirs = self.strong_passes(images)
                self.learn(cross_entropy(logits, labels) + self.consistency(ours, theirs), theirs)
        self.adapt_only(everything)
        self.optimizer, self.loss = optimizer, None

    def adapt(self, images: Tensor) -> Tensor:
        """One step on a strong view; returns the student's plain logits from before it."""
        with torch.no_grad():
            logits = self.predict(images)
        self.follow()
        weak = self.weak_view(images, self.model.preprocessing.size)
        labels = self.pseudo_labels(weak)
        strong, ours, theirs = self.strong_passes(images)
        self.set_rate()
        if self.learn(self.objective(strong, ours, theirs, labels), theirs):
            self.steps += 1
            if self.hp.faithful:
                self.memorise(weak)
        return logits

    def predict(self, images: Tensor) -> Tensor:
        """The student's logits."""
        return self.passed(images, self.student).logits

    def passed(self, images: Tensor, learner: Learner) -> Pass:
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
            return tokens[:, count:]  # so that the class token is the first again

        with contextlib.ExitStack() as stack:
            starts = stage_starts(self.model, self.hp.stages)
            for stage, block in enumerate(starts):
                hook = functools.partial(enter, stage)
                stack.callback(block.register_forward_pre_hook(hook).remove)
            if starts:
                stack.callback(self.model.network.norm.register_forward_hook(leave).remove)
            features = self.model.features(images)
        outputs = [features, learner.classifier(features), *seen]
        features, logits, *prompts = (output.to(images.dtype) for output in outputs)
        return Pass(logits, features, prompts)

    def follow(self) -> None:
        """Move the teacher towards the student, at the beginning of the batch after a step."""
        if self.teacher_is_behind:
            momentum = self.hp.teacher_momentum
            ema_update(self.teacher.parameters(), self.student.parameters(), momentum)
            self.teacher_is_behind = False

    def memorise(self, weak: Tensor) -> Pass:
        """Put the teacher's view of a batch into the bank."""
        with torch.no_grad():
            found = self.passed(weak, self.teacher)
        self.bank.add(found.features, found.logits.softmax(1))
        return found

    @torch.no_grad()
    def pseudo_labels(self, weak: Tensor) -> Tensor:
        """Labels int64 [n]: of the mean probabilities of neighbours, once there are enough."""
        query = self.passed(weak, self.student) if self.hp.faithful else self.memorise(weak)
        filled, needed = self.bank.filled, max(self.hp.bank_start, self.hp.neighbours)
        if filled < min(needed, len(self.bank.features)):
            return query.logits.argmax(1)
        bank = self.bank.features[:filled], self.bank.probs[:filled]
        return self.neighbour_probs(query.features, *bank, self.hp.neighbours).argmax(1)

    def strong_passes(self, images: Tensor) -> tuple[Tensor, list[Tensor], list[Tensor]]:
        """The student's logits on a strong view, and what its heads and the teacher's give.

        The teacher sees a view of its own. Without heads both lists are empty.
        """
        size, theirs = self.model.preprocessing.size, []
        if self.student.heads:
            with torch.no_grad():
                teacher = self.passed(self.strong_view(images, size), self.teacher)
                theirs = self.through_heads(teacher, self.teacher)
        torch.clear_autocast_cache()  # its halves of the weights were made without gradients
        student = self.passed(self.strong_view(images, size), self.student)
        return student.logits, self.through_heads(student, self.student), theirs

    def through_heads(self, seen: Pass, learner: Learner) -> list[Tensor]:
        """Outputs of each stage's prompts [n, P, outputs] and, last, of the class token's."""
        if not learner.heads:
            return []
        with torch.autocast(self.device.type, enabled=False):
            prompts = zip(learner.heads, seen.prompts, strict=True)
            return [*(head(tokens) for head, tokens in prompts), learner.heads[-1](seen.features)]

    def objective(
        self, logits: Tensor, ours: list[Tensor], theirs: list[Tensor], labels: Tensor
    ) -> Tensor:
        """Pseudo labels, consistency with the teacher, diversity of prompts and of classes."""
        loss = cross_entropy(logits, labels) + self.consistency(ours, theirs)
        if ours:
            loss = loss + self.hp.prompt_diversity * self.diversity_of_prompts(ours[:-1])
        if self.hp.faithful or len(labels) >= SMALLEST_DIVERSE_BATCH:
            loss = loss + self.hp.class_diversity * self.diversity_of_classes(logits)
        return loss

    def consistency(self, ours: list[Tensor], theirs: list[Tensor]) -> Tensor:
        """What the heads say of class token and prompts against the teacher's; else nothing."""
        if not ours:
            return self.centre.new_zeros(())
        of_class = self.distillation(ours[-1], theirs[-1], self.centre)
        of_prompts = self.consistency_of_prompts(ours[:-1], theirs[:-1])
        return self.hp.cls_weight * of_class + self.hp.prompt_weight * of_prompts

    def learn(self, loss: Tensor, theirs: list[Tensor]) -> bool:
        """One clipped step; only then the centre moves, and the teacher is to follow."""
        if not self.backward(loss):
            return False
        self.clip_gradients()
        if not self.optimizer_step():
            return False
        self.teacher_is_behind = True
        if theirs:
            self.centre = self.next_centre(self.centre, theirs[-1], summed=self.hp.faithful)
        return True

    def set_rate(self) -> None:
        """Half a cosine over `cosine_steps`, if that is set."""
        if self.hp.cosine_steps:
            share = min(self.steps / self.hp.cosine_steps, 1.0)
            for group in self.optimizer.param_groups:
                group["lr"] = self.hp.lr * (1 + math.cos(math.pi * share)) / 2

    def clip_gradients(self) -> None:
        """Each tensor by itself; the official code leaves out the heads."""
        limit = self.hp.clip * self._scaler.get_scale()
        for name, parameter in self.trainable.items():
            if not (self.hp.faithful and name.startswith("heads")):
                nn.utils.clip_grad_norm_(parameter, limit)

    # -- the losses by themselves

    @staticmethod
    def neighbour_probs(features: Tensor, bank: Tensor, probs: Tensor, count: int) -> Tensor:
        """Mean probabilities [n, classes] of the nearest entries by cosine, or of all there are."""
        with torch.autocast(features.device.type, enabled=False):
            similarity = normalize(features, dim=1) @ normalize(bank, dim=1).T
        nearest = similarity.topk(min(count, len(bank)), dim=1).indices
        return probs[nearest].mean(1)

    @staticmethod
    def distillation(student: Tensor, teacher: Tensor, centre: Tensor) -> Tensor:
        """Cross-entropy of the student's outputs [n, outputs] against the centred teacher's."""
        target = ((teacher - centre) / TEACHER_TEMPERATURE).softmax(-1)
        return -(target * (student / STUDENT_TEMPERATURE).log_softmax(-1)).sum(-1).mean()

    @staticmethod
    def next_centre(centre: Tensor, teacher: Tensor, *, summed: bool = False) -> Tensor:
        """The centre [1, outputs] after a batch; the official code takes the batch's sum."""
        batch = teacher.sum(0, keepdim=True) if summed else teacher.mean(0, keepdim=True)
        return centre * CENTRE_MOMENTUM + batch * (1 - CENTRE_MOMENTUM)

    @staticmethod
    def consistency_of_prompts(student: list[Tensor], teacher: list[Tensor]) -> Tensor:
        """Σ w_i times the mean cosine distance of like prompts; later stages weigh more."""
        both = zip(student, teacher, strict=True)
        apart = [(1 - cosine_similarity(s, t, dim=-1)).mean() for s, t in both]
        return (stage_weights(apart[0], len(apart)) * torch.stack(apart)).sum()

    @staticmethod
    def diversity_of_prompts(student: list[Tensor]) -> Tensor:
        """-Σ w_i times the mean cosine distance of an image's prompts from each other."""
        apart = []
        for outputs in student:
            unit = normalize(outputs, dim=-1)
            with torch.autocast(outputs.device.type, enabled=False):
                distance = 1 - unit @ unit.mT
            apart.append((distance - distance.diagonal(dim1=1, dim2=2).diag_embed()).mean())
        return -(stage_weights(apart[0], len(apart)) * torch.stack(apart)).sum()

    @staticmethod
    def diversity_of_classes(logits: Tensor) -> Tensor:
        """Negative entropy of the mean prediction."""
        mean = logits.softmax(1).mean(0)
        return (mean * (mean + 1e-8).log()).sum()


def stage_starts(model: SourceModel, stages: int) -> list[nn.Module]:
    """The first block of each of `stages` equal runs. Raises MethodError if there are none."""
    if not isinstance(model.network, VisionTransformer):
        raise MethodError(
            f"DePT cannot serve {model.name}: its prompts stand before the class token of a timm "
            "VisionTransformer, which this model is not."
        )
    blocks = list(model.network.blocks)
    if stages and len(blocks) % stages:
        raise MethodError(
            f"DePT cannot serve {model.name}: its {len(blocks)} blocks make no {stages} equal "
            "stages; set `stages` to a divisor."
        )
    return blocks[:: len(blocks) // stages] if stages else []


def stage_weights(like: Tensor, stages: int) -> Tensor:
    """w_i = e^i / Σ e^j [stages]."""
    return torch.arange(stages, dtype=like.dtype, device=like.device).softmax(0)


# -- views, with draws of their own for each image


def weak_view(images: Tensor, size: tuple[int, int] | None = None) -> Tensor:
    """A crop of 7/8 of the side at a random place, every other one mirrored."""
    share = images.new_full((len(images),), WEAK_CROP)
    return random_crop(images, share, share, size, "bilinear")


def strong_view(images: Tensor, size: tuple[int, int] | None = None) -> Tensor:
    """A crop of a fifth to all of the area, other colours, sometimes grey or blurred; in [0, 1].

    The order of colours and the change of hue are one draw for the batch.
    """
    area, ratio = uniform(images, *STRONG_AREA), uniform(images, *map(math.log, RATIO)).exp()
    height, width = (area / ratio).sqrt().clamp(max=1), (area * ratio).sqrt().clamp(max=1)
    views = random_crop(images, height, width, size, "bicubic").clamp(0, 1)
    views = torch.where(chance(views, JITTERED), jittered(views), views)
    views = torch.where(chance(views, GREYED), grey(views), views)
    return blurred(views, uniform(views, *SIGMA) * views.shape[-1] / SIGMA_SIDE, BLURRED)


def uniform(images: Tensor, low: float, high: float) -> Tensor:
    """A draw for each image, [n]."""
    return low + (high - low) * torch.rand(len(images), dtype=images.dtype, device=images.device)


def chance(images: Tensor, probability: float) -> Tensor:
    """Whether it happens to each image, bool [n, 1, 1, 1]."""
    return (uniform(images, 0, 1) < probability).view(-1, 1, 1, 1)


def random_crop(
    images: Tensor, height: Tensor, width: Tensor, size: tuple[int, int] | None, mode: str
) -> Tensor:
    """Crops of these shares [n] of the sides at random places, half of them mirrored, at `size`."""
    mirrored = torch.where(chance(images, 0.5).flatten(), -width, width)
    height_out, width_out = size or images.shape[-2:]
    # Not by affine_grid, whose matrix product autocast and TF32 would round to few bits.
    x = mirrored[:, None] * centred(width_out, images) + shift(images, width)
    y = height[:, None] * centred(height_out, images) + shift(images, height)
    grid = torch.stack(torch.broadcast_tensors(x[:, None, :], y[:, :, None]), dim=-1)
    return grid_sample(images, grid, mode=mode, padding_mode="border", align_corners=False)


def centred(side: int, like: Tensor) -> Tensor:
    """Centres of pixels [side], in half sides from the middle."""
    return (2 * torch.arange(side, dtype=like.dtype, device=like.device) + 1) / side - 1


def shift(images: Tensor, share: Tensor) -> Tensor:
    """A random place [n, 1] for a crop of this share [n] of a side, in half sides."""
    return ((1 - share) * uniform(images, -1, 1))[:, None]


def grey(images: Tensor) -> Tensor:
    """Luminance in all three colours."""
    return colour.rgb_to_grayscale(images, num_output_channels=3)


def jittered(images: Tensor) -> Tensor:
    """Brightness, contrast, saturation and hue changed, in random order; in [0, 1]."""
    for operation in torch.randperm(4).tolist():
        share = uniform(images, 1 - JITTER, 1 + JITTER).view(-1, 1, 1, 1)
        if operation == 0:
            images = share * images
        elif operation == 1:
            images = torch.lerp(grey(images).mean((1, 2, 3), keepdim=True), images, share)
        elif operation == 2:
            images = torch.lerp(grey(images), images, share)
        else:
            images = colour.adjust_hue(images, float(torch.rand(())) * 2 * HUE - HUE)
        images = images.clamp(0, 1)
    return images


def blurred(images: Tensor, sigma: Tensor, probability: float) -> Tensor:
    """Gaussian blur of deviation `sigma` [n] in pixels, of some images."""
    reach = min(max(1, math.ceil(3 * float(sigma.max()))), min(images.shape[-2:]) - 1)
    taps = torch.arange(-reach, reach + 1, dtype=images.dtype, device=images.device)
    weights = (-0.5 * (taps / sigma[:, None]).square()).softmax(1)
    weights = torch.where(chance(images, probability).flatten(1), weights, (taps == 0).to(weights))
    for axis, margin in ((-1, (reach, reach, 0, 0)), (-2, (0, 0, reach, reach))):
        padded, length = pad(images, margin, mode="reflect"), images.shape[axis]
        images = torch.zeros_like(images)
        for tap in range(len(taps)):
            images += padded.narrow(axis, tap, length) * weights[:, tap].view(-1, 1, 1, 1)
    return images
