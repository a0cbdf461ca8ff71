"""Methods on the toy models, ready to call, and what their tests compare."""

import io
from typing import Any

import torch
from torch import Tensor, nn

from ctta_bench.method import Method
from ctta_bench.model import SourceModel
from ctta_bench.registry import METHODS, load_plugin
from ctta_bench.source_models.tiny import SEGMENTED_SIDE, tiny_segmentor
from ctta_bench.stream import SourceData
from ctta_bench.testing import TinySource
from tests.conftest import TOY

toy = load_plugin(str(TOY))
pictures = toy.pictures
# Methods that do not support the toy ViT, and a network that they support.
NETWORKS = {"norm": "toy_cnn"}
# Without the file of VGG19, and of few source images.
WITH = {"reservoir": {"style_network": "random", "style_batch_size": 8, "source_styles": 8}}


def source_images(dtype: torch.dtype = torch.float32, *, labelled: bool = False) -> SourceData:
    """The toy benchmark's source set, without labels unless they are asked for."""
    cpu = torch.device("cpu")
    return SourceData(toy.Toy().source(), labelled=labelled, seed=0, device=cpu, dtype=dtype)


def make(
    kind: type[Method], network: str = "toy_vit", *, dtype: Any = torch.float32, **arguments: Any
) -> Method:
    """A method of this class on a toy network, started; arguments of the base, the rest are
    hyper-parameters."""
    base = {k: arguments.pop(k) for k in ("seed", "precision", "window") if k in arguments}
    model = SourceModel(getattr(toy, network)(), name=network).to(dtype)
    method = kind(model, kind.Hyperparameters(**arguments), **base)
    access = method.source_access
    method.start(source_images(dtype, labelled=access == "labelled") if access != "none" else None)
    return method


def build(name: str, network: str | None = None, **arguments: Any) -> Method:
    """A registered method by name, as `make`, on the toy ViT if that can be."""
    network = network or NETWORKS.get(name, "toy_vit")
    return make(METHODS.get(name), network, **WITH.get(name, {}) | arguments)


def tensors(module: nn.Module) -> dict[str, Tensor]:
    """Copies of all parameters and buffers, the unsaved ones too."""
    named = dict(module.named_parameters()) | dict(module.named_buffers())
    return {name: tensor.detach().clone() for name, tensor in named.items()}


def changed(before: dict[str, Tensor], module: nn.Module) -> set[str]:
    """Names of the tensors that are no longer bit-identical."""
    after = tensors(module)
    assert before.keys() == after.keys()
    return {name for name in before if not torch.equal(before[name], after[name])}


def declared(method: Method) -> set[str]:
    """Names in the model of the tensors that the method says it adapts."""
    ours = set(map(id, method.trainable.values()))
    return {name for name, p in method.model.named_parameters() if id(p) in ours}


def snapshot(method: Method) -> dict[str, Tensor]:
    """Copies of the adapted tensors."""
    return {name: p.detach().clone() for name, p in method.trainable.items()}


def through_disk(tree: Any) -> Any:
    """As a checkpoint comes back, read without running anything from it."""
    buffer = io.BytesIO()
    torch.save(tree, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=True)


def plain(tree: Any) -> Any:
    """A tree with its tensors as shapes and bytes, so that `==` compares every bit."""
    return torch.utils._pytree.tree_map(lambda x: bits(x) if torch.is_tensor(x) else x, tree)


def bits(tensor: Tensor) -> tuple[torch.Size, bytes]:
    """Shape and bytes of a tensor: equal for equal NaN, too."""
    flat = tensor.detach().contiguous().flatten()
    return tensor.shape, flat.view(torch.uint8).numpy().tobytes()


def segmentor(name: str, *, seed: int = 0, **hyperparameters: Any) -> Any:
    """A registered method on the tiny segmentor, started, with 16 random source images."""
    entry = METHODS.get(name)
    model = SourceModel(tiny_segmentor(), name="tiny_segmentor")
    method = entry(model, entry.Hyperparameters(**hyperparameters), seed=seed)
    method.start(TinySource(torch.float32, SEGMENTED_SIDE))
    return method


def scenes(count: int = 2, seed: int = 1) -> Tensor:
    """Smooth random pictures, float [count, 3, 32, 32] in [0, 1]."""
    generator = torch.Generator().manual_seed(seed)
    coarse = torch.rand(count, 3, 4, 4, generator=generator)
    return nn.functional.interpolate(coarse, size=SEGMENTED_SIDE, mode="bilinear")
