# SPDX-License-Identifier: BSD-3-Clause

"""Backwards through regions of CUDA tensors: early stops, backwards in functions, kept graphs, gradients of gradients."""

import pytest
import torch
from torch.utils.checkpoint import checkpoint as torch_checkpoint

from cuda.device_runs import all_replays, assert_same, leaf, needs_cuda, on_main_thread, region, repeated

pytestmark = needs_cuda


@pytest.mark.parametrize("early_stop", [True, False])
@pytest.mark.parametrize("depth", [1, 2, 4])
def test_replays_that_stop_early_and_that_do_not(depth, early_stop):
    ends = []

    def program(wrap):
        x, w = leaf(4, 4), leaf(4, 4)

        def fn(x):
            y = torch.dropout((x @ w).sin(), 0.5, True).exp() + 1
            ends.append(on_main_thread())
            return y

        for _ in range(depth):
            fn = wrap(lambda x, fn=fn: fn(x.cos()) * 2)
        for _ in range(2):
            fn(x).sum().backward()
        return x.grad, w.grad

    assert_same(program, region(early_stop=early_stop))
    assert (False in ends) == (not early_stop)


@pytest.mark.torch_warns  # torch's own checkpoints warn that they run without gradients in the forward
@all_replays
@pytest.mark.parametrize("depth", [1, 3, 70])  # beyond 60 levels autograd uses further threads
def test_backwards_inside_a_backward(depth, replay):
    def program(wrap):
        x, w = leaf(4, 4), leaf(4, 4)

        def deeper(x, depth):
            h = wrap(lambda x: (x @ w).sin() * x)(x)
            if depth > 0:
                h = torch_checkpoint(deeper, h, depth - 1, use_reentrant=True)
            return wrap(lambda h: h.cos().sin())(h)

        deeper(x.sin(), depth).sum().backward()
        return x.grad, w.grad

    assert_same(program, region(replay))


@all_replays
def test_a_backward_that_a_custom_function_starts(replay):
    class Inner(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, fn):
            ctx.fn = fn
            ctx.save_for_backward(x)
            return fn(x.detach()).detach()

        @staticmethod
        def backward(ctx, grad):
            with torch.enable_grad():
                x = ctx.saved_tensors[0].detach().requires_grad_()
                y = ctx.fn(x)
            torch.autograd.backward(y, grad)
            return x.grad, None

    def program(wrap):
        x, w = leaf(4, 4), leaf(4, 4)
        fn = wrap(lambda x: (torch.dropout(x @ w, 0.5, True).sin() * x).exp())
        repeated(lambda: fn(Inner.apply(wrap(torch.sin)(x), fn)).sum().backward())
        return x.grad, w.grad

    assert_same(program, region(replay))


@all_replays
def test_graphs_that_are_kept_go_backward_again(replay):
    def program(wrap):
        x, w = leaf(4, 4), leaf(4, 4)
        y = wrap(lambda x: (torch.dropout(x @ w, 0.5, True).sin() * x).exp())(x.sin())
        for _ in range(4):
            y.sum().backward(retain_graph=True)
        y.cos().sum().backward()
        return x.grad, w.grad

    assert_same(program, region(replay))


@all_replays
def test_gradients_of_gradients(replay):
    def program(wrap):
        x, w = leaf(4, 4), leaf(4, 4)

        def step():
            y = wrap(lambda x: (wrap(lambda x: x @ w)(x).sin() * x).exp())(x.sin())
            first = torch.autograd.grad(y.sum(), (x, w), create_graph=True)
            second = torch.autograd.grad(sum(g.square().sum() for g in first), (x, w), create_graph=True)
            (y.sum() + sum(g.sin().sum() for g in second)).backward()

        repeated(step)
        return x.grad, w.grad

    assert_same(program, region(replay))


@all_replays
def test_gradients_of_some_tensors_only(replay):
    def program(wrap):
        x, w, v = leaf(4, 4), leaf(4, 4), leaf(4, 4)
        fn = wrap(lambda x: (((x @ w).sin() * x), (x @ v).cos()))
        results = []
        for inputs in ((x,), (w,), (v, w), (v,)):
            a, b = fn(x)
            results.append(torch.autograd.grad((a * b).sum(), inputs))
        for inputs in ((x,), (w,)):
            a, b = fn(x)
            results.append(torch.autograd.grad(a.sum(), inputs))
        a, b = fn(x)
        (a.sum() + b.sum()).backward(inputs=[w])
        assert x.grad is None and v.grad is None
        return [*results, w.grad]

    assert_same(program, region(replay))
