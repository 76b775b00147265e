# SPDX-License-Identifier: BSD-3-Clause

"""Tensors that a custom function saves for its call, whatever else happens in its forward() and later."""

import contextlib
import gc
import threading
import weakref

import pytest
import torch
from programs import TORCH, all_options, leaf
from same import assert_same

import remat_meta as remat

# Since torch 2.13 a ctx keeps its node alive, and so the call of its handle, as long as the exception is held.
ENDS_WITH_EXCEPTION = TORCH >= (2, 13)
SAVE, OFFLOAD = remat.CheckpointPolicy.SAVE, remat.CheckpointPolicy.OFFLOAD


def function(forward, backward):
    """Returns a function that applies a custom function with this forward() and backward()."""
    members = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    return type("Custom", (torch.autograd.Function,), members).apply


def by_op(forward, backward, *names):
    return remat.op(function(remat.auto_forward(*names)(forward), backward), "named", SAVE)


def by_handle(body, backward):
    """Runs `body` in a call that a replay leaves out."""

    def forward(ctx, *inputs):
        handle = remat.get_handle(ctx, "named", SAVE)
        if (out := handle.maybe_load_saved()) is not None:
            return out
        return body(ctx, handle, *inputs)

    return function(forward, backward)


def grad_of_sin(x):
    with torch.enable_grad():
        z = x.detach().requires_grad_()
        return torch.autograd.grad(z.sin().sum(), z)[0]


def times_saved(ctx, grad):
    return grad * ctx.saved_tensors[0]


def fails_with_a_node(name):
    """Autograd throws when the result already has its node and ctx has the result."""

    def forward(ctx, x):
        ctx.save_for_backward(x)
        ctx.out = out = x * 2
        ctx.mark_dirty({"a clone": x.clone, "a view": lambda: x[:1]}[name]())
        return out

    call = by_op(forward, times_saved, "x")

    def fn(x):
        h = x * 2
        with contextlib.suppress(RuntimeError):
            call(h)
        h.mul_(2)
        return h.sin()

    return fn


def tells_again(x):
    """Saves by its handle, then by ctx: the last list counts."""

    def body(ctx, handle, x, w):
        handle.save_for_backward({"x": x, "w": w})
        ctx.save_for_backward(x)
        return handle.record_outputs(x * 2)

    w = x * 3
    z = by_handle(body, lambda ctx, grad: (times_saved(ctx, grad), None))(x * 2, w)
    w.mul_(2)
    return z + w.sin()


def tells_the_handle_again(x):
    def body(ctx, handle, x, w):
        handle.save_for_backward({"w": w})
        handle.save_for_backward({"x": x, "w": w})
        return handle.record_outputs(x * 2)

    return by_handle(body, lambda ctx, grad: (times_saved(ctx, grad), None))(x * 2, x * 3).cos()


def tells_ctx_alone(x):
    def body(ctx, handle, x):
        ctx.save_for_backward(x, x.cos())
        return handle.record_outputs(x * 2)

    return by_handle(body, lambda ctx, grad: times_saved(ctx, grad) + ctx.saved_tensors[1])(x * 2).cos()


def tells_ctx_and_goes_on_in_the_replay(x):
    def forward(ctx, x):
        handle = remat.get_handle(ctx, "named", SAVE)
        if (out := handle.maybe_load_saved()) is None:
            out = handle.record_outputs(x.exp())
        ctx.save_for_backward(x)
        return out * 2

    return function(forward, times_saved)(x.sin()).cos()


def writes_after_its_results(x):
    def forward(ctx, x):
        handle = remat.get_handle(ctx, "named", SAVE)
        if (out := handle.maybe_load_saved()) is None:
            handle.save_for_backward({"x": x})
            out = handle.record_outputs(x * 3)
        x.mul_(2)
        ctx.mark_dirty(x)
        return out, x

    return function(forward, lambda ctx, grad, other: times_saved(ctx, grad) + 2 * other)(x * 2)[0]


def saves_what_autograd_refuses(x):
    """When autograd raises, it has saved the first tensor, and the written tensor keeps the node alive."""
    with torch.inference_mode():
        scale = torch.ones(3)

    def forward(ctx, x, y):
        ctx.save_for_backward(y, scale)
        ctx.mark_dirty(x)
        return x.mul_(2)

    call = by_op(forward, lambda ctx, grad: (grad * 2, None), "y", "scale")
    h, y = x * 2, x * 3
    with contextlib.suppress(RuntimeError):
        call(h, y)
    y.mul_(3)
    return y.sin()


