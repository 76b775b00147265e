# SPDX-License-Identifier: BSD-3-Clause

"""Hooks and exceptions of regions of CUDA tensors, whose replays run on autograd's thread for the device."""

import contextlib

import pytest
import torch
from same import plain
from torch import nn

import remat_meta as remat
from cuda.device_runs import (
    REPLAYS,
    SAVE,
    all_replays,
    assert_same,
    calls_again,
    leaf,
    needs_cuda,
    on_main_thread,
    region,
    repeated,
    step_after,
)
from remat_meta._C import live_region_count

pytestmark = needs_cuda


@all_replays
def test_hooks_on_tensors_run_as_without_a_region(replay):
    def program(wrap):
        x, w, calls = leaf(4, 4), leaf(4, 4), []
        w.register_hook(lambda grad: calls.append(grad.sum()) or grad * 2)
        w.register_post_accumulate_grad_hook(lambda t: calls.append(t.grad.mul_(3).sum()))

        def step():
            h = x.sin()
            h.register_hook(lambda grad: calls.append(grad.sum()) or grad.cos())
            y = wrap(lambda h: ((h @ w).sin() * h).exp())(h)
            y.register_hook(lambda grad: calls.append(grad.sum()) or grad.sin())
            y.grad_fn.register_prehook(lambda grads: calls.append(grads[0].sum()) or (grads[0] * 2,))
            y.grad_fn.register_hook(lambda ins, outs: calls.append(outs[0].sum()))
            y.retain_grad()
            y.sum().backward()
            return y.grad

        return [*repeated(step), *calls, x.grad, w.grad]

    assert_same(program, region(replay))


@calls_again
def test_hooks_that_the_function_sets_run_once(replay):
    def program(wrap):
        x, calls = leaf(4, 4), []

        def fn(x):
            h = x.sin()
            h.register_hook(lambda grad: calls.append(on_main_thread()) or grad * 2)
            return (h * h.exp()).cos()

        for _ in range(2):
            wrap(fn)(x).sum().backward()
        assert calls == [False, False]
        return x.grad

    assert_same(program, region(replay))


@all_replays
@pytest.mark.parametrize("where", ["around", "option", "host around", "pinned host around", "in the function"])
def test_pairs_of_hooks_for_saved_tensors_see_what_is_saved_in_both_runs(where, replay):
    if where == "in the function" and replay == "tape":
        pytest.skip("a tape does not call the function again")
    unpacks = []

    def pack(tensor):
        return tensor.clone()

    def unpack(tensor):
        unpacks.append(on_main_thread())
        return tensor.clone()

    around = {
        "around": lambda: torch.autograd.graph.saved_tensors_hooks(pack, unpack),
        "host around": torch.autograd.graph.save_on_cpu,
        "pinned host around": lambda: torch.autograd.graph.save_on_cpu(pin_memory=True),
    }.get(where, contextlib.nullcontext)

    def inside():
        is_on = where == "in the function"
        return torch.autograd.graph.saved_tensors_hooks(pack, unpack) if is_on else contextlib.nullcontext()

    def program(wrap):
        x, w = leaf(4, 4), leaf(4, 4)

        def fn(x):
            with inside():
                return ((x @ w).sin() * x).exp()

        def step():
            with around():
                y = wrap(fn)(x.cos()).sin()
            y.sum().backward()

        repeated(step)
        return x.grad, w.grad

    options = {"saved_tensors_hooks": (pack, unpack)} if where == "option" else {}
    assert_same(program, region(replay, **options))
    assert not any(unpacks)


def test_hooks_for_state_put_it_back_on_the_thread_of_the_device():
    calls = []

    def program(wrap):
        counter = [0]

        class Counter(remat.RecomputeStateHook):
            def snapshot(self):
                calls.append(("snapshot", on_main_thread()))
                return counter[0]

            def restore(self, state):
                calls.append(("restore", on_main_thread()))
                counter[0] = state

        def fn(x):
            counter[0] += 1
            return (x * counter[0]).exp()

        x = leaf(4)
        checkpointed = wrap(fn) if wrap is plain else wrap(fn, Counter())
        y = checkpointed(x) * checkpointed(x)
        y.sum().backward()
        return x.grad, torch.tensor(counter)

    assert_same(program, lambda fn, hook: region(recompute_state_hooks=[hook])(fn))
    assert ("restore", False) in calls and ("restore", True) not in calls


