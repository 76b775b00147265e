#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Step time and peak memory of the real models of the tests, each block a region.

  bench_models.py [MODEL ...] [--rounds N]
  bench_models.py --left-out [MODEL ...]

The models are those of python/tests/models: small, with random weights, in train mode, so that the cost of a region
is most visible. Each step is a forward and a backward, on one thread. The plain step and the others take turns; a time is the
median over rounds of its ratio to plain. Peaks count the bytes that the CPU allocator hands out within the step, over plain's.

--left-out counts what replays leave out of the forward: they need not run ops of which backward reads no result. The first
number of a cell is the share of the regions' ops that do not run again, the second the share of the floating-point operations
of their matrix products, convolutions and attention. Views do not count. A share is 1 - again / all: `again` has the ops that a
backward runs beyond the plain model's, `all` the same if each replay calls its function to the end.
"""

import collections
import functools
import pathlib
import statistics
import sys
import time

import torch
from peers import parser_of, print_heads, print_row, ratio, run_jobs
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import flop_registry

import remat_meta as remat

TESTS = pathlib.Path(__file__).resolve().parent.parent / "python" / "tests"
sys.path[:0] = [str(TESTS), str(TESTS / "models")]

from harness import wrap_forwards  # noqa: E402
from hf_models import CASES as HF  # noqa: E402
from vision_models import CASES as VISION  # noqa: E402

CASES = {**HF, **VISION}


def with_engine(case, model, engine, **options):
    assert wrap_forwards(model, case.blocks, functools.partial(case.region, replay=engine, **options)) > 1


PEERS = {
    "plain": lambda case, model: None,
    "torch": lambda case, model: case.enable(model),
    "function": functools.partial(with_engine, engine="function"),
    "tape": functools.partial(with_engine, engine="tape"),
    "auto": functools.partial(with_engine, engine="auto"),
}


def with_torch(case, model):
    """Puts torch's own checkpoint around the same blocks."""
    wrap_forwards(model, case.blocks, lambda forward, name: functools.partial(checkpoint, forward, use_reentrant=False))


WAYS = {
    **{name: PEERS[name] for name in ("plain", "function", "tape")},
    "torch": with_torch,
    "all": functools.partial(with_engine, engine="function", early_stop=False),
}


def prepared(case, prepare):
    torch.manual_seed(1)
    model, batch = case.model().train(), case.batch()
    prepare(case, model)
    return model, batch


def job(case, prepare, meter):
    """Returns a function that takes a step and returns (its nanoseconds, its peak in bytes)."""
    model, batch = prepared(case, prepare)

    def step():
        model.zero_grad()
        meter.reset_peak()
        before, start = meter.peak_bytes(), time.thread_time_ns()
        case.loss(model, batch).backward()
        return time.thread_time_ns() - start, meter.peak_bytes() - before

    for _ in range(3):  # warm-up of autograd and the tapes
        step()
    return step


def row(name, rounds):
    with remat.MemoryMeter() as meter:
        jobs = {peer: job(CASES[name], prepare, meter) for peer, prepare in PEERS.items()}
        samples = run_jobs(jobs, rounds)
    plain = samples["plain"]
    ms = statistics.median(sample[0] for sample in plain) / 1e6
    peak = plain[-1][1]
    cells = [name, f"{ms:.1f}", f"{peak / 1024:,.0f}"]
    for peer in list(PEERS)[1:]:
        cells.append(f"{ratio(samples[peer], plain, 0):.2f}x, {samples[peer][-1][1] / peak:.2f}")
    return cells


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
    model, batch = prepared(case, prepare)
    with Work() as work:  # around the forward, too: PyTorch picks other ops under a mode, and backward must match
        for _ in range(4):  # the tapes are trusted in the last step
            loss = case.loss(model, batch)
            work.counts.clear()
            loss.backward()
    return work.counts


def left_out(counts, plain, everything):
    """Returns the cell of one way of checkpointing. `counts` is None if that way raises."""
    if counts is None:
        return "raises"
    shares = (1 - (counts[kind] - plain[kind]) / (everything[kind] - plain[kind]) for kind in ("ops", "flops"))
    return ", ".join(f"{share:.1%}" for share in shares)


def row_of_left_out(name):
    counts = {}
    for way, prepare in WAYS.items():
        try:
            counts[way] = work_of_backward(CASES[name], prepare)
        except RuntimeError:
            assert way == "torch"  # raises for DenseNet, whose recomputation gets a list that grew after the forward
            counts[way] = None
    plain, everything = counts["plain"], counts["all"]
    cells = (left_out(counts[way], plain, everything) for way in ("torch", "function", "tape"))
    return [name, f"{everything['ops'] - plain['ops']}", *cells]


def main():
    parser = parser_of(__doc__)
    parser.add_argument("models", nargs="*", metavar="MODEL", help=", ".join(CASES))
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--left-out", action="store_true", help="count what replays leave out")
    options = parser.parse_args()
    heads = ["plain, ms", "plain, KiB", *(f"{peer}: time, peak" for peer in list(PEERS)[1:])]
    if options.left_out:
        heads = ["ops in regions", *(f"{way}: ops, flops" for way in ("torch", "function", "tape"))]
    print_heads(["model", *heads])
    for name in options.models or CASES:
        print_row(row_of_left_out(name) if options.left_out else row(name, options.rounds))


if __name__ == "__main__":
    main()
