#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Step time and peak memory of the real models of the tests, each block a region.

  bench_models.py [MODEL ...] [--rounds N]

The models are those of python/tests/models: small, with random weights, in train mode, so that the cost of a region
is most visible. Each step is a forward and a backward; times are medians of ratios to a plain step taken in
turns, on one thread; peaks count the bytes that the CPU allocator hands out within the step, compared with plain.
"""

import argparse
import functools
import pathlib
import statistics
import sys
import time
import warnings

import torch
from peers import ratio, run_jobs

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


def job(case, prepare, meter):
    """Returns a function that takes a step and returns (its nanoseconds, its peak in bytes)."""
    torch.manual_seed(1)
    model, batch = case.model().train(), case.batch()
    prepare(case, model)

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


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", metavar="MODEL", help=", ".join(CASES))
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    header = ["model", "plain, ms", "plain, KiB", *(f"{peer}: time, peak" for peer in list(PEERS)[1:])]
    print("| " + " | ".join(header) + " |\n|" + "---|" * len(header))
    for name in options.models or CASES:
        print("| " + " | ".join(row(name, options.rounds)) + " |", flush=True)


if __name__ == "__main__":
    main()
