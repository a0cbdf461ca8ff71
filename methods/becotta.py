"""BECoTTA (Lee, Yoon and Hwang, ICML 2024, arXiv:2402.08712): mixtures of low-rank experts after
the blocks of a SegFormer, with a router for each domain.

Official code: daeunni/becotta, which has the mixture but neither the training of it nor its data.
The mixture equals theirs (`faithful: true`); the warm-up is a choice of this suite. In it, labelled
source images are rendered as clean, rain, night and fog. Experts and routers learn the labels, and
experts are tied to domains by their mutual information. The style of an image are means and
deviations of its colours and of the source model's first map; the warm-up also keeps the mean style
of each rendering. Without a warm-up there is one router, and no domains.

On the stream, the nearest mean style chooses the router. The label of a pixel is the prediction
where its confidence is above 0.69 and that of the source model, else the mean over views at several
scales, each also mirrored. Experts and routers take a step on the soft cross-entropy, and a random
share of them is restored to the start. The labels are scored, from before the step.

Differs from the official code, unless `faithful: true`: the experts with the highest scores act
(theirs: always the first k), with weights of each image (theirs: of the first one) that have a
gradient; scores are means over the tokens (theirs: sums, so that in large images the weights are 0
and 1); and there is noise on the scores in the warm-up only. Always: Adam is made once, not at
every domain, whose boundaries a method must not see.
"""

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d, cross_entropy

from ctta_bench.errors import MethodError
from ctta_bench.method import (
    Method,
    OptimizerHyperparameters,
    WarmupHyperparameters,
    soft_cross_entropy,
    stochastic_restore,
)
from ctta_bench.model import SourceModel
from ctta_bench.parts.adapters.mixture import Mixture, Routing, mix
from ctta_bench.parts.segmentation.scales import (
    MapHyperparameters,
    averaged,
    first_views,
    rescaled,
    resized,
    scaled_size,
    select_log_probabilities,
    view_probabilities,
)
from ctta_bench.registry import METHODS

IGNORED = 255  # label of pixels without a class
DOMAINS = ("clean", "rain", "night", "fog")


def rendered(images: Tensor, domain: str) -> Tensor:
    """Images [n, 3, H, W] in [0, 1] in the weather of a domain; the strengths are this suite's."""
    if domain == "rain":  # darker, with random streaks
        streaks = (torch.rand_like(images[:, :1]) > 0.97).to(images)
        return (0.75 * images + 0.8 * avg_pool2d(streaks, (9, 1), 1, (4, 0))).clamp(0, 1)
    if domain == "night":  # dark and blue
        return images.pow(1.6) * images.new_tensor([0.35, 0.4, 0.5]).view(1, 3, 1, 1)
    if domain == "fog":  # towards light grey
        return images.lerp(torch.full_like(images, 0.75), 0.6)
    return images


def mutual_information(domains: Tensor, scores: Tensor) -> Tensor:
    """Of domains int64 [n] and experts, by their scores [n, experts]; in nats, at least 0."""
    experts = scores.softmax(1, dtype=torch.promote_types(scores.dtype, torch.float32))
    joint = torch.zeros(len(DOMAINS), experts.shape[1]).to(experts)
    joint = joint.index_add(0, domains, experts) / len(experts)
    apart = joint.sum(1, keepdim=True) * joint.sum(0, keepdim=True)
    return -torch.special.entr(joint).sum() + torch.special.entr(apart).sum()


