# SPDX-License-Identifier: BSD-3-Clause

"""remat_meta.testing finds differences and names them."""

import random
from dataclasses import dataclass

import pytest
import torch
import torch.utils.checkpoint as stock
from torch import nn

import remat_meta as remat
from remat_meta.testing import assert_bitwise_equal, checkpoint_blocks


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.3)) for _ in range(3)
        )

    def forward(self, x, scale=1.0):
        for block in self.blocks:
            x = block(x) * scale
        return {"y": x, "loss": x.pow(2).mean()}


def test_a_model_with_dropout_and_batch_norm_passes_and_nothing_of_it_changes():
    model, x = Model(), torch.randn(5, 4, requires_grad=True)
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    before = torch.get_rng_state(), random.getstate()
    for batch in ({"x": x, "scale": 2.0}, (x, 2.0), [x], x):
        assert_bitwise_equal(model, batch)
    assert torch.equal(before[0], torch.get_rng_state()) and before[1] == random.getstate()
    assert all(torch.equal(tensor, model.state_dict()[name]) for name, tensor in state.items())
    assert x.grad is None and all(p.grad is None for p in model.parameters())


def test_the_regions_are_those_of_wrap():
    opened = []

    def wrap(model):
        first = model.blocks[0].forward

        def region(x):
            opened.append("region")
            return remat.checkpoint()(first)(x)

        model.blocks[0].forward = region

    assert_bitwise_equal(Model(), torch.randn(5, 4), wrap=wrap)
    assert opened == ["region"]


def test_a_model_without_lists_is_one_region():
    assert_bitwise_equal(nn.Linear(3, 3), torch.randn(2, 3))
    model = nn.Bilinear(3, 3, 3)
    checkpoint_blocks(model)
    assert "forward" in vars(model)


class Changed(nn.Module):
    """A module that differs in one thing once it is in a region."""

    def __init__(self, what):
        super().__init__()
        self.what = what
        self.wrapped = False
        self.weight = nn.Parameter(torch.ones(2, 3))
        self.register_buffer("seen", torch.zeros(3))

    def forward(self, x):
        y = remat.checkpoint()(torch.sin)(x * self.weight) if self.wrapped else torch.sin(x * self.weight)
        if self.wrapped and self.what == "output":
            y = y + 1
        if self.wrapped and self.what == "dtype":
            y = y.double()
        if self.wrapped and self.what == "gradient":
            y = y.detach() + (y - y.detach()) * 2
        if self.wrapped and self.what == "missing":
            y = remat.checkpoint()(torch.sin)(x * self.weight.detach())
        if self.wrapped and self.what == "buffer":
            self.seen[1] = 5
        if self.wrapped and self.what == "generator":
            torch.rand(1)
        return y


@pytest.mark.parametrize(
    ("what", "text"),
    [
        ("output", r"output: expected the bits of the plain run, got 6 of 6 elements that differ, at \[0, 0\]"),
        ("dtype", r"output: .*got torch.float64 \[2, 3\] on cpu for torch.float32"),
        ("gradient", r"gradient of 'weight': .*got 6 of 6 elements"),
        ("missing", r"gradient of 'weight': .*got none"),
        ("buffer", r"buffer 'seen': .*got 1 of 3 elements that differ, at \[1\] 5.0 for 0.0"),
        ("generator", r"the CPU generator after forward: "),
    ],
)
def test_the_first_difference_is_named(what, text):
    def wrap(model):
        model.wrapped = True

    with pytest.raises(AssertionError, match=r"\[assert_bitwise_equal\] " + text):
        assert_bitwise_equal(Changed(what), torch.ones(2, 3, requires_grad=True), wrap=wrap)
    assert_bitwise_equal(Changed("nothing"), torch.ones(2, 3), wrap=wrap)


def test_a_nan_is_equal_to_itself_and_zeros_have_signs():
    class Divided(nn.Module):
        wrapped = False

        def forward(self, x):
            x = x * (0.0 if self.wrapped and self.signed else -0.0)
            return remat.checkpoint()(torch.sin)(x) / self.by

    def wrap(model):
        model.wrapped = True

    model, x = Divided(), torch.ones(2, requires_grad=True)
    model.by, model.signed = 0.0, False
    assert_bitwise_equal(model, x, wrap=wrap)
    model.by, model.signed = 1.0, True
    with pytest.raises(AssertionError, match=r"output: .* 2 of 2 elements that differ, at \[0\] 0.0 for -0.0"):
        assert_bitwise_equal(model, x, wrap=wrap)


def test_a_model_that_differs_without_remat_is_told_apart():
    class Random(nn.Module):
        def forward(self, x):
            return x.sin() * float.fromhex(f"0x1.{random.SystemRandom().getrandbits(40):x}p0")

    with pytest.raises(AssertionError, match="output: expected equal bits of two plain runs.*not deterministic"):
        assert_bitwise_equal(Random(), torch.randn(2, requires_grad=True))


def test_a_comparison_with_nothing_is_refused():
    with pytest.raises(AssertionError, match="wrap: expected a forward that leaves regions for backward, got none"):
        assert_bitwise_equal(Model(), torch.randn(5, 4), wrap=lambda model: None)
    with pytest.raises(ValueError, match="output: expected tensors that require grad, got none"):
        assert_bitwise_equal(nn.ReLU(), torch.randn(2))


def test_the_loss_can_be_given_and_is_found_on_an_output():
    @dataclass
    class Output:
        loss: torch.Tensor

    class WithLoss(nn.Linear):
        def forward(self, x):
            return Output(super().forward(x).sum())

    assert_bitwise_equal(WithLoss(3, 3), torch.randn(2, 3))
    assert_bitwise_equal(nn.Linear(3, 3), torch.randn(2, 3), loss=lambda y: y.exp().mean())


def test_it_finds_what_torchs_checkpoint_gets_wrong():
    def wrap(model):
        return lambda x: stock.checkpoint(model, x, use_reentrant=False)

    class Counted(nn.BatchNorm1d):
        def forward(self, x):
            return remat.checkpoint()(torch.sin)(super().forward(x))

    with pytest.raises(AssertionError, match="buffer 'running_mean'"):
        assert_bitwise_equal(Counted(3), torch.randn(4, 3), wrap=wrap)
