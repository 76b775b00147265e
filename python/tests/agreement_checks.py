# SPDX-License-Identifier: BSD-3-Clause

"""What test_agreement.py runs on each rank: settings that differ by rank raise on all ranks, others do not."""

import collections
import contextlib
import datetime
import itertools
import os
import time

import torch
import torch.distributed as dist
from on_ranks import ENGINES, GoneStore, Reduced, adds_to, assert_raises, executed, on_rank, rank, world
from programs import leaf
from same import assert_equal, plain

import remat_meta as remat
from remat_meta import CheckpointPolicy, Cuts, PolicyTable, _agreement, _collective_watch, _default_group, _engine

assert _engine  # which the first region would import: half a second

CHECKS = {}
check = adds_to(CHECKS)
SOON_S = 5.0  # what takes a tenth of a second alone; gloo would wait for 30 s


@contextlib.contextmanager
def watching():
    """As if the process had been started with REMAT_DEBUG_COLLECTIVES=1."""
    _collective_watch._begin(_default_group._members_of(dist.group.WORLD))
    dist.barrier()
    try:
        yield
    finally:
        _collective_watch._begin(None)


def debug_check(function):
    return check(watching()(function))


def block(x):
    return x.sin().exp().cos().tanh()


def step(fn, **options):
    x = leaf(2, 4)
    remat.checkpoint(**options)(fn)(x).sum().backward()
    return x.grad


def assert_all_raise(kind, run, *words):
    """On this rank, with these words, and the same text on all ranks, soon after the last of them has begun."""
    dist.barrier()
    begin = time.monotonic()
    text = assert_raises(kind, run)
    seconds = time.monotonic() - begin
    store = dist.distributed_c10d._get_default_store()
    store.set(f"text/{rank()}", text)
    assert text == store.get("text/0").decode()
    for word in words:
        assert word in text, text
    assert seconds < SOON_S, f"{seconds} s"


@contextlib.contextmanager
def variable(name, value):
    os.environ[name] = value
    try:
        yield
    finally:
        del os.environ[name]


# Settings.


@check
def a_policy_of_the_environment_differs():
    last = world() - 1
    with variable("REMAT_POLICY", "save_matmuls") if rank() == last else contextlib.nullcontext():
        assert_all_raise(
            ValueError, lambda: step(block), "[agreement] environment", "REMAT_POLICY", f"save_matmuls on rank {last}", "unset"
        )


@check
def another_variable_differs():
    with variable("REMAT_REPLAY", on_rank(0, "function", "auto")):
        assert_all_raise(ValueError, lambda: step(block), "REMAT_REPLAY function on rank 0 and auto on rank")


@check
def variables_of_one_rank_may_differ():
    with variable("REMAT_TRACE", "stderr") if rank() == 0 else contextlib.nullcontext():
        step(block)


@check
def policies_in_files_are_compared_by_what_they_say():
    for says, same in ((lambda: "save_matmuls", True), (lambda: on_rank(0, "save_matmuls", "safe_defaults"), False)):
        path = f"/tmp/remat_agreement_{os.getpid()}.json"
        with open(path, "w") as file:
            file.write(getattr(remat, says())().to_json())
        with variable("REMAT_POLICY", path):
            texts = [None] * world()
            dist.all_gather_object(texts, _agreement._environment()["REMAT_POLICY"])
        os.remove(path)
        assert (len(set(texts)) == 1) == same, texts


@check
def the_engine_differs():
    run = lambda: step(block, region_name="block", replay=on_rank(1, "tape", "function"))  # noqa: E731
    assert_all_raise(ValueError, run, "[agreement] region 'block'", "engine function on rank", "tape on rank 1")


@check
def the_policy_differs():
    run = lambda: step(block, policy=on_rank(1, None, "save_matmuls"))  # noqa: E731
    assert_all_raise(ValueError, run, "region of agreement_checks.block", "policy", "save_matmuls on rank", "none on rank 1")


