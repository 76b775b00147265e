# SPDX-License-Identifier: BSD-3-Clause

"""Checks that test_sharded.py runs on each rank: modules wrapped by DDP; regions are inside them or around them and other code.
Each check compares with the same module without remat, bit by bit, and counts the collectives that run."""

import contextlib

import torch
from on_ranks import STEPS, adds_to, rank, square_sum
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from training_steps import Wrapped, assert_trained_as_plain, state_of, train

CHECKS = {}
check = adds_to(CHECKS)


class Normed(nn.Module):
    """A module with batch norm, and a layer that is used only if `uses_all`."""

    def __init__(self, uses_all):
        super().__init__()
        torch.manual_seed(5)
        self.first, self.norm, self.last = nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 4)
        self.unused = nn.Linear(4, 4)
        self.uses_all = uses_all

    def forward(self, x):
        y = self.last(self.norm(self.first(x)).tanh())
        return self.unused(y) if self.uses_all else y


@contextlib.contextmanager
def no_sync_before_the_last(module, is_last):
    ddp = module if isinstance(module, DistributedDataParallel) else module.module
    with contextlib.nullcontext() if is_last else ddp.no_sync():
        yield


def compressed(ddp):
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

    ddp.register_comm_hook(None, fp16_compress_hook)


def replicated(wrap, is_around, prepare=None, uses_all=True, **options):
    module = Normed(uses_all)
    ddp = DistributedDataParallel(module if is_around else Wrapped(module, wrap), **options)
    if prepare:
        prepare(ddp)
    return Wrapped(ddp, wrap) if is_around else ddp


def assert_replicated(training=None, **which):
    for is_around in (False, True):
        assert_trained_as_plain(lambda wrap, a=is_around: train(replicated(wrap, a, **which), **training or {}))


@check
def ddp():
    assert_replicated()


@check
def ddp_that_finds_unused_parameters():
    assert_replicated(uses_all=False, find_unused_parameters=True)


@check
def ddp_of_a_static_graph():
    assert_replicated(uses_all=False, static_graph=True)


@check
def ddp_with_gradients_in_buckets():
    assert_replicated(gradient_as_bucket_view=True)


@check
def ddp_that_accumulates():
    assert_replicated({"micro_steps": 2, "syncs": no_sync_before_the_last})


@check
def ddp_that_compresses():
    assert_replicated(prepare=compressed)


@check
def ddp_in_the_middle_of_a_region():
    for options in ({}, {"find_unused_parameters": True}, {"static_graph": True}):

        def program(wrap, options=options):
            ddp = DistributedDataParallel(Normed(uses_all=True), **options)
            return train(ddp, wrap(lambda x: ddp(x.sin()).exp().cos()))

        assert_trained_as_plain(program)


@check
def ddp_that_is_not_to_reduce_when_the_replay_runs():
    """The forward decides whether its backward reduces."""

    def program(wrap):
        torch.manual_seed(rank())
        ddp = DistributedDataParallel(Normed(uses_all=True))
        region = wrap(lambda x: ddp(x.sin()).exp().cos())
        tensors = []
        for _ in range(STEPS):
            with ddp.no_sync():
                first = square_sum(region(torch.rand(3, 4)))
            first.backward()
            tensors += state_of(ddp)
            second = square_sum(region(torch.rand(3, 4)))
            with ddp.no_sync():
                second.backward()
            tensors += state_of(ddp)
            ddp.zero_grad()
        return tensors

    assert_trained_as_plain(program)


@check
def ddp_without_gradients():
    def program(wrap):
        model = replicated(wrap, is_around=True)
        tensors = train(model)
        with torch.no_grad():
            tensors.append(model(torch.ones(3, 4)))
        return tensors + train(model)

    assert_trained_as_plain(program)


ON_RANKS = {2: tuple(CHECKS), 4: ("ddp",)}
