# SPDX-License-Identifier: BSD-3-Clause

"""Tools that trace a graph of a model (make_fx, torch.export, torch.fx, aot_function, jit.trace) get one without checkpoints."""

import pytest
import torch
from functorch.compile import aot_function, nop
from programs import leaf
from same import assert_equal
from torch import nn
from torch.export import Dim, export
from torch.fx.experimental.proxy_tensor import make_fx

import remat_meta as remat
from remat_meta import CheckpointPolicy

pytestmark = pytest.mark.torch_warns

OPTIONS = {"function": {}, "tape": {"replay": "tape"}, "policy": {"policy": "save_matmuls"}}
all_options = pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)


class Model(nn.Module):
    def __init__(self, options=None):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.wrap = (lambda fn: fn) if options is None else remat.checkpoint(**options)

    def forward(self, x):
        def inner(x):
            y = remat.native_op(self.linear, "linear", CheckpointPolicy.SAVE)(x)
            return {"sin": y.sin(), "others": [y.cos(), remat.region(torch.tanh, "tanh", recompute=True)(y)]}

        y = self.wrap(inner)(x * 2)
        return self.wrap(torch.mul)(y["sin"], y["others"][1])


def models(options):
    plain, checkpointed = Model(), Model(options)
    checkpointed.load_state_dict(plain.state_dict())
    return plain, checkpointed


def weights_step(model):
    """Returns a whole step as a function of input and weights."""

    def step(x, *weights):
        names = [name for name, _ in model.named_parameters()]
        y = torch.func.functional_call(model, dict(zip(names, weights, strict=True)), (x,))
        return torch.autograd.grad(y.square().sum(), (x, *weights))

    return step


def batch(rows=3):
    return leaf(rows, 4), *(leaf(*p.shape) for p in Model().parameters())


@all_options
@pytest.mark.parametrize("mode", ["real", "fake", "symbolic"])
def test_a_whole_step_by_make_fx(mode, options):
    plain, checkpointed = models(options)
    graph = make_fx(weights_step(checkpointed), tracing_mode=mode)(*batch())
    other = batch(5 if mode == "symbolic" else 3)
    assert_equal(weights_step(plain)(*other), graph(*other))
    assert_equal(weights_step(plain)(*other), weights_step(checkpointed)(*other))


@all_options
def test_a_forward_by_make_fx_before_autograd(options):
    plain, checkpointed = models(options)
    graph = make_fx(checkpointed, pre_dispatch=True)(leaf(3, 4))
    x = leaf(3, 4)
    assert_equal(plain(x), graph(x))


@all_options
@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("sizes", [None, {"x": {0: Dim("rows", min=2, max=64)}}], ids=["fixed", "varying"])
def test_export(sizes, strict, options):
    plain, checkpointed = models(options)
    exported = export(checkpointed, (leaf(3, 4),), dynamic_shapes=sizes, strict=strict).module()
    x = leaf(5 if sizes else 3, 4)
    assert_equal(plain(x), exported(x))
    assert not [node for node in exported.graph.nodes if "checkpoint" in str(node.target)]


@pytest.mark.parametrize("strict", [False, True])
def test_regions_that_are_made_in_exported_code(strict):
    class Made(nn.Module):
        def forward(self, x):
            call = remat.native_op(torch.tanh, "call", remat.CheckpointPolicy.SAVE)
            return remat.checkpoint(policy=["*"])(lambda x: call(x.sin()) * x)(x)

    exported = export(Made(), (leaf(3, 4),), strict=strict)
    assert {str(node.target) for node in exported.graph.nodes if node.op == "call_function"} == {
        "aten.sin.default", "aten.tanh.default", "aten.mul.Tensor"
    }  # fmt: skip
    x = leaf(3, 4)
    assert_equal(x.sin().tanh() * x, exported.module()(x))


@all_options
def test_symbolic_trace_and_jit_trace(options):
    plain, checkpointed = models(options)
    x = leaf(3, 4)
    for traced in (torch.fx.symbolic_trace(checkpointed), torch.jit.trace(checkpointed, (leaf(3, 4),))):
        expected, got = ([y := model(x), *torch.autograd.grad(y.sum(), x)] for model in (plain, traced))
        assert_equal(expected, got)


@all_options
def test_aot_function(options):
    def body(x, w):
        return remat.checkpoint(**options)(lambda x: (x @ w).sin())(x * 2).tanh()

    traced = aot_function(body, fw_compiler=nop, bw_compiler=nop)
    x, w = leaf(4, 4), leaf(4, 4)
    expected, got = (torch.autograd.grad(fn(x, w).sum(), (x, w)) for fn in (body, traced))
    assert_equal(expected, got)


@all_options
def test_regions_come_back_when_a_trace_has_failed(options):
    def fails(x):
        raise ValueError("in the function")

    for trace in (lambda fn: make_fx(fn)(leaf(3)), torch.fx.symbolic_trace):
        with pytest.raises(ValueError, match="in the function"):
            trace(lambda x: remat.checkpoint(**options)(fails)(x))
    y = remat.checkpoint(**options)(lambda x: x.sin().cos())(leaf(3))
    assert remat._C.live_region_count() == 1
    y.sum().backward()
