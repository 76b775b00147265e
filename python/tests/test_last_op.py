# SPDX-License-Identifier: BSD-3-Clause

"""A replay leaves out the kernel of the region's last op where backward needs only the op's arguments."""

import collections
import weakref

import pytest
import torch
import torch.nn.functional as F
from programs import checkpointed
from same import DEVICE, assert_same, generator_of, plain
from torch.utils._python_dispatch import TorchDispatchMode

import remat_meta as remat

SIDE = 96  # 96 * 96 elements are more than the stop costs


class Count(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.runs = collections.Counter()

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        self.runs[op.overloadpacket] += 1
        return op(*args, **(kwargs or {}))


def matrix(seed, *shape):
    values = torch.randn(*(shape or (SIDE, SIDE)), generator=generator_of(seed))
    return values.requires_grad_()


def backward_runs(wrap, fn, op):
    """Returns how often a backward runs `op`."""
    y = wrap(fn)(matrix(1))
    with Count() as count:
        y.sum().backward()
    return count.runs[op]


def replayed(fn, op):
    """Returns how often the replay of a region runs `op`."""
    return backward_runs(checkpointed, fn, op) - backward_runs(plain, fn, op)


WEIGHT, BIAS, KERNEL = matrix(2), matrix(3, SIDE), matrix(4, 1, 1, 3, 3)
ROWS = torch.arange(SIDE)
aten = torch.ops.aten
SAVES_ARGUMENTS = {
    "linear": (lambda x: F.linear(x.sin(), WEIGHT, BIAS), aten.addmm),
    "linear of three dimensions": (lambda x: F.linear(x.sin()[None], WEIGHT), aten.mm),
    "matrix product": (lambda x: x.sin() @ WEIGHT, aten.mm),
    "convolution": (lambda x: F.conv2d(x.sin()[None, None], KERNEL), aten.convolution),
    "silu": (lambda x: F.silu(x.sin()), aten.silu),
    "product": (lambda x: x.sin() * WEIGHT, aten.mul),
    "where": (lambda x: torch.where(x > 0, x.sin(), WEIGHT), aten.where),
    "nested region": (lambda x: checkpointed(F.silu)(x.sin()), aten.silu),
    "function with a graph of its own": (lambda x: Scaled.apply(F.silu(x.sin())), aten.mul),
    "product in place": (lambda x: x.sin().mul_(WEIGHT), aten.mul_),
    "addmm_": (lambda x: x.sin().addmm_(x.cos(), WEIGHT), aten.addmm_),
    "index_put_": (lambda x: x.clone().index_put_((ROWS,), WEIGHT.exp()), aten.index_put_),
}
SAVES_RESULTS = {
    "exp": (lambda x: x.sin().exp(), aten.exp),
    "softmax": (lambda x: x.sin().softmax(0), aten._softmax),
    "sigmoid_": (lambda x: x.sin().sigmoid_(), aten.sigmoid_),
    "rrelu, which writes its noise": (lambda x: F.rrelu(x.sin(), training=True), aten.rrelu_with_noise),
}


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return grad + grad


@pytest.mark.parametrize("name", SAVES_ARGUMENTS)
def test_the_kernel_does_not_run_again(name):
    assert replayed(*SAVES_ARGUMENTS[name]) == 0


@pytest.mark.parametrize("name", SAVES_RESULTS)
def test_a_kernel_of_which_backward_needs_a_result_runs_again(name):
    assert replayed(*SAVES_RESULTS[name]) == 1


@pytest.mark.parametrize("name", SAVES_ARGUMENTS | SAVES_RESULTS)
def test_gradients_are_those_of_the_plain_run(name):
    fn, _ = (SAVES_ARGUMENTS | SAVES_RESULTS)[name]

    def program(wrap):
        x = matrix(1)
        region = wrap(lambda x: fn(F.dropout(x)))
        y = region(x)
        inputs = (x, WEIGHT)
        once = torch.autograd.grad(y.sin().sum(), inputs, retain_graph=True, allow_unused=True)
        graph = torch.autograd.grad(y.sin().sum(), x, create_graph=True)
        twice = torch.autograd.grad(graph[0].sin().sum(), inputs, allow_unused=True)
        return [y, *once, *graph, *twice]

    assert_same(program, checkpointed)


def test_a_small_op_runs_and_the_function_returns():
    ends = []

    def fn(x):
        y = F.silu(x.sin())
        ends.append(x.numel())
        return y

    for size in (8, SIDE * SIDE):
        checkpointed(fn)(matrix(1, size)).sum().backward()
    assert ends == [8, 8, SIDE * SIDE]


@pytest.mark.parametrize("options", ({"early_stop": False}, {"intercept": False}), ids=str)
def test_it_runs_again_if_the_function_runs_to_its_end(options):
    assert backward_runs(remat.checkpoint(**options), lambda x: F.silu(x.sin()), aten.silu) == 1


def test_an_op_on_other_arguments_is_found():
    slope = [0.1]

    def fn(x):
        return F.leaky_relu(x.sin(), slope[0])

    y = checkpointed(fn)(matrix(1))
    slope[0] = 0.2
    with pytest.raises(remat.ReplayMismatch, match="aten::leaky_relu"):
        y.sum().backward()


def test_a_policy_is_not_asked_about_it_again():
    asked = []

    def policy(context, op, *args, **kwargs):
        asked.append((str(op), context.is_recompute))
        return remat.CheckpointPolicy.RECOMPUTE

    remat.checkpoint(policy=policy)(lambda x: F.linear(x.sin(), WEIGHT, BIAS))(matrix(1)).sum().backward()
    assert ("aten.addmm.default", False) in asked and ("aten.sin.default", True) in asked
    assert not any(again for op, again in asked if op != "aten.sin.default" and op != "aten.t.default")


def test_autocast_casts_the_weight_before_it():
    def program(wrap):
        x = matrix(1)
        with torch.autocast(DEVICE, dtype=torch.bfloat16):
            y = wrap(lambda x: F.linear(x.sin(), WEIGHT, BIAS))(x)
        return [y, *torch.autograd.grad(y.float().sin().sum(), (x, WEIGHT, BIAS))]

    assert_same(program, checkpointed)


def test_an_op_of_a_library_frees_its_graph():
    square = torch.library.custom_op("remat_last_op::square", lambda x: x * x, mutates_args=(), schema="(Tensor x) -> Tensor")
    square.register_autograd(
        lambda ctx, grad: 2 * grad * ctx.saved_tensors[0],
        setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
    )
    results = []

    def fn(x):
        y = square(x.sin())
        results.append(weakref.ref(y))
        return y

    y = checkpointed(fn)(matrix(1))
    y.sum().backward()
    del y
    assert len(results) == 2
    assert all(result() is None for result in results)
