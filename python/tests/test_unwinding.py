# SPDX-License-Identifier: BSD-3-Clause

"""A function that throws leaves no state: its caller may catch the exception and go on, and the next step is right."""

import concurrent.futures
import contextlib
import copy
import functools
import gc

import pytest
import torch
from mixture import Calls, Mixture
from programs import Refused, all_options, grads_of, leaf
from same import assert_equal, assert_same
from test_exceptions import Bomb, assert_unwound, hooks_of
from torch.nn import functional as F

import remat_meta as remat

SAVE, RECOMPUTE, OFFLOAD = remat.CheckpointPolicy


class Power(torch.autograd.Function):
    """Would be x -> power * x, but throws. With `call`, a named call of that name. Saves `power` as "mine"."""

    @staticmethod
    def forward(ctx, x, power, call=None):
        if call:
            remat.get_handle(ctx, call, SAVE).save_for_backward({"mine": power})
        else:
            remat.save_for_backward(ctx, {"mine": power})
        raise Refused


def throw(*_):
    raise Refused


IN_CALLS = {
    "at once": throw,
    "after ops": lambda x: throw((x * x).exp().sin()),
    "in an op": lambda x: x.exp() @ torch.ones(7, 7),
    "in a call": lambda x: remat.native_op(throw, "inside", SAVE)(x.exp()),
    "with a name": lambda x: Power.apply(x, x.exp()),
}


@all_options
@pytest.mark.parametrize("throws", IN_CALLS)
@pytest.mark.parametrize("kind", [SAVE, RECOMPUTE, OFFLOAD], ids=str)
def test_a_call_that_throws_and_is_caught_is_over(kind, throws, options):
    if (kind, throws, options["policy"]) == (RECOMPUTE, "in an op", None):
        options = options | {"replay": "function"}  # a tape refuses bare ops that throw

    def program(wrap):
        x = leaf(3)

        def fn(x):
            y = x.sin()
            with contextlib.suppress(Refused, RuntimeError):
                remat.native_op(IN_CALLS[throws], "first", kind)(y)
            for name, kind_of_next in {"second": SAVE, "third": RECOMPUTE, "fourth": OFFLOAD}.items():
                y = remat.native_op(lambda y: (y * y).exp(), name, kind_of_next)(y).tanh() * y
            return y

        wrap(fn)(x).sum().backward()
        return x.grad

    assert_same(program, remat.checkpoint(**options))


THROWS_WITH_NAMES = {
    "call": remat.native_op(lambda power: Power.apply(power, power), "inside", SAVE),
    "handle": lambda power: Power.apply(power, power, "inside"),
    "call in a call": remat.native_op(lambda power: Power.apply(power, power, "innermost"), "inside", SAVE),
}


@all_options
@pytest.mark.parametrize("call", THROWS_WITH_NAMES)
def test_names_that_a_throwing_call_gave_are_not_those_of_the_next(call, options):
    def names(call):
        def outer(x):
            power = x.exp()
            with contextlib.suppress(Refused):
                call(power)
            return power * power  # saves the very tensor that may have been named

        y = remat.checkpoint(**options)(lambda x: remat.native_op(outer, "outer", SAVE)(x.cos()).sin())(leaf(3))
        y.sum().backward(retain_graph=True)
        return sorted(row.name for held in remat.memory_report() for row in held)

    expected = names(lambda power: None)
    assert "outer: saved.1" in expected
    assert names(THROWS_WITH_NAMES[call]) == expected


THROWS = {
    "shapes": lambda x: x @ torch.ones(7, 7),
    "list": lambda x: torch.cat([x, x.exp(), torch.ones(1, 7)]),
    "index": lambda x: x[torch.tensor([0, 77])],
    "lapack": lambda x: torch.linalg.cholesky(-torch.eye(4) * x),
    "draws": lambda x: torch.bernoulli(x.detach() * 0 + torch.tensor([0.5, 0.5, 0.5, 2.0])),
    "out": lambda x: torch.mul(x.detach(), 2, out=torch.empty(4, 4, dtype=torch.int)),
    "composite": lambda x: F.scaled_dot_product_attention(x, x, torch.ones(7, 7)),
    "custom": torch.library.custom_op("remat_unwinding::throw", throw, mutates_args=(), schema="(Tensor x) -> Tensor"),
    "function": lambda x: Power.apply(x, x.exp()),
}


@all_options
@pytest.mark.parametrize("where", [None, SAVE, RECOMPUTE], ids=str)
@pytest.mark.parametrize("op", THROWS)
def test_an_op_that_throws_when_it_has_begun_is_over(op, where, options):
    if op in ("index", "draws") and torch.get_default_device().type != "cpu":
        pytest.skip("a GPU throws later, at a wait, and for good")

    def attempt(x):
        with contextlib.suppress(RuntimeError, IndexError, Refused):
            THROWS[op](x)
            raise AssertionError("expected the op to throw")
        return x.exp() * x

    def program(wrap):
        x = leaf(4, 4)
        call = remat.native_op(attempt, "attempt", where) if where else attempt
        y = wrap(lambda x: call(x.sin()).cos() + torch.rand(4))(x)
        y.sum().backward()
        return y, x.grad

    if where is not SAVE and options["policy"] and op == "out":
        pytest.skip("a SAVE call that writes and throws is refused")
    if where is not SAVE and not options["policy"] and op != "function" and options["replay"] == "tape":
        with pytest.raises(NotImplementedError, match="got an op that threw, after which the function went on"):
            program(remat.checkpoint(**options))
    else:
        assert_same(program, remat.checkpoint(**options))


