# SPDX-License-Identifier: BSD-3-Clause

"""Functions that fuzzed programs call: autograd functions, helpers, and remat with a plain stand-in for it."""

import collections
import contextlib

import torch
from torch.utils.checkpoint import checkpoint

import remat_meta as remat

from .custom import auto, handled, own, plain, saving, unrecorded  # noqa: F401, programs use them
from .devices import MAIN, arrived, beside, pinned_copy, save_on_cpu, second, side, used_here  # noqa: F401, programs use them
from .jagged import jagged_copies, jagged_leaves, jagged_views  # noqa: F401, programs use them
from .kinds import (  # noqa: F401, programs use them
    Flat,
    Functions,
    Handle,
    Opaque,
    PassThrough,
    Scaled,
    comm_debug,
    copy_of,
    flops,
    given,
    plain_part,
    unpacked,
    unwrap,
    wrap,
)

Pair = collections.namedtuple("Pair", "first second")


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, grad):
        return 2 * ctx.saved_tensors[0] * grad + 0 * ctx.saved_tensors[0]  # unpacked twice


class SavesResult(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        result = x.sigmoid()
        ctx.save_for_backward(result)
        return result

    @staticmethod
    def backward(ctx, grad):
        (result,) = ctx.saved_tensors
        return grad * result * (1 - result)


class TwoResults(torch.autograd.Function):
    """Saves an intermediate value; returns None as gradient of an argument that is no tensor."""

    @staticmethod
    def forward(x, y, factor):
        middle = x.tanh()
        return middle * factor, y + middle, middle

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.factor = inputs[2]
        ctx.mark_non_differentiable(output[2])
        ctx.save_for_backward(output[2])

    @staticmethod
    def backward(ctx, first, other, _):
        (middle,) = ctx.saved_tensors
        return (first * ctx.factor + other) * (1 - middle * middle), other, None


class InPlace(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        return x.mul_(0.5)

    @staticmethod
    def backward(ctx, grad):
        return grad * 0.5


class WritesSaved(torch.autograd.Function):
    """In backward, writes a saved intermediate value, and reads the value as an attribute of ctx."""

    @staticmethod
    def forward(ctx, x):
        ctx.kept = x.tanh()
        ctx.save_for_backward(ctx.kept)
        return x * ctx.kept

    @staticmethod
    def backward(ctx, grad):
        (saved,) = ctx.saved_tensors
        before = saved * 2
        saved.mul_(0.5)
        return grad * (before + ctx.kept)


class WritesResult(SavesResult):
    """In backward, writes the saved result of the forward."""

    @staticmethod
    def backward(ctx, grad):
        (result,) = ctx.saved_tensors
        slope = result * (1 - result)
        result.mul_(0.5)
        return grad * slope


class Raises(Exception):
    """An exception that fuzzed programs raise and catch."""


def inner_grad(a):
    """Returns a gradient, with its graph, that the function computes by a backward of its own."""
    if not a.requires_grad or not torch.is_grad_enabled():
        return a.cos()
    return torch.autograd.grad((a.sin() * a).sum(), a, create_graph=True)[0]


def inner_backward(a):
    with torch.enable_grad():
        q = a.detach().requires_grad_()
        (q.sin() * q).sum().backward()
    return a + q.grad


def hook(tensor, factor):
    if tensor.requires_grad:
        tensor.register_hook(lambda grad: None if grad is None else grad * factor)


def refused_pack(a, last):
    """Runs ops under a pack hook that raises at tensor number `last`; no result of these ops is left."""
    packed = []

    def pack(tensor):
        if len(packed) == last:
            raise Raises
        packed.append(tensor)
        return tensor

    with contextlib.suppress(Raises), torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        ((a.sin() * a).exp() @ a.tanh()).sigmoid()


def stops_early(a):
    """Uses torch's checkpoint, whose second run stops by an exception of a pack hook when all that backward needs is saved."""
    return checkpoint(lambda a: (a.sin() * 0.5).exp().tanh().neg(), a, use_reentrant=False)


def clones():
    return torch.autograd.graph.saved_tensors_hooks(copy_of, lambda t: t)


class Plain:
    """Runs the program without remat: regions and named calls are plain calls."""

    def __init__(self):
        self.freed = []
        self.packed_inside = 0

    def free(self, tensor, until_backward=False):
        storage = plain_part(tensor).untyped_storage()
        if until_backward:
            self.freed.append((storage, storage.clone()))
        storage.resize_(0)

    def bring_back(self):
        while self.freed:
            storage, copy = self.freed.pop()
            storage.resize_(copy.nbytes())
            storage.copy_(copy)

    def other(self, first, other):
        """Calls `first` in the forward; a replay, which runs in a backward, calls `other`."""
        return first()

    def pack(self, inside):
        """Returns a pack hook, for hooks opened in a region's function (`inside`) or elsewhere."""

        def pack(tensor):
            self.packed_inside += inside
            return Handle(tensor)

        return pack

    def torch_pair(self, inside=False):
        return torch.autograd.graph.saved_tensors_hooks(self.pack(inside), unpacked)

    own_pair = torch_pair

    def table(self, policy, *ops):
        return None

    def checkpoint(self, **options):
        return lambda fn: fn

    def torch_checkpoint(self, fn, *args, use_reentrant=None, early_stop=True, **kwargs):
        return fn(*args, **kwargs)

    def sequential(self, parts, segments):
        def run(x):
            for part in parts:
                x = part(x)
            return x

        return run

    def native_op(self, fn, name, policy, keep="innermost_region"):
        return fn

    op = native_op

    def name_scope(self, prefix):
        return contextlib.nullcontext()

    store = hooks = None


class Remat(Plain):
    def __init__(self):
        super().__init__()
        self.store = remat.offload(min_bytes=0)
        self.hooks = (lambda t: t.clone(), lambda t: t)

    def other(self, first, other):
        return first() if torch._C._current_graph_task_id() == -1 else other()

    def checkpoint(self, **options):
        return remat.checkpoint(**options)

    def torch_checkpoint(self, fn, *args, **kwargs):
        return remat.torch_checkpoint(fn, *args, **kwargs)

    def sequential(self, parts, segments):
        return remat.checkpoint_sequential(segments)(parts)

    def native_op(self, fn, name, policy, keep="innermost_region"):
        return remat.native_op(fn, name, remat.CheckpointPolicy[policy], keep)

    def op(self, fn, name, policy, keep="innermost_region"):
        return remat.op(fn, name, remat.CheckpointPolicy[policy], keep)

    def name_scope(self, prefix):
        return remat.name_scope(prefix)

    def own_pair(self, inside=False):
        return remat.saved_tensors_hooks(self.pack(inside), unpacked)

    def table(self, policy, *ops):
        table = remat.PolicyTable()
        for op in ops:
            table.op(op, remat.CheckpointPolicy[policy])
        return table
