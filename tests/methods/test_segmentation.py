"""Methods on a segmentor: pixels as samples, labels of views, and what is refused.

The conformance checks (resume, reset, batches of one, NaN images): tests/test_testing.py.
"""

import copy
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, interpolate

from ctta_bench.api.compatibility import compatibility
from ctta_bench.config.presets import preset_values, presets_of
from ctta_bench.errors import MethodError
from ctta_bench.method import softmax_entropy
from ctta_bench.methods.dept_maps import among_prompts
from ctta_bench.model import SourceModel
from ctta_bench.parts.segmentation.dropping import dropouts_of
from ctta_bench.parts.segmentation.masked import by_group, of_places, whole_groups
from ctta_bench.parts.source.moments import place_statistics
from ctta_bench.registry import METHODS, MODELS
from ctta_bench.source_models.tiny import tiny_segmentor
from ctta_bench.testing import TinySource
from tests.methods import changed, declared, plain, scenes, segmentor, snapshot, tensors

SEGMENT = [n for n in METHODS.names() if "segmentation" in METHODS.get(n).tasks]
OTHERS = [n for n in METHODS.names() if "segmentation" not in METHODS.get(n).tasks]
SGD = {"optimizer": "sgd", "momentum": 0.0, "lr": 0.1}
# One view or none: scores that can be compared with the source model's.
STILL: dict[str, dict[str, Any]] = {
    "tent": {},
    "pseudo_label": {},
    "sar": {"margin": 10.0},
    "paid": {"source_samples": 8},
    "lora": {"source_samples": 8},
    "dora": {"source_samples": 8},
    "cotta": {"views": 1},
    "vdp": {"patch_size": 4},
    "ecotta": {"margin": 1.1},
    "dept": {"prompts": 4},
    "cmae": {},
    "becotta": {"views": 1, "ranks": (0, 2, 2, 2)},
}


def source_logits(images: Tensor) -> Tensor:
    with torch.no_grad():
        return SourceModel(tiny_segmentor())(images)


def same_scores(one: Tensor, other: Tensor) -> None:
    torch.testing.assert_close(one.log_softmax(1), other.log_softmax(1), atol=1e-5, rtol=1e-5)


# -- all of them


def test_those_that_are_defined_for_segmentation_are_these() -> None:
    assert set(SEGMENT) == {*STILL, "source", "vida", "svdp"}


@pytest.mark.parametrize("name", OTHERS)
def test_a_method_that_is_not_defined_for_segmentation_says_so_at_construction(name: str) -> None:
    with pytest.raises(MethodError, match=r"does not support .*, a model for segmentation") as no:
        segmentor(name)
    assert str(no.value).count(". ") == 0


@pytest.mark.parametrize("name", ["vida", "paid", "lora", "dora", "ecotta", "dept", "cmae"])
def test_a_warm_up_is_refused(name: str) -> None:
    length = {"warmup_iterations": 1} if name == "cmae" else {"warmup_epochs": 1}
    with pytest.raises(MethodError, match="does not support a warm-up for segmentation"):
        segmentor(name, **length)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("cotta", {"views": 14, "loss": "symmetric"}, "does not support the symmetric loss"),
        ("cotta", {}, "supports 1 to 14 views for segmentation .* not 32"),
        ("vida", {}, "does not support the symmetric loss"),
        ("paid", {"entropy_filter": True}, "does not support the entropy filter for segmentation"),
        ("cmae", {"score": "logit"}, "leave `score` out"),
        ("dept", {"dino": True}, "no DINO heads"),
        ("dept", {"stages": 2}, "in each of its 4 stages"),
    ],
)
def test_options_without_a_meaning_are_refused(name: str, value: Any, words: str) -> None:
    with pytest.raises(MethodError, match=words):
        segmentor(name, **value)


def test_tents_hard_labels_are_refused_on_a_classifier() -> None:
    entry = METHODS.get("tent")
    network = SourceModel(nn.Sequential(nn.Flatten(), nn.LayerNorm(12), nn.Linear(12, 3)))
    with pytest.raises(MethodError, match=r"run .pseudo_label., which has that loss"):
        entry(network, entry.Hyperparameters(loss="hard"))


