# SPDX-License-Identifier: BSD-3-Clause

"""Helpers of the checks that ranks.py runs."""

import collections
import datetime
import itertools
import time

import torch
import torch.distributed as dist
from programs import leaf
from same import assert_equal, plain
from torch import nn
from torch._C._profiler import RecordScope
from torch.autograd import ProfilerActivity, _disable_profiler, _enable_profiler, _prepare_profiler
from torch.distributed.device_mesh import init_device_mesh
from torch.utils.checkpoint import checkpoint as torch_checkpoint

import remat_meta as remat

ENGINES = ("function", "tape", "auto")
POLICIES = (None, "safe_defaults", "recompute_pointwise")
STEPS = 3  # the third step trusts its tape
SCOPES = {"gloo:": RecordScope.USER_SCOPE, "c10d::": RecordScope.FUNCTION}


def adds_to(checks):
    """Returns a decorator that adds functions to `checks` by their names."""

    def check(function):
        checks[function.__name__] = function
        return function

    return check


def rank():
    return dist.get_rank()


def world():
    return dist.get_world_size()


def on_rank(number, value, otherwise):
    return value if rank() == number else otherwise


class GoneStore:
    """A store whose every call fails."""

    timeout = datetime.timedelta(seconds=30)

    def __getattr__(self, name):
        def fail(*args):
            raise dist.DistNetworkError("the store is gone")

        return fail


# Comparisons


def wraps(engines=ENGINES, policies=POLICIES):
    """Returns checkpoints by name."""
    return {
        f"{engine}, {policy}": remat.checkpoint(replay=engine, policy=policy)
        for engine, policy in itertools.product(engines, policies)
    }


def with_torch(function):
    return lambda *args: torch_checkpoint(function, *args, use_reentrant=False)


def executed(run, prefix="gloo:"):
    """Counts the profiler events whose names begin with `prefix` on this rank while `run` runs, by the rest of their names; also
    returns the result of `run`. Gloo implements reduce-scatter by an all-reduce, and counts it as one. Does not use
    torch.profiler, which would build a tree of all events and take ten times as long as these programs."""
    config = torch.autograd.profiler.profile(use_kineto=True).config(create_trace_id=False)
    activities = {ProfilerActivity.CPU}
    _prepare_profiler(config, activities)
    _enable_profiler(config, activities, {SCOPES[prefix]})
    try:
        result = run()
    finally:
        if prefix == "gloo:":
            # Gloo's threads end a collective's event after its future, for which some collectives wait. This writes into freed
            # memory if the profile has ended, so profiles of ops leave these events out.
            time.sleep(0.02)
        events = _disable_profiler().events()
    names = (event.name() for event in events)
    return collections.Counter(name.removeprefix(prefix) for name in names if name.startswith(prefix)), result


def assert_as_plain(program, by_name, prefix="gloo:"):
    """Checks that `program(wrap)` returns the tensors of plain code with each wrap and runs the same collectives; returns their
    counts."""
    wanted, expected = executed(lambda: program(plain), prefix)
    for name, wrap in by_name.items():
        try:
            done, got = executed(lambda wrap=wrap: program(wrap), prefix)
            assert_equal(expected, got)
            assert done == wanted, f"{done}, plain {wanted}"
        except Exception as error:
            raise AssertionError(f"with {name}") from error
    return wanted


def steps(wrap, program):
    """Returns outputs and gradients of a few steps."""
    torch.manual_seed(rank())
    x = leaf(2, 4)
    w = leaf(4)
    tensors = []
    wrapped = wrap(program(w))
    for _ in range(STEPS):
        y = wrapped(x)
        loss = (y * y).sum()
        loss.backward()
        tensors += [y.detach().clone(), x.grad.clone(), w.grad.clone()]
    return tensors


def assert_steps_as_plain(program, engines=ENGINES, nested=True):
    """Checks that the steps of `program(w)`, a function of x, are those of plain PyTorch with every engine and policy, and that
    no replay calls a collective again."""
    wanted = assert_as_plain(lambda wrap: steps(wrap, program), wraps(engines))
    assert wanted, "no collective"
    if nested:
        nest = lambda wrap: steps(lambda fn: wrap(lambda x: wrap(fn)(x * 1.5)), program)  # noqa: E731
        assert_as_plain(nest, {"nested": remat.checkpoint()})


def assert_raises(kind, run, *words):
    """Checks that `run` raises; returns the error's text."""
    try:
        run()
    except kind as error:
        text = str(error)
    else:
        raise AssertionError("no error")
    for word in words:
        assert word in text, text
    return text


# Modules and functions


class Reduced(torch.autograd.Function):
    """Sums over ranks in the forward, and sums gradients in the backward, by in-place collectives."""

    @staticmethod
    def forward(ctx, x, collective):
        y = x.clone()
        collective(y)
        return y

    @staticmethod
    def backward(ctx, grad):
        grad = grad.clone()
        dist.all_reduce(grad)
        return grad, None


def block():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 4))


def square_sum(y):
    return y.square().sum()


def local(tensor):
    """Returns this rank's part of the tensor."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def ranks_mesh(*sizes):
    """A mesh of all ranks, as shards, or as replicas of shards."""
    return init_device_mesh("cpu", sizes or (world(),), mesh_dim_names=("replicate", "shard")[-max(len(sizes), 1) :])
