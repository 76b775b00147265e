#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Counts what replays leave out of the forwards of the real models of the tests, each block a region.

  bench_dead_work.py [MODEL ...]

A replay need not run ops of which backward reads no result. The first number of a cell is the share of the regions' ops
that do not run again, the second the share of the floating-point operations of their matrix products, convolutions and
attention. Views do not count. What runs again is what a backward runs beyond the backward of the plain model; all of the
regions' ops are what a function that replays to its end runs again.
"""

import argparse
import collections
import functools
import warnings

import torch
from bench_models import CASES, PEERS, with_engine, wrap_forwards
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import flop_registry


def with_torch(case, model):
    """Puts torch's own checkpoint around the same blocks."""
    wrap_forwards(model, case.blocks, lambda forward, name: functools.partial(checkpoint, forward, use_reentrant=False))


WAYS = {
    **PEERS,
    "torch": with_torch,
    "all": functools.partial(with_engine, engine="function", early_stop=False),
}
del WAYS["auto"]


class Work(TorchDispatchMode):
    """Counts the ops that run, and their floating-point operations."""

    def __init__(self):
        super().__init__()
        self.counts = collections.Counter()

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        results = op(*args, **kwargs)
        self.counts["ops"] += not op.is_view
        if op.overloadpacket in flop_registry:
            self.counts["flops"] += flop_registry[op.overloadpacket](*args, **kwargs, out_val=results)
        return results


def work_of_backward(case, prepare):
    torch.manual_seed(1)
    model, batch = case.model().train(), case.batch()
    prepare(case, model)
    with Work() as work:  # around the forward, too: PyTorch calls other ops in a mode
        for _ in range(4):  # the tapes are trusted in the last step
            loss = case.loss(model, batch)
            work.counts.clear()
            loss.backward()
    return work.counts


def left_out(counts, plain, everything):
    """Returns the cell of one way; `counts` is None where it raises."""
    if counts is None:
        return "raises"
    shares = (1 - (counts[kind] - plain[kind]) / (everything[kind] - plain[kind]) for kind in ("ops", "flops"))
    return ", ".join(f"{share:.1%}" for share in shares)


def row(name):
    counts = {}
    for way, prepare in WAYS.items():
        try:
            counts[way] = work_of_backward(CASES[name], prepare)
        except RuntimeError:
            assert way == "torch"  # a DenseNet appends to a list that its blocks have taken
            counts[way] = None
    plain, everything = counts["plain"], counts["all"]
    cells = (left_out(counts[way], plain, everything) for way in ("torch", "function", "tape"))
    return [name, f"{everything['ops'] - plain['ops']}", *cells]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", metavar="MODEL", help=", ".join(CASES))
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    print("| model | ops in regions | torch: ops, flops | function: ops, flops | tape: ops, flops |\n|" + "---|" * 5)
    for name in options.models or CASES:
        print("| " + " | ".join(row(name)) + " |", flush=True)


if __name__ == "__main__":
    main()
