# SPDX-License-Identifier: BSD-3-Clause

"""Helpers for the tests of limits."""

import itertools
import os
import subprocess
import sys
import textwrap
import threading

import pytest
import torch
from programs import leaf
from same import assert_equal, plain

import remat_meta as remat

SAVE, OFFLOAD = remat.CheckpointPolicy.SAVE, remat.CheckpointPolicy.OFFLOAD


MIB = 1 << 20


ANOTHER = "It reads another tensor than the forward did"


UNSEEN = "expected the values that the forward saved"


UNVERSIONED = "was written without a new version, through data"


numbers = itertools.count()


def region(replay="function", **options):
    """A region with a name of its own, because a tape that is trusted under a name is not compared again."""
    return remat.checkpoint(region_name=f"block {next(numbers)}", replay=replay, **options)


def copying():
    return torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor.clone(), lambda tensor: tensor)


def call(fn, policy=SAVE, name="call"):
    return remat.native_op(fn, name, policy)


def outcome(program, wrap):
    torch.manual_seed(7)
    return program(wrap)


def assert_silent(program, wrap):
    """Checks that plain code gives another result, and that remat does not raise."""
    with pytest.raises(AssertionError):
        assert_equal(outcome(program, plain), outcome(program, wrap))


def assert_raises(program, wrap, words, error=RuntimeError):
    """Checks that remat raises where plain code runs."""
    outcome(program, plain)
    with pytest.raises(error, match=words):
        outcome(program, wrap)


def count_of(make, first, then):
    """A program whose function multiplies by make(first), and in a replay by make(then)."""

    def program(wrap):
        number, x = [first], leaf(4)
        y = wrap(lambda x: (x * make(number[0])).sin().exp().cos())(x)  # y itself is not saved
        number[0] = then
        y.sum().backward()
        return x.grad

    return program


def in_a_process(code, **environment):
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=120,
        env={**os.environ, **environment},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


counted = [0]


@torch.library.custom_op("remat_limits::count", mutates_args=())
def count(x: torch.Tensor) -> torch.Tensor:
    counted[0] += 1
    return x * counted[0]


def in_a_thread(work):
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


class Hidden(torch.Tensor):
    """A tensor that holds another one in a closure, where remat does not look."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.size(), dtype=inner.dtype)

    def __init__(self, inner):
        self.get = lambda: inner

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return func(*[arg.get() if isinstance(arg, Hidden) else arg for arg in args], **(kwargs or {}))