@check
def tables_differ():
    table = PolicyTable().op(on_rank(1, "aten::sin", "aten::cos"), CheckpointPolicy.SAVE)
    assert_all_raise(ValueError, lambda: step(block, policy=table), "aten::sin", "aten::cos")


@check
def functions_of_policies_differ():
    def one(context, op, *args, **kwargs):
        return CheckpointPolicy.RECOMPUTE

    def other(context, op, *args, **kwargs):
        return CheckpointPolicy.RECOMPUTE

    assert_all_raise(ValueError, lambda: step(block, policy=on_rank(0, one, other)), "<locals>.one on rank 0", "<locals>.other")


@check
def cuts_differ():
    run = lambda: step(block, replay="tape", cuts=Cuts(positions=(1 + on_rank(0, 1, 0),)))  # noqa: E731
    assert_all_raise(ValueError, run, "cuts positions [2]", "positions [1]")


@check
def plans_differ():
    fn = lambda x: block(block(x)).sum()  # noqa: E731
    planner = remat.MemoryPlanner(remat.profile(fn)(leaf(64, 64)))
    frontier = planner.frontier
    plan = planner.plan(on_rank(0, frontier[0].peak_bytes, frontier[-1].peak_bytes))
    assert_all_raise(ValueError, lambda: step(fn, plan=plan), "plan positions", "on rank 0 and")


@check
def a_region_differs_that_comes_later():
    step(block)
    dist.barrier()
    time.sleep(0.2 * rank())
    run = lambda: step(block, region_name="later", replay=on_rank(1, "tape", "function"))  # noqa: E731
    assert_all_raise(ValueError, run, "region 'later'")


@check
def equal_ones_agree():
    policies = (None, "save_matmuls", ["*"], (torch.ops.aten.sin.default, torch.ops.aten.cos.default))
    for _, engine, policy in itertools.product(range(3), ENGINES, policies):
        step(block, replay=engine, policy=policy)
        step(lambda x: block(x) * 2, replay=engine, policy=policy, region_name="named")
    step(block, replay="tape", cuts=Cuts(positions=(1, 2)))
    assert not _agreement._current._is_new  # they have been compared


@check
def sizes_may_differ():
    def fn(x):
        counts = torch.tensor([rank() + 1] + [1] * (world() - 1))
        theirs = torch.empty_like(counts)
        dist.all_to_all_single(theirs, counts)
        tokens = x.detach().repeat(int(counts.sum()))[: int(counts.sum())].clone()
        got = x.new_empty(int(sum(theirs.tolist())))
        dist.all_to_all_single(got, tokens, theirs.tolist(), counts.tolist())
        return x.sin() * got.sum()

    for engine in ENGINES:
        for _ in range(2):
            x = torch.randn(3 + rank(), requires_grad=True)
            remat.checkpoint(replay=engine)(fn)(x).sum().backward()


# Ranks that have other regions than their peers.


def stage_step(stage, has_next, receive, send):
    """Forward and backward of one stage; the last one begins its backward first."""
    x = torch.zeros(2, 4)
    if receive is not None:
        dist.recv(x, receive)
    x.requires_grad_()
    y = stage(x)
    if has_next:
        dist.send(y.detach(), send)
        grad = torch.empty_like(y)
        dist.recv(grad, send)
    else:
        grad = torch.ones_like(y)
    begin = time.monotonic()
    y.backward(grad)
    seconds = time.monotonic() - begin
    if receive is not None:
        dist.send(x.grad, receive)
    return seconds


def pipeline(stage):
    is_last = rank() == world() - 1
    return stage_step(stage, not is_last, rank() - 1 if rank() else None, rank() + 1)


@check
def stages_of_a_pipeline_have_regions_of_their_own():
    stage = remat.checkpoint(region_name=f"stage {rank()}", replay=on_rank(0, "function", "tape"))(block)
    _agreement._current._patience_s = 20
    seconds = [pipeline(stage) for _ in range(3)]
    assert max(seconds) < SOON_S, seconds


