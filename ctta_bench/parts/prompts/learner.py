"""Prompt tokens with DINO heads, and losses on their outputs (DePT)."""

import torch
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity, linear, normalize

STUDENT_TEMPERATURE, TEACHER_TEMPERATURE = 0.1, 0.07
CENTRE_MOMENTUM = 0.9


class DINOHead(nn.Module):
    """Two linear layers to a unit vector; the outputs are its cosines with learnt directions."""

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


class PromptLearner(nn.Module):
    """The prompts, DINO heads and classifier of the student, or of the teacher."""

    def __init__(self, width: int, stages: int, prompts: int, classifier: nn.Linear) -> None:
        super().__init__()
        self.prompts = nn.ParameterList(torch.empty(1, prompts, width) for _ in range(stages))
        for prompt in self.prompts:
            nn.init.xavier_uniform_(prompt)
        self.heads = nn.ModuleList()
        self.classifier = classifier


def distillation(
    student: Tensor, teacher: Tensor, centre: Tensor, temperature: float = TEACHER_TEMPERATURE
) -> Tensor:
    """Cross-entropy of the student's outputs [n, outputs] against the centred teacher's.

    temperature: of the teacher.
    """
    target = ((teacher - centre) / temperature).softmax(-1)
    return -(target * (student / STUDENT_TEMPERATURE).log_softmax(-1)).sum(-1).mean()


def next_centre(centre: Tensor, teacher: Tensor, *, summed: bool = False) -> Tensor:
    """The EMA of the centre [1, outputs] after a batch; the official code uses the batch's sum."""
    batch = teacher.sum(0, keepdim=True) if summed else teacher.mean(0, keepdim=True)
    return centre * CENTRE_MOMENTUM + batch * (1 - CENTRE_MOMENTUM)


def consistency_of_prompts(student: list[Tensor], teacher: list[Tensor]) -> Tensor:
    """Σ w_i times the mean cosine distance of student's and teacher's prompts, by stage i."""
    both = zip(student, teacher, strict=True)
    apart = [(1 - cosine_similarity(s, t, dim=-1)).mean() for s, t in both]
    return (stage_weights(apart[0], len(apart)) * torch.stack(apart)).sum()


def diversity_of_prompts(student: list[Tensor]) -> Tensor:
    """-Σ w_i times the mean cosine distance between the prompts of an image, by stage i."""
    apart = []
    for outputs in student:
        unit = normalize(outputs, dim=-1)
        with torch.autocast(outputs.device.type, enabled=False):
            distance = 1 - unit @ unit.mT
        apart.append((distance - distance.diagonal(dim1=1, dim2=2).diag_embed()).mean())
    return -(stage_weights(apart[0], len(apart)) * torch.stack(apart)).sum()


def diversity_of_classes(logits: Tensor) -> Tensor:
    """Negative entropy of the mean prediction."""
    mean = logits.softmax(1).mean(0)
    return (mean * (mean + 1e-8).log()).sum()


def stage_weights(like: Tensor, stages: int) -> Tensor:
    """Weights [stages], larger for later stages: w_i = e^i / Σ e^j."""
    return torch.arange(stages, dtype=like.dtype, device=like.device).softmax(0)
