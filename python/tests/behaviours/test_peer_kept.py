# SPDX-License-Identifier: BSD-3-Clause

"""Behaviours 53 to 68 of torch_remat 0.2.2: values that are kept, and values that are recomputed."""

import pytest
import torch
from kept import POLICIES, Runs, Saving, Watched, recompute, save
from programs import checkpointed, leaf
from same import assert_equal, assert_same

import remat_meta as remat


def test_053_what_a_save_call_saves_inside_stays_with_its_node():
    watched, log = Watched(), Runs()
    call = save(lambda x: Saving.apply(x, "internal", watched), "a")
    x = leaf(3)
    y = checkpointed(log("body", lambda x: call(x)))(x)
    assert watched.lives("internal")
    y.sum().backward()
    assert log == ["body"] and not watched.lives("internal")
    y = checkpointed(lambda x: call(x))(x)
    assert watched.lives("internal")
    del y
    assert not watched.lives("internal")


@pytest.mark.parametrize("view", [lambda x: x, lambda x: x.view_as(x), lambda x: x[1:]])
def test_054_what_is_rebuilt_from_an_argument_is_not_kept(view):
    watched = Watched()

    def fn(x):
        y = watched("argument", recompute(torch.sin, "producer")(x))
        return save(lambda y: Saving.apply(view(y), "input"), "a")(y)

    def program(wrap):
        x = leaf(3)
        y = wrap(fn)(x)
        if wrap is checkpointed:
            assert not watched.lives("argument")
        y.sum().backward()
        return x.grad

    assert_same(program, checkpointed)


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x.view_as(x),
        lambda x: x[1:, 2:],
        lambda x: (x[:2], x[2:]),
        lambda x: x.t()[::2],
        lambda x: x.unfold(0, 2, 1),
    ],
)
@pytest.mark.parametrize("base", [lambda x: x, lambda x: x.t(), lambda x: x[:, 1:]])
def test_055_an_argument_is_recognised_by_its_memory(view, base):
    watched = Watched()

    def call(y):
        views = view(y)
        return sum(Saving.apply(v, "input").sum() for v in (views if isinstance(views, tuple) else (views,)))

    def fn(x):
        y = base(watched("memory", recompute(torch.sin, "producer")(x)))
        return save(call, "a")(y)

    def program(wrap):
        x = leaf(4, 4)
        y = wrap(fn)(x)
        if wrap is checkpointed:
            assert not watched.lives("memory")
        y.backward()
        return x.grad

    assert_same(program, checkpointed)


def test_056_other_views_are_kept():
    watched = Watched()

    class SaveBits(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x.view(torch.int32))
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            (bits,) = ctx.saved_tensors
            return grad * bits.view(torch.float32)

    def fn(x):
        y = watched("argument", recompute(torch.sin, "producer")(x))
        return save(SaveBits.apply, "a")(y)

    def program(wrap):
        x = leaf(3)
        y = wrap(fn)(x)
        if wrap is checkpointed:
            assert watched.lives("argument")
        y.sum().backward()
        return x.grad

    assert_same(program, checkpointed)


@pytest.mark.parametrize("between", [lambda y: y, lambda y: y.view(-1)])
def test_057_a_chain_of_save_calls(between):
    log, watched = Runs(), Watched()

    def fn(x):
        y = watched("middle", save(log("first", lambda x: x * 3), "first")(x.sin()))
        return save(log("second", torch.exp), "second")(between(y))

    def program(wrap):
        x = leaf(3)
        y = wrap(fn)(x)
        if wrap is checkpointed:  # exp saves its own result; nothing saves the middle
            assert not watched.lives("middle")
        y.sum().backward()
        return x.grad

    assert_same(program, checkpointed)
    assert log == ["first", "second"] * 2  # once in the plain run and once with remat
    x = leaf(3)
    y = checkpointed(lambda x: save(lambda y: Saving.apply(y, "input"), "b")(save(torch.exp, "a")(x.sin())))(x)
    y.sum().backward()
    assert_equal(x.sin().exp().exp() * 2 * x.sin().exp() * x.cos(), x.grad)


def test_058_calls_in_calls():
    log = Runs()

    def inner(x):
        return save(log("inner", torch.sin), "inner")(x)

    x = leaf(2)
    checkpointed(lambda x: save(inner, "outer")(x.exp()).exp())(x).sum().backward()
    assert log == ["inner"]
    log.clear()
    checkpointed(lambda x: recompute(lambda x: inner(x).exp(), "outer")(x.exp()).sin())(x).sum().backward()
    assert log == ["inner"]
    with pytest.raises(RuntimeError, match=r"recompute=True.* nested inside a recompute=False"):
        checkpointed(save(lambda x: recompute(torch.sin, "inner")(x), "outer"))(x)


@pytest.mark.parametrize("what", ["internal", "output", "input"])
def test_059_recompute_keeps_nothing(what):
    watched = Watched()
    x = leaf(3)
    y = checkpointed(lambda x: recompute(lambda x: Saving.apply(x, what, watched), "a")(x.sin()) + 1)(x)
    assert not watched.lives("internal") and not watched.lives("output")
    y.sum().backward()
    assert_equal(x.sin().exp() * 2 * x.cos(), x.grad)