@METHODS.register_module("becotta")
class BECoTTA(Method):
    """Mixtures of low-rank experts in a SegFormer, routed by the domain of the image."""

    display_name = "BECoTTA"
    year = 2024
    venue = "ICML"
    citation = "lee2024becotta"
    adapts_layers = "low-rank experts and their routers"
    losses = "cross-entropy to the mean over views"
    extra_memory = "source model and a mean style per domain"
    paper = "https://arxiv.org/abs/2402.08712"
    checked_against = "official code (the mixture of experts)"
    tasks = frozenset({"segmentation"})
    warmup_access = "labelled"
    warms_up_maps = True
    stream_only = frozenset({"views", "confidence_threshold", "restore_probability"})
    passes_per_image = (5, 1)  # three views, the anchor, the student; up to 14 views
    search_space = {"lr": (1e-7, 1e-3)}
    checked_with = {"views": 3, "experts": 4, "ranks": (0, 2, 2, 2), "lr": 1e-3}
    exempt = {"learning_rate_zero_is_source": "scores are averaged over views"}

    class Hyperparameters(OptimizerHyperparameters, WarmupHyperparameters, MapHyperparameters):
        """Hyper-parameters of BECoTTA."""

        optimizer: Literal["sgd", "adam", "adamw"] = Field("adam", description="update rule")
        lr: float = Field(6e-7, ge=0, description="learning rate of experts and routers")
        experts: int = Field(6, ge=1, description="E, experts of a mixture")
        chosen_experts: int = Field(3, ge=1, description="k, experts that act")
        ranks: tuple[int, int, int, int] = Field(
            (2, 4, 10, 16), description="r of the experts in the four stages; 0: no mixture"
        )
        views: int = Field(14, ge=1, description="views of the averaged prediction, 1 to 14")
        confidence_threshold: float = Field(
            0.69, ge=0, description="above it the plain prediction may be the label"
        )
        restore_probability: float = Field(0.01, ge=0, le=1, description="p of the restore")
        mutual_weight: float = Field(
            0.1, ge=0, description="of the mutual information in the warm-up"
        )
        warmup_batch_size: int = Field(4, ge=1, description="batch size of the warm-up")
        warmup_lr: float = Field(1e-3, ge=0, description="AdamW's learning rate in the warm-up")
        faithful: bool = Field(False, description="route as the released mixture does")

    def setup(self) -> None:
        """Copy the source model as anchor; add the mixtures."""
        self.views = first_views(self.hp.views, asked_by=self.title)
        self.check_experts()
        self.anchor = self.frozen_copy()
        self.routing = Routing(faithful=self.hp.faithful)
        mixtures = self.add_mixtures()
        self.experts = {n: p for m, name in mixtures for n, p in m.named_parameters(name)}
        self.styles = Styles(2 * (3 + self.first_width()), self.model.mean)
        self.adapt_only(self.experts)
        self.optimizer = self.build_optimizer()
        self.start_values = [p.detach().clone() for p in self.experts.values()]

    def check_experts(self) -> None:
        """Raise MethodError for more chosen experts than there are, or without a rank."""
        if self.hp.chosen_experts > self.hp.experts or not any(self.hp.ranks):
            raise MethodError(
                f"BECoTTA needs a rank above 0 and at most {self.hp.experts} chosen experts, not "
                f"{self.hp.chosen_experts} of ranks {self.hp.ranks}; set ranks, experts or "
                "chosen_experts."
            )

    def add_mixtures(self) -> list[tuple[Mixture, str]]:
        """A mixture after each block of the stages with a rank, and its name in the network."""
        names = {id(module): name for name, module in self.model.network.named_modules()}
        found = []
        for stage, rank in zip(self.model.network.encoder_stages, self.hp.ranks, strict=True):
            blocks = getattr(stage, "blocks", None)
            if blocks is None:
                raise MethodError(
                    f"BECoTTA does not support {self.model.name}: its experts follow the blocks of "
                    "a SegFormer's stages, which this network lacks."
                )
            for block in blocks if rank else ():
                norm = next(m for m in block.modules() if isinstance(m, nn.LayerNorm))
                mixture = Mixture(
                    norm.normalized_shape[-1],
                    rank,
                    experts=self.hp.experts,
                    chosen=self.hp.chosen_experts,
                    domains=len(DOMAINS) if self.hp.warms_up else 1,
                    routing=self.routing,
                )
                block.add_module("mixture", mixture.to(self.model.mean))
                block.register_forward_hook(mix)
                found.append((mixture, f"{names[id(block)]}.mixture"))
        return found

    def first_width(self) -> int:
        """Channels of the first stage's map."""
        norms = [m for m in self.anchor.blocks[0].modules() if isinstance(m, nn.LayerNorm)]
        return int(norms[-1].normalized_shape[-1])

    # -- before the stream

    def warmup_result(self) -> dict[str, Tensor]:
        """Experts and routers, and the mean styles of the renderings."""
        return {**self.experts, **self.styles.tensors()}

    def warm_up(self, images: Tensor, labels: Tensor | None) -> None:
        """One update on labels, and on the mutual information of renderings and experts."""
        assert labels is not None
        domains = torch.randint(len(DOMAINS), (len(images),), device=images.device)
        pairs = zip(images.split(1), domains.tolist(), strict=True)
        shown = torch.cat([rendered(image, DOMAINS[domain]) for image, domain in pairs])
        with torch.no_grad():
            self.styles.learn(self.style(shown, self.anchor.feature_maps(shown)[0]), domains)
        self.routing.domains, self.routing.noisy, self.routing.seen = domains, True, []
        logits = self.model(shown)
        tied = [mutual_information(domains, scores) for scores in self.routing.seen]
        self.routing.noisy, self.routing.seen = self.hp.faithful, None
        size = (labels.shape[-2], labels.shape[-1])
        loss = cross_entropy(resized(logits, size), labels.long(), ignore_index=IGNORED)
        self.step(loss - self.hp.mutual_weight * torch.stack(tied).mean())

    def warmed_up(self) -> None:
        """The restore returns to the warmed-up values."""
        self.routing.domains = None
        self.start_values = [p.detach().clone() for p in self.experts.values()]

    # -- the stream

    def adapt(self, images: Tensor) -> Tensor:
        """One step on the labels; returns their log-probabilities [n, classes, H, W]."""
        target = self.predict(images)
        height, width = target.shape[-2:]
        logits = resized(self.model(images), (height, width))
        loss = soft_cross_entropy(self.model.rows(logits), self.model.rows(target)).mean()
        if self.step(loss):
            self.stochastic_restore()
        return target

    @torch.no_grad()
    def predict(self, images: Tensor) -> Tensor:
        """Log-probabilities of labels: plain where the model is surer than the source, or views'.

        The nearest mean style chooses an image's routers.
        """
        maps = self.anchor.feature_maps(images)
        if self.hp.warms_up:
            self.routing.domains = self.styles.nearest(self.style(images, maps[0]))
        size = None
        if self.hp.output_scale is not None:
            size = scaled_size((images.shape[-2], images.shape[-1]), self.hp.output_scale)

        def show(scale: float) -> Tensor:
            return rescaled(images, scale)

        over = averaged(view_probabilities(self.views, show, self.model, size))
        height, width = over.plain.shape[-2:]
        of_source = resized(self.anchor.decode(maps), (height, width)).softmax(1)
        own, theirs = (p.amax(1, keepdim=True) for p in (over.plain, of_source))
        sure = (own > self.hp.confidence_threshold) & (own >= theirs)
        return select_log_probabilities(over, sure)

    def style(self, images: Tensor, features: Tensor) -> Tensor:
        """Means and deviations [n, 2 (3 + C)] of the colours, and of a map [n, C, h, w]."""
        return torch.cat([channel_moments(images), channel_moments(features)], dim=1)

    def stochastic_restore(self) -> None:
        """Set each value of experts and routers to its start with probability p."""
        stochastic_restore(self.experts.values(), self.start_values, self.hp.restore_probability)

    @property
    def scored_model(self) -> SourceModel:
        """Raises MethodError: the predictions need experts and routers."""
        raise MethodError(
            "BECoTTA has no plain network to store or export, as it predicts with experts that it "
            "routes; run it with keep_models: none."
        )


