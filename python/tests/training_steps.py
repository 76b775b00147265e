# SPDX-License-Identifier: BSD-3-Clause

"""Modules spread over ranks by FSDP or DDP, and their training; shared by several checks."""

import contextlib

import torch
from on_ranks import ENGINES, STEPS, assert_as_plain, local, rank, ranks_mesh, square_sum, wraps
from torch import nn


class Wrapped(nn.Module):
    """Calls `module` through `wrap`."""

    def __init__(self, module, wrap):
        super().__init__()
        self.module = module
        self.call = wrap(module)

    def forward(self, *args):
        return self.call(*args)


def fsdp2(module, mesh=None, **options):
    from torch.distributed.fsdp import fully_shard

    return fully_shard(module, mesh=mesh or ranks_mesh(), **options)


def state_of(module):
    """Returns this rank's weights, gradients and buffers."""
    tensors = []
    for parameter in module.parameters():
        tensors.append(local(parameter).detach().clone())
        if parameter.grad is not None:
            tensors.append(local(parameter.grad).clone())
    return tensors + [buffer.clone() for buffer in module.buffers()]


def train(module, call=None, loss=square_sum, rounds=STEPS, micro_steps=1, syncs=None):
    """Runs some steps. Returns losses and state; `syncs(module, is_last)` is the context of a micro step."""
    torch.manual_seed(rank())
    optimizer = torch.optim.SGD(module.parameters(), 0.1)
    tensors = []
    for _ in range(rounds):
        for i in range(micro_steps):
            with syncs(module, i == micro_steps - 1) if syncs else contextlib.nullcontext():
                value = loss((call or module)(torch.rand(3, 4)))
                value.backward()
            tensors.append(value.detach())
        tensors += state_of(module)
        optimizer.step()
        optimizer.zero_grad()
    return tensors


def assert_trained_as_plain(program, engines=ENGINES, all_gather=None, reduce_scatter=None, all_reduce=0):
    """Checks that `program(wrap)`, which trains some steps, runs this many collectives in each. Does not count gloo's events,
    because gloo reduces and scatters by an all-reduce, and may report it after the profile has ended."""
    wanted = assert_as_plain(program, wraps(engines, (None,)), "c10d::")
    if all_gather:
        counts = [wanted[name] for name in ("_allgather_base_", "_reduce_scatter_base_", "allreduce_")]
        assert counts == [STEPS * count for count in (all_gather, reduce_scatter, all_reduce)], f"plain: {wanted}"
