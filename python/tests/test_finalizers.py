# SPDX-License-Identifier: BSD-3-Clause

"""Objects that die in the middle of a region may run user code: ops, named calls, regions."""

import contextlib
import functools

import pytest
import torch
from programs import Mourner, Refused, Square, all_options, leaf, mortal
from same import assert_same

import remat_meta as remat

SAVE, RECOMPUTE, OFFLOAD = remat.CheckpointPolicy
pytestmark = pytest.mark.torch_warns  # warns of sparse tensors


def sparse():
    return torch.sparse_coo_tensor([[0, 2]], torch.ones(2), (3,), check_invariants=True)


def region_of(name):
    x = torch.ones(3, requires_grad=True)
    return remat.checkpoint(region_name=name)(lambda x: remat.native_op(torch.exp, name, SAVE)(x.sin()))(x)


def step(name):
    with torch.enable_grad():
        region_of(name).sum().backward()


WORDS = {
    "ops": lambda name: torch.ones(3).sin().mul_(2),
    "graph": lambda name: torch.ones(3, requires_grad=True).exp().cos(),
    "call": lambda name: remat.native_op(torch.sin, name, SAVE)(torch.ones(3)),
    "region": region_of,
    # Regions refuse this at some places where the function itself drops the tensor, but nowhere where remat drops it.
    "sparse": lambda name: [sparse() for _ in range(9)],
    "step": step,
}


class LastWords:
    """Runs an entry of WORDS when called, and counts the calls. Names of calls are unique in a region."""

    def __init__(self, words):
        self.words, self.spoken = WORDS[words], 0

    def __call__(self, name="last words"):
        self.spoken += 1
        self.words(name)


@pytest.fixture(autouse=True)
def unraised(monkeypatch):
    """Collects errors of finalizers; the test fails unless the list is empty at the end. Keeps texts, because exceptions
    hold frames, which hold the objects that are to die."""
    raised = []
    monkeypatch.setattr("sys.unraisablehook", lambda unraisable: raised.append(repr(unraisable.exc_value)))
    yield raised
    assert not raised


class Power(torch.autograd.Function):
    """x -> x^3; its square is alive until remat knows that autograd will not save it."""

    @staticmethod
    @remat.auto_forward("power")
    def forward(ctx, x, last_words, by_del=False):
        power = mortal(x * x, last_words, by_del)
        ctx.save_for_backward(power)
        return power * x


def power(x, *last_words):
    return remat.op(Power.apply, "power", SAVE)(x.detach(), *last_words)


def mask(x, last_words, throws=False):
    kept = mortal(sparse(), last_words)
    x = x * kept.to_dense() + x * (kept * 2).to_dense()
    del kept
    if throws:
        raise Refused
    return x


def saved(fn):
    return remat.native_op(fn, fn.__name__, SAVE)


def throw(x):
    raise Refused


def caught(x, attempt):
    with contextlib.suppress(Refused):
        attempt()
    return x.exp() * x


# The events until which remat may hold the square: the next call, op or region, the end of the function, the end of a SAVE call.
BODIES = {
    "then a call": lambda y, last: power(y, last) * saved(torch.cos)(y),
    "then an op": lambda y, last: power(y, last) * y.cos(),
    "then a region": lambda y, last: power(y, last) * remat.checkpoint()(lambda y: (y * y).cos())(y),
    "then the end": lambda y, last: (y.exp() * y, power(y, last))[0],
    "by __del__": lambda y, last: power(y, last, True) * saved(torch.cos)(y),
    "sparse": lambda y, last: saved(mask)(y, last) * y,
    "sparse, offloaded": lambda y, last: remat.native_op(mask, "mask", OFFLOAD)(y, last) * y,
    "sparse, thrown": lambda y, last: caught(y, lambda: saved(mask)(y, last, True)),
    "then a throw": lambda y, last: caught(y, lambda: (power(y, last), saved(throw)(y))),
}


def skip_refused(what, depth, options, early_stop=True):
    if what == "node" and early_stop is False and options["policy"] and options["replay"] == "function":
        pytest.skip("P9 of docs/reference/limits.md")
    if "sparse" in what and (depth, options["replay"]) == (2, "tape"):
        pytest.skip("a tape has strided tensors only, and the outer one has those of the inner region's calls")


@all_options
@pytest.mark.parametrize("words", WORDS)
@pytest.mark.parametrize("depth", [1, 2], ids=["alone", "nested"])
@pytest.mark.parametrize("body", BODIES)
def test_what_remat_holds_last_dies_unseen(body, depth, words, options):
    skip_refused(body, depth, options)
    spoken = []

    def program(wrap):
        x, last_words = leaf(3), LastWords(words)
        fn = wrap(lambda x: BODIES[body](x.sin(), last_words))
        y = fn(x) if depth == 1 else wrap(lambda x: fn(x.tanh()).exp())(x)
        y.sum().backward()
        spoken.append(last_words.spoken)
        return y, x.grad

    assert_same(program, remat.checkpoint(**options))
    assert spoken[0] == 1 <= spoken[1]


@all_options
@pytest.mark.parametrize("by_del", [False, True], ids=["by finalize", "by __del__"])
def test_what_was_expected_to_be_saved_dies_before_the_next_call_begins(by_del, options):
    """Plain code would hold it no longer, and a call may need the memory."""
    seen = []

    def fn(x):
        cube = power(x, lambda: seen.append("finalizer"), by_del)
        return remat.native_op(lambda x: seen.append("call") or x.cos(), "call", SAVE)(x) * cube

    remat.checkpoint(**options)(fn)(leaf(3))
    assert seen == ["finalizer", "call"]


