"""ReservoirTTA (Vray et al., NeurIPS 2025, arXiv:2505.14511): several copies of what a host method
adapts, one for each cluster of styles; a batch is routed to them by its own style.

Official code: LTS5/ReservoirTTA. The style of a batch are log variances in the first layers of
VGG19. A batch whose style is farther from every centroid than source batches are from each other
founds a cluster, and a copy with it. Batches are scored with the weights averaged by the distances
from the centroids. Only the copy of the nearest cluster learns, with its own optimiser state and
statistics of the host. Centroids are fitted to styles in a buffer, which reservoir sampling keeps.

Hosts are TENT, ETA, EATA, SAR, and ROID without consistency and prior correction, as published;
the form with prompts is not supported. Memory: `max_models` times the adapted tensors with
optimiser and host's state, and `buffer_size` styles of 320 values. VGG19 is not part of a model:
`style_network: random` has the same layers with random weights, for machines without its file and
for checks; it is not the published method.

Differs from the official code, unless `faithful: true`: reservoir sampling draws among all styles
seen, the present one included (theirs leaves one out, so that a few too many are replaced). Always:
a reset clears the reservoir, and a style that is not finite is routed as the last one.
"""

import itertools
from typing import Any, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from ctta_bench.errors import DataError, MethodError
from ctta_bench.method import Method, OptimizerHyperparameters, softmax_entropy
from ctta_bench.model import SourceModel
from ctta_bench.parts.style import StyleNetwork, random_style_network, vgg19_style_network
from ctta_bench.registry import METHODS

WITHOUT = {"consistency": False, "prior": "off"}  # of ROID as a host
FORGOTTEN = 10  # times its capacity, after which the buffer counts the seen styles anew


