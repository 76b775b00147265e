# SPDX-License-Identifier: BSD-3-Clause

"""Hooks on tensors, nodes and saved tensors."""

import contextlib

import torch
from programs import leaf
from same import assert_same, plain

import remat_meta as remat

from .common import OFFLOAD, assert_raises, call, copying, region


def test_h4_a_pack_hook_that_throws_in_a_save_call_and_is_caught_raises():
    def program(wrap):
        x = leaf(4)

        def full(tensor):
            raise ValueError("disk full")

        def fn(x):
            h = x.sin()
            with contextlib.suppress(ValueError):
                with torch.autograd.graph.saved_tensors_hooks(full, lambda tensor: tensor):
                    h = call(lambda h: h.exp().sin(), OFFLOAD)(h)
            return h.exp()

        wrap(fn)(x).sum().backward()
        return x.grad

    assert_raises(program, region(), "expected the exception that it threw in the forward", remat.ReplayMismatch)
    assert_same(program, region("tape"))


def test_h6_an_argument_that_hooks_bring_back_has_another_storage_offset():
    def program(wrap):
        x = leaf(64)
        with copying() if wrap is not plain else contextlib.nullcontext():
            y = wrap(lambda a: (a * 2 if a.storage_offset() else a + 1).sin())((x * 2)[16:32])
        y.sum().backward()
        return x.grad

    assert_raises(program, region(), "The function branches on state", remat.ReplayMismatch)
    assert_same(program, region("tape"))


def test_h7_a_backward_where_saved_tensor_hooks_are_disabled_raises():
    def program(wrap):
        x = leaf(4)
        y = wrap(lambda x: x.sin().exp())(x)
        with torch.autograd.graph.disable_saved_tensors_hooks("none here"):
            y.sum().backward()
        return x.grad

    assert_raises(program, region(), "got the end of the function", remat.ReplayMismatch)
    assert_same(program, region("tape"))
