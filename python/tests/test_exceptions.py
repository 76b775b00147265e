# SPDX-License-Identifier: BSD-3-Clause

"""An exception at any op of user code, in the forward, the replay or a backward, leaves no state."""

import contextlib
import gc
import weakref

import pytest
import torch
from mixture import Calls, Mixture
from programs import comes_true
from same import assert_equal, assert_same, default_generator

import remat_meta as remat
from remat_meta import _C


class Bomb:
    """Raises at the n-th call; never for 0."""

    def __init__(self, n, error):
        self.n, self.error, self.calls = n, error, 0

    def __call__(self):
        self.calls += 1
        if self.calls == self.n:
            raise self.error("bomb")


class Counter:
    """A state hook that may raise, and its state."""

    def __init__(self, tick):
        self.tick, self.value = tick, 0

    def snapshot(self):
        self.tick()
        return self.value

    def restore(self, state):
        self.value = state
        self.tick()


def hooks_of(tick):
    def pack(tensor):
        tick()
        return tensor.clone()

    def unpack(tensor):
        tick()
        return tensor

    return remat.saved_tensors_hooks(pack, unpack)


def run(call, tick, hooks, error=None):
    """Returns gradients and buffers of a step; if it raises `error`, checks the state after the error."""
    torch.manual_seed(5)
    model, x = Mixture(), torch.randn(3, 6, requires_grad=True)
    options = {"recompute_state_hooks": [Counter(tick)]} if hooks else {}
    with hooks_of(tick) if hooks else contextlib.nullcontext():
        loss = model(x, call, tick, **options)
    stream = default_generator().get_state()
    try:
        loss.backward()
    finally:  # the replay has restored the generator
        assert torch.equal(default_generator().get_state(), stream)
    return [p.grad for p in model.parameters()] + list(model.buffers()) + [x.grad, loss]


def assert_unwound():
    assert not remat.is_recomputing()
    with pytest.raises(RuntimeError, match="No active remat checkpoint region"):
        remat.format_current_memory_report()
    assert comes_true(lambda: _C.live_region_count() == 0)
    assert torch.is_grad_enabled() and torch.get_default_dtype() is torch.float32
    assert torch._C._autograd._top_saved_tensors_default_hooks(True) is None
    packed = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: packed.append(1) or t, lambda t: t):
        torch.ones(2, requires_grad=True).exp()
    assert packed == [1]  # no scope of remat is left that would get the tensor first


@pytest.mark.parametrize("hooks", [False, True])
@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_exception_at_every_op_leaves_no_state(error, hooks):
    expected = run(Calls(on=False), lambda: None, hooks=False)
    counting = Bomb(0, error)
    assert_equal(expected, run(Calls(on=True), counting, hooks))
    assert counting.calls >= (50 if hooks else 30)
    gc.collect()
    gc.disable()
    try:
        for n in range(1, counting.calls + 1):
            bomb = Bomb(n, error)
            watched = weakref.ref(bomb)
            try:
                run(Calls(on=True), bomb, hooks)
                pytest.fail(f"{n} of {counting.calls} did not raise")
            except error as raised:
                assert str(raised) == "bomb"
            assert bomb.calls >= n
            del bomb
            assert comes_true(lambda: watched() is None), n  # nothing holds the functions or their arguments
            assert_unwound()
            assert_equal(expected, run(Calls(on=True), lambda: None, hooks))
    finally:
        gc.enable()


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("engine", ["function", "tape", "auto"])
@pytest.mark.parametrize("throws_at", [1, 2])
def test_a_pack_hook_that_throws_in_a_save_call_may_be_caught(throws_at, engine, last):
    save = remat.PolicyTable().op("*", remat.CheckpointPolicy.SAVE)

    def program(wrap):
        x = torch.randn(3, requires_grad=True)

        def fn(x):
            packed = []

            def pack(tensor):
                packed.append(None)
                if len(packed) == throws_at:
                    raise ValueError("disk full")
                return tensor

            made = x.sin()
            result = made * 3
            try:
                with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
                    (made if throws_at == 1 else made.exp()).sin()
            except ValueError:
                if not last:
                    result = made * 5
            else:
                raise AssertionError("expected the hook to throw")
            return result

        wrap(fn)(x).sum().backward()
        return x.grad

    assert_same(program, remat.checkpoint(policy=save, replay=engine, early_stop=not last))


def test_hooks_that_have_thrown_are_not_asked_again():
    """Hooks threw while packing a result; the call in which they threw reads the result."""

    def program(wrap):
        x = torch.randn(3, requires_grad=True)

        def fn(x):
            packed = []

            def pack(tensor):
                if len(packed) == 2:
                    raise ValueError("disk full")
                packed.append(None)
                return tensor

            with contextlib.suppress(ValueError):
                with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
                    (x.sin() * x).exp().tanh()
            return x.cos()

        wrap(fn)(x).sum().backward()
        return x.grad

    save = remat.PolicyTable().op("*", remat.CheckpointPolicy.SAVE)
    assert_same(program, remat.checkpoint(policy=save))


class Unreadable(Exception):
    pass


def unreadable(packed):
    raise Unreadable


@pytest.mark.parametrize("pair", [torch.autograd.graph.saved_tensors_hooks, remat.saved_tensors_hooks], ids=["torch", "remat"])
@pytest.mark.parametrize("where", ["around", "inside"])
@pytest.mark.parametrize("replay", ["function", "tape"])
def test_the_exception_of_an_unpack_hook_is_what_backward_raises(replay, where, pair):
    linear = torch.nn.Linear(4, 4)

    def fn(x):
        return linear(x).tanh() @ linear.weight

    def hooked(fn):
        def under_hooks(x):
            with pair(lambda tensor: tensor, unreadable):
                return fn(x)

        return under_hooks

    region = remat.checkpoint(replay=replay, policy="save_matmuls")
    run = region(hooked(fn)) if where == "inside" else hooked(region(fn))
    for _ in range(2):
        with pytest.raises(Unreadable):
            run(torch.randn(2, 4, requires_grad=True)).sum().backward()


def test_an_exception_puts_the_grad_mode_back():
    """Dynamo's code for no_grad() leaves gradients off, by an op, until another op turns them on."""

    def fn(x):
        torch._C._set_grad_enabled(False)
        raise ValueError("in between")

    for replay in ("function", "tape"):
        with pytest.raises(ValueError, match="in between"):
            remat.checkpoint(replay=replay)(fn)(torch.ones(3, requires_grad=True))
        assert torch.is_grad_enabled()
