"""KFF (Zhou et al., NeurIPS 2025, arXiv:2510.12150): knowledge fusion and fission. Prompts of
domains, each with the statistics of its images, and prompts of classes, each with a prediction.

Official code: zhoujiahuan1991/NeurIPS2025-KFF, for ViTs. Each batch is compared with the known
domains by mean and deviation of its class tokens (its key). Near ones lend their prompts, mixed by
distance, which take one step. A batch far from all makes a new domain (fission): prompts learn on
it in E steps, always from the same random start. Each image also has a class prompt: that of known
classes with a similar prediction, mixed by cosine, or a new random one. The loss aligns mean and
deviation of the features with the source's, and lowers the entropy. Batches are scored in the last
forward pass. Used prompts and keys move towards the batch, those of uncertain images excepted; if
there are too many, near ones are averaged (fusion).

Differs from the official code, unless `faithful: true`: source images are filtered by the entropy
of the source model (theirs: of the model with random prompts). Always: a single image, which has
no deviation, makes no update (theirs: NaN prompts, for good) and is scored by domains with a near
mean, else without prompts; one backward pass gives the gradients of both kinds of prompt.
"""

import contextlib
import math
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity

from ctta_bench.method import Method, OptimizerHyperparameters, softmax_entropy
from ctta_bench.parts.prompts.class_token import check_class_token, prompted, start_prompts
from ctta_bench.parts.source.moments import batch_moments, moment_distance, statistics_of_certain
from ctta_bench.registry import METHODS


class DomainPool:
    """Keys [domains, 2 d], mean and deviation of features, and prompts [domains, P, d]."""

    def __init__(self, like: Tensor, radius: float, temperature: float) -> None:
        self.radius, self.temperature = radius, temperature
        self.keys, self.prompts = (
            like.new_zeros(0, 2 * like.shape[1]),
            like.new_zeros(0, *like.shape),
        )

    def weights(self, key: Tensor) -> Tensor | None:
        """Weights [domains] of those within θ_D of a key, larger if nearer; None without any.

        The key of a single image is a mean [d] alone.
        """
        apart = torch.linalg.vector_norm(self.keys[:, : len(key)] - key, dim=1)
        near = apart <= self.radius
        if not bool(near.any()):
            return None
        return (-apart / self.temperature).masked_fill(~near, -math.inf).softmax(0)

    def mixture(self, weights: Tensor) -> Tensor:
        """Weighted sum [P, d] of the prompts."""
        return (weights[:, None, None] * self.prompts).sum(0)

    def move(self, weights: Tensor, key: Tensor, prompts: Tensor, rate: float) -> None:
        """Move each domain towards a batch by its weight; its key by α_D times that."""
        self.keys = self.keys + rate * weights[:, None] * (key - self.keys)
        self.prompts = self.prompts + weights[:, None, None] * (prompts - self.prompts)

    def add(self, key: Tensor, prompts: Tensor, most: int) -> None:
        """Add a domain; while there are more than `most`, average the two nearest ones."""
        self.keys = torch.cat([self.keys, key[None]])
        self.prompts = torch.cat([self.prompts, prompts[None]])
        while len(self.keys) > most:
            apart = torch.linalg.vector_norm(self.keys[:, None] - self.keys, dim=2)
            first, second = pairs_of(len(apart), apart.device)
            nearest = apart[first, second].argmin()
            pair = [int(first[nearest]), int(second[nearest])]
            self.keys, self.prompts = (averaged(x, [pair]) for x in (self.keys, self.prompts))


class ClassPool:
    """Keys [classes, C], predictions, and prompts [classes, d]."""

    def __init__(self, like: Tensor, num_classes: int, least: float) -> None:
        self.least = least
        self.keys, self.prompts = like.new_zeros(0, num_classes), like.new_zeros(0, like.shape[1])

    def weights(self, predictions: Tensor) -> Tensor:
        """Weights [n, classes] of those with a cosine above θ_C; rows without any are 0."""
        similar = cosine_similarity(predictions[:, None], self.keys[None], dim=2)
        chosen = similar > self.least
        return similar.masked_fill(~chosen, -math.inf).softmax(1).nan_to_num(0)

    def mixtures(self, weights: Tensor) -> Tensor:
        """Weighted sums [n, d] of the prompts."""
        return (weights[:, :, None] * self.prompts).sum(1)

    def learn(
        self, weights: Tensor, predictions: Tensor, prompts: Tensor, rate: float, most: int
    ) -> None:
        """Image after image, move the classes by their weights [n, classes]; add what is new.

        With more than `most`, those with the most similar keys are averaged.
        """
        added = ~(weights > 0).any(1)
        for weight, prediction, prompt in zip(
            weights[~added, :, None], predictions[~added], prompts[~added], strict=True
        ):
            self.keys = self.keys + rate * weight * (prediction - self.keys)
            self.prompts = self.prompts + weight * (prompt - self.prompts)
        self.keys = torch.cat([self.keys, predictions[added]])
        self.prompts = torch.cat([self.prompts, prompts[added]])
        if len(self.keys) > most:
            groups = self.similar_groups(most)
            self.keys, self.prompts = (averaged(x, groups) for x in (self.keys, self.prompts))

    def similar_groups(self, count: int) -> list[list[int]]:
        """`count` groups of classes: the pairs with the largest product of keys, joined."""
        with torch.autocast(self.keys.device.type, enabled=False):
            products = self.keys @ self.keys.T
        pairs = pairs_of(len(products), products.device)
        order = products[pairs[0], pairs[1]].argsort(descending=True, stable=True)
        group_of = {number: [number] for number in range(len(products))}
        left = len(group_of)
        for first, second in pairs[:, order].T.tolist():
            if left == count:
                break
            one, other = group_of[first], group_of[second]
            if one is not other:
                one += other
                group_of |= dict.fromkeys(other, one)
                left -= 1
        return [group for number, group in group_of.items() if group[0] == number]


