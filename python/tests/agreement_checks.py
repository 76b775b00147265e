# SPDX-License-Identifier: BSD-3-Clause

"""Checks that test_agreement.py runs on each rank: settings that differ by rank raise on all ranks, others do not."""

import collections
import contextlib
import itertools
import os
import time

import torch
import torch.distributed as dist
from agreement_steps import SOON_S, assert_all_raise, exchange_unevenly, pointwise, step
from on_ranks import ENGINES, GoneStore, Reduced, adds_to, assert_raises, executed, on_rank, rank, world
from programs import leaf
from same import assert_equal, plain

import remat_meta as remat
from remat_meta import CheckpointPolicy, Cuts, PolicyTable, _agreement

CHECKS = {}
check = adds_to(CHECKS)


@contextlib.contextmanager
def variable(name, value):
    os.environ[name] = value
    try:
        yield
    finally:
        del os.environ[name]


# Settings


@check
def a_policy_of_the_environment_differs():
    last = world() - 1
    with variable("REMAT_POLICY", "save_matmuls") if rank() == last else contextlib.nullcontext():
        words = "[agreement] environment", "REMAT_POLICY", f"save_matmuls on rank {last}", "unset"
        assert_all_raise(ValueError, lambda: step(pointwise), *words)


@check
def another_variable_differs():
    with variable("REMAT_REPLAY", on_rank(0, "function", "auto")):
        assert_all_raise(ValueError, lambda: step(pointwise), "REMAT_REPLAY function on rank 0 and auto on rank")


@check
def variables_of_one_rank_may_differ():
    with variable("REMAT_RECORD_LINES", "1") if rank() == 0 else contextlib.nullcontext():
        step(pointwise)


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
    run = lambda: step(pointwise, region_name="block", replay=on_rank(1, "tape", "function"))  # noqa: E731
    assert_all_raise(ValueError, run, "[agreement] region 'block'", "engine function on rank", "tape on rank 1")


@check
def the_policy_differs():
    run = lambda: step(pointwise, policy=on_rank(1, None, "save_matmuls"))  # noqa: E731
    assert_all_raise(ValueError, run, "region of agreement_steps.pointwise", "policy", "save_matmuls on rank", "none on rank 1")


@check
def tables_differ():
    table = PolicyTable().op(on_rank(1, "aten::sin", "aten::cos"), CheckpointPolicy.SAVE)
    assert_all_raise(ValueError, lambda: step(pointwise, policy=table), "aten::sin", "aten::cos")


@check
def functions_of_policies_differ():
    def one(context, op, *args, **kwargs):
        return CheckpointPolicy.RECOMPUTE

    def other(context, op, *args, **kwargs):
        return CheckpointPolicy.RECOMPUTE

    run = lambda: step(pointwise, policy=on_rank(0, one, other))  # noqa: E731
    assert_all_raise(ValueError, run, "<locals>.one on rank 0", "<locals>.other")


@check
def cuts_differ():
    run = lambda: step(pointwise, replay="tape", cuts=Cuts(positions=(1 + on_rank(0, 1, 0),)))  # noqa: E731
    assert_all_raise(ValueError, run, "cuts positions [2]", "positions [1]")


@check
def plans_differ():
    fn = lambda x: pointwise(pointwise(x)).sum()  # noqa: E731
    planner = remat.MemoryPlanner(remat.profile(fn)(leaf(64, 64)))
    frontier = planner.frontier
    plan = planner.plan(on_rank(0, frontier[0].peak_bytes, frontier[-1].peak_bytes))
    assert_all_raise(ValueError, lambda: step(fn, plan=plan), "plan positions", "on rank 0 and")


@check
def a_region_differs_that_comes_later():
    step(pointwise)
    dist.barrier()
    time.sleep(0.2 * rank())
    run = lambda: step(pointwise, region_name="later", replay=on_rank(1, "tape", "function"))  # noqa: E731
    assert_all_raise(ValueError, run, "region 'later'")


@check
def equal_ones_agree():
    policies = (None, "save_matmuls", ["*"], (torch.ops.aten.sin.default, torch.ops.aten.cos.default))
    for _, engine, policy in itertools.product(range(3), ENGINES, policies):
        step(pointwise, replay=engine, policy=policy)
        step(lambda x: pointwise(x) * 2, replay=engine, policy=policy, region_name="named")
    step(pointwise, replay="tape", cuts=Cuts(positions=(1, 2)))
    assert not _agreement._current._is_new  # the settings have been compared


@check
def sizes_may_differ():
    exchange_unevenly()


# Ranks with other regions than their peers


def stage_step(stage, has_next, receive, send):
    """Forward and backward of one stage; the last stage begins its backward first."""
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
    stage = remat.checkpoint(region_name=f"stage {rank()}", replay=on_rank(0, "function", "tape"))(pointwise)
    _agreement._current._patience_s = 20
    seconds = [pipeline(stage) for _ in range(3)]
    assert max(seconds) < SOON_S, seconds


