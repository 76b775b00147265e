#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Measures auto_checkpoint() on realistic models: what a budget takes and costs, compared with the plan's predictions.

  bench_auto_checkpoint.py [MODEL ...] [--budgets 20,30,40,50,60,70,80,90]
  bench_auto_checkpoint.py --peers [MODEL ...]

Models are those of budget_models.py and, by their names, of python/tests/models. Each trains as users train it, with the loss
inside the wrapped function. A model is measured once, and its plan file serves all budgets. A row has a budget, as a share of
the peak without remat, and: whether loss, gradients, buffers and random generator are bitwise those of plain in each of
two steps; the measured peak over the predicted one, and over the budget; how much more CPU time a step takes than a plain one
(median of several), and what the plan predicts for its replays. Peaks are bytes that the CPU allocator hands out beyond those
alive when the step begins. All runs on one thread.

--peers compares with torch's own ways instead (torch.utils.checkpoint of every block; selective checkpointing that saves matrix
products; activation_memory_budget under aot_eager, where it compiles): peak and time of each over plain, and the time of
auto_checkpoint() with that peak as its budget. Ways take turns in rounds; ratios are medians of the rounds.
"""

import functools
import gc
import pathlib
import statistics
import sys
import tempfile
import time

import budget_models
import numpy
import torch
from peers import parser_of, print_heads, print_row, same
from torch.utils import checkpoint as torch_checkpoint

import remat_meta as remat

TIMED_STEPS = 5
ROUNDS_OF_PEERS = 15
MATMULS = [
    getattr(torch.ops.aten, op).default
    for op in ("mm", "addmm", "bmm", "_scaled_dot_product_flash_attention_for_cpu", "convolution")
]


class Trained:
    """A model that is trained step by step from the same state."""

    def __init__(self, name):
        self.model = budget_models.make(name)
        self.state = {key: value.clone() for key, value in self.model.module.state_dict().items()}
        self.call = self.model.call

    def wrap(self, budget, plan):
        module, call = self.model.module, self.model.call
        step = remat.auto_checkpoint(lambda batch: call(module, batch), budget, plan=plan, name=type(module).__name__)
        self.call = lambda module, batch: step(batch)
        return step

    def step(self, seed):
        """Runs a step. Returns loss, gradients, buffers and random state; peak; CPU seconds."""
        module = self.model.module
        module.zero_grad(set_to_none=False)
        torch.manual_seed(seed)
        numpy.random.seed(seed)  # wav2vec2 draws its masks from numpy
        gc.collect()
        gc.disable()
        with remat.MemoryMeter() as meter:
            begin = time.thread_time()
            loss = self.call(module, self.model.batch)
            loss.backward()
            seconds = time.thread_time() - begin
            value = loss.detach().clone()
            del loss
            peak = meter.peak_bytes()
        gc.enable()
        gradients = [p.grad.clone() for p in module.parameters() if p.grad is not None]
        tensors = [value, *gradients, *(b.clone() for b in module.buffers()), torch.get_rng_state()]
        return tensors, peak, seconds

    def reset(self):
        self.model.module.load_state_dict(self.state)


def measure(name, plan):
    """Writes the plan file. Returns: results of two plain steps; peak and seconds of a plain step; seconds that measured steps
    take beyond plain ones, and their highest peak; seconds of planning."""
    plain = Trained(name)
    plain.step(0)
    plain.reset()
    expected = [plain.step(seed)[0] for seed in (1, 2)]
    _, peak, seconds = min((plain.step(3) for _ in range(TIMED_STEPS)), key=lambda step: step[2])
    planned = Trained(name)
    planned.step(0)
    planned.wrap("99%", plan)
    cost, most = 0.0, 0
    for seed in range(3):
        _, planned_peak, spent = planned.step(seed)
        cost += spent - seconds
        most = max(most, planned_peak)
    begin = time.perf_counter()
    planned.step(4)
    planning = time.perf_counter() - begin
    return expected, peak, seconds, cost, most, planning


def row(name, share, plan, expected, plain_seconds):
    planned = Trained(name)
    planned.step(0)
    planned.reset()
    try:
        wrapped = planned.wrap(f"{share}%", plan)
    except ValueError as error:
        return str(error)
    got = [planned.step(seed) for seed in (1, 2)]
    bitwise = all(same(step[0], tensors) for step, tensors in zip(got, expected, strict=True))
    took = statistics.median(planned.step(3)[2] for _ in range(TIMED_STEPS)) / plain_seconds - 1
    return remat.memory_plan(wrapped), bitwise, max(step[1] for step in got), took


def print_rows(name, shares):
    with tempfile.TemporaryDirectory() as folder:
        plan_file = str(pathlib.Path(folder) / "plan.json")
        expected, peak, seconds, cost, most, planning = measure(name, plan_file)
        line = (
            f"plain {peak / 1e6:.2f} MB, {1000 * seconds:.0f} ms; measuring cost {cost / seconds:.1f} plain steps within "
            f"{100 * most / peak:.0f} % of its peak, planning {planning:.2f} s"
        )
        print(f"| **{name}** | {line} | | | | | |", flush=True)
        for share in shares:
            result = row(name, share, plan_file, expected, seconds)
            if isinstance(result, str):
                least = int(result.split("expected ")[1].split()[0])
                print(f"| | {share} % | does not fit: least {100 * least / peak:.1f} % | | | | |", flush=True)
                continue
            plan, bitwise, measured, took = result
            cells = [
                f"{measured / 1e6:.3f} MB",
                f"{100 * measured / plan.predicted_peak_bytes - 100:+.3f} %",
                f"{100 * measured / plan.budget_bytes:.1f} %",
                f"{100 * took:.1f} % ({100 * plan.predicted_overhead:.1f} %)",
                "yes" if bitwise else "NO",
            ]
            print_row(["", f"{share} %", *cells])


def checkpoint_blocks(trained, **options):
    """Checkpoints every block with the library's own switch."""
    trained.model.module.gradient_checkpointing_enable({"use_reentrant": False, **options})