@pytest.mark.parametrize("name", SEGMENT)
def test_every_preset_for_segmentation_builds_a_method(name: str) -> None:
    for preset, section in presets_of(name).items():
        for benchmark in {"cityscapes_acdc", "streets_acdc"} & set(section):
            values = preset_values(name, preset, benchmark)
            METHODS.get(name)(
                SourceModel(tiny_segmentor()), METHODS.get(name).Hyperparameters(**values)
            )


def test_each_method_shows_what_it_updates_in_a_segmentor_or_why_it_cannot() -> None:
    found = {
        name: compatibility(name, SourceModel(tiny_segmentor(), name="tiny"))
        for name in METHODS.names()
        if METHODS.get(name).__module__.startswith("ctta_bench.methods.")  # no other test's plug-in
    }
    assert {name for name, shown in found.items() if not shown.refusal} == set(SEGMENT)
    teachers = {name for name, shown in found.items() if shown.scored == "teacher"}
    assert teachers == {"becotta", "cotta", "vida", "svdp"}
    assert found["tent"].parameters == 504


@pytest.mark.parametrize("name", STILL)
def test_at_a_learning_rate_of_nought_scores_stay_the_source_models(name: str) -> None:
    method = segmentor(name, **STILL[name] | {"lr": 0.0})
    for seed in range(3):
        images = scenes(seed=seed)
        same_scores(method(images), source_logits(images))


@pytest.mark.parametrize("name", STILL)
def test_scores_are_from_before_the_update(name: str) -> None:
    method, images = segmentor(name, **STILL[name] | {"lr": 1e-3}), scenes()
    start = snapshot(method)
    same_scores(method(images), source_logits(images))
    assert plain(snapshot(method)) != plain(start)


@pytest.mark.parametrize("name", [n for n in SEGMENT if n != "svdp"])
def test_the_heads_batch_norm_keeps_the_sources_statistics(name: str) -> None:
    values = STILL.get(name, {"loss": "cross_entropy", "views": 2} if name == "vida" else {})
    method = segmentor(name, **values)
    before = {n: b for n, b in tensors(method.model).items() if "running" in n}
    method(scenes())
    after = tensors(method.model)
    assert before
    assert all(torch.equal(after[name], value) for name, value in before.items())


# -- entropy and the own labels


def stepped(loss: Any, lr: float = 0.1) -> dict[str, Tensor]:
    """Norm parameters after one SGD step of `loss(logits)` from the source model."""
    model = SourceModel(tiny_segmentor()).requires_grad_(False)
    parameters = model.norm_parameters()
    for parameter in parameters.values():
        parameter.requires_grad_(True)
    gradients = torch.autograd.grad(loss(model(scenes())), list(parameters.values()))
    pairs = zip(parameters.items(), gradients, strict=True)
    return {name: value.detach() - lr * gradient for (name, value), gradient in pairs}


def mean_entropy(logits: Tensor) -> Tensor:
    p = logits.softmax(1)
    return -(p * p.log()).sum(1).mean()


def own_labels(logits: Tensor) -> Tensor:
    return cross_entropy(logits, logits.argmax(1))


def twice_as_large(logits: Tensor) -> Tensor:
    return own_labels(interpolate(logits, size=(64, 64), mode="bilinear", align_corners=False))


@pytest.mark.parametrize(
    ("name", "values", "loss"),
    [
        ("tent", {}, mean_entropy),
        ("tent", {"loss": "hard"}, own_labels),
        ("tent", {"loss": "hard", "output_scale": 2.0}, twice_as_large),
        ("pseudo_label", {}, own_labels),
        ("pseudo_label", {"output_scale": 2.0}, twice_as_large),
    ],
)
def test_one_step_is_that_of_the_mean_over_all_pixels(name: str, values: Any, loss: Any) -> None:
    method = segmentor(name, **SGD, **values)
    method(scenes())
    expected = stepped(loss)
    assert method.trainable.keys() == expected.keys()
    for key, value in expected.items():
        torch.testing.assert_close(method.trainable[key].detach(), value, atol=1e-6, rtol=1e-5)