def test_060_a_result_that_recompute_reads_is_kept_once():
    watched, packed = Watched(), []

    def fn(x):
        y = watched("result", save(lambda x: x * 3, "producer")(x.sin()))
        return sum(recompute(torch.exp, f"reader{i}")(y) for i in range(3))

    hooks = (lambda t: packed.append(remat.current_saved_tensor_info().kind.name) or t, lambda t: t)
    x = leaf(3)
    y = remat.checkpoint(saved_tensors_hooks=hooks)(fn)(x)
    assert watched.lives("result") and packed.count("SAVE_OUTPUT") == 1
    y.sum().backward()


def test_061_a_result_that_nobody_or_only_save_reads_is_not_kept():
    watched = Watched()

    def call(x):
        return watched("used", x * 3), watched("dead", x * 5)

    def fn(x):
        used, _ = save(call, "producer")(x.sin())
        return save(lambda y: y * 2, "consumer")(used).exp()

    y = checkpointed(fn)(leaf(3))
    assert not watched.lives("dead") and not watched.lives("used")
    y.sum().backward()


def test_062_a_result_that_is_saved_for_backward_costs_nothing_and_is_real():
    seen = []

    def fn(x):
        y = save(lambda x: Saving.apply(x, "output"), "a")(x.sin())
        z = y.sin()  # a bare reader
        seen.append(remat.is_placeholder(y))
        return z.exp()

    def program(wrap):
        x = leaf(3)
        wrap(fn)(x).sum().backward()
        return x.grad

    assert_same(program, checkpointed)
    assert seen == [False] * 3


def test_063_each_tensor_of_a_call_has_its_own_fate():
    watched = Watched()

    def call(x):
        y = Saving.apply(x, "input")  # recomputed from the argument
        return watched("result", Saving.apply(y, "internal", watched)), watched("dropped", y * 2)

    def fn(x):
        out, _ = save(call, "a")(watched("argument", x.sin()))
        return (out + 1).sin()

    def program(wrap):
        x = leaf(3)
        y = wrap(fn)(x)
        if wrap is checkpointed:
            lives = {name: watched.lives(name) for name in ("argument", "internal", "result", "dropped")}
            assert lives == {"argument": False, "internal": True, "result": True, "dropped": False}
        y.sum().backward()
        return x.grad

    assert_same(program, checkpointed)


def test_064_a_recompute_result_read_by_both_kinds_runs_again():
    watched, log = Watched(), Runs()

    def fn(x):
        y = watched("result", recompute(log("producer", torch.sin), "producer")(x))
        a = save(lambda y: Saving.apply(y, "input"), "saved")(y)
        return a + recompute(torch.exp, "again")(y)

    def program(wrap):
        x = leaf(3)
        y = wrap(fn)(x)
        if wrap is checkpointed:
            assert not watched.lives("result")
        y.sum().backward()
        return x.grad

    assert_same(program, checkpointed)
    assert len(log) == 3


@pytest.mark.parametrize("again", POLICIES)
def test_065_reading_a_result_outside_replays_nothing(again):
    log, watched = Runs(), Watched()
    call = remat.region(lambda x: watched("result", x.exp()), "a", recompute=again)
    y = checkpointed(log("body", lambda x: call(x.sin())))(leaf(3))
    assert watched.lives("result")
    y.detach().numpy().sum()
    assert log == ["body"]


def test_066_results_of_bare_ops_run_again():
    watched, log = Watched(), Runs()
    y = checkpointed(lambda x: watched("bare", log("bare", torch.sin)(x)).exp())(leaf(3))
    assert not watched.lives("bare")
    y.sum().backward()
    assert log == ["bare", "bare"]


@pytest.mark.parametrize("what", ["internal", "output", "input"])
@pytest.mark.parametrize("first", POLICIES)
@pytest.mark.parametrize("second", POLICIES)
def test_067_gradients_do_not_depend_on_what_is_saved(what, first, second):
    def fn(x):
        y = remat.region(lambda x: Saving.apply(x.sin(), what), "first", recompute=first)(x.tan())
        return remat.region(lambda y: Saving.apply(y.cos(), what), "second", recompute=second)(y).sin()

    def program(wrap):
        x = leaf(3)
        wrap(fn)(x).sum().backward()
        return x.grad

    assert_same(program, checkpointed)


@pytest.mark.parametrize("again", POLICIES)
def test_068_none_keeps_its_place_among_the_saved(again):
    seen = []

    class SavesNone(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            remat.save_for_backward(ctx, {"a": None, "x": x, "b": None})
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            seen.append([t is None for t in ctx.saved_tensors])
            return grad * ctx.saved_tensors[1]

    checkpointed(lambda x: remat.region(SavesNone.apply, "a", recompute=again)(x.sin()))(leaf(2)).sum().backward()
    assert seen == [[True, False, True]]
