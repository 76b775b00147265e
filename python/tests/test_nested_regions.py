# SPDX-License-Identifier: BSD-3-Clause

"""Regions in regions, with SAVE calls and backwards in them: outer replays do what the forward did."""

import pytest
import torch
from programs import leaf
from same import assert_same, plain

import remat_meta as remat

SAVE = remat.CheckpointPolicy.SAVE


def saving(wrap, name):
    """A SAVE call with that name; in a plain run the function itself."""
    return (lambda fn: fn) if wrap is plain else lambda fn: remat.native_op(fn, name, SAVE)


@pytest.mark.parametrize("early_stop", [False, True])
def test_the_replay_for_a_backward_inside_ends_where_the_forward_is(early_stop):
    def program(wrap):
        x = leaf(4, 4)
        runs = []

        def fn(x):
            saved = saving(wrap, "scale")(lambda: x * 0.8)()
            with torch.enable_grad():
                inner = x.detach().requires_grad_()
                (inner.sin() * inner).sum().backward()
            runs.append("after")
            return (saved.sin() * inner.grad).exp()

        y = wrap(fn)(x)
        assert runs == ["after"]
        y.sum().backward()
        return x.grad

    assert_same(program, remat.checkpoint(early_stop=early_stop))


def test_what_a_region_inside_writes_before_a_backward_is_written_in_outer_replays_too():
    def program(wrap):
        x = leaf(4, 4)

        def inner(x, buffer):
            buffer.copy_(x)
            product = saving(wrap, "product")(lambda: x.detach() * 2)()
            product.mul_(3)
            probe = x.detach().requires_grad_()
            (probe.sin() * probe).sum().backward()
            return buffer * product + probe.grad

        def outer(x):
            return wrap(inner)(x, torch.ones(4, 4).exp()).sin()

        wrap(outer)(x).sum().backward()
        return x.grad

    assert_same(program, remat.checkpoint())


def test_a_tensor_that_is_passed_and_captured_goes_into_a_region_inside():
    def program(wrap):
        x, weight = leaf(4, 4), leaf(4, 4)
        shared = x.sin()

        def outer(y):
            z = wrap(lambda a, b, c: (weight, c.exp())[1])(y, shared, y)
            return wrap(lambda a: a.tanh() * shared)(z)

        wrap(outer)(shared).sum().backward()
        return x.grad

    assert_same(program, remat.checkpoint(early_stop=False))


def test_a_captured_tensor_is_written_by_a_call_in_a_region_inside():
    def program(wrap):
        x, weight = leaf(4, 4), leaf(4, 4)
        buffer = x.sin()

        def write(mask, into):
            into.masked_fill_(mask > 0.5, 0.1)

        def inner(written):
            saving(wrap, "write")(write)(weight, written)
            return written * weight

        def outer(passed):
            return wrap(inner)(buffer).sin() + passed

        wrap(outer)(buffer).sum().backward()
        return x.grad, weight.grad

    assert_same(program, remat.checkpoint())


def test_hooks_get_no_placeholders():
    packed = []

    def pack(tensor):
        packed.append(tensor.sum())  # raises for a placeholder
        return tensor.clone()

    def program(wrap):
        x = leaf(4, 4)
        region = wrap if wrap is plain else remat.checkpoint(saved_tensors_hooks=(pack, lambda tensor: tensor))

        def outer(x):
            unread = saving(wrap, "unread")(torch.sin)(x)
            return region(lambda unread, x: x.exp())(unread, x).cos()

        wrap(outer)(x).sum().backward()
        return x.grad

    assert_same(program, remat.checkpoint())
    assert packed


def test_a_placeholder_passes_through_an_inner_tape():
    def program(wrap):
        x, weight = leaf(4, 4), leaf(4, 4)
        inner = remat.checkpoint() if wrap is not plain else plain

        def fn(x, weight):
            unread = saving(wrap, "unread")(torch.sin)(weight)
            keeps = inner(lambda a, b: b.cos())
            return wrap(lambda a, b: keeps(a, b))(unread, x)

        inner(fn)(x, weight).sum().backward()
        return x.grad

    assert_same(program, remat.checkpoint(replay="auto"))


def test_what_a_save_call_wrote_outside_is_an_argument_of_a_region_inside_a_tape():
    def program(wrap):
        x, weight = leaf(4, 4), leaf(4, 4)
        outside = weight.sin()
        inner = remat.checkpoint() if wrap is not plain else plain

        def write(x):
            outside.mul_(0.9)
            return x

        def fn(x):
            x = saving(wrap, "write")(write)(x)
            return wrap(lambda x: inner(lambda unread: x + 0)(outside).sin())(x)

        loss = (inner(fn)(x) ** 2).sum()
        first = torch.autograd.grad(loss, x, retain_graph=True)
        return *first, *torch.autograd.grad(loss, x)

    assert_same(program, remat.checkpoint(replay="auto", early_stop=False))
