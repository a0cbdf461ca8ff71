"""Record the reference outputs of `confident`: written without ctta-bench, in plain torch.

    python docs/plugin/record.py

For a method of yours, this is the authors' code, run on the same small model and stream.
"""

import json
import math
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from timm.models.vision_transformer import VisionTransformer

HERE = Path(__file__).resolve().parent
PARITY = HERE.parents[1] / "tests" / "parity"
CASES = HERE / "src" / "ctta_confident" / "cases"
SETTINGS = {"optimizer": {"name": "SGD", "lr": 0.01, "momentum": 0.9}, "margin": 0.9}


class Confident:
    """The "official" code."""

    def __init__(self, network):
        self.network = network.requires_grad_(False)
        norms = [m for m in network.modules() if isinstance(m, torch.nn.LayerNorm)]
        parameters = [p.requires_grad_(True) for norm in norms for p in norm.parameters()]
        chosen = SETTINGS["optimizer"]
        self.optimizer = torch.optim.SGD(parameters, chosen["lr"], chosen["momentum"])

    def __call__(self, images):
        """The logits of a batch, from before its update."""
        outputs = self.network(images)
        entropies = -(outputs.softmax(1) * outputs.log_softmax(1)).sum(1)
        sure = entropies < SETTINGS["margin"] * math.log(outputs.shape[1])
        if sure.any():
            self.optimizer.zero_grad()
            entropies[sure].mean().backward()
            self.optimizer.step()
        return outputs.detach()


def recorded(dtype):
    """The outputs for each batch of the stream, and the changed tensors at the end."""
    network = VisionTransformer(
        img_size=32, patch_size=8, embed_dim=48, depth=4, num_heads=4, num_classes=10
    )
    network.load_state_dict(load_file(PARITY / "model" / "tiny_vit.safetensors"))
    network = network.to(dtype).eval()
    method, stream = Confident(network), load_file(PARITY / "stream" / "stream.safetensors")
    count = sum(key.startswith("images_") for key in stream)
    outputs = [method(stream[f"images_{n}"].to(dtype) / 255) for n in range(count)]
    return outputs, {n: p.detach() for n, p in network.named_parameters() if p.requires_grad}


def main():
    """Write the case."""
    single, final = recorded(torch.float32)
    double, _ = recorded(torch.float64)
    case = {
        "source": "example/confident",
        "function": "record.py: Confident",
        "commit": "1.0.0",
        "model": "tiny_vit",
        "hyper_parameters": SETTINGS,
        "tolerance": {"logits_abs": 1e-4, "logits64_abs": 1e-9},
        "final": {
            "student": {
                name: {
                    "shape": list(tensor.shape),
                    "sum": float(tensor.sum()),
                    "l2": float(tensor.norm()),
                    "tolerance": 1e-4,
                }
                for name, tensor in final.items()
            }
        },
    }
    CASES.mkdir(exist_ok=True)
    (CASES / "confident.json").write_text(json.dumps(case, indent=1) + "\n")
    tensors = {f"logits_{n}": one for n, one in enumerate(single)}
    save_file(
        tensors | {f"logits64_{n}": one for n, one in enumerate(double)},
        CASES / "confident.safetensors",
    )


if __name__ == "__main__":
    main()
