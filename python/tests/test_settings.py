# SPDX-License-Identifier: BSD-3-Clause

"""Settings that decide the bits of an op beside its arguments: a replay computes under the settings of the forward, or raises."""

import contextlib

import pytest
import torch
from programs import leaf
from same import assert_same
from torch import nn
from torch.nn import functional

import remat_meta as remat

region = remat.checkpoint(region_name="block")


@contextlib.contextmanager
def setting(set_to, value, before):
    set_to(value)
    try:
        yield
    finally:
        set_to(before)


def mkldnn(enabled):
    """Like torch.backends.mkldnn.flags(), which warns of devices that are absent."""
    return setting(torch._C._set_mkldnn_enabled, enabled, torch._C._get_mkldnn_enabled())


def test_denormals_are_those_of_the_forward():
    def flushed(wrap):
        x = leaf(5)
        flushes = torch.set_flush_denormal(True)
        try:
            y = wrap(lambda x: ((x * 1e-40) * 1e38).sin() * x)(x)
        finally:
            torch.set_flush_denormal(False)
        y.sum().backward()
        return x.grad, torch.tensor(flushes)

    assert_same(flushed, region)
    x = torch.tensor([1e-40])
    assert (x * 1).item() != 0, "the replay put the setting back"


def test_libraries_are_those_of_the_forward():
    def convolved(wrap):
        layer, x = nn.Conv2d(2, 8, 3), leaf(2, 2, 16, 16)
        with mkldnn(False):
            y = wrap(lambda x: layer(x).sin())(x)
        y.sum().backward()
        return x.grad, layer.weight.grad

    enabled = torch._C._get_mkldnn_enabled()

    def settled(wrap):
        # Backward itself runs under one setting.
        with mkldnn(True):
            return convolved(wrap)

    assert_same(settled, region)
    assert torch._C._get_mkldnn_enabled() == enabled


@pytest.mark.parametrize("replay", ("function", "tape"))
def test_the_number_of_threads_is_that_of_the_forward(replay):
    before = torch.get_num_threads()

    def normed(wrap):
        norm, x = nn.BatchNorm1d(8), leaf(512, 8)
        torch.set_num_threads(1)
        try:
            y = wrap(norm)(x)
            torch.set_num_threads(2)
            y.square().sum().backward()
            assert torch.get_num_threads() == 2
        finally:
            torch.set_num_threads(before)
        return [x.grad, *[p.grad for p in norm.parameters()], norm.running_var]

    assert_same(normed, remat.checkpoint(replay=replay))


def set_conv_precision(value):
    torch.backends.mkldnn.conv.fp32_precision = value


@pytest.mark.parametrize("replay", ("function", "tape", "auto"))
@pytest.mark.parametrize(
    ("set_to", "forward", "backward"),
    [
        (torch.set_float32_matmul_precision, "medium", "highest"),
        (torch.set_float32_matmul_precision, "highest", "high"),
        (set_conv_precision, "bf16", "ieee"),
    ],
)
def test_another_precision_in_backward_raises(set_to, forward, backward, replay):
    layer = nn.Linear(8, 8)
    region = remat.checkpoint(replay=replay, region_name=f"precision {replay}")(lambda x: layer(x.sin()).sin())
    with setting(set_to, forward, backward):
        y = region(leaf(4, 8))
    try:
        with pytest.raises(RuntimeError, match=r"region 'precision .*': expected the precision of matrix products"):
            y.sum().backward()
    finally:
        torch.set_float32_matmul_precision("highest")
        set_conv_precision("none")


SETTINGS = {
    "mkldnn": (lambda: mkldnn(False), lambda x: functional.gelu(x.sin()).sin()),
    "precision": (
        lambda: setting(torch.set_float32_matmul_precision, "medium", "highest"),
        lambda x: functional.linear(x.sin(), x.detach()[:8]).sin(),
    ),
    "denormals": (
        lambda: setting(torch.set_flush_denormal, True, False),
        lambda x: (x.sin() * 1e-38).mul(0.3).mul(1e37).mul(9).sin(),
    ),
    "default dtype": (
        lambda: setting(torch.set_default_dtype, torch.float64, torch.float32),
        lambda x: (x * torch.ones(64)).sin(),
    ),
    "threads": (lambda: setting(torch.set_num_threads, 2, 1), lambda x: torch.fft.fft(x).abs().sin()),
}


@pytest.mark.torch_warns
@pytest.mark.parametrize("case", SETTINGS)
def test_a_setting_that_the_function_changes_is_left_to_the_function(case):
    entered, ops = SETTINGS[case]

    def steps(wrap):
        count, gradients = [0], []

        def fn(x):
            with entered() if count[0] >= 3 else contextlib.nullcontext():
                return ops(x)

        region = wrap(fn)
        for count[0] in range(6):  # the tape is trusted when the setting changes
            x = leaf(64, 64)
            region(x).sum().backward()
            gradients.append(x.grad)
        return gradients

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        assert_same(steps, remat.checkpoint(replay="auto", region_name=f"setting {case}"))
        with pytest.raises(NotImplementedError, match="a setting that the function changes"):
            steps(remat.checkpoint(replay="tape", region_name=f"strict setting {case}"))
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("nested", (False, True))
@pytest.mark.parametrize("first", ("forward", "replay"))
@pytest.mark.parametrize("case", SETTINGS)
def test_a_setting_that_state_of_the_host_chooses_raises(case, first, nested):
    entered, ops = SETTINGS[case]
    calls = [0 if first == "forward" else 1]

    def fn(x):
        with entered() if calls[0] == 0 else contextlib.nullcontext():
            return ops(x).sin()

    region = remat.checkpoint(region_name="chosen")(fn)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        y = (remat.checkpoint()(lambda x: region(x.sin())) if nested else region)(leaf(64, 64))
        calls[0] = 1 - calls[0]
        with pytest.raises(remat.ReplayMismatch, match=r"It computes under another setting"):
            y.sum().backward()
    finally:
        torch.set_num_threads(before)


@pytest.mark.torch_warns
@pytest.mark.parametrize("replay", ("function", "tape", "auto"))
def test_what_the_function_undoes_after_the_last_saved_tensor_is_undone(replay):
    w = leaf(4)

    def steps(wrap):
        def fn(x):
            w.requires_grad_(False)
            torch.set_default_dtype(torch.float64)
            torch.use_deterministic_algorithms(True, warn_only=True)
            y = (x * w).sin()
            torch.use_deterministic_algorithms(False)
            torch.set_default_dtype(torch.float32)
            w.requires_grad_(True)
            return y + w

        region, gradients = wrap(fn), []
        for _ in range(3):
            x = leaf(4)
            region(x).sum().backward()
            assert w.requires_grad
            assert torch.get_default_dtype() == torch.float32
            assert not torch.are_deterministic_algorithms_enabled()
            gradients += [x.grad, w.grad]
            w.grad = None
        return gradients

    if replay == "tape":
        with pytest.raises(NotImplementedError, match="a setting that the function changes"):
            steps(remat.checkpoint(replay=replay))
        torch.use_deterministic_algorithms(False)
        torch.set_default_dtype(torch.float32)
    else:
        assert_same(steps, remat.checkpoint(replay=replay))