IN_CALLS = {
    "views": lambda y, last: mortal(y.exp(), last)[:2].sum() * y,
    "saved": lambda y, last: mortal(y.exp(), last) * y.detach(),
    "many": lambda y, last: y * sum(mortal(y.detach() * i, functools.partial(last, str(i))) for i in range(5)),
    "argument": lambda y, last: y.cos(),
}


@all_options
@pytest.mark.parametrize("words", ["call", "region"])
@pytest.mark.parametrize("kind", [SAVE, RECOMPUTE, OFFLOAD], ids=str)
@pytest.mark.parametrize("body", IN_CALLS)
def test_what_a_named_call_has_made_dies(body, kind, words, options):
    spoken = []

    def program(wrap):
        x = leaf(3)

        def fn(x):
            spoken.append(LastWords(words))
            y = x.sin()
            call = remat.native_op(lambda y: IN_CALLS[body](y, spoken[-1]), "call", kind)
            y = call(mortal(y * 2, spoken[-1]) if body == "argument" else y) * y
            return saved(torch.cos)(y).exp()

        y = wrap(fn)(x)
        y.sum().backward()
        return y, x.grad

    assert_same(program, remat.checkpoint(**options))
    assert spoken[0].spoken and spoken[1].spoken


def local(x, last_words):
    kept = mortal(x.detach() * 2, last_words)
    return ((x.sin() * kept).exp() * kept).cos()


def node(x, last_words):
    y = Square.apply(x.sin())
    y.grad_fn.extra = mortal(x.detach() * 2, last_words)
    return y.exp()


def left_by_an_exception(wrap, x, last_words, attempt):
    with contextlib.suppress(Refused):
        wrap(lambda x: (attempt(x.sin(), last_words), throw(x)))(x)
    return wrap(lambda x: (x.sin() * x).exp())(x)


# Objects that live until the function has returned or its region dies, in the forward, in backward or in a replay.
HOLDERS = {
    "function": lambda wrap, x, last: wrap(lambda x, mourner=Mourner(last): (x.sin() * x).exp())(x),
    "argument": lambda wrap, x, last: wrap(lambda x: (x.sin() * x).exp())(mortal(x * 2, last)),
    "local": lambda wrap, x, last: wrap(lambda x: local(x, last))(x),
    "saved": lambda wrap, x, last: wrap(lambda x: (mortal(x.sin(), last) * x).exp())(x),
    "node": lambda wrap, x, last: wrap(lambda x: node(x, last))(x),
    "result": lambda wrap, x, last: wrap(lambda x: mortal((x.sin() * x).exp(), last))(x),
    "result of a call": lambda wrap, x, last: wrap(lambda x: mortal(saved(torch.exp)(x.sin()), last).cos())(x),
    "throw": lambda wrap, x, last: left_by_an_exception(wrap, x, last, power),
    "sparse, thrown on": lambda wrap, x, last: left_by_an_exception(wrap, x, last, lambda x, last: saved(mask)(x, last, True)),
}


@all_options
@pytest.mark.parametrize("words", ["call", "region"])
@pytest.mark.parametrize("early_stop", [True, False, None], ids=["early stop", "to its end", "no backward"])
@pytest.mark.parametrize("depth", [1, 2], ids=["alone", "nested"])
@pytest.mark.parametrize("holder", HOLDERS)
def test_what_lives_on_dies(holder, depth, early_stop, words, options, unraised):
    skip_refused(holder, depth, options, early_stop)
    spoken, hold = [], HOLDERS[holder]

    def program(wrap):
        x, last = leaf(3), LastWords(words)
        y = hold(wrap, x, last) if depth == 1 else wrap(lambda x: hold(wrap, x.tanh(), last).cos())(x)
        if early_stop is not None:
            y.sum().backward()
        value = y.detach().clone()
        del y
        spoken.append(last.spoken)
        return value, x.grad

    regions = remat._C.live_region_count()
    assert_same(program, remat.checkpoint(early_stop=bool(early_stop), **options))
    assert all(spoken)
    assert remat._C.live_region_count() == regions
    if early_stop:  # ops of a finalizer may meet the stop: P5 of docs/reference/limits.md
        unraised[:] = [error for error in unraised if error != "StopReplay()"]


@all_options
@pytest.mark.parametrize("holder", [*HOLDERS, *BODIES])
def test_a_finalizer_that_raises_disturbs_nothing(holder, options, unraised):
    def last_words():
        torch.ones(3).sin()
        raise Refused

    def program(wrap):
        x = leaf(3)
        in_body = wrap(lambda x: BODIES[holder](x.sin(), last_words))
        y = HOLDERS[holder](wrap, x, last_words) if holder in HOLDERS else in_body(x)
        y.sum().backward()
        return y, x.grad

    assert_same(program, remat.checkpoint(**options))
    assert unraised.count("Refused()") > 1 and {*unraised} <= {"Refused()", "StopReplay()"}
    unraised.clear()


def test_what_a_node_has_dies_in_a_replay_of_the_whole_function(unraised):
    wrap = remat.checkpoint(early_stop=False, policy=["*"])
    y = HOLDERS["node"](wrap, leaf(3), LastWords("call"))
    with pytest.raises(remat.ReplayMismatch, match="expected the end of the function as in the forward, got"):
        y.sum().backward()
    assert unraised and "expected the end of the function" in unraised[0]
    unraised.clear()
