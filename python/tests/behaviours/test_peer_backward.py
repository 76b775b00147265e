# SPDX-License-Identifier: BSD-3-Clause

"""Behaviours 79 to 97 of torch_remat 0.2.2: in-place writes, backwards, lifetimes."""

import gc
import weakref

import pytest
import torch
from kept import POLICIES, Runs, Saving, Watched, recompute, save
from programs import checkpointed, leaf
from same import assert_equal, assert_same

import remat_meta as remat


class SavesResult(torch.autograd.Function):
    """x -> x * 3; saves its result, which tests write afterwards."""

    @staticmethod
    def forward(ctx, x):
        out = x * 3
        ctx.save_for_backward(out)
        return out

    @staticmethod
    def backward(ctx, grad):
        (out,) = ctx.saved_tensors
        return grad * out


def test_079_a_kept_tensor_that_was_written_raises():
    side = torch.ones(3)

    def fn(x):
        return save(lambda x, side: x * side, "a")(x.sin(), side).exp()

    y = checkpointed(fn)(leaf(3))
    side.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation.*modified in-place"):
        y.sum().backward()


def test_080_a_kept_result_that_was_written_raises():
    outside = []

    def fn(x):
        y = save(lambda x: x * 3, "a")(x.sin())
        outside.append(y.detach())
        return recompute(torch.exp, "reader")(y).cos()

    y = checkpointed(fn)(leaf(3))
    outside[0].add_(1)
    with pytest.raises(RuntimeError, match="call 'a'.*modified in-place"):
        y.sum().backward()


class AddOne(torch.autograd.Function):
    """Writes its argument in place, and saves it."""

    @staticmethod
    def forward(ctx, x):
        x.add_(1)
        ctx.mark_dirty(x)
        ctx.save_for_backward(x)
        return x

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * x


@pytest.mark.parametrize("again", POLICIES)
def test_081_a_call_that_writes_its_argument_saves_the_new_value(again):
    def program(wrap):
        x = leaf(3)

        def fn(x):
            y = x * 2
            z = remat.region(AddOne.apply, "a", recompute=again)(y)
            return z.sin()

        wrap(fn)(x).sum().backward()
        return x.grad

    assert_same(program, checkpointed)


def test_082_an_argument_with_other_strides_in_the_replay_raises():
    def fn(x):
        y = x.clone()
        if remat.is_recomputing():
            y = y.t().contiguous().t()
        return save(lambda y: Saving.apply(y[1:], "input"), "a")(y)

    y = checkpointed(fn)(leaf(3, 3))
    with pytest.raises(RuntimeError, match="different layout"):
        y.sum().backward()


@pytest.mark.parametrize("keep", [lambda t: t, lambda t: t.clone()], ids=["itself", "copy"])
def test_083_what_hooks_packed_is_checked(keep):
    a = torch.ones(3)
    hooks = (keep, lambda t: t)
    y = remat.checkpoint(saved_tensors_hooks=hooks)(lambda x, a: save(torch.mul, "a")(x.sin(), a).exp())(leaf(3), a)
    a.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()
    x, w = leaf(3), leaf(3)
    with remat.saved_tensors_hooks(*hooks):  # outside regions a copy may differ
        y = x * a
    a.add_(1)
    if keep(w) is w:
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.sum().backward()
    else:
        y.sum().backward()
        assert_equal(a - 1, x.grad)


@pytest.mark.parametrize("what", ["internal", "output", "input"])
@pytest.mark.parametrize("again", POLICIES)
def test_084_retain_graph_gives_the_same_gradients(what, again):
    log = Runs()

    def fn(x):
        return remat.region(lambda y: Saving.apply(y, what), "a", recompute=again)(log("body", torch.sin)(x))

    def program(wrap):
        x = leaf(3)
        y = wrap(fn)(x)
        return [torch.autograd.grad(y.sum(), x, retain_graph=True)[0] for _ in range(3)]

    assert_same(program, checkpointed)
    replays = 0 if not again and what != "input" else 3
    assert len(log) == 2 + (replays if replays else len(log) - 2)


def test_085_kept_results_are_released_with_the_backward_unless_it_is_kept():
    for retain in (True, False):
        watched = Watched()
        y = checkpointed(lambda x: recompute(torch.exp, "r")(watched("kept", save(lambda x: x * 3, "a")(x.sin()))) + 1)(leaf(3))
        y.sum().backward(retain_graph=retain)
        assert watched.lives("kept") == retain


def test_086_autograd_grad_twice():
    def program(wrap):
        x, w = leaf(3, 3), leaf(3, 3)
        y = wrap(lambda x: save(torch.mm, "mm")(x.sin(), w).exp())(x).sum()
        return (*torch.autograd.grad(y, (x, w), retain_graph=True), *torch.autograd.grad(y, (w, x)))

    assert_same(program, checkpointed)


@pytest.mark.parametrize("what", ["internal", "input"])
def test_087_saved_tensors_may_be_read_twice(what):
    class ReadsTwice(Saving):
        @staticmethod
        def backward(ctx, grad):
            first, second = ctx.saved_tensors[0], ctx.saved_tensors[0]
            assert_equal(first, second)
            return Saving.backward(ctx, grad)

    def program(wrap):
        x = leaf(3)
        wrap(lambda x: save(lambda y: ReadsTwice.apply(y, what), "a")(x.sin()))(x).sum().backward()
        return x.grad

    assert_same(program, checkpointed)