@calls_again
def test_policies_that_are_functions_are_asked_in_the_replay_too(replay):
    asked = []

    def policy(context, op, *args, **kwargs):
        asked.append((on_main_thread(), context.is_recompute))
        return SAVE if op == torch.ops.aten.mm.default else remat.CheckpointPolicy.RECOMPUTE

    def program(wrap):
        x, w = leaf(4, 4), leaf(4, 4)
        wrap(lambda x: ((x @ w).sin() @ w).exp())(x).sum().backward()
        return x.grad, w.grad

    assert_same(program, region(replay, policy=policy))
    assert (True, False) in asked and (True, True) not in asked and (False, False) not in asked


@all_replays
def test_hooks_of_modules_run_as_without_a_region(replay):
    def program(wrap):
        layer, x, calls = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4)).cuda(), leaf(3, 4), []
        layer[0].register_forward_hook(lambda module, args, output: output * 2)
        layer[2].register_forward_pre_hook(lambda module, args: (args[0].sin(),))
        outer = nn.Sequential(nn.Identity())
        outer.register_full_backward_hook(lambda module, ins, outs: calls.append(ins[0].sum()))
        outer.register_full_backward_pre_hook(lambda module, outs: (outs[0] * 3,))
        fn = wrap(layer)
        outer[0].forward = lambda x: fn(x)
        repeated(lambda: outer(x.cos()).sum().backward())
        assert len(calls) == 3
        return [x.grad, *calls, *(p.grad for p in layer.parameters())]

    assert_same(program, region(replay))


@calls_again
def test_backward_hooks_of_modules_in_the_function_run_as_without_a_region(replay):
    def program(wrap):
        layer, x, calls = nn.Linear(4, 4).cuda(), leaf(3, 4), []
        layer.register_full_backward_hook(lambda module, ins, outs: calls.append(outs[0].sum()) or (ins[0] * 2,))
        for _ in range(2):
            wrap(lambda x: layer(x.sin()).exp())(x).sum().backward()
        return [x.grad, *calls, *(p.grad for p in layer.parameters())]

    assert_same(program, region(replay))


# Exceptions
class Refused(Exception):
    pass


@pytest.mark.parametrize("depth", [1, 3])
@pytest.mark.parametrize("error", [Refused, KeyboardInterrupt, torch.cuda.OutOfMemoryError])
def test_an_exception_in_a_replay_reaches_the_caller_and_leaves_nothing(error, depth):
    before = live_region_count()
    threads = []

    def fn(x):
        h = x.sin().exp()
        if remat.is_recomputing():
            threads.append(on_main_thread())
            raise error("in the replay")
        return h.cos()

    for _ in range(depth):
        fn = region()(fn)
    y = fn(leaf(4))
    with pytest.raises(error, match="in the replay"):
        y.sum().backward()
    del y
    assert threads == [False]
    torch.ones(1, device="cuda", requires_grad=True).sum().backward()  # makes the thread release the exception
    assert live_region_count() == before
    for replay in REPLAYS:
        assert_same(step_after, region(replay))


@pytest.mark.parametrize("where", ["hook", "unpack", "function"])
def test_an_exception_beside_a_replay_leaves_nothing(where):
    class Fails(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            raise Refused(where)

    def refuse(*_):
        raise Refused(where)

    def fn(x):
        h = x.sin()
        h = Fails.apply(h) if where == "function" else h * 2
        if where == "hook":
            h.register_hook(refuse)
        return (h.exp() * h).cos()

    hooks = torch.autograd.graph.saved_tensors_hooks(lambda t: t, refuse) if where == "unpack" else contextlib.nullcontext()
    with hooks:
        y = region()(fn)(leaf(4).sin())
    with pytest.raises(Refused, match=where):
        y.sum().backward()
    seen = []
    x = leaf(4)
    y = x * 2
    y.register_hook(lambda grad: seen.append((remat.is_recomputing(), torch.is_grad_enabled())))
    y.sum().backward()
    assert seen == [(False, False)]
    assert_same(step_after, region())


def test_a_mismatch_names_the_region_and_the_op():
    calls = []

    def fn(x):
        calls.append(0)
        return (x.sin() if len(calls) == 1 else x.cos()).exp()

    y = region()(fn)(leaf(4))
    message = r"region 'block', slot 0, op 0: expected aten::sin\(float32 \[4\] on cuda:0.*got aten::cos"
    with pytest.raises(remat.ReplayMismatch, match=message):
        y.sum().backward()
    assert_same(step_after, region())