@check
def stages_of_a_pipeline_share_some_regions():
    shared = remat.checkpoint(region_name="layer")(block)
    head = remat.checkpoint(region_name="head")(block)
    stage = (lambda x: head(shared(x))) if rank() == world() - 1 else shared
    seconds = [pipeline(stage) for _ in range(3)]
    assert seconds[0] < _agreement._PATIENCE_S + SOON_S
    assert max(seconds[1:]) < SOON_S, seconds


@check
def a_stage_that_differs_in_a_shared_region_raises():
    shared = remat.checkpoint(region_name="layer", replay=on_rank(0, "function", "tape"))(block)

    def run():
        x = leaf(2, 4)
        y = shared(x)
        if rank() < world() - 1:
            time.sleep(0.1)  # the last one is the first to begin its backward
        y.sum().backward()

    assert_all_raise(ValueError, run, "region 'layer'")


@check
def a_rank_may_have_no_region():
    begin = time.monotonic()
    if rank():
        step(block)
    seconds = time.monotonic() - begin
    assert seconds < _agreement._PATIENCE_S + SOON_S, seconds
    dist.barrier()
    if rank() == 0:
        with contextlib.suppress(ValueError):
            step(block, replay="tape")
    dist.barrier()
    time.sleep(_agreement._LOOK_AGAIN_S)
    assert_all_raise(ValueError, lambda: step(block, replay=on_rank(0, "tape", "function")), "tape on rank 0")


# The group and its store.


@check
def a_new_group_begins_anew():
    store = dist.distributed_c10d._get_default_store()
    regions = {engine: remat.checkpoint(replay=engine)(block) for engine in ("function", "tape")}
    run = lambda engine: regions[on_rank(0, engine, "function")](leaf(2, 4)).sum().backward()  # noqa: E731
    assert_all_raise(ValueError, lambda: run("tape"), "tape on rank 0")
    number, size = rank(), world()
    for i, engine in enumerate(("function", "tape")):
        dist.barrier()
        dist.destroy_process_group()
        step(block, replay="tape" if number else "function")  # nobody is asked
        dist.init_process_group("gloo", store=dist.PrefixStore(f"again {i}", store), rank=number, world_size=size)
        if engine == "function":
            run(engine)
        else:
            assert_all_raise(ValueError, lambda: run("tape"), "tape on rank 0")


@check
def groups_of_some_ranks_change_nothing():
    group = dist.new_group(list(range(world())))
    step(block)
    dist.destroy_process_group(group)
    step(block)
    assert _agreement._current is not None


@check
def a_store_that_is_gone_fails_nothing():
    step(block)
    _agreement._current._store = GoneStore()
    step(block, region_name="after")
    assert _agreement._current is None
    step(block, region_name="later")


@check
def a_forked_child_asks_nobody():
    step(block)
    child = os.fork()
    if child == 0:
        code = 1
        with contextlib.suppress(BaseException):
            step(block, replay="tape")
            code = 0 if _agreement._current is None else 2
        os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert _agreement._current is not None
    step(block)


def other_modes():
    """With REMAT_AGREEMENT=0 and REMAT_DEBUG_COLLECTIVES=1."""
    step(block, replay=on_rank(0, "tape", "function"))
    assert _agreement._current is None
    assert_watched(lambda: step(lambda x: block(x) if rank() else reduced(x)), "rank 1 has ended its forward")


CHECKS["other_modes"] = other_modes


# Engines that ranks choose for themselves, by "auto".


@check
def ranks_may_fall_back_alone():
    """What one rank's tape cannot hold makes that rank call the function again; no collective depends on it."""

    def fn(x, w, here):
        y = (x * w).sin()
        if here:
            inner = y.detach().requires_grad_()
            y = y * torch.autograd.grad((inner * inner).sum(), inner)[0]  # no tape
        return Reduced.apply(y.cos(), dist.all_reduce).exp()

    def steps(wrap):
        torch.manual_seed(rank())
        x, w = leaf(2, 4), leaf(4)
        for _ in range(3):
            wrap(fn)(x, w, rank() == 0).sum().backward()
        return [x.grad, w.grad]

    wanted, expected = executed(lambda: steps(plain))
    for policy, more in ((None, 0), (PolicyTable().op("c10d::*", CheckpointPolicy.RECOMPUTE), 3)):
        done, got = executed(lambda p=policy: steps(remat.checkpoint(replay="auto", policy=p)))
        assert_equal(expected, got)
        assert done == wanted + collections.Counter(all_reduce=more), f"{done}, {wanted}"


