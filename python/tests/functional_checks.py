# SPDX-License-Identifier: BSD-3-Clause

"""Checks that test_collectives.py runs on each rank: functional collectives and tensor parallel modules. Each check compares with
plain PyTorch, bit by bit."""

import torch
import torch.distributed as dist
from on_ranks import (
    ENGINES,
    Reduced,
    adds_to,
    assert_as_plain,
    assert_steps_as_plain,
    block,
    rank,
    ranks_mesh,
    square_sum,
    world,
    wraps,
)
from programs import leaf
from same import assert_equal, plain

import remat_meta as remat

CHECKS = {}
check = adds_to(CHECKS)


@check
def functional_collectives_inside():
    ops = torch.ops._c10d_functional
    group = dist.group.WORLD.group_name

    def reduce(y):
        total = ops.wait_tensor(ops.all_reduce(y, "sum", group))
        parts = ops.wait_tensor(ops.all_gather_into_tensor(total * 2, world(), group))
        y.copy_(parts.view(world(), *y.shape).sin().sum(0))

    assert_steps_as_plain(lambda w: lambda x: Reduced.apply((x * w).sin(), reduce).exp())


def functional(make):
    """Makes a check; `make(fc, group)` returns a function of x."""
    import torch.distributed._functional_collectives as fc

    collective = make(fc, dist.group.WORLD)
    assert_steps_as_plain(lambda w: lambda x: ((x * w).sin() * collective(x.detach()).sum()).tanh(), engines=("function", "auto"))


@check
def functional_gather_whose_memory_gloo_writes_by_ops():
    def make(fc, group):
        def gather(x):
            for _ in range(10):
                x = fc.wait_tensor(fc.all_gather_tensor(x.sin(), 0, group))[:2]
            return x

        return gather

    functional(make)


@check
def functional_gather_in_a_subclass():
    functional(lambda fc, group: lambda x: fc.all_gather_tensor(x.cos(), 0, group) * 1.0)


@check
def functional_reduce_in_a_subclass():
    functional(lambda fc, group: lambda x: fc.all_reduce(x.cos(), "sum", group) * 1.0)


@check
def functional_gather_coalesced():
    functional(lambda fc, group: lambda x: fc.all_gather_into_tensor_coalesced([x.sin(), x.cos()], group)[1] * 1.0)


@check
def functional_scatter_coalesced():
    def make(fc, group):
        def scatter(x):
            parts = fc.reduce_scatter_tensor_coalesced([x.sin(), x.cos()], "sum", [0, 0], group)
            return parts[0] * parts[1]

        return scatter

    functional(make)


@check
def functional_collectives_are_waited_for_no_sooner_than_plain():
    """Rank 0 begins the collective, then sends a message; rank 1 joins the collective only after receiving it."""
    import torch.distributed._functional_collectives as fc

    world_group, pair = dist.group.WORLD, dist.new_group([0, 1])
    ops = torch.ops._c10d_functional
    kinds = {
        "subclass": (lambda x: fc.all_reduce(x, "sum", world_group), lambda y: y * 1.0),
        "gather": (lambda x: fc.all_gather_tensor(x, 0, world_group), lambda y: y[:2] * 1.0),
        "plain": (lambda x: ops.all_reduce(x, "sum", world_group.group_name), ops.wait_tensor),
        "in place": (lambda x: ops.all_reduce_(x, "sum", world_group.group_name), ops.wait_tensor),
    }
    for begin, end in kinds.values():

        def fn(x, begin=begin, end=end):
            message = torch.ones(2)
            if rank() == 0:
                begun = begin(x.detach() * 2)
                dist.send(message, 1, group=pair)
            else:
                dist.recv(message, 0, group=pair)
                begun = begin(x.detach() * 2)
            return (x * message.sum()).sin() * end(begun)

        def run(wrap, fn=fn):
            torch.manual_seed(rank())
            x = leaf(2, 4)
            wrap(fn)(x).sum().backward()
            return [x.grad]

        expected = run(plain)
        for policy in (None, "safe_defaults"):
            assert_equal(expected, run(remat.checkpoint(policy=policy)))


@check
def functional_collectives_that_began_before_the_region():
    ops = torch.ops._c10d_functional
    group = dist.group.WORLD.group_name

    def run(wrap):
        torch.manual_seed(rank())
        x = leaf(2, 4)
        begun = ops.all_gather_into_tensor(x.detach() * 2, world(), group)
        wrap(lambda x: (x * ops.wait_tensor(begun).sum()).tanh())(x).sum().backward()
        return [x.grad]

    for _ in range(5):
        expected = run(plain)
        for engine in ENGINES:
            assert_equal(expected, run(remat.checkpoint(replay=engine)))


# Tensor parallel modules


@check
def a_tensor_parallel_module_in_a_region():
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    def step(wrap):
        module = parallelize_module(block(), ranks_mesh(), {"0": ColwiseParallel(), "2": RowwiseParallel()})
        torch.manual_seed(3)  # all ranks have the same input
        x = leaf(3, 4)
        y = wrap(module)(x)
        square_sum(y).backward()
        return [y.detach(), x.grad] + [p.grad.to_local() for p in module.parameters()]

    assert_as_plain(step, wraps())


ON_RANKS = {2: tuple(CHECKS), 4: ()}
