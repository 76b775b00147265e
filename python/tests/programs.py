# SPDX-License-Identifier: BSD-3-Clause

"""What several test files build their programs from."""

import torch

import remat_meta as remat

checkpointed = remat.checkpoint(region_name="block")


def grads_of(model, *more):
    return [p.grad for p in model.parameters()] + list(model.buffers()) + [t.grad for t in more]


def leaf(*shape):
    return torch.randn(*shape, requires_grad=True)


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
