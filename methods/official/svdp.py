"""SVDP: the prompt of Anonymous-012/SVDP; its loop needs another segmentation network."""

import torch
from torch import Tensor

from ctta_bench.methods.official import Case, Recorded, Translation
from ctta_bench.parts.prompts.placed import (
    dropout_uncertainty,
    most_uncertain,
    prompt_count,
    prompt_image,
)

SCALES = (0.5, 0.75, 1.0, 1.25, 1.5, 1.75, 2.0)
CORNER = 4  # only this corner of the dropout passes is recorded


def run_prompt(case: Case, inputs: Recorded) -> dict[str, Tensor]:
    """Uncertainty, positions and prompted images at all scales, and the prompt's gradient."""
    height, width = case["hyper_parameters"]["shape"]
    count = prompt_count(height, width, case["hyper_parameters"]["sparse_rate"])
    prompt = inputs["patch"][:, :, 0, 0].clone().requires_grad_()
    uncertainty = inputs["uncertainty64"].clone()
    corner = dropout_uncertainty(inputs["dropout_probabilities_corner"])
    uncertainty[:CORNER, :CORNER] = corner
    found = {"uncertainty": uncertainty}
    for scale in SCALES:
        h, w = round(height * scale), round(width * scale)
        positions = most_uncertain(inputs["uncertainty64"], h, w, count)
        image = prompt_image(prompt, positions, h, w)
        found[f"positions_{h}x{w}"] = positions
        found[f"prompt_image_scale_{h}x{w}"] = image.detach()
        found[f"prompt_image_scale_{h}x{w}_flipped"] = image.detach().flip(-1)
    whole = prompt_image(prompt, found[f"positions_{height}x{width}"], height, width)
    found["forward"] = (inputs["x"] + whole).detach()
    found["forward_flipped"] = (inputs["x"] + whole.flip(-1)).detach()
    (gradient,) = torch.autograd.grad((inputs["G"] * (inputs["x"] + whole)).sum(), prompt)
    found["grad_patch_if_built_with_grad"] = gradient[:, :, None, None]
    return found


TRANSLATIONS = (
    Translation(
        "Anonymous-012/SVDP",
        "SparsePrompter_uncertainty",
        "svdp",
        lambda case: {},
        run_function=run_prompt,
        facts=frozenset({"shape", "sparse_rate", "scale"}),
    ),
)
