# SPDX-License-Identifier: BSD-3-Clause

"""Wrapper subclasses, sparse, quantized and nested tensors."""

import pytest
import torch
from programs import leaf
from same import assert_same, plain
from wrappers import Opaque

import remat_meta as remat

from .common import ANOTHER, Hidden, assert_raises, outcome, region


@pytest.mark.parametrize("make", [Opaque, lambda tensor: torch.ones_like(Opaque(tensor))], ids=["c1", "c2"])
def test_c1_c2_a_wrapper_that_the_function_makes_raises_in_the_replay(make):
    def program(wrap):
        x = leaf(4)
        wrap(lambda x: (x * (make(torch.ones(4)) * 2).inner).sin())(x).sum().backward()
        return x.grad

    assert_raises(program, region(), ANOTHER, remat.ReplayMismatch)
    words = "got op aten::mul.Tensor: a tensor of a Python class of its own"
    assert_raises(program, region("tape"), words, NotImplementedError)


@pytest.mark.torch_warns  # that compressed layouts are new
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


@pytest.mark.torch_warns  # that nested tensors are new
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

    assert_raises(program, region(), "expected in-place ops that autograd notices", NotImplementedError)


class Dequantized(Hidden):
    """detach() gives a plain tensor."""


def test_c7_a_class_whose_detach_is_plain_raises_in_a_nested_region():
    def program(wrap):
        x = leaf(4, 4)
        wrap(lambda *given: wrap(lambda x, w: (x @ w).sin())(*given))(x, Dequantized(torch.ones(4, 4))).sum().backward()
        return x.grad

    assert_raises(program, region(), r"expected float32 \[4, 4\] on cpu as in the forward, got")
