# SPDX-License-Identifier: BSD-3-Clause

"""Steps on ranks whose settings or collectives differ, shared by several checks."""

import time

import torch
import torch.distributed as dist
from on_ranks import ENGINES, assert_raises, rank, world
from programs import leaf

import remat_meta as remat
from remat_meta import _engine

assert _engine  # imported here, because the first region would take half a second for it

SOON_S = 5.0  # these checks alone take a tenth of a second; gloo would wait for 30 s


def pointwise(x):
    return x.sin().exp().cos().tanh()


def step(fn, **options):
    x = leaf(2, 4)
    remat.checkpoint(**options)(fn)(x).sum().backward()
    return x.grad


def assert_all_raise(kind, run, *words):
    """Checks that this rank raises with these words, and all ranks raise the same text, soon after the last rank has begun."""
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


def exchange_unevenly():
    """Exchanges rows: each rank has another number of them, and tells the others how many it sends."""

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
