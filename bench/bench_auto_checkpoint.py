#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Measures auto_checkpoint() on realistic models: what a budget takes and costs, compared with the plan's predictions.

  bench_auto_checkpoint.py [MODEL ...] [--budgets 20,30,40,50,60,70,80,90] [--markdown]

Models are those of budget_models.py and, by their names, of python/tests/models. Each trains as users train it, with the loss
inside the wrapped function, except for gpt2_loss_outside. It is measured once, and its plan file serves all budgets. A row is a
share of the peak without remat: whether loss, gradients, buffers and random generator are bitwise those of plain in each of
two steps; the measured peak over the predicted one, and over the budget; the CPU time of replays over that of the rest of the
step (median of several), measured and predicted. Peaks are bytes that the CPU allocator hands out beyond those alive when the
step begins. One thread.
"""

import argparse
import gc
import pathlib
import statistics
import sys
import tempfile
import time
import warnings

import budget_models
import numpy
import torch

import remat_meta as remat

TIMED_STEPS = 5


class Trained:
    """A model that is trained step by step from the same state."""

    def __init__(self, name):
        self.model = budget_models.make(name)
        self.state = {key: value.clone() for key, value in self.model.module.state_dict().items()}
        self.call = self.model.call

    def wrap(self, budget, plan):
        """Wraps the model itself if the loss is outside, else the whole step."""
        module, call = self.model.module, self.model.call
        if self.model.loss_outside:
            vars(module).pop("forward", None)
            remat.auto_checkpoint(module, budget, plan=plan)
            return module
        step = remat.auto_checkpoint(lambda *batch: call(module, batch), budget, plan=plan, name=type(module).__name__)
        self.call = lambda module, batch: step(*batch)
        return step

    def step(self, seed):
        """Runs a step. Returns loss, gradients, buffers and random state; peak; CPU seconds of the step and of its replays."""
        module = self.model.module
        module.zero_grad(set_to_none=self.model.set_to_none)
        torch.manual_seed(seed)
        numpy.random.seed(seed)  # wav2vec2 draws its masks there
        gc.collect()
        gc.disable()
        with remat.MemoryMeter() as meter, remat.ReplayClock() as clock:
            begin = time.thread_time()
            loss = self.call(module, self.model.batch)
            loss.backward()
            seconds = time.thread_time() - begin
            value = loss.detach().clone()
            del loss
            peak = meter.peak_bytes()
            replayed = clock.cpu_seconds()
        gc.enable()
        gradients = [p.grad.clone() for p in module.parameters() if p.grad is not None]
        tensors = [value, *gradients, *(b.clone() for b in module.buffers()), torch.get_rng_state()]
        return tensors, peak, seconds, replayed

    def reset(self):
        self.model.module.load_state_dict(self.state)


def same(left, right):
    return len(left) == len(right) and all(torch.equal(a, b) for a, b in zip(left, right, strict=True))


def measure(name, plan):
    """Returns peak and steps of plain and the cost of measuring; writes the plan file."""
    plain = Trained(name)
    plain.step(0)
    plain.reset()
    expected = [plain.step(seed)[0] for seed in (1, 2)]
    _, peak, seconds, _ = min((plain.step(3) for _ in range(TIMED_STEPS)), key=lambda step: step[2])
    planned = Trained(name)
    planned.step(0)
    planned.wrap("99%", plan)
    cost, most = 0.0, 0
    for seed in range(3):
        _, planned_peak, spent, _ = planned.step(seed)
        cost += spent - seconds
        most = max(most, planned_peak)
    begin = time.perf_counter()
    planned.step(4)
    planning = time.perf_counter() - begin
    return expected, peak, seconds, cost, most, planning


def row(name, share, plan, expected):
    planned = Trained(name)
    planned.step(0)
    planned.reset()
    try:
        wrapped = planned.wrap(f"{share}%", plan)
    except ValueError as error:
        return str(error)
    got = [planned.step(seed) for seed in (1, 2)]
    bitwise = all(same(step[0], tensors) for step, tensors in zip(got, expected, strict=True))
    times = [planned.step(3)[2:] for _ in range(TIMED_STEPS)]
    took = statistics.median(replayed / (seconds - replayed) for seconds, replayed in times)
    return remat.memory_plan(wrapped), bitwise, max(step[1] for step in got), took


def print_rows(name, shares, markdown):
    with tempfile.TemporaryDirectory() as folder:
        plan_file = str(pathlib.Path(folder) / "plan.json")
        expected, peak, seconds, cost, most, planning = measure(name, plan_file)
        line = (
            f"plain {peak / 1e6:.2f} MB, {1000 * seconds:.0f} ms; measuring cost {cost / seconds:.1f} plain steps within "
            f"{100 * most / peak:.0f} % of its peak, planning {planning:.2f} s"
        )
        print(f"| **{name}** | {line} | | | | | |" if markdown else f"{name}: {line}", flush=True)
        for share in shares:
            result = row(name, share, plan_file, expected)
            if isinstance(result, str):
                least = int(result.split("expected ")[1].split()[0])
                text = f"does not fit: least {100 * least / peak:.1f} %"
                print(f"| | {share} % | {text} | | | | |" if markdown else f"  {share:3} %  {text}", flush=True)
                continue
            plan, bitwise, measured, took = result
            cells = [
                f"{measured / 1e6:.3f} MB",
                f"{100 * measured / plan.predicted_peak_bytes - 100:+.3f} %",
                f"{100 * measured / plan.budget_bytes:.1f} %",
                f"{100 * took:.1f} % ({100 * plan.predicted_overhead:.1f} %)",
                "yes" if bitwise else "NO",
            ]
            if markdown:
                print(f"| | {share} % | {' | '.join(cells)} |", flush=True)
            else:
                print(
                    f"  {share:3} %  peak {cells[0]} ({cells[1]} of predicted, {cells[2]} of the budget), runs again "
                    f"{cells[3].replace('(', '(predicted ')}, bitwise {cells[4]}; {plan.peak_at}",
                    flush=True,
                )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", metavar="MODEL", help=", ".join(budget_models.MODELS))
    parser.add_argument("--budgets", default="20,30,40,50,60,70,80,90")
    parser.add_argument("--markdown", action="store_true")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    if arguments.markdown:
        print("| model | budget | measured peak | of predicted | of the budget | runs again (predicted) | bitwise |")
        print("|---|---|---|---|---|---|---|")
    for name in arguments.models or budget_models.MODELS:
        print_rows(name, [int(share) for share in arguments.budgets.split(",")], arguments.markdown)


if __name__ == "__main__":
    sys.exit(main())
