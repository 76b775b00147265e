# SPDX-License-Identifier: BSD-3-Clause

"""What a custom function saves for its call, whatever else happens in its forward() and after it."""

import contextlib
import gc
import threading
import weakref

import pytest
import torch
from programs import all_options, leaf
from same import assert_same

import remat_meta as remat

SAVE, OFFLOAD = remat.CheckpointPolicy.SAVE, remat.CheckpointPolicy.OFFLOAD


def function(forward, backward):
    """What calls a custom function of these."""
    members = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    return type("Custom", (torch.autograd.Function,), members).apply


def by_op(forward, backward, *names):
    return remat.op(function(remat.auto_forward(*names)(forward), backward), "named", SAVE)


def grad_of_sin(x):
    with torch.enable_grad():
        z = x.detach().requires_grad_()
        return torch.autograd.grad(z.sin().sum(), z)[0]


def times_saved(ctx, grad):
    return grad * ctx.saved_tensors[0]


def fails_with_a_node(name):
    """Autograd throws when the result has its node already, and ctx has the result."""

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
    """The last list counts."""

    def forward(ctx, x, w):
        handle = remat.get_handle(ctx, "named", SAVE)
        if (out := handle.maybe_load_saved()) is not None:
            return out
        handle.save_for_backward({"x": x, "w": w})
        ctx.save_for_backward(x)
        return handle.record_outputs(x * 2)

    w = x * 3
    z = function(forward, lambda ctx, grad: (times_saved(ctx, grad), None))(x * 2, w)
    w.mul_(2)
    return z + w.sin()


def tells_the_handle_again(x):
    def forward(ctx, x, w):
        handle = remat.get_handle(ctx, "named", SAVE)
        if (out := handle.maybe_load_saved()) is not None:
            return out
        handle.save_for_backward({"w": w})
        handle.save_for_backward({"x": x, "w": w})
        return handle.record_outputs(x * 2)

    return function(forward, lambda ctx, grad: (times_saved(ctx, grad), None))(x * 2, x * 3).cos()


def tells_ctx_alone(x):
    def forward(ctx, x):
        handle = remat.get_handle(ctx, "named", SAVE)
        if (out := handle.maybe_load_saved()) is not None:
            return out
        ctx.save_for_backward(x, x.cos())
        return handle.record_outputs(x * 2)

    return function(forward, lambda ctx, grad: times_saved(ctx, grad) + ctx.saved_tensors[1])(x * 2).cos()


def tells_ctx_after_its_results(x):
    def forward(ctx, x):
        handle = remat.get_handle(ctx, "named", SAVE)
        if (out := handle.maybe_load_saved()) is not None:
            return out
        out = handle.record_outputs(x * 2)
        ctx.save_for_backward(x)
        return out

    return function(forward, times_saved)(x * 2).cos()


def saves_nothing(x):
    def forward(ctx, x):
        handle = remat.get_handle(ctx, "named", SAVE)
        if (out := handle.maybe_load_saved()) is not None:
            return out
        return handle.record_outputs(x * 2)

    y = x * 2
    return function(forward, lambda ctx, grad: grad * 2)(y) * y.sin()


def differentiates(x):
    """Its ops save, too."""

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


def throws(ctx, x):
    handle = remat.get_handle(ctx, "named", SAVE)
    if (out := handle.maybe_load_saved()) is not None:
        return out
    x.exp()
    raise ValueError


def keeps_its_exception(x):
    """And with it the frame that has the handle."""
    h = x.sin()
    error = None
    try:
        function(throws, times_saved)(h)
    except ValueError as caught:
        error = caught
    h = h.cos() * 2
    h.mul_(3)
    del error
    return h.tanh()


def drops_its_exception_elsewhere(x):
    h, box = x.sin(), []
    try:
        function(throws, times_saved)(h)
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
    "tells ctx after its results": tells_ctx_after_its_results,
    "saves nothing": saves_nothing,
    "differentiates": differentiates,
    "builds a graph": builds_a_graph,
    "calls another after its results": calls_another_after_its_results,
    "differentiates after its results": differentiates_after_its_results,
    "keeps its exception": keeps_its_exception,
    "drops its exception elsewhere": drops_its_exception_elsewhere,
}


@all_options
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_call_gets_what_its_function_saves_and_nothing_else(name, options):
    if name.startswith("differentiates") and (options["replay"] == "tape" or options["policy"]):
        pytest.skip("a tape has no backward inside, and none passes a SAVE call")

    def program(wrap):
        x = leaf(3)
        y = wrap(PROGRAMS[name])(x)
        y.sum().backward()
        return y, x.grad

    assert_same(program, remat.checkpoint(**options))


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