class Styles:
    """Mean style [domains, d] of each rendering, and the spread [d] around it."""

    def __init__(self, width: int, like: Tensor) -> None:
        self.means = like.new_zeros(len(DOMAINS), width)
        self.spread = like.new_zeros(width)
        self.counts = like.new_zeros(len(DOMAINS))

    def tensors(self) -> dict[str, Tensor]:
        """All of them, by name."""
        return {"styles.means": self.means, "styles.spread": self.spread, "styles.n": self.counts}

    def learn(self, styles: Tensor, domains: Tensor) -> None:
        """Add styles [n, d] of images rendered as these domains to the averages."""
        for style, domain in zip(styles.to(self.means), domains.tolist(), strict=True):
            self.counts[domain] += 1
            apart = style - self.means[domain]
            self.means[domain] += apart / self.counts[domain]
            inside = apart * (style - self.means[domain])
            self.spread += (inside - self.spread) / self.counts.sum()

    def nearest(self, styles: Tensor) -> Tensor:
        """The domains int64 [n] of styles [n, d], by distances in units of the spread."""
        apart = (styles.to(self.means)[:, None] - self.means).square()
        return (apart / self.spread.clamp_min(1e-12)).sum(2).argmin(1)


def channel_moments(features: Tensor) -> Tensor:
    """Means and deviations [n, 2 C] of the channels of a map [n, C, h, w]."""
    flat = features.to(torch.promote_types(features.dtype, torch.float32)).flatten(2)
    return torch.cat([flat.mean(2), flat.std(2)], dim=1)