# The watch of collectives.


def reduced(x):
    return Reduced.apply(x.sin(), dist.all_reduce).exp()


def assert_watched(run, *words):
    assert_all_raise(RuntimeError, run, "[collectives]", *words)


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
    sizes_may_differ()


@debug_check
def recomputed_collectives_pass():
    policy = PolicyTable().op("c10d::*", CheckpointPolicy.RECOMPUTE)
    step(reduced, policy=policy)
    assert max(_collective_watch._current._issued.values()) == 2  # and one more in the backward, outside of the region


@debug_check
def stragglers_pass():
    time.sleep(1.5 * rank())
    step(reduced)


@debug_check
def functional_collectives_are_compared_when_they_are_waited_for():
    """Rank 1 comes to its own after it has got what rank 0 sends after having begun its own."""
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
    # Which goes on until then: the group cannot end before.
    dist.distributed_c10d._set_pg_timeout(datetime.timedelta(seconds=1), dist.group.WORLD)
    assert_watched(lambda: step(fn), "_c10d_functional::all_reduce", "float32 [4]")


@debug_check
def a_collective_is_missing():
    def fn(x):
        return block(x) if rank() == 1 else reduced(x)

    assert_watched(lambda: step(fn, region_name="block"), "c10d::allreduce_ of float32 [2, 4]", "rank 1 has ended its forward of")


@debug_check
def a_collective_is_missing_in_a_replay():
    calls = []

    def fn(x):
        calls.append(1)
        return block(x) if rank() == 1 and len(calls) == 2 else reduced(x)

    policy = PolicyTable().op("c10d::*", CheckpointPolicy.RECOMPUTE)
    begin = time.monotonic()
    try:
        step(fn, region_name="block", policy=policy)
    except remat.ReplayMismatch:
        assert rank() == 1
    except RuntimeError as error:
        assert "rank 1 has raised in its replay of region 'block'" in str(error), error
    else:
        raise AssertionError("no error")
    assert time.monotonic() - begin < SOON_S


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
    """Its own error on that rank, the others raise in its place."""

    def fn(x):
        if rank() == 1:
            raise KeyError("lost")
        return reduced(x)

    begin = time.monotonic()
    try:
        step(fn, region_name="block")
    except KeyError:
        assert rank() == 1
    except RuntimeError as error:
        assert rank() != 1
        assert "rank 1 has raised in its forward of region 'block': KeyError: 'lost'" in str(error), error
    assert time.monotonic() - begin < SOON_S


@debug_check
def a_rank_throws_in_a_replay():
    calls = []

    def fn(x):
        calls.append(1)
        if rank() == 1 and len(calls) == 2:
            raise KeyError("lost")
        return reduced(x)

    policy = PolicyTable().op("c10d::*", CheckpointPolicy.RECOMPUTE)
    begin = time.monotonic()
    try:
        step(fn, region_name="block", policy=policy)
    except KeyError:
        assert rank() == 1
    except RuntimeError as error:
        assert "rank 1 has raised in its replay of region 'block': KeyError: 'lost'" in str(error), error
    assert time.monotonic() - begin < SOON_S


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


ON_RANKS = {
    2: tuple(name for name in CHECKS if name not in ("other_modes", "a_part_of_the_ranks_differs")),
    4: (
        "a_policy_of_the_environment_differs",
        "equal_ones_agree",
        "stages_of_a_pipeline_have_regions_of_their_own",
        "stages_of_a_pipeline_share_some_regions",
        "right_collectives_pass",
        "a_collective_is_missing",
        "another_group",
        "a_rank_throws",
        "a_part_of_the_ranks_differs",
    ),
}
