# SPDX-License-Identifier: BSD-3-Clause

"""Checks that test_collectives.py runs on each rank, each against plain PyTorch, bit by bit."""

import collections
import time

import torch
import torch.distributed as dist
from on_ranks import (
    STEPS,
    Reduced,
    adds_to,
    assert_as_plain,
    assert_raises,
    assert_steps_as_plain,
    executed,
    rank,
    steps,
    world,
    wraps,
)
from programs import leaf
from same import assert_equal, plain

import remat_meta as remat
from remat_meta import CheckpointPolicy, PolicyTable

CHECKS = {}
check = adds_to(CHECKS)


# In place on tensors that the function makes


@check
def all_reduce_inside():
    assert_steps_as_plain(lambda w: lambda x: Reduced.apply((x * w).sin(), dist.all_reduce).exp().cos())


@check
def all_reduce_async_inside():
    def reduce(y):
        work = dist.all_reduce(y, async_op=True)
        (y.new_ones(3) * 2).sin()  # overlaps with the collective
        work.wait()

    assert_steps_as_plain(lambda w: lambda x: Reduced.apply((x * w).sin(), reduce).exp().cos())


@check
def a_part_is_read_while_a_collective_writes_the_rest():
    def reduce(y):
        halves = torch.cat([y.detach().flatten(), y.detach().flatten() + 1])
        time.sleep(0.05 * rank())  # so the collective has not ended on other ranks when they read
        work = dist.all_reduce(halves[: y.numel()], async_op=True)
        other = halves[y.numel() :].sin()
        work.wait()
        y.copy_((halves[: y.numel()] + other).view_as(y))

    assert_steps_as_plain(lambda w: lambda x: Reduced.apply((x * w).sin(), reduce).exp().cos())


@check
def broadcast_inside():
    assert_steps_as_plain(lambda w: lambda x: Reduced.apply((x * w).sin(), lambda y: dist.broadcast(y, 1)).exp())


@check
def reduce_inside():
    assert_steps_as_plain(lambda w: lambda x: Reduced.apply((x * w).sin(), lambda y: dist.reduce(y, 0)).exp())


@check
def all_gather_lists_inside():
    def gather(y):
        parts = [torch.empty_like(y) for _ in range(world())]
        dist.all_gather(parts, y * 2)
        y.copy_(torch.stack(parts).sin().sum(0))

    assert_steps_as_plain(lambda w: lambda x: Reduced.apply((x * w).sin(), gather).exp())


@check
def all_gather_into_tensor_inside():
    def gather(y):
        parts = y.new_empty(world() * y.shape[0], *y.shape[1:])
        dist.all_gather_into_tensor(parts, y * 2)
        y.copy_(parts.view(world(), *y.shape).sin().sum(0))

    assert_steps_as_plain(lambda w: lambda x: Reduced.apply((x * w).sin(), gather).exp())


@check
def gather_and_scatter_inside():
    def through_root(y):
        parts = [torch.empty_like(y) for _ in range(world())] if rank() == 0 else None
        dist.gather(y * 2, parts, 0)
        if parts:
            parts = [part.sin() + i for i, part in enumerate(parts)]
        out = torch.empty_like(y)
        dist.scatter(out, parts, 0)
        y.copy_(out)

    assert_steps_as_plain(lambda w: lambda x: Reduced.apply((x * w).sin(), through_root).exp())


@check
def reduce_scatter_inside():
    def scatter(y):
        parts = [y * (i + 1) for i in range(world())]
        out = torch.empty_like(y)
        dist.reduce_scatter(out, parts)
        whole = torch.stack(parts).flatten(0, 1).contiguous()
        other = torch.empty_like(y)
        dist.reduce_scatter_tensor(other, whole)
        y.copy_(out.sin() + other)

    assert_steps_as_plain(lambda w: lambda x: Reduced.apply((x * w).sin(), scatter).exp())


@check
def all_to_all_inside():
    def exchange(y):
        flat = y.reshape(-1)
        counts = torch.tensor([rank() + 1] + [1] * (world() - 1))
        flat = flat[: int(counts.sum())].clone()
        theirs = torch.empty_like(counts)
        dist.all_to_all_single(theirs, counts)
        out = flat.new_empty(int(sum(theirs.tolist())))  # a read without an op
        dist.all_to_all_single(out, flat, theirs.tolist(), counts.tolist())
        y.copy_(out.sin().sum() + y)

    assert_steps_as_plain(lambda w: lambda x: Reduced.apply((x * w).sin(), exchange).exp())


@check
def counts_of_an_async_collective_are_read_by_the_host():
    def exchange(y):
        counts = torch.tensor([rank() + 1.0, 3.0 - rank()])
        work = dist.all_reduce(counts, async_op=True)
        work.wait()
        y.mul_(counts.tolist()[0])  # a read without an op

    assert_steps_as_plain(lambda w: lambda x: Reduced.apply((x * w).sin(), exchange).exp())


@check
def coalesced_inside():
    def reduce(y):
        halves = [y[0].clone(), y[1].clone()]
        with dist._coalescing_manager():
            for half in halves:
                dist.all_reduce(half)
        y.copy_(torch.stack(halves).sin())

    assert_steps_as_plain(lambda w: lambda x: Reduced.apply((x * w).sin(), reduce).exp())


