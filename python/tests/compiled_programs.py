# SPDX-License-Identifier: BSD-3-Clause

"""Helpers for tests of regions in compiled functions."""

import torch

import remat_meta as remat

BACKENDS = ("eager", "aot_eager")
SIZE = 32


def compiled(fn, backend="aot_eager"):
    return torch.compile(fn, backend=backend, fullgraph=True)


def chain(x, w):
    return ((x @ w).sin() @ w).exp()


def run(fn, steps=2):
    torch.manual_seed(3)
    x, w = (torch.rand(SIZE, SIZE, requires_grad=True) for _ in range(2))
    for _ in range(steps):
        y = fn(x, w)
        y.square().sum().backward()
    return y, x.grad, w.grad, torch.get_rng_state()


def kept_bytes(fn, x):
    """Returns the bytes that the result of a forward keeps."""
    fn(x).sum().backward()  # compiles
    with remat.MemoryMeter() as meter:
        y = fn(x)
        kept = meter.current_bytes()
        del y
    return kept
