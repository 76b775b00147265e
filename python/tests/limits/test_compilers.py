# SPDX-License-Identifier: BSD-3-Clause

"""torch.func, torch.jit and torch.compile."""

import pytest
import torch
from programs import leaf
from same import assert_same

import remat_meta as remat

from .common import ANOTHER, OFFLOAD, SAVE, assert_raises, call, region


@pytest.mark.parametrize("replay", ["function", "tape"])
def test_j3_batched_gradients_of_a_region_that_draws_raise(replay):
    def program(wrap):
        x = leaf(4)
        y = wrap(lambda x: (x * torch.rand(4)).sin())(x)
        return torch.autograd.grad(y, x, torch.eye(4), is_grads_batched=True)

    assert_raises(program, region(replay), "vmap: We do not yet support calling random operations")


def test_j4_a_random_factory_that_differs_in_vmap_raises():
    def program(wrap):
        x = leaf(4, 3)
        rows = torch.vmap(lambda row: (row * torch.rand(3)).sin(), randomness="different")
        wrap(rows)(x).sum().backward()
        return x.grad

    assert_raises(program, region(), ANOTHER, remat.ReplayMismatch)


@pytest.mark.parametrize("policy", [SAVE, OFFLOAD, remat.CheckpointPolicy.RECOMPUTE])
def test_j10_a_call_inside_vmap_raises(policy):
    def program(wrap):
        x = leaf(4, 3)
        wrap(torch.vmap(lambda row: call(torch.exp, policy)(row.sin()).cos()))(x).sum().backward()
        return x.grad

    words = "region '.*', call 'call'.*outside of torch.func's transforms"
    if policy == remat.CheckpointPolicy.RECOMPUTE:
        assert_raises(program, region(), ANOTHER, remat.ReplayMismatch)
        assert_same(program, region("tape"))
    else:
        assert_raises(program, region(), words, NotImplementedError)
        assert_raises(program, region("tape"), words, NotImplementedError)
    round_it = call(torch.vmap(lambda row: row.sin().exp()), SAVE)
    assert_same(lambda wrap: [wrap(lambda x: round_it(x).cos())(leaf(4, 3))], region())


@pytest.mark.torch_warns  # warns that TorchScript is deprecated
def test_j5_torch_jit_fork_raises_without_a_tape():
    @torch.jit.script
    def forked(x):
        return torch.jit.wait(torch.jit.fork(torch.sin, x)).exp()

    def program(wrap):
        x = leaf(4)
        wrap(lambda x: forked(x) * x)(x).sum().backward()
        return x.grad

    assert_raises(program, region(), "as in the forward, got", remat.ReplayMismatch)
    assert_same(program, region("tape"))


@pytest.mark.torch_warns
def test_j6_torch_script_runs_other_ops_in_its_first_calls():
    @torch.jit.script
    def scripted(x):
        return (x.sin() * x.cos()).exp().tanh()

    with pytest.raises(remat.ReplayMismatch, match="as in the forward, got"):
        region()(lambda x: scripted(x) * x)(leaf(4)).sum().backward()
    for _ in range(4):
        scripted(leaf(4)).sum().backward()

    def program(wrap):
        x = leaf(4)
        wrap(lambda x: scripted(x) * x)(x).sum().backward()
        return x.grad

    assert_same(program, region("tape"))
