# SPDX-License-Identifier: BSD-3-Clause

"""Limits of docs/reference/limits.md that need several ranks."""

import time
import weakref

import torch
import torch.distributed as dist
from on_ranks import adds_to, assert_raises, rank, wraps
from same import assert_equal, plain

import remat_meta as remat

CHECKS = {}
check = adds_to(CHECKS)


def gradient(wrap, fn, before_backward=lambda: None):
    torch.manual_seed(rank())
    x = torch.randn(4, 2, requires_grad=True)
    y = wrap(lambda x: fn(x).exp() * 1)(x)
    before_backward()
    y.sum().backward()
    return x.grad


@check
def s20_under_offload_the_value_from_before_a_collective_is_used():
    memory = []

    def reduced(x):
        y = remat.native_op(torch.exp, "exp", remat.CheckpointPolicy.OFFLOAD)(x)  # exp saves its result
        memory.append(weakref.ref(y.untyped_storage()))
        dist.all_reduce(y)
        return y

    def nobody_has_it():
        while memory[-1]() is not None:  # gloo's thread releases the memory a little later
            time.sleep(0.01)

    got = gradient(remat.checkpoint(offload_store=remat.host_memory_store()), reduced, nobody_has_it)
    assert not torch.equal(gradient(plain, reduced), got)


@check
def d6_collectives_that_differentiate_have_no_strict_tape_in_a_nested_region():
    import torch.distributed._functional_collectives as fc

    group = dist.group.WORLD
    kinds = (
        lambda x: fc.all_gather_tensor_autograd(x.sin(), 0, group),
        lambda x: fc.reduce_scatter_tensor_autograd(x.sin(), "sum", 0, group),
        lambda x: fc.all_to_all_single_autograd(x.sin(), None, None, group),
    )
    for fn in kinds:
        for wrap in wraps(policies=(None,)).values():
            assert_equal(gradient(plain, fn), gradient(wrap, fn))
        nested = remat.checkpoint(replay="tape")(fn)
        assert_raises(NotImplementedError, lambda fn=nested: gradient(remat.checkpoint(), fn), "expected what a tape can replay")
