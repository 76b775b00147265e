# SPDX-License-Identifier: BSD-3-Clause

"""Named calls in short, and whether memory is still there."""

import torch
from torch.multiprocessing.reductions import StorageWeakRef

import remat_meta as remat

POLICIES = (False, True)  # of region(recompute=...)


def save(fn, name):
    return remat.region(fn, name, recompute=False)


def recompute(fn, name):
    return remat.region(fn, name, recompute=True)


class Watched:
    """The memory of tensors, by name; does not keep it."""

    def __init__(self):
        self._storages = {}

    def __call__(self, name, tensor):
        """The last one of that name counts. Returns the tensor."""
        self._storages[name] = StorageWeakRef(tensor.untyped_storage())
        return tensor

    def lives(self, name):
        return not self._storages[name].expired()


class Runs(list):
    """A log of names, and functions that write into it when they run."""

    def __call__(self, name, fn):
        def run(*args, **kwargs):
            self.append(name)
            return fn(*args, **kwargs)

        return run


class Saving(torch.autograd.Function):
    """x -> 2 exp(x); saves its input, an internal or its own output, as `what` says."""

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
