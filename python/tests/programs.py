# SPDX-License-Identifier: BSD-3-Clause

"""Building blocks for programs of several test files."""

import math
import time
import weakref

import numpy as np
import pytest
import torch

import remat_meta as remat

TORCH = torch.torch_version.TorchVersion(torch.__version__)
checkpointed = remat.checkpoint(region_name="block")
OPTIONS = {
    f"{engine}, {name}": {"replay": engine, "policy": policy, "offload_store": remat.host_memory_store()}
    for engine in ("function", "tape")
    for name, policy in {"bare": None, "all saved": ["*"]}.items()
}
all_options = pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)


def ended_well(done):
    """True if a Python process ended well, after its buffers were flushed. From torch 2.12 on one of torch's threads may abort it
    at its very end, also without a region: docs/reference/versions.md."""
    return done.returncode == 0 or (TORCH >= (2, 12) and done.stderr == "terminate called without an active exception\n")


def comes_true(is_true):
    """True at once on the CPU. On a GPU true after a while: a device's thread releases the last node after backward has returned
    or raised, in plain autograd, too (cuda/test_exceptions.py)."""
    end = time.monotonic() + (5 if torch.cuda.is_available() else 0)
    while not is_true() and time.monotonic() < end:
        time.sleep(0.001)
    return is_true()


def grads_of(model, *more):
    return [p.grad for p in model.parameters()] + list(model.buffers()) + [t.grad for t in more]


def leaf(*shape):
    return torch.randn(*shape, requires_grad=True)


class SavesExp(torch.autograd.Function):
    """Saves the result of exp(); subclasses add a backward."""

    @staticmethod
    def forward(ctx, x):
        y = x.exp()
        ctx.save_for_backward(y)
        return y


class Refused(Exception):
    """An exception that functions of tests raise."""


class Mourner:
    """Calls `last_words` when it dies."""

    def __init__(self, last_words):
        self.last_words = last_words

    def __del__(self):
        self.last_words()


def mortal(tensor, last_words, by_del=False):
    """Returns the tensor; calls `last_words` when it dies: by weakref.finalize(), or by __del__() of an attribute."""
    if by_del:
        tensor.mourner = Mourner(last_words)
    else:
        weakref.finalize(tensor, last_words)
    return tensor


def begins_at(alignment, *shape):
    """Returns float32 host memory that begins `alignment` bytes after a multiple of 64."""
    numbers = math.prod(shape)
    memory = np.empty(numbers + 16, dtype=np.float32)
    begin = (alignment - memory.ctypes.data) % 64 // 4
    return torch.from_numpy(memory[begin : begin + numbers]).view(shape)


class Square(torch.autograd.Function):
    """Saves through Python's part of autograd."""

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
