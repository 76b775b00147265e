# SPDX-License-Identifier: BSD-3-Clause

"""What several test files build their programs from."""

import math

import numpy as np
import torch

import remat_meta as remat

checkpointed = remat.checkpoint(region_name="block")


def grads_of(model, *more):
    return [p.grad for p in model.parameters()] + list(model.buffers()) + [t.grad for t in more]


def leaf(*shape):
    return torch.randn(*shape, requires_grad=True)


class SavesExp(torch.autograd.Function):
    """exp(), without its backward."""

    @staticmethod
    def forward(ctx, x):
        y = x.exp()
        ctx.save_for_backward(y)
        return y


def begins_at(alignment, *shape):
    """Memory of the host with float32, which begins `alignment` bytes after a multiple of 64."""
    numbers = math.prod(shape)
    memory = np.empty(numbers + 16, dtype=np.float32)
    begin = (alignment - memory.ctypes.data) % 64 // 4
    return torch.from_numpy(memory[begin : begin + numbers]).view(shape)


class Square(torch.autograd.Function):
    """Saves through Python's half of autograd."""

    forwards = 0

    @staticmethod
    def forward(ctx, x):
        Square.forwards += 1
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return 2 * x * grad
