# SPDX-License-Identifier: BSD-3-Clause

"""Cost and memory."""

import gc
import weakref

import pytest
import torch
from programs import leaf
from same import plain

import remat_meta as remat
from remat_meta import _C

from .common import call, outcome, region


def test_k4_n_gradients_inside_replay_n_times_what_the_region_has_done():
    def program(wrap):
        runs, x = [0], leaf(4)

        class Counted(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                runs[0] += 1
                ctx.save_for_backward(x)
                return x * 2

            @staticmethod
            def backward(ctx, grad):
                return grad * 2 + 0 * ctx.saved_tensors[0]

        def fn(x):
            h = x
            for _ in range(5):
                h = Counted.apply(h)
                (g,) = torch.autograd.grad(h.sum(), x, retain_graph=True)
                h = h * g
            return h

        wrap(fn)(x)
        return runs[0]

    assert (outcome(program, plain), outcome(program, region())) == (5, 5 + 1 + 2 + 3 + 4 + 5)


def test_k6_after_an_exception_in_backward_regions_stay_until_the_next():
    def refuse(grad):
        raise ValueError("refused")

    gc.collect()
    before = _C.live_region_count()
    x = leaf(4)
    others = region()(lambda x: x.sin().exp())(x) + region()(lambda x: x.cos().exp())(x * 2)
    y = region()(lambda x: x.tan().exp())(x * 3) * 1
    y.register_hook(refuse)  # runs first
    loss = (others + y).sum()
    with pytest.raises(ValueError, match="refused"):
        loss.backward()
    del others, y, loss
    gc.collect()
    assert _C.live_region_count() > before
    leaf(2).sin().sum().backward()
    assert _C.live_region_count() == before


def test_k7_a_captured_tensor_into_which_the_region_writes_a_value_with_a_gradient_is_a_cycle():
    class Module:
        def __init__(self):
            self.buffer = torch.zeros(4)

    def regions_that_a_step_leaves(replay, detached=False):
        gc.collect()
        before = _C.live_region_count()
        module, x = Module(), leaf(4)

        def fn(x, module=module):
            module.buffer.copy_(x.detach().sin() if detached else x.sin())
            return x.exp().sin()

        region(replay)(fn)(x).sum().backward()
        held.append(weakref.ref(module))
        del module, fn
        gc.collect()
        return _C.live_region_count() - before

    held = []
    assert regions_that_a_step_leaves("function", detached=True) == 0
    assert regions_that_a_step_leaves("tape") == 0
    assert regions_that_a_step_leaves("function") == 1
    held[-1]().buffer = None
    gc.collect()
    assert held[-1]() is None


@pytest.mark.parametrize("overwrites", [False, True])
def test_k9_an_op_that_overwrites_a_kept_result_counts_as_a_read_of_it(overwrites):
    def fn(x):
        h = call(lambda x: x * 2)(x)
        if overwrites:
            h.detach().zero_()
        return (x + 0).sin()

    before = remat.memory_report().bytes  # held by cycles that the tests above have left
    y = region()(fn)(leaf(100))
    assert remat.memory_report().bytes - before == (400 if overwrites else 0)
    y.sum().backward()