def pairs_of(count: int, device: torch.device) -> Tensor:
    """All pairs of `count` numbers, [2, pairs]."""
    return torch.triu_indices(count, count, offset=1, device=device)


def averaged(values: Tensor, groups: list[list[int]]) -> Tensor:
    """Rows [m, ...] with each group replaced, at its first row, by its mean."""
    values, others = values.clone(), [number for _, *rest in groups for number in rest]
    for group in groups:
        values[group[0]] = values[group].mean(0)
    kept = torch.ones(len(values), dtype=torch.bool, device=values.device)
    kept[others] = False
    return values[kept]


@METHODS.register_module("kff")
class KFF(Method):
    """Prompts of domains and of classes, kept, mixed and averaged, aligned with the source."""

    display_name = "KFF"
    year = 2025
    venue = "NeurIPS"
    citation = "zhou2025kff"
    adapts_layers = "sets of prompts for domains and classes"
    losses = "distance of feature moments to the source's, entropy"
    extra_memory = "two pools of prompts with keys, source statistics"
    paper = "https://arxiv.org/abs/2510.12150"
    checked_against = "official code"
    source_access = "unlabelled"
    batch_dependent = True
    passes_per_image = (2, 1)  # for a batch of known domains; else 51 and 50
    search_space = {"lr": (1e-3, 1.0), "domain_distance": (1.0, 100.0), "steps": [10, 25, 50]}
    checked_with = {"domain_distance": 1e9, "steps": 1, "source_max_entropy": 1.0}  # one domain
    exempt = {
        "scored_logits": "prompts of new classes are random",
        "learning_rate_zero_is_source": "prompts change the attention from the start",
        "permutation": "prompts of new classes are random, drawn in the order of the batch",
    }

    class Hyperparameters(OptimizerHyperparameters):
        """Hyper-parameters of KFF."""

        optimizer: Literal["sgd", "adam", "adamw"] = Field("adamw", description="update rule")
        lr: float = Field(0.1, ge=0, description="learning rate of the domain prompts")
        lr_class: float = Field(1e-3, ge=0, description="learning rate of the class prompts")
        weight_decay: float = Field(0.01, ge=0, description="weight decay")
        prompts: int = Field(8, ge=1, description="P, prompt tokens of a domain")
        steps: int = Field(50, ge=1, description="E, steps for a new domain")
        mean_weight: float = Field(1.0, ge=0, description="λ of the mean in the distance")
        entropy_weight: float = Field(3.0, ge=0, description="of the entropy in the loss")
        domain_distance: float = Field(
            25.0, ge=0, description="θ_D: a domain is known if its key is as near as this"
        )
        class_similarity: float = Field(
            0.005, ge=-1, le=1, description="θ_C: a class is known if the cosine is above this"
        )
        temperature: float = Field(3.0, gt=0, description="τ of the domains' weights")
        key_rate: float = Field(0.1, ge=0, le=1, description="α_D, rate of the domains' keys")
        class_key_rate: float = Field(0.1, ge=0, le=1, description="α_C, rate of classes' keys")
        max_entropy: float = Field(
            2.0, ge=0, description="θ_H in nats: surer images add and move classes"
        )
        max_domains: int = Field(20, ge=1, description="N_D, most domains")
        max_classes: int = Field(100, ge=1, description="N_C, most class prompts")
        source_samples: int = Field(300, ge=2, description="source images for the statistics")
        source_max_entropy: float = Field(
            1.0, gt=0, le=1, description="largest of a source image, of ln C"
        )
        faithful: bool = Field(False, description="filter source images as the official code")

    def setup(self) -> None:
        """Random prompts after the class token, and no domain or class."""
        check_class_token(self.model, asked_by=self.title)
        self.start_prompts = start_prompts(self.model, self.hp.prompts)
        self.prompts = nn.Parameter(self.start_prompts.clone())
        self.adapt_only({"prompts": self.prompts})
        self.optimizer = self.build_optimizer()
        like, hp = self.start_prompts, self.hp
        self.domains = DomainPool(like, hp.domain_distance, hp.temperature)
        self.classes = ClassPool(like, self.model.num_classes, hp.class_similarity)

    def prepare(self, source: Any) -> None:
        """Mean and deviation of the class token on source images, without prompts."""
        self.source = statistics_of_certain(
            self.model,
            source,
            samples=self.hp.source_samples,
            max_entropy=self.hp.source_max_entropy,
            asked=self.with_start_prompts if self.hp.faithful else None,
        )
        self.source_used = self.source.images

    def with_start_prompts(self, images: Tensor) -> Tensor:
        """Logits with the random prompts of the start."""
        with prompted(self.model, self.start_prompts):
            return self.model(images)

    def adapt(self, images: Tensor) -> Tensor:
        """Learn the prompts of known domains, or new ones; returns logits of the last pass."""
        if len(images) < 2:
            self.skip_update()
            return self.predict(images)
        key, predictions, _ = self.look(images)
        of_domains, of_classes = self.domains.weights(key), self.classes.weights(predictions)
        class_prompts = self.class_prompts(of_classes)
        known = of_domains is not None
        self.begin(self.start_prompts if of_domains is None else self.domains.mixture(of_domains))
        stepped, steps = False, 1 if known else self.hp.steps
        for number in range(steps):
            if number == steps - 1:  # class prompts take this step, too
                group = {"params": [class_prompts.requires_grad_()], "lr": self.hp.lr_class}
                self.optimizer.add_param_group(group)
            with self.prompted(class_prompts, self.prompts):
                features, logits = self.model.features_and_logits(images)
            loss = self.total_loss(features, logits)
            stepped = self.step(loss) or stepped
            if not bool(loss.isfinite()):
                break
        if stepped:
            self.learn_domain(of_domains, key)
            self.learn_classes(of_classes, logits.detach(), class_prompts.detach())
        self.begin(self.prompts.detach())
        return logits

    @torch.no_grad()
    def predict(self, images: Tensor) -> Tensor:
        """Logits with the prompts of known domains; without prompts if there is no known one."""
        key, predictions, logits = self.look(images)
        weights = self.domains.weights(key)
        if weights is None:
            return logits
        class_prompts = self.class_prompts(self.classes.weights(predictions))
        with self.prompted(class_prompts, self.domains.mixture(weights)):
            return self.model(images)

    @torch.no_grad()
    def look(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Key [2 d] (of a single image [d]), predictions [n, classes] and logits, unprompted."""
        features, logits = self.model.features_and_logits(images)
        moments = [moment for moment in batch_moments(features) if moment is not None]
        return torch.cat(moments), probabilities(logits), logits

    def class_prompts(self, weights: Tensor) -> Tensor:
        """A prompt [n, d] for each image, by weights [n, classes]: of known classes, or new."""
        new = self.new_class_prompts(len(weights))
        return torch.where((weights > 0).any(1, keepdim=True), self.classes.mixtures(weights), new)

    def new_class_prompts(self, count: int) -> Tensor:
        """Random prompts [count, d]."""
        return start_prompts(self.model, count)

    def prompted(
        self, class_prompts: Tensor, prompts: Tensor
    ) -> contextlib.AbstractContextManager[None]:
        """Context manager: class prompts [n, d] and domain prompts [P, d] are in the sequence."""
        of_domain = prompts.expand(len(class_prompts), -1, -1)
        return prompted(self.model, torch.cat([class_prompts[:, None], of_domain], dim=1))

    def total_loss(self, features: Tensor, logits: Tensor) -> Tensor:
        """‖σ - σ_s‖ + λ ‖μ - μ_s‖ of the features, and 3 times the mean entropy."""
        mean, std = batch_moments(features)
        assert std is not None  # a single image does not get here
        only_std = moment_distance(self.source.mean, std, self.source, 1.0)
        only_mean = moment_distance(mean, self.source.std, self.source, 1.0)
        entropy = softmax_entropy(logits).mean()
        return only_std + self.hp.mean_weight * only_mean + self.hp.entropy_weight * entropy

    def learn_domain(self, weights: Tensor | None, key: Tensor) -> None:
        """Move the known domains by their weights, or add a new one."""
        prompts = self.prompts.detach().clone()
        if weights is None:
            self.domains.add(key, prompts, self.hp.max_domains)
        else:
            self.domains.move(weights, key, prompts, self.hp.key_rate)

    def learn_classes(self, weights: Tensor, logits: Tensor, prompts: Tensor) -> None:
        """Move the known classes of the surer images; add what is new."""
        sure = softmax_entropy(logits) <= self.hp.max_entropy
        hp = self.hp
        self.classes.learn(
            weights[sure],
            probabilities(logits)[sure],
            prompts[sure],
            hp.class_key_rate,
            hp.max_classes,
        )

    @torch.no_grad()
    def begin(self, prompts: Tensor) -> None:
        """Set the prompts, and make a new optimiser."""
        self.prompts.copy_(prompts)
        self.optimizer = self.build_optimizer()


def probabilities(logits: Tensor) -> Tensor:
    """Softmax [n, classes] in float32 or better."""
    return logits.softmax(-1, dtype=torch.promote_types(logits.dtype, torch.float32))
