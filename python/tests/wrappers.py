# SPDX-License-Identifier: BSD-3-Clause

"""Tensor subclasses with __torch_dispatch__ that hold other tensors."""

import torch
from torch.utils import _pytree as pytree


class Opaque(torch.Tensor):
    """Holds one tensor without saying so: no __tensor_flatten__."""

    @staticmethod
    def __new__(cls, inner, *_):
        return torch.Tensor._make_wrapper_subclass(
            cls,
            inner.size(),
            strides=inner.stride(),
            dtype=inner.dtype,
            device=inner.device,
            requires_grad=inner.requires_grad,
        )

    def __init__(self, inner):
        self.inner = inner

    def __repr__(self):
        return f"Opaque({self.inner!r})"

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        args, kwargs = pytree.tree_map_only(Opaque, lambda t: t.inner, (args, kwargs or {}))
        return pytree.tree_map_only(torch.Tensor, cls, func(*args, **kwargs))


class Holding(Opaque):
    """Holds the tensor where `place` says."""

    __slots__ = ["slot"]

    def __init__(self, inner, place):
        if place == "slot":
            self.slot = inner
        else:
            self.held = {"list": [inner], "dict": {"inner": inner}, "lists": ([[inner]],)}[place]

    @property
    def inner(self):
        held = self.slot if hasattr(self, "slot") else self.held
        while not isinstance(held, torch.Tensor):
            held = held["inner"] if isinstance(held, dict) else held[0]
        return held

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        args, kwargs = pytree.tree_map_only(Holding, lambda t: t.inner, (args, kwargs or {}))
        return func(*args, **kwargs)


class Quantized(torch.Tensor):
    """Integers and their scale; every op but detach() gets the numbers, as a plain tensor."""

    @staticmethod
    def __new__(cls, integers, scale):
        return torch.Tensor._make_wrapper_subclass(cls, integers.size(), dtype=scale.dtype, device=scale.device)

    def __init__(self, integers, scale):
        self.integers, self.scale = integers, scale

    def __tensor_flatten__(self):
        return ["integers", "scale"], None

    @staticmethod
    def __tensor_unflatten__(inner, context, size, stride):
        return Quantized(inner["integers"], inner["scale"])

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        if func is torch.ops.aten.detach.default:
            return Quantized(args[0].integers, args[0].scale)
        numbers = lambda q: q.integers * q.scale  # noqa: E731
        return func(*pytree.tree_map_only(Quantized, numbers, args), **pytree.tree_map_only(Quantized, numbers, kwargs or {}))


class Passing(torch.utils._python_dispatch.TorchDispatchMode):
    """Only logs the ops that it sees."""

    def __init__(self):
        super().__init__()
        self.ops = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.ops.append(str(func))
        return func(*args, **(kwargs or {}))
