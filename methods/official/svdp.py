"""SVDP (Yang et al., AAAI 2024, arXiv:2303.09792): the prompt of Anonymous-012/SVDP.

SVDP is for segmentation alone, and a form for classification was never defined: no method is
registered under its name. Its pieces stand here, checked, for the method to come: the uncertainty
from dropout, the places of the prompt's vectors, and the rate of their average. In the official
loop the prompted image is built without gradients, so its prompts never learn.
"""

import numpy as np
import torch
from scipy.ndimage import zoom
from torch import Tensor

from ctta_bench.methods.official import Case, Recorded, Translation

SCALES = (0.5, 0.75, 1.0, 1.25, 1.5, 1.75, 2.0)
CORNER = 4  # of the dropout passes only this is recorded


def dropout_uncertainty(probabilities: Tensor) -> Tensor:
    """Variance over the passes, summed over the classes: [passes, classes, H, W] to [H, W]."""
    return probabilities.var(0, correction=0).sum(0)


def prompt_count(height: int, width: int, rate: float) -> int:
    """k, prompted pixels at every scale: a share of the base image."""
    return int(height * width * rate)


def most_uncertain(uncertainty: Tensor, height: int, width: int, count: int) -> Tensor:
    """Positions int64 [count, 2] (row, column), ascending in the uncertainty at this scale.

    The map [H, W] is resized by cubic splines. A vector of the prompt has no place of its own.
    """
    factors = (height / uncertainty.shape[0], width / uncertainty.shape[1])
    resized = zoom(uncertainty.double().cpu().numpy(), factors, order=3)
    chosen = np.argsort(resized, axis=None, kind="stable")[len(resized.flat) - count :]
    rows, columns = np.unravel_index(chosen, resized.shape)
    return torch.from_numpy(np.stack([rows, columns], axis=1)).to(uncertainty.device)


def prompt_image(prompt: Tensor, positions: Tensor, height: int, width: int) -> Tensor:
    """The vectors [k, 3] on their positions [k, 2] of an image of zeros [3, height, width]."""
    flat = positions[:, 0] * width + positions[:, 1]
    return prompt.new_zeros(3, height * width).index_copy(1, flat, prompt.T).view(3, height, width)


def prompt_momentum(uncertainty: Tensor, scale: float) -> float:
    """α of the prompts' average: the more uncertain, the faster they follow."""
    return 0.999 - scale * float(uncertainty.mean())


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
    ),
)
