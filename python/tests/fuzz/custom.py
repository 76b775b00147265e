# SPDX-License-Identifier: BSD-3-Clause

"""Custom functions of one or two tensors: their bodies, and the ways in which they save and are named."""

import functools
import operator
import types

import torch

import remat_meta as remat

# Each body returns its results, and its saved tensors by name. All bodies share one backward, which does not compute the
# derivatives of the forward; its gradients must only be the same with and without remat.


def of_input(ctx, x, y):
    return (x * x,), {"x": x}


def unread(ctx, x, y):
    """Saves a tensor that no op reads."""
    return (x * 0.5,), {"y": y}


def of_result(ctx, x, y):
    result = x.sigmoid()
    return (result,), {"result": result}


def of_middle(ctx, x, y):
    middle = x.tanh()
    return (middle * 0.6,), {"middle": middle}


def several(ctx, x, y):
    middle = x.tanh() * y
    result = middle.sin()
    return (result,), {"x": x, "nothing": None, "middle": middle, "result": result, "y": y}


def twice(ctx, x, y):
    return (x.cos(),), {"x": x, "again": x}


def of_views(ctx, x, y):
    middle = x.sin()
    return (middle * 0.9,), {"transposed": x.t(), "row": middle[1]}


def of_half(ctx, x, y):
    return (x * 0.8,), {"half": x.half()}


def nothing(ctx, x, y):
    return (x * 1.5,), {}


def attribute(ctx, x, y):
    ctx.kept = x.tanh()
    return (x * ctx.kept,), {"x": x}


def saved_attribute(ctx, x, y):
    ctx.kept = x.tanh()
    return (x * 0.4,), {"kept": ctx.kept}


def of_random(ctx, x, y):
    mask = torch.rand_like(x)
    return (x * mask,), {"mask": mask}


def inner_function(ctx, x, y):
    """Saves the result of another custom function."""
    middle = plain.of_input(x)
    return (middle + x,), {"middle": middle}


def of_graph(ctx, x, y):
    """Runs ops that save tensors themselves."""
    with torch.enable_grad():
        torch.ones(2, requires_grad=True).exp()
    return (x * 0.7,), {"x": x}


def told_twice(ctx, x, y):
    """Calls save_for_backward() twice: the last list counts."""
    ctx.save_for_backward(x, x.cos(), y)
    return (x * 0.7,), {"y": y}


def two(ctx, x, y):
    middle = x.tanh()
    return (middle * 0.6, y + middle), {"middle": middle, "y": y}


def two_of_result(ctx, x, y):
    first = x.sin()
    return (first, first * y), {"first": first}


def not_differentiable(ctx, x, y):
    sign = x.sign()
    ctx.mark_non_differentiable(sign)
    return (x * 0.9, sign), {"sign": sign}


def same(ctx, x, y):
    """Returns its argument without an op."""
    return (x,), {"x": x}


def same_unsaved(ctx, x, y):
    return (x,), {}


def same_and_other(ctx, x, y):
    return (x, x * y), {"y": y}


def transposed(ctx, x, y):
    return (x.t(),), {"x": x}


def in_place(ctx, x, y):
    ctx.mark_dirty(x)
    return (x.mul_(0.5),), {"result": x}


def in_place_of_middle(ctx, x, y):
    middle = x.tanh()
    ctx.mark_dirty(x)
    return (x.mul_(middle),), {"middle": middle}


def in_place_of_other(ctx, x, y):
    ctx.mark_dirty(x)
    return (x.add_(y, alpha=0.5),), {"y": y}


def in_place_and_other(ctx, x, y):
    ctx.mark_dirty(x)
    return (x.mul_(0.7), x * y), {"y": y}


def of_buffer(ctx, x, y):
    return (x * y,), {"buffer": y}


def counts(ctx, x, y):
    """Writes a tensor that is not among its results."""
    before = y.clone()
    y.mul_(0.5).add_(x.tanh())
    return (x * before,), {"before": before}


