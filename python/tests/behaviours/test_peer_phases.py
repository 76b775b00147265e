# SPDX-License-Identifier: BSD-3-Clause

"""Behaviours 27 to 32 of torch_remat 0.2.2: forward and replay."""

import collections

import pytest
import torch
from kept import POLICIES, Runs, recompute, save
from programs import checkpointed, leaf
from same import assert_same

import remat_meta as remat


def test_027_is_recomputing():
    phases = []

    def fn(x):
        phases.append(remat.is_recomputing())
        return x.sin()

    checkpointed(fn)(leaf(2)).sum().backward()
    assert phases == [False, True] and not remat.is_recomputing()


def test_028_save_runs_once_the_rest_once_more_per_backward():
    log = Runs()

    def fn(x):
        y = save(log("save", torch.sin), "s")(x)
        z = recompute(log("recompute", torch.exp), "r")(y)
        return log("bare", torch.cos)(z)

    y = checkpointed(fn)(leaf(2))
    y.sum().backward(retain_graph=True)
    y.sum().backward()
    assert collections.Counter(log) == {"save": 1, "recompute": 3, "bare": 3}


@pytest.mark.parametrize("first", POLICIES)
def test_029_another_policy_in_the_replay_raises(first):
    again = [first]
    y = checkpointed(lambda x: remat.region(torch.sin, "a", recompute=again[0])(x.exp()).exp())(leaf(2))
    again[0] = not first
    with pytest.raises(RuntimeError, match="Conflicting recompute settings"):
        y.sum().backward()


def test_030_a_call_that_the_forward_did_not_make_raises():
    more = [False]

    def fn(x):
        y = x.exp()
        if more[0]:
            y = save(torch.sin, "new")(y)
        return y.sin().exp()

    y = checkpointed(fn)(leaf(2))
    more[0] = True
    with pytest.raises(RuntimeError, match="call 'new'.*named call that the forward did not make"):
        y.sum().backward()


@pytest.mark.parametrize("again", POLICIES)
def test_031_no_grad_in_a_call_stays_out_of_the_gradient(again):
    def call(x):
        with torch.no_grad():
            scale = x.exp()
        return x.sin() * scale

    def program(wrap):
        x = leaf(3)
        wrap(lambda x: remat.region(call, "a", recompute=again)(x).cos())(x).sum().backward()
        return x.grad

    assert_same(program, checkpointed)


@pytest.mark.parametrize("again", POLICIES)
def test_032_autocast_is_that_of_the_forward(again):
    def program(wrap):
        w, x = leaf(8, 8), leaf(4, 8)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = wrap(lambda x: remat.region(lambda x: (x @ w).relu(), "a", recompute=again)(x) @ w)(x)
        y.float().sum().backward()
        return y, x.grad, w.grad

    assert_same(program, checkpointed)
