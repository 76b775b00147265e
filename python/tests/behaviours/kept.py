# SPDX-License-Identifier: BSD-3-Clause

"""Short forms of named calls, and a way to see whether memory is still alive."""

import torch
from torch.multiprocessing.reductions import StorageWeakRef

import remat_meta as remat

POLICIES = (False, True)  # values of region(recompute=...)


def save(fn, name):
    return remat.region(fn, name, recompute=False)


def recompute(fn, name):
    return remat.region(fn, name, recompute=True)


class Watched:
    """Watches the memory of named tensors without keeping it alive."""

    def __init__(self):
        self._storages = {}

    def __call__(self, name, tensor):
        """Watches `tensor` under that name, and no longer the tensor that had the name before. Returns `tensor`."""
        self._storages[name] = StorageWeakRef(tensor.untyped_storage())
        return tensor

    def lives(self, name):
        return not self._storages[name].expired()


class Runs(list):
    """A log of names, and functions that append to it when they run."""

    def __call__(self, name, fn):
        def run(*args, **kwargs):
            self.append(name)
            return fn(*args, **kwargs)

        return run


class Saving(torch.autograd.Function):
    """x -> 2 exp(x); saves its input, an intermediate or its own output, as `what` says."""

    @staticmethod
    def forward(ctx, x, what="internal", watched=None):
        internal = x.exp()
        out = internal * 2
        kept = {"input": x, "internal": internal, "output": out}[what]
        if watched:
            watched("internal", internal)
            watched("output", out)
        ctx.what = what
        remat.save_for_backward(ctx, {what: kept})
        return out

    @staticmethod
    def backward(ctx, grad):
        (kept,) = ctx.saved_tensors
        factor = {"input": lambda: kept.exp() * 2, "internal": lambda: kept * 2, "output": lambda: kept}
        return grad * factor[ctx.what](), None, None
