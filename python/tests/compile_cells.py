# SPDX-License-Identifier: BSD-3-Clause

"""Checkpoints and torch.compile in 45 cells: how they are combined, the compiler's backend, and which tensors are kept. Tests
check each cell; bench/bench_compile.py prints the cells beside torch's checkpoint."""

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
    """A block whose `product` a SAVE call may keep, and whose matrix products an op policy may keep."""

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
    """Returns torch's checkpoint of the block, or None if torch has no equivalent."""
    if keep == "SAVE call" or (keep == "op policy" and one_op):
        return None
    options = {}
    if keep == "op policy":
        options["context_fn"] = functools.partial(stock.create_selective_checkpoint_contexts, [torch.ops.aten.mm.default])
    return lambda x: stock.checkpoint(block.body, x, use_reentrant=False, preserve_rng_state=False, **options)


WRAPS = {"plain": plain_wrap, "remat": remat_wrap, "torch": torch_wrap}


@dataclasses.dataclass
class Outcome:
    """Two steps: gradients and parameters, and the bytes kept between forward and backward of the last step; or the error of a
    step."""

    tensors: list = dataclasses.field(default_factory=list)
    kept: int = 0
    error: str | None = None


def is_one_op(way, backend):
    """True if a region sees one op for all that inductor has compiled."""
    return way == "compiled in checkpoint" and backend == "inductor"


def forward_of(way, backend, keep, wrap, blocks):
    """Returns the forward of all blocks, or None if there is no such checkpoint."""
    compiled = functools.partial(torch.compile, backend=backend)
    if way == "compiled in checkpoint":
        for block in blocks:
            # A call is a graph break in compiled code, so its function is compiled separately.
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
    """Bytes that a cell of remat keeps between forward and backward; the same cell keeps `of_plain` without a checkpoint."""
    if keep == "op policy" and is_one_op(way, backend):
        return of_plain  # a compiled graph gives its backward all its saved tensors or none
    kept = {"full": 0, "SAVE call": INNER, "op policy": INNER + WIDTH}[keep]
    return BLOCKS * ROWS * (WIDTH + kept) * FLOAT  # a block's result is the input of the next


def run_cell(way, backend, keep, name):
    """Runs a cell and returns its Outcome, or None if torch has no equivalent."""
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
