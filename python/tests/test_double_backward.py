# SPDX-License-Identifier: BSD-3-Clause

"""Tensors of a replay that the graph of a backward (create_graph) saves: a later write is noticed."""

import contextlib

import pytest
import torch
from programs import leaf
from same import assert_same, plain

import remat_meta as remat

REPLAYS = ["function", "tape", "auto"]


def argument(other, wrap):
    return wrap(lambda x, y: x * y), (other,)


def captured(other, wrap):
    return wrap(lambda x: x * other), ()


def view_of_captured(other, wrap):
    return wrap(lambda x: x * other.t()[:, :3].t().expand(3, 4)), ()


def view_of_argument(other, wrap):
    return wrap(lambda x, y: x * y.t().t()), (other,)


def in_an_inner_region(other, wrap):
    return wrap(lambda x: wrap(lambda t: t * other)(x.sin()).cos()), ()


def argument_of_an_inner_region(other, wrap):
    return wrap(lambda x, y: wrap(lambda t, u: t * u)(x.sin(), y).cos()), (other,)


def a_call_keeps_it(other, wrap):
    def fn(x):
        return remat.native_op(lambda t: t * other, "kept", remat.CheckpointPolicy.SAVE)(x) * other

    return wrap(fn), ()


READERS = [
    argument,
    captured,
    view_of_captured,
    view_of_argument,
    in_an_inner_region,
    argument_of_an_inner_region,
    a_call_keeps_it,
]


def others():
    weight = leaf(3, 4)
    return {"constant": torch.randn(3, 4), "result": weight * 2, "view": torch.randn(4, 3).t(), "leaf": weight}


def second_order(wrap, reader, kind, between=lambda _: None):
    """Returns the gradient through the graph of a backward, after `between(other)`."""
    torch.manual_seed(7)
    other = others()[kind]
    x, gradient = leaf(3, 4), leaf(3, 4)
    region, arguments = reader(other, wrap)
    y = region(x * 1.5, *arguments)
    (first,) = torch.autograd.grad(y, x, gradient, create_graph=True)
    between(other)
    return torch.autograd.grad(first.sum(), gradient)[0]


def write(other):
    with torch.no_grad():
        other.mul_(2)


@pytest.mark.parametrize("replay", REPLAYS)
@pytest.mark.parametrize("kind", ["constant", "result", "view", "leaf"])
@pytest.mark.parametrize("reader", READERS)
def test_a_write_between_a_backward_and_that_of_its_graph_raises(reader, kind, replay):
    modified = pytest.raises(RuntimeError, match="modified by an inplace operation")
    with modified:
        second_order(plain, reader, kind, write)
    wrap = remat.checkpoint(replay=replay, early_stop=False)
    for _ in range(2):  # then a tape is trusted
        assert torch.equal(second_order(wrap, reader, kind), second_order(plain, reader, kind))
    with modified:
        second_order(wrap, reader, kind, write)


@pytest.mark.parametrize("replay", REPLAYS)
def test_a_write_between_is_noticed_although_hooks_bring_the_tensor_itself_back(replay):
    hooks = torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t)

    def inside(wrap):
        def run(fn):
            region = wrap(fn)

            def call(*args):
                with hooks:
                    return region(*args)

            return call

        return run

    wrap = inside(remat.checkpoint(replay=replay, early_stop=False))
    for between, outcome in (
        (lambda _: None, contextlib.nullcontext()),
        (write, pytest.raises(RuntimeError, match="modified by an inplace operation")),
    ):
        with outcome:
            second_order(wrap, argument, "constant", between)


@pytest.mark.parametrize("replay", REPLAYS)
@pytest.mark.parametrize("reader", READERS)
def test_a_region_may_write_what_the_graph_of_a_grad_inside_has_saved_and_nobody_needs(reader, replay):
    """The write raises the version of `other`, so it is none through `.data`, although `data` shares the memory."""

    def program(wrap):
        other, x = torch.randn(3, 4), leaf(3, 4)
        data = other.data
        region, arguments = reader(other, wrap)

        def outer(x):
            y = region(x * 1.5, *arguments)
            gradient = torch.ones(3, 4, requires_grad=True)
            (first,) = torch.autograd.grad(y, x, gradient, create_graph=True)
            write(other)
            return (first.detach() * x).sin()

        around = wrap if wrap is plain else remat.checkpoint(replay="function", early_stop=False)
        around(outer)(x).sum().backward()
        return x.grad, other, data

    wrap = remat.checkpoint(replay=replay, early_stop=False)
    for _ in range(3):
        assert_same(program, wrap)