class Touchy(torch.Tensor):
    """Once armed, throws when asked for its device or its strides, or when given to an op."""

    armed = False

    @staticmethod
    def __new__(cls, inner):
        touchy = torch.Tensor._make_subclass(cls, inner, dispatch_sizes_strides_policy="strides", dispatch_device=True)
        touchy.inner = inner
        return touchy

    @classmethod
    def __torch_dispatch__(cls, op, types, args=(), kwargs=None):
        if cls.armed:
            raise Refused
        args, kwargs = torch.utils._pytree.tree_map_only(cls, lambda touchy: touchy.inner, (args, kwargs or {}))
        return op(*args, **kwargs)


TOUCHES = {
    "add": lambda y, touchy: y.detach() + touchy,
    "mul": lambda y, touchy: touchy * y,
    "cat": lambda y, touchy: torch.cat([y, touchy, y]),
    "call": lambda y, touchy: remat.native_op(torch.add, "touches", SAVE)(touchy, y),
}


@all_options
@pytest.mark.parametrize("touch", TOUCHES)
def test_an_op_whose_argument_throws_while_it_is_written_down_is_taken_back(touch, options, monkeypatch):
    def program(wrap):
        x = leaf(3)

        def fn(x):
            y = x.sin()
            touchy = Touchy(y.detach())
            with monkeypatch.context() as patch, contextlib.suppress(Refused):
                patch.setattr(Touchy, "armed", True)
                TOUCHES[touch](y, touchy)
                raise AssertionError("expected the argument to throw")
            return (y.exp() * y).cos()

        wrap(fn)(x).sum().backward()
        return x.grad

    # mul saves the argument; where a rule keeps mul's result, the call is undone before mul saves.
    if options["replay"] == "tape" and touch == "mul" and not options.get("policy"):
        with pytest.raises(NotImplementedError, match="a tensor of a Python class of its own without __tensor_flatten__"):
            program(remat.checkpoint(**options))
    else:
        assert_same(program, remat.checkpoint(**options))


@all_options
@pytest.mark.parametrize("hooks", [False, True])
def test_the_step_after_one_that_threw_is_right(hooks, options):
    """One model throws at each of its ops in turn."""
    model, x = Mixture(), leaf(3, 6)
    state, calls = copy.deepcopy(model.state_dict()), Calls(on=True)
    calls.checkpoint = functools.partial(remat.checkpoint, **options)

    def step(call, tick):
        torch.manual_seed(7)
        model.load_state_dict(state)
        model.zero_grad()
        x.grad = None
        with hooks_of(tick) if hooks else contextlib.nullcontext():
            model(x, call, tick).backward()
        return [t.clone() for t in grads_of(model, x)]

    expected, counting = step(Calls(on=False), lambda: None), Bomb(0, Refused)
    assert_equal(expected, step(calls, counting))
    gc.collect()
    for n in range(1, counting.calls + 1):
        with contextlib.suppress(Refused):
            step(calls, Bomb(n, Refused))
            raise AssertionError(f"{n} of {counting.calls} did not throw")
        assert_unwound()
        assert_equal(expected, step(calls, lambda: None))


@all_options
@pytest.mark.parametrize("in_thread", [False, True], ids=["here", "in a thread"])
def test_reports_right_after_a_backward_that_throws_or_returns(in_thread, options):
    def run(backward):
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            pool.submit(backward).result() if in_thread else backward()

    def reports():
        held = [(row.name, row.tensor, row.why, row.bytes) for region in remat.memory_report() for row in region]
        return held, remat.memory_report().bytes, remat.format_saved_tensors_report(loss)

    def fn(x):
        y = remat.native_op(lambda x: (x.sin() * x).exp(), "call", SAVE)(x)
        return remat.checkpoint(region_name="inner")(torch.exp)(y).sigmoid()

    x, armed = leaf(3, 4), [True]
    h = x.cos()
    h.register_hook(lambda grad: throw() if armed else None)
    loss = remat.checkpoint(region_name="outer", **options)(fn)(h).sum()
    before = reports()
    assert before[0] and before[1] > 0 and "outer" in before[2]
    with pytest.raises(Refused):
        run(lambda: loss.backward(retain_graph=True))
    assert reports() == before
    armed.clear()
    run(lambda: loss.backward(retain_graph=True))
    assert reports() == before
    assert_equal(torch.autograd.grad(loss, x, retain_graph=True), x.grad)
    x.grad = None
    run(loss.backward)
    assert not reports()[0] and remat.memory_report().bytes == 0
    assert_unwound()
