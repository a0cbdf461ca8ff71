"""Every family of timm: the logits of `source` are those of the model's own forward pass."""

import math

import pytest
import timm
import torch

from ctta_bench.model import SourceModel
from ctta_bench.registry import METHODS

# A small model of each family; of the others the first in timm's list.
SMALL = {
    "byoanet": "halonet_h1", "byobnet": "test_byobnet", "cait": "cait_xxs24_224",
    "coat": "coat_tiny", "convit": "convit_tiny", "convmixer": "convmixer_768_32",
    "convnext": "test_convnext", "cpubone": "cpubone_nano", "crossvit": "crossvit_tiny_240",
    "cspnet": "cs3darknet_focus_s", "cspnext": "cspnext_tiny", "davit": "davit_tiny",
    "deit": "deit_tiny_distilled_patch16_224", "densenet": "densenet121", "dla": "dla46x_c",
    "dpn": "dpn48b", "edgenext": "edgenext_xx_small", "efficientformer": "efficientformer_l1",
    "efficientformer_v2": "efficientformerv2_s0", "efficientnet": "test_efficientnet",
    "efficientvim": "efficientvim_m1", "efficientvit_mit": "efficientvit_b0",
    "efficientvit_msra": "efficientvit_m0", "eva": "eva02_tiny_patch14_224",
    "fasternet": "fasternet_t0", "fastvit": "fastvit_t8", "focalnet": "focalnet_tiny_srf",
    "gcvit": "gcvit_xxtiny", "ghostnet": "ghostnet_050", "hgnet": "hgnetv2_b0",
    "hiera": "hiera_tiny_224", "hieradet_sam2": "hieradet_small", "hrnet": "hrnet_w18_small",
    "iformer": "iformer_t", "inception_next": "inception_next_atto", "lcnetv2": "lcnetv2_small",
    "levit": "levit_128s", "lowformer": "lowformer_b0", "mambaout": "test_mambaout",
    "maxxvit": "test_coatnet", "metaformer": "poolformerv2_s12", "mlp_mixer": "gmlp_ti16_224",
    "mobilenetv3": "lcnet_035", "mobilenetv5": "mobilenetv5_base", "mobilevit": "mobilevit_xxs",
    "mvitv2": "mvitv2_tiny", "naflexvit": "naflexvit_base_patch16_parfac_gap",
    "nest": "nest_tiny", "nextvit": "nextvit_small", "nfnet": "test_nfnet",
    "pit": "pit_ti_distilled_224", "pvt_v2": "pvt_v2_b0", "rdnet": "rdnet_tiny",
    "regnet": "regnetx_002", "repghost": "repghostnet_050", "repvit": "repvit_m1",
    "res2net": "res2next50", "resnest": "resnest14d", "resnet": "test_resnet",
    "resnetv2": "resnetv2_18", "rexnet": "rexnet_100", "selecsls": "selecsls42",
    "senet": "legacy_seresnet18", "sequencer": "sequencer2d_s", "shvit": "shvit_s1",
    "sknet": "skresnet18", "starnet": "starnet_s050", "swiftformer": "swiftformer_xs",
    "swin_transformer": "swin_tiny_patch4_window7_224",
    "swin_transformer_v2": "swinv2_tiny_window8_256",
    "swin_transformer_v2_cr": "swinv2_cr_tiny_224", "tiny_vit": "tiny_vit_5m_224",
    "tnt": "tnt_s_legacy_patch16_224", "tresnet": "tresnet_m", "twins": "twins_svt_small",
    "vgg": "vgg11", "visformer": "visformer_tiny", "vision_transformer": "test_vit",
    "vision_transformer_hybrid": "vit_tiny_r_s16_p8_224",
    "vision_transformer_relpos": "test_vit_relpos",
    "vision_transformer_sam": "samvit_base_patch16_224", "vitamin": "vitamin_small_224",
    "volo": "volo_d1_224", "vovnet": "ese_vovnet19b_slim_dw", "xcit": "xcit_nano_12_p8_224",
}  # fmt: skip
TOO_LARGE = 400_000_000  # parameters x pixels / 224²
FAMILIES = [module for module in timm.list_modules() if timm.list_models(module=module)]


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_source_gives_the_logits_of_the_models_own_forward(family: str) -> None:
    known = timm.list_models(module=family)
    name = SMALL[family] if SMALL.get(family) in known else known[0]
    with torch.device("meta"):
        shell = timm.create_model(name, num_classes=7)
    pixels = math.prod(shell.pretrained_cfg["input_size"][1:])
    if sum(p.numel() for p in shell.parameters()) * pixels / 224**2 > TOO_LARGE:
        pytest.skip(f"{name} takes too long")
    torch.manual_seed(0)
    network = timm.create_model(name, num_classes=7).eval()
    for parameter in network.parameters():
        if not parameter.any():  # a head of zeros would hide differences
            torch.nn.init.normal_(parameter, std=0.02)
    model = SourceModel(network, name=name)
    assert model.preprocessing.size is not None
    images = torch.rand(1, 3, *model.preprocessing.size)
    with torch.no_grad():
        expected = network(model.preprocess(images))
        method = METHODS.get("source")(model)
        method.start()
        assert torch.equal(method(images), expected)
        assert model.num_classes == 7
        if model.has_classifier:
            features, logits = model.features_and_logits(images)
            assert features.shape[1] == model.classifier.in_features
            torch.testing.assert_close(logits, expected)
