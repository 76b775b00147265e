# SPDX-License-Identifier: BSD-3-Clause

"""Steps on ranks whose settings or collectives differ: what checks of them share."""

import time

import torch
import torch.distributed as dist
from on_ranks import ENGINES, assert_raises, rank, world
from programs import leaf

import remat_meta as remat
from remat_meta import _engine

assert _engine  # which the first region would import: half a second

SOON_S = 5.0  # what takes a tenth of a second alone; gloo would wait for 30 s


def pointwise(x):
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


def exchange_unevenly():
    """Each rank has another number of rows, and tells the others how many it sends."""

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
