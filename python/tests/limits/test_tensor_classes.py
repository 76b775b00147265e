# SPDX-License-Identifier: BSD-3-Clause

"""Wrapper subclasses, sparse, quantized and nested tensors."""

import pytest
import torch
from programs import leaf
from same import assert_same, plain
from torch.utils._python_dispatch import TorchDispatchMode

import remat_meta as remat

from .common import ANOTHER, Hidden, assert_raises, call, outcome, region


@pytest.mark.torch_warns  # warns that compressed layouts are in beta
@pytest.mark.parametrize("name", ["zeros_like", "full_like"])
def test_c5_zeros_like_of_a_compressed_sparse_tensor_raises(name):
    def program(wrap):
        x, sparse = leaf(4), torch.eye(4).to_sparse_csr()
        make = {"zeros_like": torch.zeros_like, "full_like": lambda t: torch.full_like(t, 2.0)}[name]
        wrap(lambda x: (make(sparse), x.sin().exp())[1])(x).sum().backward()
        return x.grad

    words = {"zeros_like": ANOTHER, "full_like": "expected in-place ops on strided tensors from outside"}[name]
    with pytest.raises((remat.ReplayMismatch, NotImplementedError), match=words):
        outcome(program, region())


@pytest.mark.torch_warns  # warns that nested tensors are a prototype
def test_c6_a_jagged_nested_tensor_that_the_function_makes_raises():
    def program(wrap):
        x = leaf(4, 8)

        def fn(x):
            parts = [torch.ones(3, 8), torch.ones(5, 8)]
            return (x.sum() * torch.nested.nested_tensor(parts, layout=torch.jagged)).sin().values()

        wrap(fn)(x).sum().backward()
        return x.grad

    assert_raises(program, region(), "returned an invalid gradient|as in the forward, got")
    assert_same(program, region("tape"))


def jagged():
    """Returns a jagged tensor, and the tensor of which it is a view."""
    x = leaf(4, 4)
    return x, torch.nested.nested_tensor_from_jagged(x * 1, torch.tensor([0, 1, 4]))


@pytest.mark.torch_warns
def test_c9_a_call_that_returns_the_values_of_a_jagged_nested_tensor_of_an_op_is_refused():
    def program(wrap):
        _, nested = jagged()
        part = call(lambda y: y.values(), name="a") if wrap is not plain else lambda y: y.values()
        wrap(lambda y: part(y.sin()).sin())(nested).sum().backward()

    assert_raises(program, region(), "expected a new tensor or a view of an argument", NotImplementedError)


@pytest.mark.torch_warns
def test_c10_a_dispatch_mode_and_attention_on_a_jagged_nested_tensor():
    class PassThrough(TorchDispatchMode):
        def __torch_dispatch__(self, op, types, args=(), kwargs=None):
            return op(*args, **(kwargs or {}))

    def attention(y):
        heads = y.unflatten(-1, (2, 2)).transpose(1, 2)
        with PassThrough():
            return torch.nn.functional.scaled_dot_product_attention(heads, heads, heads).transpose(1, 2).flatten(-2).sin()

    def program(wrap):
        parts = [torch.randn(1, 4), torch.randn(3, 4)]
        nested = torch.nested.nested_tensor(parts, layout=torch.jagged, requires_grad=True)
        wrap(attention)(nested).values().sum().backward()

    assert_raises(program, region(), "must be contiguous|does not have a size|Multiple dispatch", (RuntimeError, TypeError))


def test_n11_the_result_of_a_kept_attention_is_written_by_the_outer_region():
    def program(wrap):
        x, w = leaf(1, 4, 4), leaf(1, 4, 4)

        def attention(x):
            y = torch.nn.functional.scaled_dot_product_attention(w, x, w)
            w.sin()
            return y

        def block(x):
            y = (attention if wrap is plain else region(policy="save_matmuls")(attention))(x)
            y += x
            return y.sin()

        wrap(block)(x).sum().backward()

    try:
        program(plain)
    except RuntimeError:
        pytest.skip("newer versions of torch save what this writes, and raise without a region")
    assert_raises(program, region(), "expected in-place ops that autograd notices", NotImplementedError)


class Dequantized(Hidden):
    """A tensor whose detach() gives a plain tensor."""


def test_c7_a_class_whose_detach_is_plain_raises_in_a_nested_region():
    def program(wrap):
        x = leaf(4, 4)
        wrap(lambda *given: wrap(lambda x, w: (x @ w).sin())(*given))(x, Dequantized(torch.ones(4, 4))).sum().backward()
        return x.grad

    assert_raises(program, region(), r"expected float32 \[4, 4\] on cpu as in the forward, got")


@pytest.mark.torch_warns
def test_c11_strided_values_of_a_jagged_nested_tensor_under_hooks_that_copy_raise():
    def program(wrap):
        x = leaf(4, 8)
        nested = torch.nested.nested_tensor_from_jagged((x * 1)[:, ::2], torch.tensor([0, 1, 4]))
        wrap(lambda y: (y + y).sin())(nested).values().sum().backward()
        return x.grad

    copies = {"saved_tensors_hooks": (torch.clone, torch.clone)}
    assert_raises(program, region(**copies), "as in the forward, got")
    assert_same(program, region("tape", **copies))
