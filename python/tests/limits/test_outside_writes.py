# SPDX-License-Identifier: BSD-3-Clause

"""Writes to tensors from outside the region."""


import pytest
import torch
from programs import Square, leaf
from same import assert_same

import remat_meta as remat

from .common import assert_raises, region


def writes(write, *shape):
    """A program that runs `write(buffer, x)` in a region that then reads the buffer."""

    def program(wrap):
        x, buffer = leaf(*shape), torch.zeros(shape)
        wrap(lambda x: (write(buffer, x.detach()), (x * buffer).exp())[1])(x).sum().backward()
        return x.grad

    return program


def test_w3_an_empty_tensor_that_an_out_op_resizes_raises():
    def program(wrap):
        x, buffer = leaf(4), torch.empty(0)
        wrap(lambda x: (torch.mul(x.detach(), 2, out=buffer), (x * buffer).exp())[1])(x).sum().backward()
        return x.grad

    assert_raises(program, region(), "A shape differs", remat.ReplayMismatch)
    assert_same(program, region("tape"))


@pytest.mark.torch_warns  # warns that out= is resized
def test_w5_a_matmul_of_vectors_into_a_tensor_from_outside_changes_its_shape():
    program = writes(lambda buffer, x: torch.matmul(x, torch.ones(4, 4), out=buffer), 4)
    assert_raises(program, region(), "expected in-place ops that write data only", NotImplementedError)


def test_w6_a_tensor_that_is_an_argument_and_captured_and_is_written_raises():
    def program(wrap):
        w, x = leaf(4), torch.zeros(4)
        wrap(lambda a: (x.add_(w), (a * w).exp())[1])(x).sum().backward()
        return w.grad

    assert_raises(program, region(), "requires_grad differs", remat.ReplayMismatch)
    assert_same(program, region("tape"))


def test_w7_a_custom_function_that_gets_a_captured_tensor_before_a_write_raises():
    def program(wrap):
        x, buffer = leaf(4), torch.zeros(4)

        def fn(x):
            y = Square.apply(buffer)
            buffer.add_(x)
            return (x * buffer + y).sin()

        wrap(fn)(x).sum().backward()
        return x.grad

    assert_raises(program, region(), "It was saved between other ops")
    assert_same(program, region("tape"))


class Halved(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x.mul_(0.5))
        return x

    @staticmethod
    def backward(ctx, grad):
        return grad * 0.5


def test_w8_a_custom_function_that_marks_a_captured_tensor_as_dirty_raises():
    def program(wrap):
        x, h = leaf(4), leaf(4) * 2
        wrap(lambda x: (Halved.apply(h) * x).exp())(x).sum().backward()
        return x.grad

    assert_raises(program, region(), "modified by an inplace operation.*expected the tensor as the forward saved it")
    assert_same(program, region("tape"))


@pytest.mark.parametrize("replay", ["function", "tape"])
def test_w9_allow_mutation_on_saved_tensors_is_not_followed(replay):
    def program(wrap):
        x = leaf(4)
        with torch.autograd.graph.allow_mutation_on_saved_tensors():
            h = x * 2
            y = wrap(lambda h: h.sin().exp())(h)
            h.mul_(3)
            y.sum().backward()
        return x.grad

    assert_raises(program, region(replay), "modified by an inplace operation.*tensor argument 0")


@pytest.mark.parametrize("passed", [True, False])
def test_w11_a_tensor_that_the_region_reads_is_not_written_before_backward(passed):
    def program(wrap):
        x, held = leaf(4), torch.ones(4)
        y = wrap(lambda x, *passed: (x + (passed[0] if passed else held)).sin())(x, *([held] if passed else []))
        held.mul_(2)
        y.sum().backward()

    words = "expected the argument as the forward got it" if passed else "from outside the region as the forward read it"
    assert_raises(program, region(), words)