def save_matmuls(trained):
    contexts = functools.partial(torch_checkpoint.create_selective_checkpoint_contexts, MATMULS)
    checkpoint_blocks(trained, context_fn=contexts)


def compile_within_half(trained):
    import torch._functorch.config as config

    config.activation_memory_budget = 0.5
    torch._dynamo.reset()
    call = trained.call
    compiled = torch.compile(lambda *batch: call(trained.model.module, batch), backend="aot_eager")
    trained.call = lambda module, batch: compiled(*batch)


PEERS = {"torch checkpoint": checkpoint_blocks, "SAC, matmuls": save_matmuls, "compile, budget 0.5": compile_within_half}


def compare(name, peer):
    plain, other, ours = (Trained(name) for _ in range(3))
    PEERS[peer](other)
    for trained in (plain, other, ours):
        for _ in range(2):
            trained.step(1)
    plain_peak, peak = (trained.step(1)[1] for trained in (plain, other))
    wrapped = ours.wrap(peak, None)
    for _ in range(5):
        ours.step(1)
    plan = remat.memory_plan(wrapped)
    rounds = [[trained.step(1)[2] for trained in (plain, other, ours)] for _ in range(ROUNDS_OF_PEERS)]
    over, own = (statistics.median(seconds[i] / seconds[0] - 1 for seconds in rounds) for i in (1, 2))
    points = [point.peak_bytes for point in plan.frontier() if point.overhead <= over]
    print(
        f"{name:14} {peer:20} peak {peak / 1e6:8.2f} MB ({100 * peak / plain_peak:.0f} % of plain): "
        f"{100 * over:+5.1f} %; auto_checkpoint in {plan.predicted_peak_bytes / 1e6:.2f} MB: "
        f"{100 * own:+5.1f} % (predicted {100 * plan.predicted_overhead:.1f} % run again); in that time "
        f"{min(points) / 1e6 if points else float('nan'):.2f} MB are predicted",
        flush=True,
    )


def print_peers(names):
    for name in names:
        for peer in PEERS:
            try:
                compare(name, peer)
            except Exception as error:
                print(f"{name:14} {peer:20} does not run: {type(error).__name__}: {str(error).splitlines()[0][:150]}", flush=True)


def main():
    parser = parser_of(__doc__)
    parser.add_argument("models", nargs="*", metavar="MODEL", help=", ".join(budget_models.MODELS))
    parser.add_argument("--budgets", default="20,30,40,50,60,70,80,90")
    parser.add_argument("--peers", action="store_true", help="compare with torch's ways; models: gpt2, bart, t5 by default")
    arguments = parser.parse_args()
    if arguments.peers:
        return print_peers(arguments.models or ["gpt2", "bart", "t5"])
    print_heads(["model", "budget", "measured peak", "of predicted", "of the budget", "more time (predicted)", "bitwise"])
    for name in arguments.models or budget_models.MODELS:
        print_rows(name, [int(share) for share in arguments.budgets.split(",")])


if __name__ == "__main__":
    sys.exit(main())
