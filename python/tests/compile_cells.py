# SPDX-License-Identifier: BSD-3-Clause

"""Checkpoints and torch.compile in 45 cells: how they meet, the compiler's backend, what is kept. The tests hold each cell to
what it must be; bench/bench_compile.py prints them beside torch's checkpoint."""

import contextlib
import dataclasses
import functools

import torch
import torch._dynamo
import torch.nn.functional as F
from torch import nn
from torch.utils import checkpoint as stock

import remat_meta as remat
from remat_meta import CheckpointPolicy

WAYS = ("checkpoint in compiled", "compiled in checkpoint", "regional", "whole step", "compiled autograd")
BACKENDS = ("eager", "aot_eager", "inductor")
KEEPS = ("full", "SAVE call", "op policy")
BLOCKS, ROWS, WIDTH, INNER = 2, 64, 32, 128
FLOAT = 4


class Block(nn.Module):
    """`product` is what a SAVE call keeps; the matrix products are what an op policy keeps."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(WIDTH, INNER, bias=False), nn.Linear(INNER, WIDTH, bias=False)
        self.product = self.first.forward

    def body(self, x):
        return F.gelu(self.last(F.gelu(self.product(x.sin()))).tanh())

    forward = body


def plain_wrap(block, keep, one_op):
    return block.body


def remat_wrap(block, keep, one_op):
    if keep == "SAVE call":
        block.product = remat.native_op(block.product, "product", CheckpointPolicy.SAVE)
    options = {"policy": ["remat::compiled_graph"] if one_op else "save_matmuls"} if keep == "op policy" else {}
    return remat.checkpoint(preserve_rng_state=False, **options)(block.body)


def torch_wrap(block, keep, one_op):
    """None where torch has nothing like it."""
    if keep == "SAVE call" or (keep == "op policy" and one_op):
        return None
    options = {}
    if keep == "op policy":
        options["context_fn"] = functools.partial(stock.create_selective_checkpoint_contexts, [torch.ops.aten.mm.default])
    return lambda x: stock.checkpoint(block.body, x, use_reentrant=False, preserve_rng_state=False, **options)


WRAPS = {"plain": plain_wrap, "remat": remat_wrap, "torch": torch_wrap}


@dataclasses.dataclass
class Outcome:
    """Of two steps: gradients and parameters, bytes kept between forward and backward of the last; or the error of a step."""

    tensors: list = dataclasses.field(default_factory=list)
    kept: int = 0
    error: str | None = None


def is_one_op(way, backend):
    """What inductor has compiled is one op in a region."""
    return way == "compiled in checkpoint" and backend == "inductor"


def forward_of(way, backend, keep, wrap, blocks):
    """The forward of all blocks; None if there is no such checkpoint."""
    compiled = functools.partial(torch.compile, backend=backend)
    if way == "compiled in checkpoint":
        for block in blocks:
            # A call within what is compiled is a graph break there: it is compiled for itself.
            block.product = compiled(block.product)
            if keep != "SAVE call":
                block.body = compiled(block.body)
    calls = [wrap(block, keep, is_one_op(way, backend)) for block in blocks]
    if None in calls:
        return None
    if way == "regional":
        calls = [compiled(call, fullgraph=True) for call in calls]

    def forward(x):
        for call in calls:
            x = call(x)
        return x

    return compiled(forward, fullgraph=True) if way in ("checkpoint in compiled", "compiled autograd") else forward


def predicted_bytes(way, backend, keep, of_plain):
    """What a cell of remat keeps between forward and backward, `of_plain` being what the same keeps without a checkpoint."""
    if keep == "op policy" and is_one_op(way, backend):
        return of_plain  # a graph hands all or nothing to its backward
    kept = {"full": 0, "SAVE call": INNER, "op policy": INNER + WIDTH}[keep]
    return BLOCKS * ROWS * (WIDTH + kept) * FLOAT  # each block's result is what the next one needs


def run_cell(way, backend, keep, name):
    """What comes of it; None if torch has nothing like it."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    blocks = nn.ModuleList(Block() for _ in range(BLOCKS))
    x = torch.randn(ROWS, WIDTH, requires_grad=True)
    forward = forward_of(way, backend, keep, WRAPS[name], blocks)
    if forward is None:
        return None
    optimizer = torch.optim.SGD(blocks.parameters(), lr=0.1)
    outcome = Outcome()

    @torch.compiler.disable
    def look(meter):
        outcome.kept = meter.current_bytes()

    def step(x, meter):
        y = forward(x)
        look(meter)
        y.square().sum().backward()
        optimizer.step()

    if way == "whole step":
        step = torch.compile(step, backend=backend)
    around = contextlib.nullcontext
    if way == "compiled autograd":
        around = functools.partial(torch._dynamo.compiled_autograd._enable, torch.compile(backend=backend))
    try:
        for _ in range(2):
            x.grad = None
            optimizer.zero_grad()
            with around(), remat.MemoryMeter() as meter:
                step(x, meter)
    except (RuntimeError, NotImplementedError) as error:
        outcome.error = f"{type(error).__name__}: {error}"
    outcome.tensors = [x.grad, *blocks.parameters(), *(p.grad for p in blocks.parameters())]
    return outcome
