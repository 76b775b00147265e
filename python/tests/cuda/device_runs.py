# SPDX-License-Identifier: BSD-3-Clause

"""Runs programs on CUDA tensors plainly and with regions, and compares every bit."""

import threading

import pytest
import torch
from same import assert_equal, plain

import remat_meta as remat
from remat_meta._C import live_region_count

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
two_devices = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two devices")

SAVE = remat.CheckpointPolicy.SAVE
REPLAYS = ["function", "tape", "auto"]
all_replays = pytest.mark.parametrize("replay", REPLAYS)
FUNCTIONS = ["function", "auto"]  # "tape" never calls the function again
calls_again = pytest.mark.parametrize("replay", FUNCTIONS)


def leaf(*shape, device="cuda"):
    return torch.randn(*shape, device=device, requires_grad=True)


def on_main_thread():
    return threading.current_thread() is threading.main_thread()


def run(program, wrap):
    torch.manual_seed(7)
    values = program(wrap)
    torch.cuda.synchronize()
    return [values, *torch.cuda.get_rng_state_all(), torch.get_rng_state()]


def assert_same(program, wrap):
    """Checks that values, and the next random numbers, are those of a plain run, and that no region is left."""
    expected = run(program, plain)
    before = live_region_count()
    got = run(program, wrap)
    assert_equal(expected, got)
    assert live_region_count() == before
    assert not remat.is_recomputing() and torch.is_grad_enabled()


def region(replay="function", **options):
    return remat.checkpoint(region_name="block", replay=replay, **options)


def repeated(step, times=3):
    """Repeats a step: a tape is compared in its first replays and then trusted."""
    return [step() for _ in range(times)]


def step_after(wrap):
    x, w = leaf(4, 4), leaf(4, 4)
    for _ in range(2):
        wrap(lambda x: (torch.dropout((x @ w).sin(), 0.5, True) * x).exp())(x).sum().backward()
    return x.grad, w.grad