def saves_what_a_pack_hook_refuses(x):
    packed = []

    def pack(tensor):
        packed.append(tensor)
        if len(packed) == 2:
            raise ValueError
        return tensor

    def forward(ctx, x, y, z):
        ctx.save_for_backward(y, z)
        ctx.mark_dirty(x)
        return x.mul_(2)

    call = by_op(forward, lambda ctx, grad: (grad * 2, None, None), "y", "z")
    h, y, z = x * 2, x * 3, x * 4
    with contextlib.suppress(ValueError), torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        call(h, y, z)
    z.mul_(3)
    return z.sin() * y.cos()


def saves_nothing(x):
    def body(ctx, handle, x):
        return handle.record_outputs(x * 2)

    y = x * 2
    return by_handle(body, lambda ctx, grad: grad * 2)(y) * y.sin()


def differentiates(x):
    """Runs a backward in its forward(), whose ops save tensors, too."""

    def forward(ctx, x):
        ctx.kept = grad_of_sin(x)
        ctx.save_for_backward(x)
        return x.sin()

    return by_op(forward, lambda ctx, grad: times_saved(ctx, grad) * ctx.kept, "x")(x * 2).cos()


def builds_a_graph(x):
    def forward(ctx, x):
        with torch.enable_grad():
            torch.ones(3, requires_grad=True).exp()
        ctx.save_for_backward(x)
        return x.sin()

    return by_op(forward, times_saved, "x")(x * 2).cos()


def calls_another_after_its_results(x):
    def forward(ctx, x):
        handle = remat.get_handle(ctx, "named", SAVE)
        if (out := handle.maybe_load_saved()) is None:
            handle.save_for_backward({"x": x})
            out = handle.record_outputs(x**3)
        return remat.native_op(lambda t: t * 2, "twice", SAVE)(out)

    return function(forward, times_saved)(x * 2).cos()


def differentiates_after_its_results(x):
    def forward(ctx, x):
        handle = remat.get_handle(ctx, "named", SAVE)
        if (out := handle.maybe_load_saved()) is None:
            handle.save_for_backward({"x": x})
            out = handle.record_outputs(x * 3)
        ctx.kept = grad_of_sin(x)
        return out

    return function(forward, lambda ctx, grad: times_saved(ctx, grad) * ctx.kept)(x * 2).cos()


def throws(ctx, handle, x):
    x.exp()
    raise ValueError


def keeps_its_exception(x):
    """The exception holds the frame that has the handle."""
    h = x.sin()
    error = None
    try:
        by_handle(throws, times_saved)(h)
    except ValueError as caught:
        error = caught
    h = h.cos() * 2
    h.mul_(3)
    del error
    return h.tanh()


def drops_its_exception(x):
    h = x.sin()
    with contextlib.suppress(ValueError):
        by_handle(throws, times_saved)(h)
    return (h.cos() * 2).mul_(3).tanh()


def drops_its_exception_elsewhere(x):
    h, box = x.sin(), []
    try:
        by_handle(throws, times_saved)(h)
    except ValueError as error:
        box.append(error)
    thread = threading.Thread(target=box.clear)
    thread.start()
    thread.join()
    return h.exp()


PROGRAMS = {
    "fails with a node, a clone dirty": fails_with_a_node("a clone"),
    "fails with a node, a view dirty": fails_with_a_node("a view"),
    "tells again": tells_again,
    "tells the handle again": tells_the_handle_again,
    "tells ctx alone": tells_ctx_alone,
    "tells ctx and goes on in the replay": tells_ctx_and_goes_on_in_the_replay,
    "writes after its results": writes_after_its_results,
    "saves what autograd refuses": saves_what_autograd_refuses,
    "saves what a pack hook refuses": saves_what_a_pack_hook_refuses,
    "saves nothing": saves_nothing,
    "differentiates": differentiates,
    "builds a graph": builds_a_graph,
    "calls another after its results": calls_another_after_its_results,
    "differentiates after its results": differentiates_after_its_results,
    "drops its exception": drops_its_exception,
    "keeps its exception": keeps_its_exception,
    "drops its exception elsewhere": drops_its_exception_elsewhere,
}


@all_options
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_call_gets_what_its_function_saves_and_nothing_else(name, options):
    if name.startswith("differentiates") and (options["replay"] == "tape" or options["policy"]):
        pytest.skip("a tape has no backward inside, and none passes a SAVE call")
    if name == "keeps its exception" and ENDS_WITH_EXCEPTION:
        pytest.skip("see test_ops_are_refused_while_an_exception_has_a_call_open")

    def program(wrap):
        x = leaf(3)
        y = wrap(PROGRAMS[name])(x)
        y.sum().backward()
        return y, x.grad

    assert_same(program, remat.checkpoint(**options))


