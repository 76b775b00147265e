# SPDX-License-Identifier: BSD-3-Clause

"""Custom functions that are named calls, and counts of their runs."""

import collections

import torch
from programs import leaf

import remat_meta as remat

runs = collections.Counter()


class Square(torch.autograd.Function):
    """x -> x * exp(x); gets its handle itself."""

    @staticmethod
    def forward(ctx, x, name, policy, watched=None):
        handle = remat.get_handle(ctx, name, policy)
        if (out := handle.maybe_load_saved()) is not None:
            runs["load"] += 1
            return out
        runs["forward"] += 1
        x = handle.save_or_load_inputs(x)
        power = x.exp()
        if watched:
            watched("internal", power)
        handle.save_for_backward({"x": x, "power": power})
        return handle.record_outputs(x * power)

    @staticmethod
    def backward(ctx, grad):
        x, power = ctx.saved_tensors
        return grad * (power + x * power), None, None, None


class Auto(torch.autograd.Function):
    """x -> x * exp(x), with auto_forward."""

    @staticmethod
    @remat.auto_forward("x", "power")
    def forward(ctx, x, scale=1.0):
        runs["forward"] += 1
        ctx.scale = scale
        power = x.exp()
        ctx.save_for_backward(x, power)
        return x * power * scale

    @staticmethod
    def backward(ctx, grad):
        x, power = ctx.saved_tensors
        return grad * (power + x * power) * ctx.scale, None


def sandwich(call):
    """A program with call() between bare ops."""

    def program(wrap):
        x = leaf(3)
        y = wrap(lambda x: call(x.sin()).cos().exp())(x)
        y.sum().backward()
        return x.grad

    return program
