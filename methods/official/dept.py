"""DePT: yhygao/DePT, its prompted network, its update and its losses, with recorded start values.

Its update runs over epochs of a target set; in the cases an epoch has one batch.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from ctta_bench.methods.official import Case, Recorded, RecordedAugmentation, Translation
from ctta_bench.parts.memory import neighbour_probs
from ctta_bench.parts.prompts.learner import (
    consistency_of_prompts,
    distillation,
    diversity_of_classes,
    diversity_of_prompts,
    next_centre,
)
from ctta_bench.registry import METHODS

START = frozenset({"prompt_seed", "prompt_bound"})  # of the recorded prompts
# Names of trained tensors: theirs, ours. The norms of their heads are fixed at 1.
RENAMED = (
    ("prompt_list.", "prompts."),
    ("dinohead.", "heads."),
    ("head.", "classifier."),
    ("last_layer.weight_v", "directions"),
)


def network_alone(case: Case) -> dict[str, Any]:
    """Settings of the cases with forward passes only: nothing is trained."""
    sizes = {key: case["hyper_parameters"][key] for key in ("stages", "prompts")}
    return sizes | {"lr": 0.0}


def official(case: Case) -> dict[str, Any]:
    """Settings of the official code."""
    settings = case["hyper_parameters"]
    return {
        "lr": settings["lr"],
        "weight_decay": settings["weight_decay"],
        "cosine_steps": len(case["per_batch"]),
        "clip": settings["clip_grad"],
        "label_weight": settings.get("alpha", 1.0),
        "teacher_temperature": settings.get("teacher_temp", 0.07),
        "stages": settings["stages"],
        "prompts": settings["prompts"],
        "teacher_momentum": settings["teacher_m"],
        "neighbours": settings["neighbours"],
        "bank_size": settings["bank_size"],
        "dino": True,
        "hidden": settings["hidden_dim"],
        "bottleneck": settings["bottleneck_dim"],
        "outputs": settings["dino_out_dim"],
        "cls_weight": settings["beta"],
        "prompt_weight": settings["beta2"],
        "prompt_diversity": settings["lam"],
        "class_diversity": settings["eta"],
        "faithful": True,
    }


def their_name(name: str) -> str:
    """The official name of one of our tensors."""
    for theirs, ours in RENAMED:
        name = name.replace(ours, theirs)
    return name


def tensors(method: Any) -> dict[str, Tensor]:
    """The student's tensors by the official names."""
    return {their_name(name): tensor.detach() for name, tensor in method.trainable.items()}


@torch.no_grad()
def set_initial_prompts(method: Any, case: Case, recorded: Recorded) -> None:
    """Recorded prompts and heads of student and teacher."""
    for name, parameter in method.student.named_parameters():
        theirs = their_name(name).replace("prompt_list.", "prompt_")
        value = recorded.get(f"aux/start_{theirs}", recorded.get(f"aux/start_student_{theirs}"))
        if value is not None:
            parameter.copy_(value)
    method.teacher.load_state_dict(method.student.state_dict())


def plain_view(images: Tensor, size: Any) -> Tensor:
    """The cases' weak view: the batch itself."""
    return images


@torch.no_grad()
def set_initial_state(method: Any, case: Case, recorded: Recorded) -> None:
    """The same, with recorded views, and a bank filled by the student with source images."""
    set_initial_prompts(method, case, recorded)
    method.weak_view, method.strong_view = plain_view, RecordedAugmentation()
    for images in recorded["source_images"][: case["hyper_parameters"]["bank_size"]].split(16):
        seen = method.forward_pass(images, method.student)
        method.bank.add(seen.features, seen.logits.softmax(1))


def losses(case: Case, inputs: Recorded) -> dict[str, Tensor]:
    """All losses, their sum and its gradients, the neighbours, and the centre after the batch."""
    hp, stages = METHODS.get("dept").Hyperparameters(), range(case["hyper_parameters"]["stages"])
    learning = ["student_cls", "student_logits", *(f"student_prompt_{i}" for i in stages)]
    given = inputs | {name: inputs[name].clone().requires_grad_() for name in learning}
    students = [given[f"student_prompt_{i}"] for i in stages]
    teachers = [given[f"teacher_prompt_{i}"] for i in stages]
    bank = (given["bank_features"], given["bank_probs"], case["hyper_parameters"]["neighbours"])
    probs = neighbour_probs(given["features"], *bank)
    found = {
        "cross_entropy": cross_entropy(given["student_logits"], probs.argmax(1)),
        "dino_cls": distillation(given["student_cls"], given["teacher_cls"], given["center"]),
        "dino_prompt": consistency_of_prompts(students, teachers),
        "prompt_diversity": diversity_of_prompts(students),
        "class_diversity": diversity_of_classes(given["student_logits"]),
    }
    factors = (1, hp.cls_weight, hp.prompt_weight, hp.prompt_diversity, hp.class_diversity)
    losses = zip(factors, found.values(), strict=True)
    total_loss = sum((weight * loss for weight, loss in losses), torch.zeros(()))
    gradients = torch.autograd.grad(total_loss, [given[name] for name in learning])
    found |= {"total": total_loss}
    found = {name: loss.detach().reshape(1) for name, loss in found.items()}
    found |= {f"grad_{name}": g for name, g in zip(learning, gradients, strict=True)}
    centre = next_centre(given["center"], given["teacher_cls"], summed=True)
    labels = {"neighbour_probs": probs, "pseudo_labels": probs.argmax(1)}
    return found | labels | {"center_after": centre}


TRANSLATIONS = (
    Translation(
        "yhygao/DePT",
        "classifier.py: ViT_DePT",
        "dept",
        network_alone,
        set_initial_prompts,
        facts=START,
    ),
    Translation(
        "yhygao/DePT",
        "target_dino.py: train_epoch",
        "dept",
        official,
        set_initial_state,
        tensors,
        facts=START,
    ),
    Translation(
        "yhygao/DePT",
        "losses.py: DINOLoss, div, classification_loss",
        "dept",
        lambda case: {},
        run_function=losses,
        facts=frozenset({"batch", "prompts", "dim", "stages", "neighbours"}),
    ),
)
