"""Fine-tuning on labels: what learns, what an adapter binds, what is refused."""

import pytest
import torch

from ctta_bench.analysis.kept_models.geometry import compare, source_layer
from ctta_bench.analysis.kept_models.stored import split_layers
from ctta_bench.errors import MethodError
from ctta_bench.run.export import plain_state
from tests.methods import build, pictures, source_images

FAST = {"warmup_epochs": 2, "warmup_batch_size": 8, "warmup_lr": 1e-2}


def layers(state):
    return dict(split_layers({name: value.numpy() for name, value in state.items()}))


def loss_on_source(method):
    images, labels = next(source_images(labelled=True).labelled_batches(40))
    with torch.no_grad():
        return float(torch.nn.functional.cross_entropy(method.model(images), labels))


def test_it_learns_the_labels_before_the_stream_and_nothing_in_it():
    untrained = build("finetune", labels=10, warmup_lr=0.0)
    trained = build("finetune", labels=10, **FAST)
    assert loss_on_source(untrained) == pytest.approx(torch.tensor(10.0).log().item())
    assert loss_on_source(trained) < 0.8 * loss_on_source(untrained)
    before = plain_state(trained)
    for images in pictures(16).split(8):
        trained(images)
    after = plain_state(trained)
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_all_linear_layers_of_the_blocks_and_the_head_learn_and_nothing_else():
    source, trained = plain_state(build("source")), plain_state(build("finetune", **FAST))
    changed = {name for name in source if not torch.equal(source[name], trained[name])}
    blocks = {
        f"blocks.{number}.{layer}.{value}"
        for number in range(4)
        for layer in ("attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2")
        for value in ("weight", "bias")
    }
    assert changed == blocks | {"head.weight", "head.bias"}


def test_a_new_head_has_as_many_outputs_as_there_are_labels():
    method = build("finetune", labels=12, **FAST)
    assert method(pictures(8)).shape == (8, 12)
    assert plain_state(method)["head.weight"].shape == (12, 24)


def test_paid_s_adapter_keeps_pairwise_angles_where_free_weights_do_not():
    source = {n: source_layer(w) for n, w in layers(plain_state(build("source"))).items()}

    def changes(**settings):
        adapted = layers(plain_state(build("finetune", **FAST, **settings)))
        return {name: compare(layer, adapted[name]) for name, layer in source.items()}

    free, bound = changes(), changes(adapter="paid")
    assert all(change["delta_s"] < 1e-6 * change["energy"] for change in bound.values())
    totals = [sum(change["delta_s"] for change in found.values()) for found in (free, bound)]
    assert totals[0] > 1000 * totals[1]
    assert all(change["delta_a"] > 1e-6 for change in bound.values())


@pytest.mark.parametrize("adapter", ["paid", "lora", "dora"])
def test_every_adapter_serves(adapter):
    start = build("finetune", labels=10, warmup_lr=0.0)
    assert loss_on_source(build("finetune", labels=10, adapter=adapter, **FAST)) < loss_on_source(
        start
    )


def test_a_network_without_such_layers_is_refused():
    with pytest.raises(
        MethodError, match=r"Fine-tuning does not support toy_cnn: .* linear layers"
    ):
        build("finetune", "toy_cnn")
