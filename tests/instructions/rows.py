# SPDX-License-Identifier: BSD-3-Clause
"""Runs the rows of count.py that are Python: rows.py SWITCH_LIBRARY ROW..."""

import ctypes
import gc
import sys
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn

import remat_meta as remat

WARM_UPS = 4
REPEATS = 10
CHAIN = 40

Body = Callable[[], object]

x = torch.linspace(-1, 1, 4 * 8 * 16).view(4, 8, 16).requires_grad_()
weight = torch.linspace(-1, 1, 16 * 16).view(16, 16).requires_grad_()
bias = torch.linspace(-1, 1, 16).requires_grad_()
heads = torch.linspace(-1, 1, 2 * 2 * 8 * 8).view(2, 2, 8, 8).requires_grad_()

OPS: dict[str, Body] = {
    "linear": lambda: F.linear(x, weight, bias),
    "layer_norm": lambda: F.layer_norm(x, (16,), bias, bias),
    "dropout": lambda: F.dropout(x, 0.1),
    "attention": lambda: F.scaled_dot_product_attention(heads, heads, heads),
    "add": lambda: x + 1,
}


class Counter:
    def __init__(self, switch: ctypes.CDLL) -> None:
        self._switch = switch

    def count(self, row: str, body: Body, prepare: Body = lambda: None) -> None:
        """Counts REPEATS calls of body(). prepare() runs before each and is not counted."""
        for i in range(WARM_UPS + REPEATS):
            prepare()
            if i >= WARM_UPS:
                self._switch.toggle_counting()
            body()
            if i >= WARM_UPS:
                self._switch.toggle_counting()
        self._switch.end_row(row.encode())


def chain(a: torch.Tensor) -> torch.Tensor:
    for _ in range(CHAIN):
        a = a.sin()
    return a


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16)) for _ in range(4)
        )

    def forward(self, a: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            a = a + layer(a)
        return a


def count_op(counter: Counter, row: str, op: str, how: str) -> None:
    """Counts an op inside a region, or outside regions if `how` is "plain"."""
    if how == "plain":
        counter.count(row, OPS[op])
        return

    def region(a: torch.Tensor) -> torch.Tensor:
        counter.count(row, OPS[op])
        return a * 1

    remat.checkpoint(region_name="row", replay=how)(region)(x)


def count_step(counter: Counter, row: str, step: Callable[[torch.Tensor], torch.Tensor], part: str) -> None:
    """Counts the forward or the backward of a step."""
    results: list[torch.Tensor] = []

    def forward() -> None:
        results[:] = [step(x)]

    def backward() -> None:
        results.pop().sum().backward()

    if part == "forward":
        counter.count(row, forward)
    else:
        counter.count(row, backward, prepare=forward)


def run(counter: Counter, row: str) -> None:
    _, what, subject, how = row.split(".")
    torch.manual_seed(0)
    if what == "op":
        count_op(counter, row, subject, how)
        return
    if subject == "plan":
        step = remat.auto_checkpoint(Net(), "60%")
    else:
        function = {"one": torch.sin, "chain": chain}[subject]
        step = function if how == "plain" else remat.checkpoint(region_name="row", replay=how)(function)
    for _ in range(WARM_UPS):
        step(x).sum().backward()
    count_step(counter, row, step, what)


def main() -> None:
    torch.set_num_threads(1)
    gc.disable()
    switch = ctypes.CDLL(sys.argv[1])
    switch.begin_rows()
    for row in sys.argv[2:]:
        run(Counter(switch), row)


main()
