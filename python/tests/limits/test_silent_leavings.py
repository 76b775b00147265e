# SPDX-License-Identifier: BSD-3-Clause

"""Silent limits: objects that the function leaves behind."""

import pytest
import torch
from programs import leaf
from same import assert_same, plain

from .common import assert_silent, outcome, region


def test_s30_what_plain_statements_would_put_back_stays_where_a_replay_has_stopped():
    def program(wrap):
        x, state = leaf(4), [0]

        def fn(x):
            state[0] = 1
            y = x.exp()
            z = x * 2
            state[0] = 0
            return y + z.detach()

        wrap(fn)(x).sum().backward()
        return torch.tensor(state)

    assert_silent(program, region())
    assert_same(program, region(early_stop=False))
    assert_same(program, region("tape"))


def test_s31_what_the_function_leaves_behind_is_left_twice():
    def program(wrap):
        x, calls = leaf(4), []
        wrap(lambda x: (calls.append(0), x.sin().exp())[1])(x).sum().backward()
        return torch.tensor(len(calls))

    assert outcome(program, region()).item() == 2
    assert_same(program, region("tape"))


def test_s32_a_tensor_that_is_assigned_outside_has_its_retained_grad_with_a_tape_only():
    def program(wrap):
        x, left = leaf(4), {}

        def fn(x):
            left["h"] = x.sin()
            left["h"].retain_grad()
            return left["h"].exp()

        wrap(fn)(x).sum().backward()
        return torch.tensor(left["h"].grad is not None)

    assert_silent(program, region())
    assert_same(program, region("tape"))


def test_s33_a_handler_of_all_exceptions_meets_the_stop():
    def program(wrap):
        x, met = leaf(4), []

        def fn(x):
            try:
                return x.exp() * 3
            except BaseException:
                met.append(0)
                raise

        wrap(fn)(x).sum().backward()
        return torch.tensor(len(met))

    assert (outcome(program, plain).item(), outcome(program, region()).item()) == (0, 1)
    assert_same(program, region(early_stop=False))


class WritesItsSaved(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x * 2)
        return x * x

    @staticmethod
    def backward(ctx, grad):
        (saved,) = ctx.saved_tensors
        result = saved * grad
        saved.data.mul_(0.5)
        return result


@pytest.mark.parametrize("replay", ["function", "tape"])
def test_s34_what_a_backward_writes_to_a_saved_tensor_by_way_of_data_is_not_there_the_next_time(replay):
    def program(wrap):
        x = leaf(4)
        y = wrap(lambda x: WritesItsSaved.apply(x.sin()))(x).sum()
        y.backward(retain_graph=True)
        y.backward()
        return x.grad

    assert_silent(program, region(replay))


class ReturnsAViewOfItsSaved(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(w)
        return (x * w).sum()

    @staticmethod
    def backward(ctx, grad):
        (w,) = ctx.saved_tensors
        return w.view(-1).view_as(w), None


@pytest.mark.parametrize("replay", ["function", "tape"])
def test_s35_a_gradient_that_is_a_view_of_a_saved_weight_has_memory_of_its_own(replay):
    def program(wrap):
        x, w = leaf(4), leaf(4)
        wrap(lambda z: ReturnsAViewOfItsSaved.apply(x, w) * z)(torch.ones(())).backward()
        x.grad.mul_(10)
        return w

    assert_silent(program, region(replay))


@pytest.mark.parametrize("change", ["number", "tensor"])
def test_s38_without_interception_what_has_changed_is_not_noticed(change):
    def program(wrap):
        x, w, count = leaf(4), torch.ones(4), [0]

        def fn(x):
            count[0] += 1
            return (x + (count[0] if change == "number" else w)).sin()

        y = wrap(fn)(x)
        if change == "tensor":
            w.add_(1)
        y.sum().backward()
        return x.grad

    assert_silent(program, region(intercept=False))
    with pytest.raises(RuntimeError):
        program(region())


def test_s39_without_the_state_of_generators_a_replay_draws_other_numbers():
    def program(wrap):
        x = leaf(4)
        wrap(lambda x: x * torch.rand(4))(x).sum().backward()
        return x.grad

    assert_silent(program, region(preserve_rng_state=False))