def test_pixels_above_the_threshold_alone_are_labelled() -> None:
    def loss(logits: Tensor) -> Tensor:
        rows = logits.movedim(1, -1).flatten(0, 2)
        confidence, labels = rows.softmax(1).max(1)
        kept = confidence > 0.5
        assert 0 < kept.sum() < len(kept)
        return cross_entropy(rows[kept], labels[kept])

    method = segmentor("pseudo_label", threshold=0.5, **SGD)
    method(scenes())
    for key, value in stepped(loss).items():
        torch.testing.assert_close(method.trainable[key].detach(), value, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("name", ["tent", "pseudo_label"])
def test_norm_layers_alone_change_and_scores_have_the_asked_size(name: str) -> None:
    method = segmentor(name, output_scale=0.5, lr=0.01)
    before = tensors(method.model)
    assert method(scenes()).shape == (2, 10, 16, 16)
    moved = changed(before, method.model)
    assert moved == declared(method)
    assert all("norm" in name for name in moved)
    # Two norms a block, one of each stage and embedding, two of reductions, one of the head.
    assert len(moved) == 2 * (2 * 4 + 2 * 4 + 2 + 1)


def test_sar_leaves_the_last_stage_and_the_head_as_they_are() -> None:
    method = segmentor("sar", margin=10.0, lr=0.01)
    stages = {name.split(".")[1] for name in method.trainable}
    assert all(name.startswith("stages") for name in method.trainable)
    assert stages == {"0", "1", "2"}


def test_sar_selects_pixels_by_their_entropy() -> None:
    entropy = softmax_entropy(source_logits(scenes()).movedim(1, -1).flatten(0, 2))
    between = float(entropy.median()) / math.log(10)
    few, none = segmentor("sar", margin=between, lr=0.1), segmentor("sar", margin=0.0, lr=0.1)
    start = snapshot(few)
    few(scenes())
    none(scenes())
    assert float(few.loss) < float(entropy.median())
    assert plain(snapshot(few)) != plain(start)
    assert plain(snapshot(none)) == plain(start)


# -- alignment


@pytest.mark.parametrize("name", ["paid", "lora", "dora"])
def test_alignment_adapts_every_linear_layer_of_the_encoder_and_starts_as_the_source(
    name: str,
) -> None:
    method = segmentor(name, source_samples=4)
    layers = {".".join(key.split(".")[:6]) for key in method.trainable}
    parts = ("attn.q", "attn.k", "attn.v", "attn.proj", "ffn.fc1", "ffn.fc2")
    assert layers == {f"stages.{s}.blocks.0.{part}" for s in range(4) for part in parts}
    torch.testing.assert_close(method(scenes()), source_logits(scenes()), atol=1e-5, rtol=1e-5)


def stage_rows(images: Tensor, stage: int) -> Tensor:
    """Features [n, h·w, C] of a stage of the source model."""
    with torch.no_grad():
        return SourceModel(tiny_segmentor()).feature_maps(images)[stage - 1].flatten(2).mT


def test_source_statistics_are_of_each_image_and_averaged() -> None:
    method = segmentor("paid", source_samples=5)
    rows = stage_rows(TinySource(torch.float32, 32).images[:5], 4)
    torch.testing.assert_close(method.source_statistics.mean, rows.mean(1).mean(0))
    torch.testing.assert_close(method.source_statistics.std, rows.std(1, correction=1).mean(0))
    assert method.source_statistics.images == 5


def test_pooled_statistics_are_of_all_places_together() -> None:
    method = segmentor("paid", source_samples=5, source_moments="pooled")
    rows = stage_rows(TinySource(torch.float32, 32).images[:5], 4).flatten(0, 1)
    torch.testing.assert_close(method.source_statistics.mean, rows.mean(0))
    torch.testing.assert_close(
        method.source_statistics.std, rows.std(0, correction=1), atol=1e-5, rtol=1e-5
    )


def test_statistics_take_what_there_is_and_need_an_image() -> None:
    images = [torch.zeros(1), torch.ones(1)]
    found = place_statistics(
        lambda x: [x + torch.tensor([[1.0], [3.0]])], images, samples=9, pooled=False
    )
    assert (found[0].mean.item(), found[0].images) == (2.5, 2)
    assert found[0].std.item() == pytest.approx(math.sqrt(2))


def distance(rows: Tensor, source: Any) -> Tensor:
    return (rows.mean(0) - source.mean).norm() + (rows.std(0) - source.std).norm()


@pytest.mark.parametrize("stages", ["4", "14"])
def test_the_loss_is_the_sum_of_the_distances_of_the_asked_stages(stages: str) -> None:
    method = segmentor("paid", source_samples=5, stages=stages)
    expected = [
        distance(stage_rows(scenes(), int(stage)).flatten(0, 1), source)
        for stage, source in zip(stages, method.sources, strict=True)
    ]
    method(scenes())
    torch.testing.assert_close(method.loss, sum(expected), atol=1e-4, rtol=1e-4)


def test_one_image_has_a_deviation() -> None:
    method = segmentor("paid", source_samples=5)
    method(scenes(1))
    expected = distance(stage_rows(scenes(1), 4)[0], method.source_statistics)
    torch.testing.assert_close(method.loss, expected, atol=1e-4, rtol=1e-4)


def test_parts_with_shared_statistics_are_the_whole_batch() -> None:
    whole = segmentor("paid", source_samples=5, stages="34")
    parts = segmentor("paid", source_samples=5, stages="34", chunks=2, two_pass=True)
    for method in (whole, parts):
        method(scenes(4))
    torch.testing.assert_close(whole.loss, parts.loss, atol=1e-4, rtol=1e-4)


# -- teachers and their views


def view(model: Any, images: Tensor, scale: float, mirrored: bool) -> Tensor:
    """Probabilities [n, classes, 8, 8] of a view, by hand."""
    side = round(32 * scale)
    shown = interpolate(images, size=(side, side), mode="bilinear", align_corners=False)
    with torch.no_grad():
        logits = model(shown.flip(-1) if mirrored else shown)
    seen = interpolate(logits, size=(8, 8), mode="bilinear", align_corners=False).softmax(1)
    return seen.flip(-1) if mirrored else seen


THREE = ((1.0, False), (1.0, True), (1.25, False))


def test_cottas_label_is_the_plain_view_where_the_anchor_is_sure_and_else_the_mean() -> None:
    method, images = segmentor("cotta", views=3, confidence_threshold=0.5, lr=0.05), scenes()
    method(images)  # teacher, student and anchor differ from here on
    seen = [view(method.teacher, images, *which) for which in THREE]
    sure = view(method.anchor, images, *THREE[0]).amax(1, keepdim=True) > 0.5
    assert 0 < sure.sum() < sure.numel()
    expected = torch.where(sure, seen[0], sum(seen) / 3)
    torch.testing.assert_close(method.predict(images).exp(), expected)


def test_views_are_flipped_back() -> None:
    method, images = segmentor("cotta", views=2, confidence_threshold=2.0), scenes()
    mirrored = method.predict(images.flip(-1))
    torch.testing.assert_close(mirrored.flip(-1), method.predict(images), atol=1e-5, rtol=1e-4)


def test_cottas_student_learns_the_most_likely_classes() -> None:
    method, images = segmentor("cotta", views=1, restore_probability=0.0, **SGD), scenes()
    name = "decode_head.predict.bias"
    start = method.trainable[name].detach().clone()
    logits = source_logits(images)
    ones = torch.nn.functional.one_hot(logits.argmax(1), 10).movedim(-1, 1)
    gradient = (logits.softmax(1) - ones).mean((0, 2, 3))
    method(images)
    torch.testing.assert_close(
        method.trainable[name].detach(), start - 0.1 * gradient, atol=1e-6, rtol=1e-5
    )


def test_cottas_labels_have_the_asked_size() -> None:
    assert segmentor("cotta", views=2, output_scale=2.0)(scenes()).shape == (2, 10, 64, 64)


@pytest.mark.parametrize(("views", "passes"), [(1, 2), (14, 16)])
def test_one_view_needs_no_anchor(views: int, passes: int) -> None:
    method = segmentor("cotta", views=views)
    method(scenes())
    assert (method.passes.forward_images, method.passes.backward_images) == (2 * passes, 2)


def vida(**values: Any) -> Any:
    return segmentor("vida", loss="cross_entropy", views=3, **values)


def test_vidas_uncertainty_is_a_tenth_of_the_variance_of_the_views_probabilities() -> None:
    method, images = vida(uncertainty_threshold=10.0), scenes()
    seen = torch.stack([view(method.teacher, images, *which) for which in THREE])
    uncertainty = 0.1 * float(seen.var(0, correction=1).mean())
    method(images)
    assert method.scales.low == pytest.approx(1 + uncertainty, rel=1e-4)
    assert method.scales.high == pytest.approx(1 - uncertainty, rel=1e-4)


def test_vidas_start_is_the_source_model_and_its_anchor_stays_so() -> None:
    method, images = vida(lr=0.01, lr_adapters=0.01), scenes()
    assert torch.equal(method.teacher(images), source_logits(images))
    for _ in range(2):
        method(images)
    assert torch.equal(method.anchor(images), source_logits(images))
    assert not torch.equal(method.model(images), source_logits(images))


def test_vidas_key_and_value_share_their_downward_products() -> None:
    attention = vida().model.network.stages[0].blocks[0].attn
    assert attention.k.low_down is attention.v.low_down
    assert attention.k.high_down is attention.v.high_down
    assert attention.k.low_up is not attention.v.low_up
    assert attention.q.low_down is not attention.k.low_down


def test_vdps_teacher_labels_and_scores_the_images_themselves() -> None:
    method, images = segmentor("vdp", patch_size=4, lr=0.1, teacher_momentum=0.5), scenes()
    assert torch.equal(method(images), source_logits(images))
    prompted = images + method.prompt_image(images, *method.teacher)
    with torch.no_grad():
        expected = SourceModel(tiny_segmentor())(prompted)
    assert not torch.equal(prompted, images)
    assert torch.equal(method(images), expected)
    assert changed(tensors(SourceModel(tiny_segmentor())), method.model) == set()


# -- components outside the network


def test_ecottas_parts_are_the_stages_and_start_as_the_source_to_the_bit() -> None:
    method = segmentor("ecotta")
    widths = [part.meta.linear.in_features for part in method.each_segment()]
    assert widths == [8, 8, 16, 24]
    assert sum(p.numel() for p in method.trainable.values()) == sum(d * d + 5 * d for d in widths)
    assert torch.equal(method(scenes()), source_logits(scenes()))


def test_ecottas_entropy_is_of_the_pixels_below_the_margin() -> None:
    entropy = softmax_entropy(source_logits(scenes()).movedim(1, -1).flatten(0, 2))
    method = segmentor("ecotta", margin=float(entropy.median()) / math.log(10))
    method(scenes())
    kept = entropy[entropy < method.margin]
    assert 0 < len(kept) < len(entropy)
    torch.testing.assert_close(method.loss, kept.mean())  # no distance at the start


def test_depts_closed_gates_are_the_source_model_and_open() -> None:
    method, images = segmentor("dept", prompts=4, optimizer="adam", lr=0.01), scenes()
    assert torch.equal(method(images), source_logits(images))
    assert all(gate.abs().max() > 0 for gate in method.student.gates)
    assert not torch.equal(method(images), source_logits(images))


def test_attention_among_prompts_is_a_softmax_of_their_own() -> None:
    attention: Any = tiny_segmentor().encoder_stages[0].blocks[0].attn
    generator = torch.Generator().manual_seed(0)
    queries, prompts = (torch.randn(n, 8, generator=generator) for n in (6, 3))
    keys, values = attention.k(prompts), attention.v(prompts)
    for head in (slice(0, 4), slice(4, 8)):
        weights = (queries[:, head] @ keys[:, head].T / 2).softmax(1)  # √4 = 2
        found = among_prompts(queries.expand(2, -1, -1), attention, prompts)[1, :, head]
        torch.testing.assert_close(found, weights @ values[:, head])


def test_depts_loss_is_of_hard_labels_and_of_the_stages_mean_features() -> None:
    method, images = segmentor("dept", prompts=4), scenes()
    logits = source_logits(images)
    method(images)
    torch.testing.assert_close(method.loss, own_labels(logits))  # the teacher is the student yet


def test_groups_of_an_uneven_map_are_counted_and_averaged() -> None:
    grouped = by_group(torch.ones(1, 1, 135, 240))
    assert grouped.shape == (1, 1, 34, 60)
    assert torch.equal(grouped, torch.ones(1, 1, 34, 60))
    assert whole_groups(torch.zeros(1, 3, 540, 960)).shape == (1, 3, 544, 960)


def test_a_mask_of_groups_is_one_of_their_places() -> None:
    mask = torch.tensor([[True, False, False, True]])
    places = of_places(mask, (6, 5)).view(6, 5)
    assert places[:4, :4].all()
    assert places[4:, 4:].all()
    assert places.sum() == 16 + 2


def test_masked_pixels_do_not_matter() -> None:
    method, images = segmentor("cmae"), scenes(1)
    mask = torch.tensor([[True, False, False, False]])
    altered = images.clone()
    altered[:, :, :15, :15] = 0.5  # the embedding of other groups sees column 15
    with torch.no_grad():
        one, other = (method.masked_pass(x, mask)[0] for x in (images, altered))
    assert torch.equal(one, other)
    assert not torch.equal(source_logits(altered), source_logits(images))


def test_the_most_uncertain_half_of_the_groups_is_masked() -> None:
    method, images = segmentor("cmae", mask_ratio=0.5), scenes(3)
    _, mask = method.target_and_mask(images)
    assert mask.shape == (3, 4)
    assert mask.sum(1).tolist() == [2, 2, 2]


def test_the_head_alone_passes_for_the_uncertainty() -> None:
    method = segmentor("cmae", views=5)
    calls = {"stages.0": 0, "decode_head": 0}

    def count(name: str) -> Any:
        return lambda *_: calls.update({name: calls[name] + 1})

    for name in calls:
        method.model.network.get_submodule(name).register_forward_hook(count(name))
    method.target_and_mask(scenes())
    assert calls == {"stages.0": 1, "decode_head": 6}
    assert not dropouts_of(method.model)[0].training


# -- SegFormer-B5, as the specifications count it


@pytest.fixture(scope="module")
def b5() -> Any:
    pytest.importorskip("mmseg")
    return MODELS.get("segformer_b5")().eval().to("meta")


def on_b5(b5: nn.Module, name: str, **values: Any) -> Any:
    entry = METHODS.get(name)
    with torch.device("meta"):
        return entry(SourceModel(copy.deepcopy(b5)), entry.Hyperparameters(**values))


def total(method: Any, part: str = "") -> int:
    return sum(p.numel() for name, p in method.trainable.items() if part in name)


def test_paid_has_the_counted_parameters(b5: nn.Module) -> None:
    assert total(on_b5(b5, "paid")) == 1_789_632  # 9 (r + 1) Σ depth · width
    assert total(on_b5(b5, "paid", rank=14)) == 2_064_960
    assert total(on_b5(b5, "dora")) == 1_789_632


def test_vida_has_the_counted_adapters(b5: nn.Module) -> None:
    method = on_b5(b5, "vida", loss="cross_entropy", views=14)
    assert sum(p.numel() for p in method.adapters.values()) == 13_812_288


def test_ecotta_has_the_counted_meta_parts(b5: nn.Module) -> None:
    assert total(on_b5(b5, "ecotta")) == 390_144


def test_dept_has_the_counted_prompts_and_a_gate_a_head(b5: nn.Module) -> None:
    method = on_b5(b5, "dept")
    assert total(method, "prompts") == 50 * (64 + 128 + 320 + 512)
    assert total(method, "gates") == 3 * 1 + 6 * 2 + 40 * 5 + 3 * 8


def test_sar_leaves_out_stage_four_of_segformer(b5: nn.Module) -> None:
    method = on_b5(b5, "sar")
    assert not any("layers.3" in name or "decode_head" in name for name in method.trainable)
    assert any("layers.2" in name for name in method.trainable)