@pytest.mark.skipif(not ENDS_WITH_EXCEPTION, reason="the call ends with the node, before its exception")
def test_ops_are_refused_while_an_exception_has_a_call_open():
    with pytest.raises(NotImplementedError, match="expected tensors that the function makes or that SAVE calls return"):
        remat.checkpoint()(keeps_its_exception)(leaf(3))
    assert_same(lambda wrap: wrap(drops_its_exception)(leaf(3)), remat.checkpoint())


@pytest.mark.parametrize("way", ["inside another call", "inside a region", "on another thread"])
def test_results_are_recorded_in_forward_itself(way):
    def forward(ctx, x):
        handle = remat.get_handle(ctx, "outer", SAVE)
        if (out := handle.maybe_load_saved()) is not None:
            return out
        outs = []

        def record(t):
            try:
                outs.append(handle.record_outputs(t.exp()))
            except RuntimeError as error:
                outs.append(error)
            return t * 2

        if way == "inside another call":
            remat.native_op(record, "inner", SAVE)(x)
        elif way == "inside a region":
            with torch.enable_grad():
                remat.checkpoint()(record)(x.detach().requires_grad_())
        else:
            thread = threading.Thread(target=record, args=(x,))
            thread.start()
            thread.join()
        raise outs[0]

    with pytest.raises(RuntimeError, match="record_outputs: expected to be called in forward.. itself"):
        remat.checkpoint()(lambda x: function(forward, times_saved)(x.sin()).cos())(leaf(3))
    # All state is restored.
    assert_same(lambda wrap: wrap(drops_its_exception)(leaf(3)), remat.checkpoint())


@pytest.mark.parametrize("policy", [SAVE, remat.CheckpointPolicy.RECOMPUTE])
@pytest.mark.parametrize("inner", ["call", "handle", "region"])
def test_a_handle_that_dies_in_a_call_or_region_inside_leaves_those_alone(inner, policy):
    kept = []
    times_two, times_three = (lambda ctx, grad: grad * 2), (lambda ctx, grad: grad * 3)

    def outer(ctx, x):
        kept.append(remat.get_handle(ctx, "outer", policy))
        return x * 2 if inner != "region" else within(x)

    def within(x):
        with torch.enable_grad():
            return remat.checkpoint()(ends)(x.detach().requires_grad_()).detach()

    def ends(x):
        kept.clear()
        return function(named, times_three)(x) if inner != "call" else x.exp()

    def named(ctx, x):
        kept.append((ctx, remat.get_handle(ctx, "inner", policy)))
        return x * 3

    def fn(x):
        y = x.sin()
        z = function(outer, times_two)(y)
        if inner == "call":
            z = remat.native_op(ends, "inner", policy)(y)
        elif inner == "handle":
            z = ends(y)
        return (z * y).cos()

    for _ in range(2):  # an error is allowed, a crash is not, and later steps must be right
        with contextlib.suppress(RuntimeError, NotImplementedError):
            remat.checkpoint()(fn)(leaf(3)).sum().backward()
        kept.clear()
        assert_same(lambda wrap: wrap(drops_its_exception)(leaf(3)), remat.checkpoint())


def test_a_handle_is_told_before_its_results():
    def body(ctx, handle, x):
        out = handle.record_outputs(x * 2)
        handle.save_for_backward({"x": x})
        return out

    with pytest.raises(RuntimeError, match="save_for_backward: expected to be called before record_outputs"):
        remat.checkpoint()(by_handle(body, times_saved))(leaf(3))


@pytest.mark.parametrize("in_region", [True, False])
def test_a_ctx_may_have_its_handle(in_region):
    alive = []

    def forward(ctx, x):
        alive.append(weakref.ref(ctx))
        ctx.handle = remat.get_handle(ctx, "named", SAVE)
        if (out := ctx.handle.maybe_load_saved()) is not None:
            return out
        ctx.handle.save_for_backward({"x": x})
        return ctx.handle.record_outputs(x * x)

    def fn(x):
        return function(forward, times_saved)(x.sin()).cos()

    for _ in range(3):
        (remat.checkpoint()(fn) if in_region else fn)(leaf(3)).sum().backward()
    gc.collect()
    assert len(alive) == (6 if in_region else 3)
    assert not [ctx for ctx in alive if ctx() is not None]