@check
def stages_of_a_pipeline_share_some_regions():
    shared = remat.checkpoint(region_name="layer")(pointwise)
    head = remat.checkpoint(region_name="head")(pointwise)
    stage = (lambda x: head(shared(x))) if rank() == world() - 1 else shared
    seconds = [pipeline(stage) for _ in range(3)]
    assert seconds[0] < _agreement._PATIENCE_S + SOON_S
    assert max(seconds[1:]) < SOON_S, seconds


@check
def a_stage_that_differs_in_a_shared_region_raises():
    shared = remat.checkpoint(region_name="layer", replay=on_rank(0, "function", "tape"))(pointwise)

    def run():
        x = leaf(2, 4)
        y = shared(x)
        if rank() < world() - 1:
            time.sleep(0.1)  # the last stage is the first to begin its backward
        y.sum().backward()

    assert_all_raise(ValueError, run, "region 'layer'")


@check
def a_rank_may_have_no_region():
    begin = time.monotonic()
    if rank():
        step(pointwise)
    seconds = time.monotonic() - begin
    assert seconds < _agreement._PATIENCE_S + SOON_S, seconds
    dist.barrier()
    if rank() == 0:
        with contextlib.suppress(ValueError):
            step(pointwise, replay="tape")
    dist.barrier()
    time.sleep(_agreement._LOOK_AGAIN_S)
    assert_all_raise(ValueError, lambda: step(pointwise, replay=on_rank(0, "tape", "function")), "tape on rank 0")


# The group and its store


@check
def a_new_group_begins_anew():
    store = dist.distributed_c10d._get_default_store()
    regions = {engine: remat.checkpoint(replay=engine)(pointwise) for engine in ("function", "tape")}
    run = lambda engine: regions[on_rank(0, engine, "function")](leaf(2, 4)).sum().backward()  # noqa: E731
    assert_all_raise(ValueError, lambda: run("tape"), "tape on rank 0")
    number, size = rank(), world()
    for i, engine in enumerate(("function", "tape")):
        dist.barrier()
        dist.destroy_process_group()
        step(pointwise, replay="tape" if number else "function")  # without a group nothing is compared
        dist.init_process_group("gloo", store=dist.PrefixStore(f"again {i}", store), rank=number, world_size=size)
        if engine == "function":
            run(engine)
        else:
            assert_all_raise(ValueError, lambda: run("tape"), "tape on rank 0")


@check
def groups_of_some_ranks_change_nothing():
    group = dist.new_group(list(range(world())))
    step(pointwise)
    dist.destroy_process_group(group)
    step(pointwise)
    assert _agreement._current is not None


@check
def a_store_that_is_gone_fails_nothing():
    step(pointwise)
    _agreement._current._store = GoneStore()
    step(pointwise, region_name="after")
    assert _agreement._current is None
    step(pointwise, region_name="later")


@check
def a_forked_child_asks_nobody():
    step(pointwise)
    child = os.fork()
    if child == 0:
        code = 1
        with contextlib.suppress(BaseException):
            step(pointwise, replay="tape")
            code = 0 if _agreement._current is None else 2
        os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert _agreement._current is not None
    step(pointwise)


# Engines that ranks choose for themselves, by "auto"


@check
def ranks_may_fall_back_alone():
    """A rank whose tape cannot hold an op calls the function again, alone; all ranks still run the same collectives."""

    def fn(x, w, here):
        y = (x * w).sin()
        if here:
            inner = y.detach().requires_grad_()
            y = y * torch.autograd.grad((inner * inner).sum(), inner)[0]  # cannot be on a tape
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


@check
def other_modes():
    """Runs with REMAT_AGREEMENT=0 and TORCH_DISTRIBUTED_DEBUG=DETAIL, by which torch compares collectives before they run."""
    step(pointwise, replay=on_rank(0, "tape", "function"))
    assert _agreement._current is None
    recompute = PolicyTable().op("c10d::*", CheckpointPolicy.RECOMPUTE)
    for policy in (None, recompute):
        step(lambda x: Reduced.apply(x.sin(), dist.all_reduce).exp(), policy=policy)

    def fn(x):
        y = x.new_ones(3 + on_rank(1, 1, 0))
        dist.all_reduce(y)
        return x.sin() * y.sum()

    assert_raises(RuntimeError, lambda: step(fn), "Detected mismatch between collectives on ranks")


ON_RANKS = {
    2: tuple(name for name in CHECKS if name != "other_modes"),
    4: (
        "a_policy_of_the_environment_differs",
        "equal_ones_agree",
        "stages_of_a_pipeline_have_regions_of_their_own",
        "stages_of_a_pipeline_share_some_regions",
    ),
}
