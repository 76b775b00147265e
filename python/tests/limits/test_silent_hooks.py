# SPDX-License-Identifier: BSD-3-Clause

"""Silent limits: hooks."""

import pytest
import torch
from programs import leaf
from same import assert_equal, plain

import remat_meta as remat

from .common import assert_silent, call, copying, outcome, region


@pytest.mark.parametrize("replay", ["function", "tape"])
def test_s22_hooks_that_a_function_opens_are_not_called_for_what_runs_again(replay):
    def program(wrap):
        x, packed = leaf(4), []

        def fn(x):
            with torch.autograd.graph.saved_tensors_hooks(lambda t: packed.append(0) or t, lambda t: t):
                return x.sin().exp()

        wrap(fn)(x).sum().backward()
        return torch.tensor(len(packed))

    assert outcome(program, plain).item() == 2
    assert outcome(program, region(replay)).item() == 0


def test_s23_hooks_inside_that_give_other_strides_may_change_last_bits_of_plain_code():
    def program(wrap):
        x = leaf(257, 129)

        def fn(x):
            contiguous = torch.autograd.graph.saved_tensors_hooks(lambda t: t.contiguous().clone(), lambda t: t)
            with contiguous:
                h = x.sin()[:, 5:77].t()
                return (h.sum(0) * h).sum()

        wrap(fn)(x).backward()
        return x.grad

    torch.testing.assert_close(outcome(program, plain), outcome(program, region()))
    assert_silent(program, region())


def test_s24_hooks_that_give_tensors_back_as_they_are_may_change_last_bits_of_plain_double_backward():
    def program(wrap):
        x = leaf(4)

        def fn(x):
            with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t):
                h = x * 1
                h[:2].exp_()
                return h.sin()

        (gradient,) = torch.autograd.grad(wrap(fn)(x).sum(), x, create_graph=True)
        gradient.sum().backward()
        return x.grad

    torch.testing.assert_close(outcome(program, plain), outcome(program, region()))
    assert_silent(program, region())


def test_s25_hooks_run_twice_where_a_save_call_of_the_region_sets_one_too():
    def program(wrap):
        w, u, x, calls = leaf(4), leaf(4), leaf(4), []
        h = w * 2

        def fn(x):
            y = call(lambda x: (u.register_hook(lambda grad: None), x.sin())[1])(x)
            h.register_hook(lambda grad: calls.append(0))
            h.grad_fn.register_hook(lambda given, got: calls.append(0))
            return (y * 2).exp()

        wrap(fn)(x).sum().backward()
        h.sum().backward()
        return torch.tensor(len(calls))

    assert (outcome(program, plain).item(), outcome(program, region()).item()) == (2, 4)


def test_s27_a_hook_replaced_on_a_captured_tensor_that_the_region_writes_is_lost():
    def program(wrap):
        w, x, handles = leaf(4), leaf(4), []
        h = w * 2

        def fn(x):
            while handles:
                handles.pop().remove()
            handles.append(h.register_hook(lambda grad: grad * 3))
            h.mul_(2)
            return (x * h).exp()

        for _ in range(2):
            y = wrap(fn)(x)
        y.sum().backward()
        return w.grad

    assert_silent(program, region())


def test_s29_a_hook_on_a_node_that_is_set_after_a_backward_inside_is_not_noticed():
    def program(wrap):
        x, w = leaf(4), leaf(4)
        h = w * 2

        def fn(x):
            (h * h * x).sum().backward(inputs=[w], retain_graph=True)
            return (x * (w.grad.detach() * 1)).sin()

        y = wrap(fn)(x)
        h.grad_fn.register_prehook(lambda grads: (grads[0] * 4,))
        y.sum().backward()
        return x.grad

    assert outcome(program, plain).shape == (4,)
    assert_silent(program, region())


class WritesItsWeight(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(w)
        return x * w

    @staticmethod
    def backward(ctx, grad):
        (w,) = ctx.saved_tensors
        before = grad * w
        w.mul_(2)
        return before, None


@pytest.mark.parametrize("replay", ["function", "tape"])
def test_s50_a_parameter_that_backward_writes_under_hooks_that_copy_is_written_itself(replay):
    def program(wrap):
        x, w = leaf(4), leaf(4)
        with copying():
            y = wrap(lambda x: WritesItsWeight.apply(x, w))(x)
        y.sum().backward()
        return w.detach()

    assert_silent(program, region(replay))


@pytest.mark.parametrize("replay", ["function", "tape"])
def test_s51_over_a_kept_graph_a_backward_that_writes_gets_what_the_forward_saved(replay):
    def program(wrap):
        x = leaf(4)
        y = wrap(lambda x: WritesItsWeight.apply(x, x.detach().exp()))(x).sum()
        return [torch.autograd.grad(y, x, retain_graph=True)[0] for _ in range(2)]

    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        outcome(program, plain)
    first, second = outcome(program, region(replay))
    assert_equal(first, second)


@pytest.mark.parametrize("replay", ["function", "tape"])
def test_s52_what_is_offloaded_does_not_change_with_a_write_by_data(replay):
    def program(wrap):
        x = leaf(4)

        def fn(x):
            y = remat.native_op(torch.tanh, "y", remat.CheckpointPolicy.OFFLOAD)(x * 1)
            y.data.mul_(0.5)
            return y + 0

        return [*torch.autograd.grad(wrap(fn)(x).sum(), x)]

    def under_copies(fn):
        def wrapped(x):
            with torch.autograd.graph.saved_tensors_hooks(torch.clone, lambda t: t):
                return fn(x)

        return wrapped

    got = outcome(program, remat.checkpoint(replay=replay, offload_store=remat.host_memory_store()))
    assert_equal(got, outcome(program, under_copies))
    assert not torch.equal(got[0], outcome(program, plain)[0])
