# SPDX-License-Identifier: BSD-3-Clause

"""Checks that test_agreement.py runs on each rank: with the watch of collectives, those that differ by rank raise on all ranks,
others do not."""

import contextlib
import datetime
import time

import torch
import torch.distributed as dist
from agreement_steps import SOON_S, assert_all_raise, exchange_unevenly, pointwise, step
from on_ranks import Reduced, adds_to, assert_raises, on_rank, rank, world

import remat_meta as remat
from remat_meta import CheckpointPolicy, PolicyTable, _agreement, _collective_watch, _default_group

CHECKS = {}
check = adds_to(CHECKS)


@contextlib.contextmanager
def watching():
    """Runs as if the process had been started with REMAT_DEBUG_COLLECTIVES=1."""
    _collective_watch._begin(_default_group._members_of(dist.group.WORLD))
    dist.barrier()
    try:
        yield
    finally:
        _collective_watch._begin(None)


def debug_check(function):
    return check(watching()(function))


def reduced(x):
    return Reduced.apply(x.sin(), dist.all_reduce).exp()


def assert_watched(run, *words):
    assert_all_raise(RuntimeError, run, "[collectives]", *words)


def assert_raises_on_rank_1(kind, run, words):
    """Checks that rank 1 raises, and that the other ranks soon raise in its place, with these words."""
    begin = time.monotonic()
    if rank() == 1:
        assert_raises(kind, run)
    else:
        assert_raises(RuntimeError, run, words)
    assert time.monotonic() - begin < SOON_S


