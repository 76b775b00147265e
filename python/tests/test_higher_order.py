# SPDX-License-Identifier: BSD-3-Clause

"""cond, scan and similar operators, and features of torch that use them, in regions of eager code."""

import functools

import pytest
import torch
import torch._higher_order_ops as higher_order
from same import assert_equal
from torch import nn
from torch.nn.attention.flex_attention import flex_attention

import remat_meta as remat

pytestmark = [pytest.mark.torch_warns, pytest.mark.usefixtures("fresh_compiler")]
SIZE = 6
SAVE = remat.CheckpointPolicy.SAVE


class Product(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x, y):
        return x * y

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, grad):
        x, y = ctx.saved_tensors
        return grad * y, grad * x


def compiled_dropout(x, w):
    region = remat.checkpoint()(lambda x: nn.functional.dropout(x @ w, 0.3).sin())
    return torch.compile(lambda x: region(x).exp(), backend="aot_eager")(x)  # runs operators that keep random states


def loop(x, w):
    begin = (torch.tensor(0), (x @ w).detach())
    return higher_order.while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, (y @ w.detach()).sin()), begin)[1] * x


@torch.compiler.nested_compile_region
def layer(x, w):
    return (x @ w).sin() @ w


@functools.cache
def layers(backend):
    """A graph that calls one subgraph twice."""
    return torch.compile(lambda x, w: layer(layer(x, w), w).cos(), backend=backend)


def attention(x, w):
    """Runs without gradients: flex_attention has no backward on CPUs."""
    heads, bias = (x @ w).detach().expand(1, 2, SIZE, SIZE), x.detach()
    return flex_attention(heads, heads.sin(), heads.cos(), score_mod=lambda score, b, h, q, k: score + bias[q, k])[0, 0] * x


PROGRAMS = {
    "flex_attention": attention,
    "invoke_subgraph": lambda x, w: layer(x, w).exp(),
    "invoke_subgraph, aot_eager": lambda x, w: layers("aot_eager")(x, w).exp(),
    "invoke_subgraph, inductor": lambda x, w: layers("inductor")(x, w).exp(),
    "cond": lambda x, w: torch.cond(x.sum() > 0, lambda y: y.sin() @ w, lambda y: y.cos() @ w, (x @ w,)),
    "cond, the other way": lambda x, w: torch.cond(x.sum() < 0, lambda y: y.sin() @ w, lambda y: y.cos() @ w, (x @ w,)),
    "map": lambda x, w: higher_order.map(lambda row, w: (row @ w).sin(), x, w),
    "while_loop": loop,
    "scan": lambda x, w: higher_order.scan(lambda carry, row: ((carry * row).sin(), carry.exp()), w[0], x @ w)[1],
    "associative_scan": lambda x, w: higher_order.associative_scan(lambda a, b: a + b, x @ w, 0, combine_mode="generic"),
    "vmap of a Function": lambda x, w: torch.vmap(Product.apply, in_dims=(0, None))(x, w[0]).sin(),
    "compiled dropout": compiled_dropout,
}
OPTIONS = {"function": {}, "tape": {"replay": "tape"}, "auto": {"replay": "auto"}, "policy": {"policy": "save_matmuls"}}
WRAPS = {name: lambda fn, options=options: remat.checkpoint(**options)(fn) for name, options in OPTIONS.items()}
WRAPS["nested"] = lambda fn: remat.checkpoint()(remat.checkpoint()(fn))
WRAPS["a call"] = lambda fn: remat.checkpoint()(remat.native_op(fn, "call", SAVE))


def run(fn):
    torch.manual_seed(3)
    x, w = (torch.rand(SIZE, SIZE, requires_grad=True) for _ in range(2))
    results = []
    for _ in range(2):
        y = fn(x, w)
        y.square().sum().backward(retain_graph=True)
        y.exp().sum().backward()
        results.append(y.detach())
    return *results, x.grad, w.grad, torch.get_rng_state()


@pytest.mark.parametrize("wrap", WRAPS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_they_are_bitwise_what_they_are_without_a_region(name, wrap):
    def around(fn):
        return lambda x, w: fn(x.sin(), w).tanh()

    fn = PROGRAMS[name]
    assert_equal(run(around(fn)), run(WRAPS[wrap](around(fn))))


def test_each_run_takes_the_branch_of_its_own_data():
    def fn(x):
        return torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x,)).exp()

    regions = [remat.checkpoint(region_name=name, **options)(fn) for name, options in OPTIONS.items()]
    for region in regions:
        for sign in (1.0, -1.0, 1.0):
            x, y = (torch.full((3,), sign).requires_grad_() for _ in range(2))
            fn(x).sum().backward()
            region(y).sum().backward()
            assert_equal(x.grad, y.grad)


def test_flex_attention_with_gradients_is_refused_as_without_a_region():
    def fn(x):
        return flex_attention(x.sin(), x, x)

    x = torch.rand(1, 2, SIZE, SIZE, requires_grad=True)
    try:
        fn(x)
    except NotImplementedError:
        with pytest.raises(NotImplementedError, match="FlexAttention does not support backward on CPU"):
            remat.checkpoint()(fn)(x)
    else:  # torch 2.10
        assert_equal(torch.autograd.grad(fn(x).sum(), x), torch.autograd.grad(remat.checkpoint()(fn)(x).sum(), x))
    y = remat.checkpoint()(torch.sin)(x)
    y.sum().backward()
    assert_equal(x.cos(), x.grad)