@pytest.mark.parametrize("again", POLICIES)
def test_088_double_backward(again):
    def program(wrap):
        x = leaf(4)
        y = wrap(lambda x: remat.region(lambda x: x.pow(3).sin(), "a", recompute=again)(x.exp()).cos())(x)
        (first,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(first.pow(2).sum(), x)
        return first, second

    assert_same(program, checkpointed)


HOOKS = {
    "none": None,
    "identity": (lambda t: t, lambda t: t),
    "offload": (lambda t: t.numpy().copy(), torch.from_numpy),
}


@pytest.mark.parametrize("hooks", HOOKS)
def test_089_a_call_that_saves_its_own_result_makes_no_cycle(hooks):
    watched = Watched()
    gc.collect()
    before = remat._C.live_region_count()
    gc.disable()
    try:
        call = save(lambda x: watched("result", SavesResult.apply(x)), "a")
        y = remat.checkpoint(saved_tensors_hooks=HOOKS[hooks])(lambda x: call(x.sin()))(leaf(3))
        assert watched.lives("result")
        del y
        assert not watched.lives("result") and remat._C.live_region_count() == before
    finally:
        gc.enable()


def test_090_records_make_no_cycle():
    class Body:
        def __call__(self, x):
            return save(torch.exp, "a")(x.sin()).cos()

    gc.collect()
    gc.disable()
    try:
        body = Body()
        y = checkpointed(body)(leaf(3))
        body = weakref.ref(body)
        assert body() is not None
        del y
        assert body() is None
    finally:
        gc.enable()


def test_091_a_region_leaves_the_list_of_live_ones_with_its_backward():
    gc.collect()
    before = remat._C.live_region_count()
    gc.disable()
    try:
        kept = checkpointed(lambda x: save(torch.exp, "a")(x.sin()).cos())(leaf(3))
        assert remat._C.live_region_count() == before + 1
        kept.sum().backward()
        assert remat._C.live_region_count() == before
        dropped = checkpointed(torch.sin)(leaf(3))
        assert remat._C.live_region_count() == before + 1
        del dropped
        assert remat._C.live_region_count() == before
    finally:
        gc.enable()


def test_092_after_one_backward_nothing_is_kept():
    watched = Watched()
    x = leaf(3)
    y = checkpointed(
        lambda x: save(lambda y: Saving.apply(y, "internal", watched), "a")(x.sin()).sum()
    )(x)
    y.backward()
    assert not watched.lives("internal")
    with pytest.raises(RuntimeError, match="backward through the graph a second time|already been freed"):
        y.backward()


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_093_without_gradients_everything_is_plain(context):
    log, packed = Runs(), []
    call = save(lambda x: {"any": x.exp(), "thing": 3}, "a")
    before = remat._C.live_region_count()
    with context(), torch.autograd.graph.saved_tensors_hooks(lambda t: packed.append(1) or t, lambda t: t):
        y = checkpointed(log("body", lambda x: call(x.sin())["any"]))(leaf(3))
        assert remat._C.live_region_count() == before
    assert not y.requires_grad and log == ["body"] and not packed


def test_094_enable_grad_in_such_a_region():
    log = Runs()

    def fn(x):
        with torch.enable_grad():
            return save(torch.exp, "a")(x.sin())

    x = leaf(3)
    with torch.no_grad():
        y = checkpointed(log("body", fn))(x)
    y.sum().backward()
    assert log == ["body"]
    assert_equal(x.sin().exp() * x.cos(), x.grad)


def test_095_nothing_requires_grad():
    log, before = Runs(), remat._C.live_region_count()
    y = checkpointed(log("body", lambda x: save(torch.exp, "a")(x.sin())))(torch.randn(3))
    assert y.grad_fn is None and log == ["body"] and remat._C.live_region_count() == before


def test_096_a_save_call_under_no_grad_does_not_run_again():
    for read in (True, False):
        log, watched = Runs(), Watched()

        def fn(x, read=read, log=log, watched=watched):
            with torch.no_grad():
                scale = save(log("save", lambda x: watched("result", x * 3)), "a")(x)
            y = x.exp()
            if read:
                y = y * recompute(lambda s: s + 1, "reader")(scale)
            return y.sin()

        y = checkpointed(fn)(leaf(3))
        assert watched.lives("result") == read
        y.sum().backward()
        assert log == ["save"]


def test_097_a_recompute_call_under_no_grad_runs_again():
    for used in (True, False):
        log = Runs()

        def fn(x, used=used, log=log):
            with torch.no_grad():
                y = recompute(log("recompute", torch.exp), "a")(x)
            z = save(lambda x, y: x * y, "b")(x.sin(), y) if used else x.sin()
            return z.sin()

        def program(wrap, fn=fn):
            x = leaf(3)
            wrap(fn)(x).sum().backward()
            return x.grad

        assert_same(program, checkpointed)
        assert log == ["recompute"] * 3
