# SPDX-License-Identifier: BSD-3-Clause

"""Tapes and cuts."""

import pytest
import torch
from programs import leaf
from same import assert_same
from torch.testing._internal.two_tensor import TwoTensor

import remat_meta as remat

from .common import UNSEEN, assert_raises, copying, region


def test_t1_a_nested_tape_under_autocast_that_reads_a_part_of_a_weight_raises():
    w = torch.nn.Parameter(torch.randn(2, 4, 4))

    def rows(h):
        return torch.bmm(h[None].expand(2, 4, 4), w)[0]

    def outer(x):
        return region("tape")(lambda h: rows(h).sin() @ w[0])(rows(x).sin()).exp()

    x = leaf(4, 4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rows(x)  # fills autocast's cache
        y = region()(outer)(x)
    with pytest.raises(RuntimeError, match=r"expected uint8 \[|as in the forward, got"):
        y.float().sum().backward()


@pytest.mark.parametrize("how", ["gets", "captures"])
def test_t2_a_nested_tape_of_an_argument_that_came_back_from_hooks_raises(how):
    def outer(a):
        if how == "gets":
            return region("tape")(lambda b: b.sin().exp())(a).sin()
        return region("tape")(lambda b: (a * b).sin().exp())(a.cos()).sin()

    with copying():
        y = region()(outer)((leaf(8, 16) * 2)[1:])
    with pytest.raises(RuntimeError, match=r"expected uint8 \[512\] on cpu as in the forward, got float32"):
        y.sum().backward()


def test_t4_memory_that_nobody_has_written_in_a_tape_inside_a_tape_is_compared():
    def inner(x):
        memory = torch.empty(8)
        memory[:4].copy_(x.detach())
        memory[4:6] = 1.0
        return (x * memory[:4]).sin() * memory[:6].sum()

    def step():
        held = [torch.full((8,), 3.0) for _ in range(50)]  # contents of memory that is freed and reused
        del held
        y = region("tape")(lambda x: region("tape", policy=["aten::copy_"])(inner)(x * 2).cos())(leaf(4))
        held = [torch.full((8,), 5.0) for _ in range(50)]
        del held
        y.sum().backward()

    with pytest.raises(RuntimeError, match=UNSEEN):
        for _ in range(5):
            step()


def test_t5_cuts_of_a_first_call_may_be_too_late_for_a_second_one_under_autocast():
    w = torch.nn.Parameter(torch.randn(4, 4))
    block = region("tape", cuts=remat.Cuts([3]))(lambda x: x.sin() @ w)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        block(leaf(4, 4))  # record 2 of the block is the cast of w
        with pytest.raises(
            ValueError, match=r"cuts.positions\[0\]: expected a record that the function has after its first"
        ):
            block(leaf(4, 4))


def test_t6_a_cut_region_inside_one_that_calls_its_function_again_is_cut_elsewhere_under_autocast():
    x, w = leaf(4, 4), torch.nn.Parameter(torch.randn(4, 4))
    cut = region("tape", cuts=remat.Cuts([2]))(lambda x: ((x.sin() @ w).exp() @ w).sin())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        x @ w  # fills autocast's cache
        y = region()(lambda x: cut(x.cos()).sin())(x)
    with pytest.raises(RuntimeError, match="It was saved between other ops"):
        y.float().sum().backward()


def test_t7_memory_that_the_function_exchanges_and_gives_back_raises_with_a_tape():
    def program(wrap):
        x, w, other = leaf(4, 4), leaf(4, 4), torch.randn(4, 4)

        def fn(x):
            whole, w.data = w.data, other
            y = torch.nn.functional.linear(x, w)
            w.data = whole
            return y.exp()

        wrap(fn)(x).sum().backward()
        return x.grad, w.grad

    assert_same(program, region())
    assert_raises(program, region("tape"), "expected the memory that it had in the forward, got other memory", RuntimeError)


@pytest.mark.torch_warns  # nested tensors are a prototype
def test_t8_a_jagged_tensor_catches_the_refusal_of_a_strict_tape():
    linear = torch.nn.Linear(8, 8)

    def attention(nested):
        q = linear(nested).unflatten(-1, (2, 4)).transpose(1, 2)
        return torch.nn.functional.scaled_dot_product_attention(q, q, q).transpose(1, 2).flatten(-2)

    def program(wrap):
        rows = [torch.randn(n, 8) for n in (3, 5, 2)]
        nested = torch.nested.nested_tensor(rows, layout=torch.jagged, requires_grad=True)
        wrap(attention)(nested).values().sum().backward()

    assert_raises(program, region("tape"), "they must be contiguous|expected what a tape can replay")


def test_t10_wrappers_of_several_tensors_have_no_cuts():
    def program(wrap):
        x = TwoTensor(torch.randn(4, 4), torch.randn(4, 4)).requires_grad_()
        wrap(lambda x: (x @ x).sin().exp().cos())(x).sum().backward()
        return x.grad.a, x.grad.b

    words = "a tensor of a Python class of its own of several tensors that the function makes, on a tape that is cut"
    assert_raises(program, region("tape", cuts=remat.Cuts([2])), words, NotImplementedError)
    assert_same(program, region("tape"))
