# SPDX-License-Identifier: BSD-3-Clause

"""Tensor subclasses with __torch_dispatch__ that hold other tensors."""

import torch
from torch.utils import _pytree as pytree


class Opaque(torch.Tensor):
    """Holds one tensor and says nothing of it: no __tensor_flatten__."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(
            cls, inner.size(), dtype=inner.dtype, requires_grad=inner.requires_grad
        )

    def __init__(self, inner):
        self.inner = inner

    def __repr__(self):
        return f"Opaque({self.inner!r})"

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        args, kwargs = pytree.tree_map_only(Opaque, lambda t: t.inner, (args, kwargs or {}))
        return pytree.tree_map_only(torch.Tensor, cls, func(*args, **kwargs))


class Passing(torch.utils._python_dispatch.TorchDispatchMode):
    """Does nothing but write down what passes."""

    def __init__(self):
        super().__init__()
        self.ops = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.ops.append(str(func))
        return func(*args, **(kwargs or {}))
