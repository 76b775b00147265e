# SPDX-License-Identifier: BSD-3-Clause

"""Small models of timm and torchvision, with dropout, stochastic depth and batch normalisation."""

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import functools

import timm
import torch
from harness import Case, call_stock_checkpoint, region
from torchvision.models import densenet, mobilenetv3, resnet, squeezenet, swin_transformer, vision_transformer

CLASSES = 3


def images(size):
    return {"image": torch.randn(2, 3, size, size), "label": torch.tensor([0, 2])}


def loss_of(model, batch):
    return torch.nn.functional.cross_entropy(model(batch["image"]), batch["label"])


def of_class(*names):
    return lambda module: type(module).__name__ in names


def timm_case(name, size, blocks, saved, **options):
    return Case(
        model=lambda: timm.create_model(name, num_classes=CLASSES, **options),
        batch=functools.partial(images, size),
        loss=loss_of,
        blocks=of_class(*blocks),
        saved=of_class(*saved),
        backbone=lambda model: model,
        enable=lambda model: model.set_grad_checkpointing(True),
        region=region,
    )


def vision_case(build, size, blocks, saved, enable=None):
    return Case(
        model=build,
        batch=functools.partial(images, size),
        loss=loss_of,
        blocks=of_class(*blocks),
        saved=of_class(*saved),
        backbone=lambda model: model,
        enable=enable or call_stock_checkpoint(of_class(*blocks)),
        region=region,
    )


def vit():
    return vision_transformer.VisionTransformer(
        image_size=16, patch_size=4, num_layers=3, num_heads=4, hidden_dim=32, mlp_dim=48, dropout=0.1,
        attention_dropout=0.1, num_classes=CLASSES,
    )  # fmt: skip


def swin():
    return swin_transformer.SwinTransformer(
        patch_size=[2, 2], embed_dim=16, depths=[2, 2], num_heads=[2, 4], window_size=[4, 4], mlp_ratio=2.0,
        dropout=0.1, attention_dropout=0.1, stochastic_depth_prob=0.3, num_classes=CLASSES,
    )  # fmt: skip


def mobilenet():
    config = functools.partial(mobilenetv3.InvertedResidualConfig, dilation=1, width_mult=1.0)
    blocks = [
        config(16, 3, 24, 16, True, "RE", 2),
        config(16, 3, 32, 16, False, "HS", 1),
        config(16, 5, 32, 24, True, "HS", 2),
    ]
    return mobilenetv3.MobileNetV3(blocks, last_channel=32, num_classes=CLASSES, dropout=0.2)


def memory_efficient(model):
    for module in model.modules():
        if hasattr(module, "memory_efficient"):
            module.memory_efficient = True


TIMM = {
    "resnet": timm_case("test_resnet", 32, ["BasicBlock"], ["Conv2d"], drop_rate=0.1, drop_path_rate=0.2),
    "vit": timm_case(
        "vit_tiny_patch16_224", 32, ["Block"], ["Attention"], img_size=32, patch_size=8, embed_dim=32, depth=3,
        num_heads=4, drop_rate=0.1, attn_drop_rate=0.1, proj_drop_rate=0.1, drop_path_rate=0.2,
    ),
    "convnext": timm_case(
        "convnext_atto", 32, ["ConvNeXtBlock"], ["Conv2d"], depths=(1, 1, 2, 1), dims=(8, 16, 24, 32),
        drop_rate=0.1, drop_path_rate=0.2,
    ),
    "efficientnet": timm_case(
        "test_efficientnet", 32, ["InvertedResidual", "EdgeResidual"], ["Conv2d"], drop_rate=0.1, drop_path_rate=0.2
    ),
    "swin": timm_case(
        "swin_tiny_patch4_window7_224", 32, ["SwinTransformerBlock"], ["WindowAttention"], img_size=32, window_size=4,
        embed_dim=16, depths=(2, 2), num_heads=(2, 4), drop_rate=0.1, attn_drop_rate=0.1, drop_path_rate=0.2,
    ),
}  # fmt: skip

TORCHVISION = {
    "resnet": vision_case(
        lambda: resnet.ResNet(resnet.BasicBlock, [1, 1, 1, 1], num_classes=CLASSES), 32, ["BasicBlock"], ["Conv2d"]
    ),
    "squeezenet": vision_case(
        lambda: squeezenet.squeezenet1_1(num_classes=CLASSES), 32, ["Fire"], ["Conv2d"]
    ),
    "vit": vision_case(vit, 16, ["EncoderBlock"], ["MultiheadAttention"]),
    "swin": vision_case(swin, 16, ["SwinTransformerBlock"], ["ShiftedWindowAttention"]),
    "densenet": vision_case(
        lambda: densenet.DenseNet(8, (2, 2), 16, bn_size=2, drop_rate=0.1, num_classes=CLASSES),
        32, ["_DenseLayer"], ["Conv2d"], memory_efficient,
    ),
    "mobilenet": vision_case(mobilenet, 32, ["InvertedResidual"], ["Conv2d"]),
}  # fmt: skip
CASES = {f"timm-{k}": v for k, v in TIMM.items()} | {f"torchvision-{k}": v for k, v in TORCHVISION.items()}
