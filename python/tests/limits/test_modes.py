# SPDX-License-Identifier: BSD-3-Clause

"""Dispatch modes, autocast, profilers."""

import contextlib

import pytest
import torch
from programs import leaf
from same import assert_same
from torch.distributed.tensor.debug import CommDebugMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode
from wrappers import Passing

import remat_meta as remat

from .common import UNSEEN, assert_raises, in_a_process, region


def test_a1_comm_debug_mode_round_the_backward_alone_forbids_writes_to_what_modules_return():
    def program(wrap):
        net, x = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(inplace=True)), leaf(4, 4)
        y = wrap(net)(x)
        with CommDebugMode():
            y.sum().backward()
        return x.grad

    assert_raises(program, region(), "is a view and is being modified inplace")
    assert_same(program, region("tape"))


def test_a2_flop_counter_mode_in_a_function_and_comm_debug_mode_round_the_forward_raise():
    def program(wrap):
        net, x = torch.nn.Linear(4, 4), leaf(4, 4)

        def fn(x):
            with FlopCounterMode(display=False):
                return net(x).sin()

        with CommDebugMode():
            y = wrap(fn)(x)
        y.sum().backward()
        return x.grad

    assert_raises(program, region(), "leave the hooks of arguments and captured tensors", NotImplementedError)


def flop_counter_mode():
    return FlopCounterMode(display=False)


def counts_where_the_function_goes_backward(mode, round_forward):
    def program(wrap):
        x = leaf(4, 4)
        net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 4))

        def fn(x):
            with contextlib.nullcontext() if round_forward else mode():
                z = x * 2
                h = net(z)
                (g,) = torch.autograd.grad(h.sin().sum(), z, retain_graph=True)
                return (h * g).sin()

        with mode() if round_forward else contextlib.nullcontext():
            y = wrap(fn)(x)
        y.sum().backward()
        return x.grad

    return program


def test_a3_a_mode_that_counts_by_hooks_in_a_function_that_goes_backward_raises():
    program = counts_where_the_function_goes_backward(CommDebugMode, round_forward=False)
    assert_raises(
        program, region(), "expected to pass 8 hooks on gradients as in the forward, got 0", remat.ReplayMismatch
    )


@pytest.mark.parametrize("mode", [flop_counter_mode, CommDebugMode])
def test_a4_such_a_mode_round_the_forward_alone_of_a_function_that_goes_backward_raises(mode):
    program = counts_where_the_function_goes_backward(mode, round_forward=True)
    assert_raises(
        program, region(), "expected to pass 8 hooks on gradients as in the forward, got 0", remat.ReplayMismatch
    )


@pytest.mark.parametrize("place", ["forward", "backward"])
def test_a5_a_mode_round_one_pass_alone_and_a_policy_that_keeps_views_raise(place):
    def program(wrap):
        x = leaf(3, 4)
        with Passing() if place == "forward" else contextlib.nullcontext():
            y = wrap(lambda x: torch.einsum("ij,kj->ik", x.sin(), x.cos()).exp())(x)
        with Passing() if place == "backward" else contextlib.nullcontext():
            y.sum().backward()
        return x.grad

    assert_raises(program, region(policy=["aten::view"]), "call 'aten::view#1' .SAVE.", remat.ReplayMismatch)
    assert_same(program, region())


def test_a6_a_cache_of_casts_that_a_function_that_goes_backward_asks_for_raises():
    def program(wrap):
        x, w = leaf(4, 4), leaf(4, 4)

        def fn(x):
            with torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=True):
                (g,) = torch.autograd.grad((x @ w).float().sum(), w, retain_graph=True)
                return (x @ w).float().sin() + g.sum()

        wrap(fn)(x).sum().backward()
        return x.grad

    assert_raises(program, region(), "It reads a cast of another parameter", remat.ReplayMismatch)


def test_a7_a_profiler_that_records_shapes_prints_that_it_cannot_read_placeholders():
    printed = in_a_process("""
        import torch
        import remat_meta as remat

        def fn(x):
            remat.native_op(lambda x: x * 2, "call", remat.CheckpointPolicy.SAVE)(x).view(2, 2)
            return x.sin().exp()

        x = torch.randn(4, requires_grad=True)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True):
            remat.checkpoint()(fn)(x).sum().backward()
        print("right", torch.equal(x.grad, x.detach().cos() * x.detach().sin().exp()))
    """)
    assert "right True" in printed
    assert "Exception in RecordFunction callback: [placeholder]" in printed


class DoublesSin(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        return result * 2 if func is torch.ops.aten.sin.default else result


def test_a8_a_mode_that_the_function_opens_and_that_changes_values_raises_on_tapes():
    def program(wrap):
        x = leaf(4)

        def fn(x):
            with DoublesSin():
                return x.cos().sin().exp()

        wrap(fn)(x).sum().backward()
        return x.grad

    assert_same(program, region())
    assert_raises(program, region("tape"), UNSEEN)
    auto = remat.checkpoint(replay="auto", region_name="a mode inside")
    assert_raises(program, auto, UNSEEN)
    assert_same(program, auto)