@METHODS.register_module("reservoir")
class ReservoirTTA(Method):
    """Copies of what a host adapts, one per cluster of styles; batches are routed by style."""

    display_name = "ReservoirTTA"
    year = 2025
    venue = "NeurIPS"
    citation = "vray2025reservoir"
    adapts_layers = "norm layers, in several copies"
    losses = "that of its host (TENT, ETA, EATA, SAR, ROID)"
    extra_memory = "up to 16 copies of what learns, 1,024 styles, layers of VGG19"
    paper = "https://arxiv.org/abs/2505.14511"
    checked_against = "official code"
    source_access = "unlabelled"
    batch_dependent = True
    passes_per_image = (2, 1)  # of TENT and one more, and a pass per copy for a new cluster
    search_space = {"lr": (1e-5, 1e-1), "max_models": [4, 16]}
    checked_with = {
        "style_network": "random",
        "style_batch_size": 4,
        "source_styles": 8,
        "max_models": 2,
        "start": "source",
    }

    class Hyperparameters(OptimizerHyperparameters):
        """Hyper-parameters of ReservoirTTA, and those of its hosts by their names there."""

        host: Literal["tent", "eta", "eata", "sar", "roid"] = Field(
            "tent", description="method that adapts each copy"
        )
        margin: float = Field(0.4, ge=0, description="of ETA, EATA and SAR: E0, of ln C")
        max_similarity: float = Field(0.05, ge=0, description="of ETA and EATA: ε")
        fisher_weight: float = Field(2000.0, ge=0, description="of EATA: β")
        fisher_batch_size: int = Field(64, ge=1, description="of EATA: images per gradient")
        rho: float = Field(0.05, ge=0, description="of SAR: radius")
        recovery_threshold: float = Field(0.2, ge=0, description="of SAR: e_m in nats")
        skip_last_blocks: int | None = Field(None, ge=0, description="of SAR: frozen blocks")
        source_momentum: float = Field(0.99, ge=0, le=1, description="of ROID: m")
        max_models: int = Field(16, ge=1, description="K_max, most clusters and copies")
        buffer_size: int = Field(1024, ge=1, description="most styles in the buffer")
        quantile: float = Field(
            0.999, ge=0, le=1, description="of distances between source styles: new beyond it"
        )
        start: Literal["mi", "source"] = Field(
            "mi", description="of a new copy: the most informative copy, or the source"
        )
        sampling: Literal["reservoir", "fifo", "replace"] = Field(
            "reservoir", description="what a style replaces in a full buffer"
        )
        ensembling: bool = Field(True, description="score with the average of the copies")
        progressive: bool = Field(False, description="move the copy by its routing weight only")
        source_buffer: bool = Field(False, description="fill the buffer with source styles first")
        source_samples: int = Field(2000, ge=2, description="source images, for styles and host")
        source_styles: int = Field(1000, ge=2, description="styles of source batches")
        style_batch_size: int = Field(64, ge=1, description="images of such a batch")
        style_network: Literal["vgg19", "random"] = Field(
            "vgg19", description="weights of the style network; random is not published"
        )
        centroid_lr: float = Field(1e-4, ge=0, description="learning rate of the centroids")
        faithful: bool = Field(False, description="sample with the bound of the official code")

        @model_validator(mode="after")
        def _every_copy_has_a_place(self) -> "ReservoirTTA.Hyperparameters":
            if self.buffer_size < self.max_models:
                raise ValueError("buffer_size must be at least max_models")
            return self

    def setup(self) -> None:
        """Build the host, the style network, and a reservoir of one copy, the source."""
        own, kind = self.hp.model_dump(), METHODS.get(self.hp.host)
        shared = set(own) & set(kind.Hyperparameters.model_fields) - {"faithful"}
        values = {name: own[name] for name in shared}
        values |= WITHOUT if self.hp.host == "roid" else {}
        self.host: Any = kind(self.model, kind.Hyperparameters(**values), precision=self.precision)
        self.trainable = self.host.trainable
        self.draw = draw
        self.set_style_network(
            random_style_network()
            if self.hp.style_network == "random"
            else vgg19_style_network(asked_by=self.title)
        )
        self.full_batch = self.used = 0

    def set_style_network(self, network: StyleNetwork) -> None:
        """Use this network, and make the centroids of its styles: offsets from the source's."""
        self.style = network.to(self.model.mean)
        self.offsets = nn.Parameter(self.model.mean.new_zeros(self.hp.max_models, network.width))
        self.renew_optimizer()

    def renew_optimizer(self) -> None:
        """A new optimiser of the centroids."""
        self.fitting = torch.optim.AdamW([self.offsets], self.hp.centroid_lr, weight_decay=0.01)

    # -- before the stream

    def prepare(self, source: Any) -> None:
        """Start the host; learn the styles of source batches."""
        self.host.start(source if self.host.source_access != "none" else None)
        self.weights = [[p.detach().clone() for p in self.trainable.values()]]
        self.beside = [self.host.beside_weights()]
        self.start_weights, self.start_beside = list(self.weights[0]), self.beside[0]
        facts = {
            name: getattr(self.hp, name)
            for name in ("style_network", "source_samples", "source_styles", "style_batch_size")
        }
        styles = source.once("styles", facts, lambda: {"styles": self.source_styles(source)})
        self.learn_styles(styles["styles"].to(self.offsets))

    def source_styles(self, source: Any) -> Tensor:
        """Styles [m, d] of batches of the source images, as often as needed."""
        found: list[Tensor] = []
        for epoch in itertools.count():
            left = self.hp.source_samples
            more = {"epoch": epoch} if epoch else {}
            for images in source.batches(self.hp.style_batch_size, **more):
                found.append(self.style(images[:left]))
                left -= len(images)
                if left <= 0 or len(found) == self.hp.source_styles:
                    break
            self.source_used = self.hp.source_samples - max(left, 0) if not epoch else None
            if len(found) == self.hp.source_styles or not found:
                break
        if not found:
            raise DataError("ReservoirTTA needs source images for their styles; there are none.")
        return torch.stack(found)

    def learn_styles(self, styles: Tensor) -> None:
        """Mean and distances of source styles [m, d]; they may be the first of the buffer."""
        self.origin = styles.mean(0)
        apart = torch.pdist(styles)
        if not bool((apart > 0).any()):
            raise DataError(
                f"ReservoirTTA: {len(styles)} source batches have the same style; set "
                f"style_batch_size (now {self.hp.style_batch_size}) below the source images."
            )
        self.threshold = float(apart[apart > 0].quantile(self.hp.quantile))
        self.buffer, self.seen = styles[:0], 0
        for style in styles if self.hp.source_buffer else ():
            self.keep(style, torch.ones_like(style[:1]))

    # -- the stream

    def adapt(self, images: Tensor) -> Tensor:
        """Route the batch, and let the host adapt the nearest copy; scored is their average."""
        style = self.style(images)
        self.full_batch = max(self.full_batch, len(images))
        probabilities, founds = self.route(style, len(images))
        if founds:
            self.add_model(style, images)
        ensembling = self.hp.ensembling
        logits = self.averaged(images, probabilities, self.weights) if ensembling else None
        self.used = int(probabilities.argmax())
        if bool(style.isfinite().all()):
            self.fit_centroids(style)
            self.keep(style, probabilities)
        self.load(self.weights[self.used])
        self.host.load_beside_weights(self.beside[self.used])
        self.host.counters = self.counters
        own = self.host.adapt(images)
        self.loss = self.host.loss
        self.store(float(probabilities[self.used]))
        return own if logits is None else logits

    @torch.no_grad()
    def predict(self, images: Tensor) -> Tensor:
        """Logits with the average of the copies, or with the nearest one."""
        probabilities, founds = self.route(self.style(images), len(images))
        weights = [*self.weights, *([self.new_weights(images)[0]] if founds else [])]
        if not self.hp.ensembling:
            self.load(weights[int(probabilities.argmax())])
            return self.host.predict(images)
        return self.averaged(images, probabilities, weights)

    def route(self, style: Tensor, count: int) -> tuple[Tensor, bool]:
        """Weights [copies] of a style [d], and whether a batch of `count` founds a cluster."""
        models = len(self.weights)
        if not bool(style.isfinite().all()):
            return torch.eye(models).to(style)[self.used], False
        centroids = self.origin + self.offsets[:models].detach()
        apart = distances(style[None], centroids)[0]
        founds = count >= self.full_batch and models < self.hp.max_models
        founds = founds and bool(apart.min() > self.threshold)
        if founds:
            apart = torch.cat([apart, torch.zeros_like(apart[:1])])
        return (-apart).softmax(0), founds

    @torch.no_grad()
    def fit_centroids(self, style: Tensor) -> None:
        """One step to the largest mutual information of styles and clusters."""
        styles = torch.cat([self.buffer, style[None]])
        with torch.enable_grad():
            scores = -distances(styles, self.origin + self.offsets[: len(self.weights)])
            mean = scores.softmax(1).mean(0)
            loss = softmax_entropy(scores).mean() + (mean * (mean + 1e-8).log()).sum()
            (self.offsets.grad,) = torch.autograd.grad(loss, [self.offsets])
        self.fitting.step()
        self.offsets.grad = None

    def keep(self, style: Tensor, probabilities: Tensor) -> None:
        """Put a style [d] into the buffer, if it is full in place of another one, or drop it."""
        capacity = self.hp.buffer_size // self.hp.max_models * len(self.weights)
        if len(self.buffer) < capacity:
            self.buffer = torch.cat([self.buffer, style[None]])
        elif self.hp.sampling == "fifo":
            self.buffer = torch.cat([self.buffer[1:], style[None]])
        else:
            place = self.place(probabilities)
            if place < capacity:
                self.buffer = self.buffer.clone()
                self.buffer[place] = style
            if self.seen >= FORGOTTEN * capacity:
                self.seen = capacity - 1
        self.seen += 1

    def place(self, probabilities: Tensor) -> int:
        """The row of a full buffer for a style with these weights; none if it is beyond."""
        if self.hp.sampling == "reservoir":
            return self.draw(self.seen - 1 if self.hp.faithful else self.seen)
        centroids = self.origin + self.offsets[: len(self.weights)].detach()
        shares, nearest = (-distances(self.buffer, centroids)).softmax(1), probabilities.argmax()
        members = shares.argmax(1) == nearest
        likely = shares[:, nearest].masked_fill(~members, 1.0)
        worst = int(likely.argmin())
        return worst if bool(likely[worst] < probabilities[nearest]) else len(self.buffer)

    # -- the copies

    @torch.no_grad()
    def add_model(self, style: Tensor, images: Tensor) -> None:
        """A centroid at this style, and a copy."""
        self.offsets[len(self.weights)] = style - self.origin
        self.renew_optimizer()
        weights, beside = self.new_weights(images)
        self.weights.append(weights)
        self.beside.append(beside)

    @torch.no_grad()
    def new_weights(self, images: Tensor) -> tuple[list[Tensor], Any]:
        """Weights of a new copy and its other state, with the optimiser of the same copy.

        Most informative is the copy whose predictions of the images are certain and diverse.
        """
        if self.hp.start == "source":
            return list(self.start_weights), self.start_beside
        scores = []
        for weights in self.weights:
            self.load(weights)
            logits = self.model(images)
            mean = logits.softmax(-1, dtype=torch.promote_types(logits.dtype, torch.float32)).mean(
                0
            )
            scores.append(softmax_entropy(logits).mean() - torch.special.entr(mean).sum())
        best = int(torch.stack(scores).argmin())
        beside = self.start_beside | {"optimizer": self.beside[best]["optimizer"]}
        return list(self.weights[best]), beside

    @torch.no_grad()
    def averaged(self, images: Tensor, probabilities: Tensor, copies: list[list[Tensor]]) -> Tensor:
        """Logits with Σ π_k θ_k."""
        shares = probabilities.tolist()
        total = [share * shares[0] for share in copies[0]]
        for share, weights in zip(shares[1:], copies[1:], strict=True):
            torch._foreach_add_(total, weights, alpha=share)
        self.load(total)
        return self.model(images)

    @torch.no_grad()
    def load(self, weights: list[Tensor]) -> None:
        """Set the adapted tensors of the network."""
        torch._foreach_copy_(list(self.trainable.values()), weights)

    @torch.no_grad()
    def store(self, share: float) -> None:
        """Put what the host has learnt into the copy in use, or move it by a share."""
        learnt = [p.detach().clone() for p in self.trainable.values()]
        if self.hp.progressive:
            pairs = zip(self.weights[self.used], learnt, strict=True)
            learnt = [old.lerp(new, share) for old, new in pairs]
        self.weights[self.used] = learnt
        self.beside[self.used] = self.host.beside_weights()

    @property
    def scored_model(self) -> SourceModel:
        """Refused: every batch is scored with another average of the copies."""
        raise MethodError(
            "ReservoirTTA has no plain network that can be saved or exported: it scores each batch "
            "with another average of its copies; export a run of its host."
        )


def distances(styles: Tensor, centroids: Tensor) -> Tensor:
    """Euclidean distances [m, k] of styles [m, d] from centroids [k, d]."""
    return torch.linalg.vector_norm(styles[:, None] - centroids, dim=2)


def draw(most: int) -> int:
    """A random whole number from 0 to `most`, both included."""
    return int(torch.randint(most + 1, ()))
