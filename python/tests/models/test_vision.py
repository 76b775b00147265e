# SPDX-License-Identifier: BSD-3-Clause

"""Models of timm and torchvision: two optimizer steps, every bit as in a plain run."""

import pytest
import torch
from harness import MODES, SAVE, VARIANTS, assert_bitwise_plain, first_difference, outermost, plain, train
from same import assert_same
from torch import nn
from torchvision.models import resnet, squeezenet, vision_transformer
from vision_models import CASES

import remat_meta as remat

pytestmark = pytest.mark.torch_warns


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_two_steps_are_bitwise_plain(case, variant, mode):
    assert_bitwise_plain(case, variant, mode)


def test_the_comparison_sees_one_bit():
    case = CASES["timm-vit"]
    trace, other = train(case, plain), train(case, plain)
    assert first_difference(trace, other) is None
    name = "step 1, blocks.1.attn.qkv.weight"
    other[name].view(torch.int32)[0, 0] ^= 1
    assert first_difference(trace, other) == f"{name}: 1 of {other[name].numel() * 4} bytes"


def grads_and_buffers(model, x):
    return [x.grad, *(p.grad for p in model.parameters()), *model.buffers()]


def test_batch_norm_counts_each_batch_once():
    def program(wrap):
        model = resnet.ResNet(resnet.BasicBlock, [1, 1, 1, 1], num_classes=3)
        for _, block in outermost(model, lambda module: isinstance(module, resnet.BasicBlock)):
            block.forward = wrap(block.forward)
        x = torch.randn(2, 3, 32, 32, requires_grad=True)
        model(x).sum().backward()
        counts = [m.num_batches_tracked.item() for m in model.modules() if isinstance(m, nn.BatchNorm2d)]
        assert counts == [1] * len(counts)
        return grads_and_buffers(model, x)

    assert_same(program, remat.checkpoint(region_name="block"))


def test_a_saved_convolution_may_be_followed_by_an_inplace_relu():
    runs = []

    def program(wrap):
        model = squeezenet.Fire(4, 4, 6, 6)
        convolution = model.squeeze.forward

        def counted(x):
            runs.append(1)
            return convolution(x)

        model.squeeze.forward = remat.native_op(counted, "squeeze", SAVE)
        assert model.squeeze_activation.inplace
        x = torch.randn(2, 4, 5, 5, requires_grad=True)
        wrap(model)(x).pow(2).sum().backward()
        return grads_and_buffers(model, x)

    assert_same(program, remat.checkpoint(region_name="fire"))
    assert len(runs) == 2  # the plain run, and the forward of the region


@pytest.mark.parametrize("saved", [True, False])
def test_query_key_and_value_stay_one_tensor(saved):
    one = []

    def program(wrap):
        block = vision_transformer.EncoderBlock(2, 8, 12, 0.1, 0.1)
        attention = block.self_attention.forward

        def watched(query, key, value, **keywords):
            one.append(query is key and key is value)
            return attention(query, key, value, **keywords)

        policy = SAVE if saved else remat.CheckpointPolicy.RECOMPUTE
        block.self_attention.forward = remat.native_op(watched, "attention", policy)
        x = torch.randn(2, 5, 8, requires_grad=True)
        wrap(block)(x).sum().backward()
        return grads_and_buffers(block, x)

    assert_same(program, remat.checkpoint(region_name="block"))
    assert one == [True] * (2 if saved else 3)


def test_a_number_may_be_assigned_to_an_element():
    def program(wrap):
        def fn(x):
            y = x * 2 + 1
            mask = torch.zeros(2)
            mask[0] = 1  # torch makes a tensor of the number 1 without an op
            return (y + mask).sin().exp()

        x = torch.randn(2, requires_grad=True)
        for _ in range(20):
            wrap(fn)(x).sum().backward()
        return x.grad

    assert_same(program, remat.checkpoint(region_name="block"))
