# SPDX-License-Identifier: BSD-3-Clause

"""Checks that test_distributed.py runs on each rank: schedules of pipelines with 4 microbatches, and 4 blocks on each rank, each
in a region. Each compares with plain PyTorch bit by bit over a few steps, and counts gloo's collectives on this rank."""

import collections
import functools
import itertools

import torch
from on_ranks import ENGINES, STEPS, executed, rank, with_torch, world
from same import assert_equal, plain
from torch import nn
from torch.distributed import pipelining

import remat_meta as remat

CHECKS = {}
MICROBATCHES = 4
BLOCKS = 4
SCHEDULES = {
    "gpipe": (pipelining.ScheduleGPipe, 1),
    "one_forward_one_backward": (pipelining.Schedule1F1B, 1),
    "interleaved": (pipelining.ScheduleInterleaved1F1B, 2),
    "looped": (pipelining.ScheduleLoopedBFS, 2),
    "interleaved_zero_bubble": (pipelining.ScheduleInterleavedZeroBubble, 2),
}


class Block(nn.Module):
    def __init__(self, calls):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))
        self.calls = calls

    def forward(self, x):
        self.calls["block"] += 1
        return x + self.layers(x).tanh()


def pipeline(kind, wrap, calls):
    make, stages_here = SCHEDULES[kind]
    count = stages_here * world()
    stages = []
    for index in range(rank(), count, world()):
        torch.manual_seed(index)
        blocks = nn.Sequential(*[Block(calls) for _ in range(BLOCKS // stages_here)])
        for block in blocks:
            block.forward = wrap(block.forward)
        stages.append(pipelining.PipelineStage(blocks, index, count, torch.device("cpu")))
    schedule = make(
        stages if stages_here > 1 else stages[0],
        MICROBATCHES,
        loss_fn=lambda y, target: (y - target).square().sum(),
    )
    torch.manual_seed(9)
    x, target, tensors = torch.randn(MICROBATCHES, 8), torch.randn(MICROBATCHES, 8), []
    parameters = [parameter for stage in stages for parameter in stage.submod.parameters()]
    for _ in range(STEPS):
        losses = []
        last = rank() == world() - 1
        schedule.step(*([x] if rank() == 0 else []), target=target if last else None, losses=losses if last else None)
        tensors += [*losses, *(parameter.grad for parameter in parameters)]
        with torch.no_grad():
            for parameter in parameters:
                parameter -= 0.1 * parameter.grad
                parameter.grad = None
    return tensors


# One call of each block finds out the stages' shapes, then there is one call for each microbatch: 20 in the first step.
PLAIN_CALLS = BLOCKS * (1 + STEPS * MICROBATCHES)


@functools.cache
def plain_pipeline(kind):
    calls = collections.Counter()
    return executed(lambda: pipeline(kind, plain, calls)), calls["block"]


@functools.cache
def calls_with_torch(kind):
    calls = collections.Counter()
    pipeline(kind, with_torch, calls)
    return calls["block"]


def assert_pipeline(kind, engine):
    (wanted, expected), plain_calls = plain_pipeline(kind)
    assert plain_calls == PLAIN_CALLS
    assert wanted["send"] > 0 < wanted["recv"]
    calls = collections.Counter()
    done, got = executed(lambda: pipeline(kind, remat.checkpoint(replay=engine), calls))
    assert_equal(expected, got)
    assert done == wanted, (done, wanted)
    # One replay for each microbatch; the zero bubble schedule, which computes gradients of inputs and of weights separately, has
    # more.
    repeated = BLOCKS * STEPS * MICROBATCHES
    if engine != "function":
        assert calls["block"] == PLAIN_CALLS, calls
    elif kind == "interleaved_zero_bubble":
        assert PLAIN_CALLS + repeated < calls["block"] == calls_with_torch(kind), calls
    else:  # since torch 2.12 the first step learns the shapes of gradients by a backward of its own
        assert PLAIN_CALLS + repeated <= calls["block"] == calls_with_torch(kind) <= PLAIN_CALLS + repeated + BLOCKS, calls


for _kind, _engine in itertools.product(SCHEDULES, ENGINES):
    CHECKS[f"pipeline_{_kind}_by_{_engine}"] = functools.partial(assert_pipeline, _kind, _engine)


ON_RANKS = {2: tuple(CHECKS), 4: ("pipeline_interleaved_by_tape",)}
