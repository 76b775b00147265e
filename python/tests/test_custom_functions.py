# SPDX-License-Identifier: BSD-3-Clause

"""A custom function as a SAVE call, and ops that save the same tensors right after it."""

import functools
import os
import subprocess
import sys

import pytest
import torch
from programs import all_options, leaf
from same import assert_same

import remat_meta as remat

SAVE = remat.CheckpointPolicy.SAVE


class Cube(torch.autograd.Function):
    """x -> x^3; saves x."""

    @staticmethod
    def body(ctx, x):
        return x * x * x, {"x": x}

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * x * x * 3


class Same(torch.autograd.Function):
    """x -> x, without an op; saves x."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x

    @staticmethod
    def body(ctx, x):
        return x, {"x": x}

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * x


class CubeAndSame(torch.autograd.Function):
    """x, y -> x, x * y; saves both."""

    @staticmethod
    def body(ctx, x, y):
        return (x, x * y), {"x": x, "y": y}

    @staticmethod
    def backward(ctx, grad, other):
        x, y = ctx.saved_tensors
        return grad + other * y, other * x


class InPlace(torch.autograd.Function):
    """x -> x * tanh(x), in place; saves the tensors that it needs."""

    @staticmethod
    def body(ctx, x):
        kept, middle = x.clone(), x.tanh()
        ctx.mark_dirty(x)
        return x.mul_(middle), {"x": kept, "middle": middle}

    @staticmethod
    def backward(ctx, grad):
        x, middle = ctx.saved_tensors
        return grad * (middle + x * (1 - middle * middle))


NAMES = {Cube: ("x",), Same: ("x",), CubeAndSame: ("x", "y"), InPlace: ("x", "middle")}


def by_op(function, arguments, keep):
    """Makes the call by op()."""

    @remat.auto_forward(*NAMES[function])
    def forward(ctx, *inputs):
        results, saved = function.body(ctx, *inputs)
        ctx.save_for_backward(*saved.values())
        return results

    return remat.op(with_forward(function, forward), "named", SAVE, keep)(*arguments)


def by_handle(function, arguments, keep):
    """Makes the call by a handle in its forward()."""

    def forward(ctx, *inputs):
        handle = remat.get_handle(ctx, "named", SAVE, keep)
        if (out := handle.maybe_load_saved()) is not None:
            return out
        results, saved = function.body(ctx, *inputs)
        handle.save_for_backward(saved)
        return handle.record_outputs(*results) if isinstance(results, tuple) else handle.record_outputs(results)

    return with_forward(function, forward)(*arguments)


def with_forward(function, forward):
    return type(function.__name__, (function,), {"forward": staticmethod(forward)}).apply


WAYS = {"op": by_op, "handle": by_handle}
all_ways = pytest.mark.parametrize("way", WAYS)


FIRST = {"op": torch.sin, "call": lambda x: remat.native_op(torch.sin, "first", SAVE)(x)}
ARGUMENT = {"with gradient": lambda y: y, "detached": torch.Tensor.detach, "of an op": lambda y: (y * 2).detach()}
NEXT = {
    "region": remat.checkpoint(region_name="next")(lambda y: (y * y).cos()),
    "custom function": Same.apply,
    "op": torch.exp,
    "op with both": lambda y: y * y,
    "call": lambda y: remat.native_op(torch.exp, "next", SAVE)(y),
}


@all_options
@all_ways
@pytest.mark.parametrize("no_grad", [False, True], ids=["grad", "no grad"])
@pytest.mark.parametrize("then", NEXT)
@pytest.mark.parametrize("argument", ARGUMENT)
@pytest.mark.parametrize("first", FIRST)
def test_what_saves_next_saves_for_itself(first, argument, then, no_grad, way, options):
    def fn(x):
        y = FIRST[first](x)
        given = ARGUMENT[argument](y)
        with torch.set_grad_enabled(not no_grad):
            z = WAYS[way](Cube, (given,), "innermost_region")
        return (NEXT[then](y) * z).exp()

    def program(wrap):
        x = leaf(3)
        y = wrap(fn)(x)
        y.sum().backward()
        return y, x.grad

    assert_same(program, remat.checkpoint(**options))


def writes_the_second(named, x, y):
    _, product = named(CubeAndSame, x, y)
    product.mul_(0.9)
    return product


def in_a_call_of_a_region_inside(named, x, y):
    def body(z):
        return named(Cube, z.cos(), keep="all_regions")

    return y.sin() * remat.checkpoint(region_name="inner")(lambda z: remat.native_op(body, "body", SAVE)(z))(x)


# Autograd makes views and nodes before it saves the tensors of these functions.
RETURNS = {
    "its input, unused": lambda named, x, y: (named(Same, x), y.sin())[1],
    "its input": lambda named, x, y: named(Same, x.sin()) + y,
    "its input and more": lambda named, x, y: sum(named(CubeAndSame, x.sin(), y)).cos(),
    "its input and what is written": writes_the_second,
    "a view that it has written": lambda named, x, y: named(InPlace, (x * y)[:2]).exp(),
    "to a call of a region inside": in_a_call_of_a_region_inside,
}


@all_options
@all_ways
@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("returns", RETURNS)
def test_what_a_custom_function_saves_is_the_calls_whatever_it_returns(returns, depth, way, options):
    if (returns, depth, options["replay"]) == ("to a call of a region inside", 2, "tape"):
        pytest.skip("a tape inside another has no call that all regions keep")

    def named(function, *arguments, keep="innermost_region"):
        return WAYS[way](function, arguments, keep)

    def program(wrap):
        x, y = leaf(3, 3), leaf(3, 3)
        fn = wrap(functools.partial(RETURNS[returns], named))
        z = fn(x, y) if depth == 1 else wrap(lambda x, y: fn(x.tanh(), y.exp()).sin())(x, y)
        z.sum().backward()
        return z, x.grad, y.grad

    assert_same(program, remat.checkpoint(**options))


WARNS = """
import torch, remat_meta as remat
SAVE = remat.CheckpointPolicy.SAVE

class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        handle = remat.get_handle(ctx, "cube", SAVE)
        if (out := handle.maybe_load_saved()) is not None:
            return out
        handle.save_for_backward({"x": x})
        return handle.record_outputs(x * x * x)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * x * x * 3

CALLS = {"handle": Cube.apply, "call": lambda x: remat.native_op(lambda x: x * x * x, "cube", SAVE)(x)}
x = torch.ones(3, requires_grad=True)
step = remat.checkpoint()(lambda x: CALLS["which"](x.sin()).cos())
try:
    step(x)
except UserWarning as error:
    print("raised", "PrivateUse1 is taken" in str(error))
step(x).sum().backward()
plain = torch.ones(3, requires_grad=True)
y = plain.sin()
(y * y * y).cos().sum().backward()
print("right", torch.equal(x.grad, plain.grad))
"""


@pytest.mark.parametrize("call", ["handle", "call"])
def test_a_warning_that_is_an_error_is_raised_where_it_is_given(call):
    """The warning about a taken dispatch key: if raised at the end of the binding, it would take the handle with it."""
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", WARNS.replace("which", call)],
        env=os.environ | {"REMAT_DISPATCH_KEY": "PrivateUse1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (run.stdout.split(), run.returncode) == (["raised", "True", "right", "True"], 0), run.stderr
