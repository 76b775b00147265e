# SPDX-License-Identifier: BSD-3-Clause

"""Checks that test_sharded.py runs on each rank: plans of auto_checkpoint that ranks with sharded weights agree on."""

import datetime
import time
import warnings

import torch
import torch.distributed as dist
from on_ranks import GoneStore, adds_to, assert_raises, rank, ranks_mesh, square_sum, world
from same import assert_equal
from torch import nn
from training_steps import fsdp2, state_of

import remat_meta as remat
from remat_meta import _plan_agreement

CHECKS = {}
check = adds_to(CHECKS)


def _slow(x: torch.Tensor, seconds: float) -> torch.Tensor:
    time.sleep(seconds)
    return x.sin()


slow = torch.library.custom_op("plan_checks::slow", _slow, mutates_args=())
slow.register_autograd(
    lambda context, gradient: (gradient * context.saved_tensors[0].cos(), None),
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(inputs[0]),
)


class Slow(nn.Module):
    def __init__(self, seconds):
        super().__init__()
        self.first, self.second, self.seconds = nn.Linear(64, 256), nn.Linear(256, 64), seconds

    def forward(self, x):
        return x + self.second(slow(self.first(x), self.seconds)).sin()


def planned(budget, is_function=False, mesh=None):
    """Returns a model, and a callable for it within the budget. Each rank has other slow ops, so alone it would keep other
    results."""
    torch.manual_seed(1)
    blocks = (fsdp2(Slow(0.02 * (i % 2 == rank() % 2)), mesh) for i in range(4))
    model = fsdp2(nn.Sequential(*blocks), mesh)
    return model, remat.auto_checkpoint((lambda x: model(x)) if is_function else model, budget, name="planned")


def planned_steps(model, call, rounds=6, rows=128):
    torch.manual_seed(rank())
    tensors = []
    for _ in range(rounds):
        square_sum(call(torch.rand(rows, 64))).backward()
        tensors += state_of(model)
        model.zero_grad()
    return tensors


def on_all_ranks(value):
    values = [None] * world()
    dist.all_gather_object(values, value)
    return values


def has_plan(call):
    return remat._auto_checkpoint._find(call)._planned.plan() is not None


def assert_is_agreed(call):
    """Checks that all ranks have the same plan, or none."""
    cuts = remat.memory_plan(call).cuts if has_plan(call) else None
    first, *others = on_all_ranks(cuts and (cuts.positions, cuts.groups, cuts.keep))
    assert all(other == first for other in others), (first, others)


@check
def ranks_run_by_one_plan():
    torch.manual_seed(1)
    blocks = [fsdp2(Slow(0)) for _ in range(4)]
    plain_model = fsdp2(nn.Sequential(*blocks))
    expected = planned_steps(plain_model, plain_model)
    for budget, is_function in (("95%", False), ("95%", True), ("1900kB", False), ("2MB", False), ("3MB", False)):
        model, call = planned(budget, is_function)
        assert_equal(expected, planned_steps(model, call))
        assert_is_agreed(call)


@check
def ranks_whose_batches_differ_run_by_one_plan():
    model, call = planned("95%")
    planned_steps(model, call, rows=96 + 32 * rank())
    assert_is_agreed(call)


@check
def a_budget_that_is_too_small_raises_on_all_ranks():
    model, call = planned("20%")
    texts = on_all_ranks(assert_raises(ValueError, lambda: planned_steps(model, call)))
    assert len(set(texts)) == 1
    assert "memory_budget: expected" in texts[0], texts


@check
def a_measured_step_that_does_not_count_on_one_rank_counts_as_on_the_first():
    for loser in range(2):
        _, call = planned("95%")
        for round in range(6):
            square_sum(call(torch.rand(128, 64))).backward()
            if rank() == loser and round == 2:  # as if a profiler had been started
                remat._C._give_up_measured_step()
            assert len(set(on_all_ranks(has_plan(call)))) == 1, round  # the round of the plan depends on the measurements
        assert_is_agreed(call)


@check
def a_rank_that_is_late_is_waited_for():
    """The first rank comes after the others have warned that they wait for it."""
    agreement = _plan_agreement.PlanAgreement("model", "80%", fsdp2(nn.Linear(4, 4)))
    store = dist.distributed_c10d._get_default_store()
    lines = []

    def showwarning(message, *_args):
        lines.append(str(message))
        store.set(f"waits/{rank()}", "")

    patience, _plan_agreement._PATIENCE_S = _plan_agreement._PATIENCE_S, 0.1
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.showwarning = showwarning
            agreement.begin_step()
            if rank() == 0:
                store.wait([f"waits/{other}" for other in range(1, world())])
            assert agreement.agree(f"plan of {rank()}") == "plan of 0"
    finally:
        _plan_agreement._PATIENCE_S = patience
    assert len(lines) == (rank() != 0), lines
    assert all("'model': expected of rank 0 what it has decided before step 1" in line for line in lines), lines


@check
def a_rank_that_does_not_come_raises():
    agreement = _plan_agreement.PlanAgreement("model", "80%", fsdp2(nn.Linear(4, 4)))
    _plan_agreement._current._store.set_timeout(datetime.timedelta(seconds=0.3))
    agreement.begin_step()
    if rank():
        words = "'model': expected of rank 0 what it has decided before step 1, got none within"
        assert_raises(TimeoutError, lambda: agreement.agree(""), words)


@check
def ranks_that_gather_apart_do_not_wait_for_each_other():
    """Two pairs of ranks, as for two stages: the first pair begins when the other has ended."""
    shards = ranks_mesh(2, 2)["shard"]
    if rank() < 2:
        dist.barrier()
    model, call = planned("95%", mesh=shards)
    planned_steps(model, call)
    if rank() >= 2:
        dist.barrier()
    cuts = on_all_ranks(remat.memory_plan(call).cuts.keep)
    assert cuts[0] == cuts[1], cuts
    assert cuts[2] == cuts[3], cuts


@check
def a_store_that_is_gone_leaves_each_rank_its_own_plan():
    agreement = _plan_agreement.PlanAgreement("model", "80%", fsdp2(nn.Linear(4, 4)))
    _plan_agreement._current._store = GoneStore()
    assert agreement.agree("plan") == "plan"


@check
def models_that_are_not_sharded_ask_nobody():
    if rank():
        model = remat.auto_checkpoint(nn.Sequential(*(nn.Linear(16, 16) for _ in range(4))), "90%")
        for _ in range(5):
            model(torch.rand(64, 16)).sum().backward()


NEED_FOUR_RANKS = ("ranks_that_gather_apart_do_not_wait_for_each_other",)
ON_RANKS = {
    2: tuple(name for name in CHECKS if name not in NEED_FOUR_RANKS),
    4: (*NEED_FOUR_RANKS, "ranks_run_by_one_plan"),
}
