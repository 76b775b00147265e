#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Runs steps of the tests' real models within memory budgets, and compares predicted with measured figures.

  bench_budgets.py [MODEL ...] [--budgets 20,30,40,50,60,70,80,90]

The models are those of python/tests/models: small, with random weights, in train mode. Each is measured once
(remat.profile) and planned for shares of its plain peak. A row compares measured and predicted peak of a step under
the plan, gives the predicted share of recomputed time, and says whether loss, gradients and buffers are bitwise those
of plain. Peaks are bytes that the CPU allocator hands out beyond those alive when the step begins; gradients exist
before the step (zero_grad(set_to_none=False)).
"""

import argparse
import gc
import pathlib
import sys
import time
import warnings

import numpy
import torch

import remat_meta as remat

TESTS = pathlib.Path(__file__).resolve().parent.parent / "python" / "tests"
sys.path[:0] = [str(TESTS), str(TESTS / "models")]

from hf_models import CASES as HF  # noqa: E402
from vision_models import CASES as VISION  # noqa: E402

CASES = {**HF, **VISION}


class Step:
    """Steps of one model from the same state."""

    def __init__(self, case):
        torch.manual_seed(1)
        self.model, self.batch = case.model().train(), case.batch()
        self.loss = lambda: case.loss(self.model, self.batch)
        self.loss().backward()  # creates gradients and warms up
        self.buffers = [buffer.clone() for buffer in self.model.buffers()]
        self.zero()

    def zero(self):
        self.model.zero_grad(set_to_none=False)
        with torch.no_grad():
            for buffer, value in zip(self.model.buffers(), self.buffers, strict=True):
                buffer.copy_(value)

    def run(self, loss):
        """Returns the step's peak, and the tensors that must be equal."""
        self.zero()
        torch.manual_seed(2)
        numpy.random.seed(2)  # wav2vec2 draws its masks there
        gc.collect()
        gc.disable()
        with remat.MemoryMeter() as meter:
            result = loss()
            result.backward()
            value = result.detach().clone()
            del result
            peak = meter.peak_bytes()
        gc.enable()
        gradients = [p.grad.clone() for p in self.model.parameters() if p.grad is not None]
        return peak, [value, *gradients, *(buffer.clone() for buffer in self.model.buffers())]


def rows(name, shares):
    step = Step(CASES[name])
    step.run(step.loss)
    plain_peak, plain = step.run(step.loss)
    step.zero()
    begin = time.perf_counter()
    with remat.MemoryMeter() as meter:
        profile = remat.profile(step.loss)()
        measuring_peak = meter.peak_bytes()
    measured = time.perf_counter()
    planner = remat.MemoryPlanner(profile)
    planned = time.perf_counter()
    print(
        f"{name}: plain {plain_peak / 1e6:.3f} MB; measured in {measured - begin:.1f} s within "
        f"{100 * measuring_peak / plain_peak:.0f} %, {len(profile)} ops planned in {planned - measured:.2f} s; "
        f"least {100 * planner.frontier[0].peak_bytes / plain_peak:.1f} %",
        flush=True,
    )
    for share in shares:
        plan = planner.plan(plain_peak * share // 100)
        if not plan.feasible:
            print(f"  {share:3} %  does not fit: {plan.limit}")
            continue
        loss = remat.checkpoint(replay="tape", region_name=name, cuts=plan.cuts)(step.loss)
        step.run(loss)
        peak, got = step.run(loss)
        same = all(torch.equal(a, b) for a, b in zip(got, plain, strict=True))
        print(
            f"  {share:3} %  predicted {plan.predicted_peak_bytes / 1e6:9.3f} MB, measured {peak / 1e6:9.3f} "
            f"({100 * peak / plan.predicted_peak_bytes - 100:+.3f} %, {100 * peak / plan.budget_bytes:5.1f} % of the budget), "
            f"runs again {100 * plan.predicted_overhead:5.2f} %, bitwise {same}; {plan.peak_at}",
            flush=True,
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", metavar="MODEL", help=", ".join(CASES))
    parser.add_argument("--budgets", default="20,30,40,50,60,70,80,90")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    for name in arguments.models or CASES:
        rows(name, [int(share) for share in arguments.budgets.split(",")])


if __name__ == "__main__":
    main()