@check
def objects_inside():
    def exchange(y):
        names = [None] * world()
        dist.all_gather_object(names, {"rank": rank(), "scale": 0.5 + rank()})
        one = [names[0]["scale"] if rank() == 0 else None]
        dist.broadcast_object_list(one, 0)
        y.mul_(sum(name["scale"] for name in names) * one[0])

    engines = ("function", "auto")
    assert_steps_as_plain(lambda w: lambda x: Reduced.apply((x * w).sin(), exchange).exp(), engines, nested=False)


# On arguments and captured tensors


@check
def all_reduce_of_an_argument():
    def program(w):
        def fn(x):
            total = x.detach()
            dist.all_reduce(total)
            return (x * w).sin() * total.cos() + total

        return lambda x: fn(x * 2)

    assert_steps_as_plain(lambda w: lambda x: program(w)(x))

    def direct(w):
        def fn(x, statistics):
            dist.all_reduce(statistics)
            return (x * w).sin() * statistics

        return fn

    def run(wrap):
        torch.manual_seed(rank())
        x, w = leaf(2, 4), leaf(4)
        tensors = []
        for _ in range(STEPS):
            statistics = torch.rand(4)
            y = wrap(direct(w))(x, statistics)
            y.cos().sum().backward()
            tensors += [statistics, y.detach(), x.grad.clone(), w.grad.clone()]
        return tensors

    assert_as_plain(run, wraps())


@check
def all_reduce_of_a_captured_tensor_over_steps():
    def run(wrap):
        torch.manual_seed(rank())
        x, w = leaf(2, 4), leaf(4)
        statistics = torch.rand(4)

        def fn(x, gate):
            y = (x * w).sin() * statistics.clone()
            if gate:
                dist.all_reduce(statistics)
                y = y * statistics.cos()
            return y.exp()

        region = wrap(fn)
        tensors = []
        for gate in (0, 1, 1):
            y = region(x, gate)
            y.cos().sum().backward()
            tensors += [statistics.clone(), y.detach(), x.grad.clone(), w.grad.clone()]
        return tensors

    assert_as_plain(run, wraps())


@check
def a_collective_that_writes_a_saved_tensor_raises():
    def fn(x, w):
        y = (x * w).exp()  # exp saves its result
        dist.all_reduce(y)
        return y

    for wrap in wraps().values():
        assert_raises(RuntimeError, lambda wrap=wrap: wrap(fn)(leaf(2, 4), leaf(4)), "writes a saved tensor", "clone")


# Sends and receives


def exchange_pairs(y):
    other = torch.empty_like(y)
    peer = rank() ^ 1
    works = dist.batch_isend_irecv([dist.P2POp(dist.isend, y * 2, peer), dist.P2POp(dist.irecv, other, peer)])
    for work in works:
        work.wait()
    y.copy_(other.sin())


@check
def batch_isend_irecv_inside():
    assert_steps_as_plain(lambda w: lambda x: Reduced.apply((x * w).sin(), exchange_pairs).exp())


@check
def send_and_receive_inside():
    def shift(y):
        if rank() % 2 == 0:
            dist.send(y * 3, rank() + 1)
        else:
            dist.recv(y, rank() - 1)

    assert_steps_as_plain(lambda w: lambda x: Reduced.apply((x * w).sin(), shift).exp())


@check
def barrier_inside():
    def fn(y):
        dist.barrier()
        y.sin_()

    assert_steps_as_plain(lambda w: lambda x: Reduced.apply((x * w).sin(), fn).exp())


# Ranks with different tensors alive at backward


@check
def ranks_differ_in_what_is_alive():
    def fn(x, w):
        one = (x * w).sin()
        first = one.exp()
        return first, Reduced.apply(one.cos(), dist.all_reduce).exp()

    def run(wrap):
        torch.manual_seed(rank())
        x, w = leaf(2, 4), leaf(4)
        first, second = wrap(fn)(x, w)
        if rank() == 0:
            del second  # otherwise the replay runs past the collective to its saved tensor
        first.sum().backward()
        return [x.grad, w.grad]

    expected = run(plain)
    for wrap in wraps().values():
        assert_equal(expected, run(wrap))


@check
def a_rule_may_recompute_collectives():
    policy = PolicyTable().op("c10d::*", CheckpointPolicy.RECOMPUTE)
    program = lambda w: lambda x: Reduced.apply((x * w).sin(), dist.all_reduce).exp().cos()  # noqa: E731
    wanted, expected = executed(lambda: steps(plain, program))
    for engine in ("function", "auto"):
        done, got = executed(lambda: steps(remat.checkpoint(replay=engine, policy=policy), program))
        assert_equal(expected, got)
        assert done == wanted + collections.Counter(all_reduce=STEPS)  # each replay calls all_reduce once more


@check
def a_recomputed_collective_is_called_whatever_is_alive():
    policy = PolicyTable().op("c10d::*", CheckpointPolicy.RECOMPUTE)

    def run(wrap):
        torch.manual_seed(rank())
        x, w = leaf(2, 4), leaf(4)

        def fn(x):
            first = (x * w).sin()
            one, total = first.exp(), first.detach().clone()
            dist.all_reduce(total)
            return one, (first * total).exp()

        first, second = wrap(fn)(x)
        if rank() == 0:
            del second
            loss = first.sum()
        else:
            loss = first.sum() + second.sum()
        loss.backward()
        return [x.grad, w.grad]

    expected = run(plain)
    assert_equal(expected, run(remat.checkpoint(policy=policy)))


ON_RANKS = {
    2: tuple(CHECKS),
    4: (
        "all_gather_lists_inside",
        "all_to_all_inside",
        "batch_isend_irecv_inside",
        "ranks_differ_in_what_is_alive",
    ),
}
