# SPDX-License-Identifier: BSD-3-Clause

"""Tensor classes, modes, hooks and library ops of foreign programs."""

import contextlib
import pickle

import torch
from programs import begins_at
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_map_only
from torch.utils.flop_counter import FlopCounterMode


class Wrapper(torch.Tensor):
    """A tensor around another tensor; every op runs on the inner tensor."""

    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(
            cls, inner.shape, strides=inner.stride(), storage_offset=inner.storage_offset(), dtype=inner.dtype,
            device=inner.device,
        )

    def __init__(self, inner):
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        args_inside = tree_map_only(Wrapper, lambda t: t.inner, args)
        kwargs_inside = tree_map_only(Wrapper, lambda t: t.inner, kwargs or {})
        out = tree_map_only(torch.Tensor, cls, func(*args_inside, **kwargs_inside))
        return return_and_correct_aliasing(func, args, kwargs or {}, out)


class Flat(Wrapper):
    def __tensor_flatten__(self):
        return ["inner"], None

    @staticmethod
    def __tensor_unflatten__(inner_tensors, context, outer_size, outer_stride):
        return Flat(inner_tensors["inner"])


class Opaque(Wrapper):
    """A wrapper without __tensor_flatten__."""


class Computing(Flat):
    """A wrapper whose views compute: every op but detach() gets a plain tensor."""

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        if func is torch.ops.aten.detach.default:
            return cls(args[0].inner)
        args_inside = tree_map_only(Computing, lambda t: t.inner * 0.5, args)
        return func(*args_inside, **(kwargs or {}))


class _Wrap(torch.autograd.Function):
    @staticmethod
    def forward(ctx, kind, a):
        return kind(a.detach().clone())

    @staticmethod
    def backward(ctx, grad):
        return None, plain_part(grad)


class _Unwrap(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a):
        ctx.kind = type(a)
        return a.inner.clone()

    @staticmethod
    def backward(ctx, grad):
        return ctx.kind(plain_part(grad))


def plain_part(tensor):
    """Returns the plain tensor inside wrappers, without a gradient."""
    while isinstance(tensor, Wrapper):
        tensor = tensor.inner
    return tensor


GIVEN = {number: pickle.dumps(torch.full((4, 4), number)) for number in (0.5, 0.25)}


def given(number):
    """Returns a tensor whose memory no op fills."""
    return pickle.loads(GIVEN[number])


def of_host(values):
    """Returns a copy in NumPy's memory, 12 bytes after a multiple of 64."""
    return begins_at(12, *values.shape).copy_(values)


class Scaled(torch.autograd.Function):
    """Saves a tensor that no op reads."""

    @staticmethod
    def forward(ctx, a, scale):
        ctx.save_for_backward(scale)
        return a * 1

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.saved_tensors[0], None


def wrap(kind, a):
    return _Wrap.apply(kind, a)


def unwrap(a):
    while isinstance(a, Wrapper):
        a = _Unwrap.apply(a)
    return a


class PassThrough(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


class Functions(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


def flops():
    return FlopCounterMode(display=False)


def comm_debug():
    from torch.distributed.tensor.debug import CommDebugMode

    return CommDebugMode()


MODES = {
    "": contextlib.nullcontext,
    "PassThrough()": PassThrough,
    "Functions()": Functions,
    "flops()": flops,
    "comm_debug()": comm_debug,
}


def copy_of(tensor):
    """Returns a copy with the same strides and conjugate and negative bits. A region recomputes a tensor with its own strides and
    bits, whatever hooks inside the region do, and kernels may round differently with others."""
    if type(tensor) is not torch.Tensor or tensor.layout != torch.strided or not tensor.numel():
        return tensor.clone()
    if tensor.is_neg():
        return torch._neg_view(copy_of(torch._neg_view(tensor)))
    if tensor.is_conj():
        return copy_of(tensor.conj()).conj()
    spanned = 1 + sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride(), strict=True))
    part = tensor.detach().as_strided((spanned,), (1,), tensor.storage_offset())
    return part.clone().as_strided(tensor.shape, tensor.stride(), 0)


class Handle:
    """An opaque object that a pair of hooks packs, useless to anybody else."""

    def __init__(self, tensor):
        self.tensor = copy_of(tensor)


def unpacked(handle):
    if not isinstance(handle, Handle):
        raise TypeError(f"expected what pack has returned, got {type(handle)}")
    return copy_of(handle.tensor)


# Ops of a library. Only one schema marks the arguments that its op writes.
LIBRARY = torch.library.Library("fuzz", "DEF")
LIBRARY.define("scale(Tensor x, float factor) -> ()")
LIBRARY.define("scale_all(Tensor[] xs, float factor) -> ()")
LIBRARY.define("scale_lists(Tensor[][] xs, float factor) -> ()")
LIBRARY.define("scale_unseen(Tensor x, float factor) -> ()")
LIBRARY.define("fill(Tensor x, Tensor y) -> Tensor")
LIBRARY.define("mix(Tensor[] xs) -> Tensor")
LIBRARY.define("place(Tensor x) -> Tensor")
LIBRARY.define("scale_marked(Tensor(a!) x, Tensor(b!)[] xs, float factor) -> ()")


def scale(x, factor):
    x.detach().mul_(factor)


def scale_all(xs, factor):
    for x in xs:
        scale(x, factor)


def scale_lists(lists, factor):
    for xs in lists:
        scale_all(xs, factor)


def scale_unseen(x, factor):
    if x.is_cuda:
        torch.from_dlpack(x.detach().resolve_neg()).mul_(factor)
        return
    values = x.detach().resolve_neg().numpy()
    values *= factor


def fill(x, y):
    x.detach().copy_(y.detach() * 0.5)
    return x.detach() + y.detach()


def scale_marked(x, xs, factor):
    scale(x, factor)
    scale_all(xs, factor)


def mix(xs):
    return torch.stack([x.detach() for x in xs]).tanh().sum(0)


def place(x):
    """Imitates kernels that sum in another order depending on where memory begins between two multiples of 64 bytes."""
    return x.detach() + x.data_ptr() % 64 / 64


for kernel in (scale, scale_all, scale_lists, scale_unseen, fill, mix, place, scale_marked):
    LIBRARY.impl(kernel.__name__, kernel, "CompositeExplicitAutograd")
