# SPDX-License-Identifier: BSD-3-Clause

"""Behaviours 98 to 100 of torch_remat 0.2.2: weights."""

import pytest
import torch
from kept import POLICIES, recompute, save
from programs import checkpointed, leaf
from same import assert_equal, assert_same

import remat_meta as remat


def tied(form, first, second):
    """A program that uses a weight in several ways."""

    def call(name, again):
        return lambda fn: remat.region(fn, name, recompute=again)

    a, b = call("a", first), call("b", second)

    def program(wrap):
        x, w = leaf(4, 4), leaf(4, 4)
        forms = {
            "closed over": lambda x: b(lambda y: y @ w.t())(a(lambda x: x @ w)(x.sin()).cos()),
            "argument": lambda x: b(lambda y, w: y @ w.t())(a(torch.mm)(x.sin(), w).cos(), w),
            "view": lambda x: b(torch.mm)(a(lambda x, w, v: x @ w @ v)(x.sin(), w, w[1:].t()).cos(), w[:3]),
            "square": lambda x: b(lambda y, w: y * w * w)(a(lambda x: x @ (w * w))(x.sin()), w),
            "twice": lambda x: b(lambda y, v, w: y @ v @ w)(a(torch.mm)(x.sin(), w), w, w),
            "outside too": lambda x: b(torch.mm)(a(torch.mm)(x.sin(), w), w),
        }
        out = wrap(forms[form])(x)
        if form == "outside too":
            out = out @ w + wrap(forms["argument"])(out)
        out.sum().backward(retain_graph=True)
        out.sum().backward()
        return x.grad, w.grad

    return program


@pytest.mark.parametrize("form", ["closed over", "argument", "view", "square", "twice", "outside too"])
@pytest.mark.parametrize("first", POLICIES)
@pytest.mark.parametrize("second", POLICIES)
def test_098_tied_weights(form, first, second):
    assert_same(tied(form, first, second), checkpointed)


def test_098_tied_weights_block_twice_and_frozen():
    for frozen in (True, False):

        def program(wrap, frozen=frozen):
            x, w = leaf(4, 4), torch.randn(4, 4, requires_grad=not frozen)

            def fn(x):
                for i in range(2):
                    with remat.name_scope(f"block.{i}"):
                        x = recompute(lambda x: x @ w.t(), "b")(save(torch.mm, "a")(x.sin(), w))
                return x

            wrap(fn)(x).sum().backward()
            return x.grad, w.grad

        assert_same(program, checkpointed)


@pytest.mark.parametrize("again", POLICIES)
def test_099_a_weight_as_argument_is_not_copied(again):
    copies = []
    w = leaf(3, 3)

    def pack(t):
        copies.append(t.untyped_storage()._cdata == w.untyped_storage()._cdata)
        return t

    with remat.saved_tensors_hooks(pack, lambda t: t):
        y = checkpointed(lambda x, w: remat.region(torch.mm, "a", recompute=again)(x.sin(), w).sin())(leaf(3, 3), w)
    y.sum().backward()
    assert any(copies)  # the memory of w itself was packed


def test_100_a_closed_over_weight_is_kept_by_its_own_memory():
    w = leaf(3, 3)
    x = leaf(3, 3)
    kept = []

    def pack(t):
        kept.append(t.untyped_storage()._cdata)
        return t

    with remat.saved_tensors_hooks(pack, lambda t: t):
        y = checkpointed(lambda x: save(lambda x: x @ w.t()[1:].t(), "a")(x.sin()).sin())(x)
    assert w.untyped_storage()._cdata in kept
    y.sum().backward()
    (grad,) = torch.autograd.grad((x.sin() @ w.t()[1:].t()).sin().sum(), w)
    assert_equal(grad, w.grad)