@debug_check
def right_collectives_pass():
    group = dist.group.WORLD.group_name
    pairs = [dist.new_group([first, first + 1]) for first in range(0, world(), 2)]
    mine = pairs[rank() // 2]

    def fn(x):
        y = x.detach().clone()
        dist.all_reduce(y)
        dist.all_reduce(y, group=mine)
        works = [dist.broadcast(y, 0, async_op=True)]
        parts = [torch.empty_like(y) for _ in range(world())]
        dist.all_gather(parts, y)
        works[0].wait()
        dist.gather(y, parts if rank() == 0 else None, 0)
        dist.scatter(y, [y + i for i in range(world())] if rank() == 0 else None, 0)
        dist.all_gather_object([None] * world(), "x" * rank())
        dist.barrier()
        other = torch.empty_like(y)
        ops = [dist.P2POp(dist.irecv, other, rank() ^ 1), dist.P2POp(dist.isend, y, rank() ^ 1)]
        for work in dist.batch_isend_irecv(ops):
            work.wait()
        total = torch.ops._c10d_functional.wait_tensor(torch.ops._c10d_functional.all_reduce(y, "sum", group))
        return (x * total).sin()

    for _ in range(2):
        step(fn)
    assert _collective_watch._current is not None


@debug_check
def uneven_collectives_pass():
    exchange_unevenly()


@debug_check
def recomputed_collectives_pass():
    policy = PolicyTable().op("c10d::*", CheckpointPolicy.RECOMPUTE)
    step(reduced, policy=policy)
    assert max(_collective_watch._current._issued.values()) == 2  # the third, in the backward, is outside the region


@debug_check
def stragglers_pass():
    time.sleep(1.5 * rank())
    step(reduced)


@debug_check
def functional_collectives_are_compared_when_they_are_waited_for():
    """Rank 1 begins its collective after it has received a message that rank 0 sends after beginning its own."""
    ops, group = torch.ops._c10d_functional, dist.group.WORLD.group_name
    shape = [3]

    def fn(x):
        message, sizes = torch.ones(2), x.new_ones(*shape)
        if rank() == 1:
            dist.recv(message, 0)
        begun = ops.all_reduce(sizes, "sum", group)
        if rank() == 0:
            dist.send(message, 1)
        return x.sin() * ops.wait_tensor(begun).sum()

    step(fn)
    shape[0] = on_rank(1, 4, 3)
    # The collective goes on until then: the group cannot end earlier.
    dist.distributed_c10d._set_pg_timeout(datetime.timedelta(seconds=1), dist.group.WORLD)
    assert_watched(lambda: step(fn), "_c10d_functional::all_reduce", "float32 [4]")


@debug_check
def a_collective_is_missing():
    def fn(x):
        return pointwise(x) if rank() == 1 else reduced(x)

    assert_watched(lambda: step(fn, region_name="block"), "c10d::allreduce_ of float32 [2, 4]", "rank 1 has ended its forward of")


@debug_check
def a_collective_is_missing_in_a_replay():
    calls = []

    def fn(x):
        calls.append(1)
        return pointwise(x) if rank() == 1 and len(calls) == 2 else reduced(x)

    policy = PolicyTable().op("c10d::*", CheckpointPolicy.RECOMPUTE)
    run = lambda: step(fn, region_name="block", policy=policy)  # noqa: E731
    assert_raises_on_rank_1(remat.ReplayMismatch, run, "rank 1 has raised in its replay of region 'block'")


@debug_check
def another_order():
    def fn(x):
        y = x.detach().clone()
        one, other = dist.all_reduce, lambda y: dist.broadcast(y, 0)
        for collective in on_rank(1, (other, one), (one, other)):
            collective(y)
        return x.sin() * y

    assert_watched(lambda: step(fn), "c10d::allreduce_", "c10d::broadcast_", "on rank 1")


@debug_check
def another_shape():
    def fn(x):
        y = x.new_ones(3 + on_rank(1, 1, 0))
        dist.all_reduce(y)
        return x.sin() * y.sum()

    assert_watched(lambda: step(fn), "float32 [3]", "float32 [4]")


@debug_check
def another_dtype():
    def fn(x):
        y = x.new_ones(3, dtype=on_rank(1, torch.float64, torch.float32))
        dist.all_reduce(y)
        return x.sin() * y.sum()

    assert_watched(lambda: step(fn), "float32 [3]", "float64 [3]")


@debug_check
def another_region():
    assert_watched(lambda: step(reduced, region_name=on_rank(1, "other", "one")), "region 'one'", "region 'other'")


@debug_check
def another_group():
    groups = [dist.new_group(list(range(world()))), dist.new_group(list(range(world())))]

    def fn(x):
        y = x.detach().clone()
        dist.all_reduce(y, group=groups[on_rank(1, 1, 0)])
        return x.sin() * y

    assert_watched(lambda: step(fn), "rank", "waits with c10d::allreduce_")


@debug_check
def a_rank_throws():
    def fn(x):
        if rank() == 1:
            raise KeyError("lost")
        return reduced(x)

    run = lambda: step(fn, region_name="block")  # noqa: E731
    assert_raises_on_rank_1(KeyError, run, "rank 1 has raised in its forward of region 'block': KeyError: 'lost'")


@debug_check
def a_rank_throws_in_a_replay():
    calls = []

    def fn(x):
        calls.append(1)
        if rank() == 1 and len(calls) == 2:
            raise KeyError("lost")
        return reduced(x)

    policy = PolicyTable().op("c10d::*", CheckpointPolicy.RECOMPUTE)
    run = lambda: step(fn, region_name="block", policy=policy)  # noqa: E731
    assert_raises_on_rank_1(KeyError, run, "rank 1 has raised in its replay of region 'block': KeyError: 'lost'")


@debug_check
def a_rank_that_throws_and_goes_on_stops_nobody():
    def fn(x):
        raise KeyError("lost")

    if rank() == 1:
        with contextlib.suppress(KeyError):
            step(fn, region_name="tried")
    step(reduced)


@debug_check
def a_part_of_the_ranks_differs():
    """On four ranks, in the group of the last two."""
    groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]

    def fn(x):
        y = x.new_ones(3 + on_rank(3, 1, 0))
        dist.all_reduce(y, group=groups[rank() // 2])
        return x.sin() * y.sum()

    if rank() >= 2:
        assert_raises(RuntimeError, lambda: step(fn), "(ranks 2, 3)")


@check
def other_modes():
    """Runs with REMAT_AGREEMENT=0 and REMAT_DEBUG_COLLECTIVES=1."""
    step(pointwise, replay=on_rank(0, "tape", "function"))
    assert _agreement._current is None
    assert_watched(lambda: step(lambda x: pointwise(x) if rank() else reduced(x)), "rank 1 has ended its forward")


ON_RANKS = {
    2: tuple(name for name in CHECKS if name not in ("other_modes", "a_part_of_the_ranks_differs")),
    4: (
        "right_collectives_pass",
        "a_collective_is_missing",
        "another_group",
        "a_rank_throws",
        "a_part_of_the_ranks_differs",
    ),
}