BODIES = (
    of_input, unread, of_result, of_middle, several, twice, of_views, of_half, nothing, attribute, saved_attribute,
    of_random, inner_function, of_graph, told_twice, two, two_of_result, not_differentiable, same, same_unsaved,
    same_and_other, transposed, in_place, in_place_of_middle, in_place_of_other, in_place_and_other, of_buffer, counts,
)  # fmt: skip
NAMES = {
    several: ("x", "nothing", "middle", "result", "y"),
    twice: ("x", "again"),
    of_views: ("transposed", "row"),
    two: ("middle", "y"),
    of_result: ("result",),
    of_middle: ("middle",),
    inner_function: ("middle",),
    of_half: ("half",),
    saved_attribute: ("kept",),
    of_random: ("mask",),
    two_of_result: ("first",),
    not_differentiable: ("sign",),
    in_place: ("result",),
    in_place_of_middle: ("middle",),
    of_buffer: ("buffer",),
    counts: ("before",),
    **dict.fromkeys((nothing, same_unsaved), ()),
    **dict.fromkeys((of_input, of_graph, attribute, same, transposed), ("x",)),
    **dict.fromkeys((unread, told_twice, same_and_other, in_place_of_other, in_place_and_other), ("y",)),
}


def one_or_all(results):
    return results[0] if len(results) == 1 else results


def gradients(ctx, *grads):
    """Returns the gradients of x and y."""
    grad = functools.reduce(operator.add, grads)
    for saved in ctx.saved_tensors:
        if saved is not None:
            grad = grad * (saved.float().tanh() + 0.5)
    if hasattr(ctx, "kept"):
        grad = grad + ctx.kept
    return grad, grad * 0.7


def of_arguments(ctx, *grads):
    return gradients(ctx, *grads)[: len(ctx.needs_input_grad)]


def made(forward):
    """Returns a function that applies a custom function with this forward()."""
    members = {"forward": staticmethod(forward), "backward": staticmethod(of_arguments)}
    return type("Custom", (torch.autograd.Function,), members).apply


def with_plain_saves(body):
    def forward(ctx, x, y=None):
        results, saved = body(ctx, x, y)
        ctx.save_for_backward(*saved.values())
        return one_or_all(results)

    return forward


def with_named_saves(body):
    def forward(ctx, x, y=None):
        results, saved = body(ctx, x, y)
        remat.save_for_backward(ctx, saved)
        return one_or_all(results)

    return forward


def with_auto_forward(body):
    return remat.auto_forward(*NAMES[body])(with_plain_saves(body))


def with_handle(body):
    """Makes a forward() that takes its name and policy from the op() around the call."""

    def forward(ctx, x, y=None):
        handle = remat.get_handle(ctx)
        if (out := handle.maybe_load_saved()) is not None:
            return out
        x, y = handle.save_or_load_inputs(x, y)
        results, saved = body(ctx, x, y)
        handle.save_for_backward(saved)
        return handle.record_outputs(*results)

    return forward


def without_record(body):
    """Makes a forward() that does not record outputs, so that remat takes the call for one that raised."""

    def forward(ctx, x, y=None):
        handle = remat.get_handle(ctx)
        if (out := handle.maybe_load_saved()) is not None:
            return out
        results, saved = body(ctx, x, y)
        handle.save_for_backward(saved)
        return one_or_all(results)

    return forward


def with_own_handle(body):
    class Custom(torch.autograd.Function):
        @staticmethod
        def forward(ctx, call, x, y=None):
            handle = remat.get_handle(ctx, *call)
            if (out := handle.maybe_load_saved()) is not None:
                return out
            x = handle.save_or_load_inputs(x)
            results, saved = body(ctx, x, y)
            handle.save_for_backward(saved)
            return handle.record_outputs(*results)

        @staticmethod
        def backward(ctx, *grads):
            return (None, *gradients(ctx, *grads))[: len(ctx.needs_input_grad)]

    def named(name, policy, keep="innermost_region"):
        call = (name, remat.CheckpointPolicy[policy], keep)
        return lambda *tensors: Custom.apply(call, *tensors)

    return named


def all_made(make):
    return types.SimpleNamespace(**{body.__name__: make(body) for body in BODIES})


plain = all_made(lambda body: made(with_plain_saves(body)))
saving = all_made(lambda body: made(with_named_saves(body)))
auto = all_made(lambda body: made(with_auto_forward(body)))
handled = all_made(lambda body: made(with_handle(body)))
unrecorded = all_made(lambda body: made(without_record(body)))
own = all_made(with_own_handle)
