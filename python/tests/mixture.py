# SPDX-License-Identifier: BSD-3-Clause

"""A small step in which all features are nested in each other, with a tick before each op of user code."""

import torch
from torch import nn

import remat_meta as remat
from remat_meta import CheckpointPolicy


def no_tick():
    pass


class Cube(torch.autograd.Function):
    """x -> x^3; ticks in its backward too."""

    @staticmethod
    @remat.auto_forward("square", "x")
    def forward(ctx, x, tick):
        tick()
        square = x * x
        ctx.save_for_backward(square, x)
        ctx.tick = tick
        tick()
        return square * x

    @staticmethod
    def backward(ctx, grad):
        ctx.tick()
        square, _ = ctx.saved_tensors
        ctx.tick()
        return grad * square * 3, None


class Plain(torch.autograd.Function):
    """x -> sin(x), without remat."""

    @staticmethod
    def forward(ctx, x, tick):
        tick()
        ctx.save_for_backward(x)
        ctx.tick = tick
        return x.sin()

    @staticmethod
    def backward(ctx, grad):
        ctx.tick()
        (x,) = ctx.saved_tensors
        ctx.tick()
        return grad * x.cos(), None


def unwrapped(fn, *_, **__):
    return fn


class Calls:
    """The calls of remat, or plain calls."""

    def __init__(self, on):
        self.checkpoint = remat.checkpoint if on else lambda **_: unwrapped
        self.region = remat.region if on else unwrapped
        self.native_op = remat.native_op if on else unwrapped
        self.op = remat.op if on else unwrapped
        self.torch_checkpoint = remat.torch_checkpoint if on else lambda fn, *args: fn(*args)


class Mixture(nn.Module):
    """Regions in regions, all kinds of named calls, torch's checkpoint, dropout and BatchNorm."""

    def __init__(self, width=6):
        super().__init__()
        self.first, self.second = nn.Linear(width, width), nn.Linear(width, width)
        self.norm = nn.BatchNorm1d(width)

    def inner(self, x, call, tick):
        tick()
        y = call.native_op(torch.tanh, "tanh", CheckpointPolicy.SAVE)(x)
        tick()
        y = call.op(Cube.apply, "cube", CheckpointPolicy.SAVE)(y, tick)
        tick()
        return Plain.apply(y + x, tick)

    def saved(self, x, call, tick):
        tick()
        y = self.second(x)
        tick()
        return nn.functional.dropout(call.checkpoint(region_name="in a call")(torch.sigmoid)(y), 0.3)

    def last(self, x, tick):
        tick()
        y = nn.functional.dropout(self.norm(x), 0.4)
        tick()
        return y.exp()

    def outer(self, x, call, tick):
        tick()
        y = self.first(x)
        y = call.checkpoint(region_name="inner")(self.inner)(y, call, tick)
        tick()
        y = call.region(self.saved, "saved", recompute=False)(y, call, tick)
        tick()
        z = call.op(Cube.apply, "cube", CheckpointPolicy.RECOMPUTE)(y, tick)
        tick()
        z = call.region(torch.cos, "cos", recompute=True)(z) * y
        return call.torch_checkpoint(self.last, z, tick)

    def forward(self, x, call, tick=no_tick, **options):
        return call.checkpoint(region_name="outer", **options)(self.outer)(x, call, tick).sum()
