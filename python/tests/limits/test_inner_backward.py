# SPDX-License-Identifier: BSD-3-Clause

"""A backward inside the region."""

import contextlib

import pytest
import torch
from programs import SavesExp, Square, leaf
from same import assert_same

import remat_meta as remat

from .common import ANOTHER, assert_raises, call, copying, region


def test_b1_a_grad_that_was_not_empty_and_is_read_after_a_backward_inside_raises():
    def program(wrap):
        x, w = leaf(4), leaf(4)
        w.grad = torch.ones(4)
        wrap(lambda x: ((w * w).sum().backward(), (x * w.grad).sin())[1])(x).sum().backward()
        return x.grad

    assert_raises(program, region(), ANOTHER, remat.ReplayMismatch)


def test_b4_a_gradient_in_a_nested_region_by_a_tensor_that_it_has_written_raises():
    def program(wrap):
        x = leaf(4)

        def outer(x):
            h = x * 1.5

            def inner(a):
                a.mul_(2)
                (g,) = torch.autograd.grad((h * a).sum(), h, retain_graph=True)
                return (a * g).sin()

            return wrap(inner)(h).exp()

        wrap(outer)(x).sum().backward()
        return x.grad

    assert_raises(program, region(), "expected the gradients that it gave in the forward", remat.ReplayMismatch)


def test_b5_a_gradient_through_a_custom_function_of_a_captured_tensor_that_was_written_raises():
    def program(wrap):
        x, buffer = leaf(4), torch.ones(4)

        def fn(x):
            buffer.copy_(x.sin())
            (g,) = torch.autograd.grad(Square.apply(buffer).sum(), buffer, retain_graph=True)
            return (x * g).sin()

        wrap(fn)(x).sum().backward()
        return x.grad

    assert_raises(program, region(), "reaches the graph of the forward", NotImplementedError)


def test_b6_a_function_that_asks_requires_grad_of_what_its_write_has_changed_raises():
    def program(wrap):
        x, buffer = leaf(4), torch.ones(4)

        def fn(x):
            y = x.sin() if buffer.requires_grad else x.cos()
            buffer.copy_(x.sin())
            return (y * buffer).exp()

        wrap(fn)(x).sum().backward()
        return x.grad

    assert_raises(program, region(), "The function branches on state", remat.ReplayMismatch)
    assert_same(program, region("tape"))


def test_b7_a_gradient_edge_of_a_captured_tensor_that_was_written_raises():
    def program(wrap):
        x, h = leaf(4), leaf(4) * 2

        def fn(x):
            h.mul_(x.detach())
            edge = torch.autograd.graph.get_gradient_edge(h)
            (g,) = torch.autograd.grad((h * h).sum(), edge, retain_graph=True)
            return (x * g).sin()

        wrap(fn)(x).sum().backward()
        return x.grad

    assert_raises(program, region(), "appears to not have been used in the graph")


class SavedGradient(SavesExp):
    """Returns its saved tensor as the gradient."""

    @staticmethod
    def backward(ctx, grad):
        return ctx.saved_tensors[0]


@pytest.mark.parametrize("how", ["policy", "hooks"])
def test_b10_a_gradient_inside_that_is_a_saved_tensor_raises(how):
    def fn(x):
        (g,) = torch.autograd.grad(SavedGradient.apply(x).sum(), x, retain_graph=True)
        return (g * x).exp()

    inner = region(policy=["aten::mul"]) if how == "policy" else region()
    with copying() if how == "hooks" else contextlib.nullcontext():
        y = region()(lambda x: inner(fn)(x * 2).cos())(leaf(4))
    with pytest.raises(remat.ReplayMismatch, match="It reads another tensor that the function makes"):
        y.sum().backward()


def test_b11_a_grad_to_which_a_save_call_and_other_code_add_raises():
    def program(wrap):
        x, w = leaf(4), leaf(4)

        def fn(x):
            y = call(lambda x: ((w * w).sum().backward(), x * 1)[1])(x)
            (w * w * w).sum().backward()
            return y.sin()

        wrap(fn)(x).sum().backward()
        return x.grad

    words = "expected tensors that the function makes or that SAVE calls return"
    assert_raises(program, region(), words, NotImplementedError)


def test_b12_a_function_that_reads_what_a_node_has_saved_raises():
    def program(wrap):
        x = leaf(4)

        def fn(x):
            y = x.exp()
            return (x * y.grad_fn._saved_result).sin()

        wrap(fn)(x).sum().backward()
        return x.grad

    assert_raises(program, region(), "expected backwards through the graph of the forward")
    assert_same(program, region("tape"))


@pytest.mark.parametrize("options", [{}, {"cuts": remat.Cuts([1], groups=[])}], ids=["whole", "cut"])
def test_b17_a_tape_refuses_a_backward_in_the_function(options):
    def program(wrap):
        x = leaf(4)
        wrap(lambda x: torch.autograd.grad(x.sin().sum(), x, create_graph=True)[0].exp())(x).sum().backward()
        return x.grad

    words = "expected what a tape can replay, got a backward in the function"
    assert_raises(program, region("tape", **options), words, NotImplementedError)
    assert_same(program, region())
