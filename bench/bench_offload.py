#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Runs steps that offload over links of a chosen speed. Shows bits, peaks, times, and how much of the copies is hidden.

  bench_offload.py [MODEL ...] [--rounds N] [--gbps 1 4 16] [--plans 30 40 60]

Copies go from CPU memory to CPU memory. Copies of remat take as long as on a link of the chosen speed, which copies in both
directions at once. Copies of torch.autograd.graph.save_on_cpu run at memory speed and are waited for. Copies also slow down the
computation. The rows of remat keep in the store the inputs of each layer ("inputs"), or the inputs and the results of matrix
products, convolutions, attention, GELU and ReLU. Steps begin with the same weights and buffers, and with gradients that are
zero. Columns of the first table:

bitwise  whether gradients and buffers are those of plain
peak     bytes from LibTorch's CPU allocator in a step, beyond those alive before. Offloaded tensors of remat do not count,
         because they are in the store's own memory; copies of the other methods count
time     median of wall times, divided by plain's; the methods run in turns
hidden   share of the copies' time, at the link's speed, for which no thread waited

Columns of plans for budgets in percent of plain's peak (prefetch_bytes and max_leaving_bytes are a sixteenth of that peak):

overhead alone      predicted overhead of the plan without a store
with the link       predicted overhead of the plan with the store
measured            measured overhead of the plan with the store; plain and the plan run in turns
waits, of predicted time for which threads waited for copies in a step, measured and predicted
peak, of predicted  measured / predicted peak (the prediction does not depend on link speed)
moved, of planned   bytes moved in a step, measured and planned
"""

import ctypes
import functools
import statistics
import time

import torch
from peers import Block, parser_of, print_heads, print_row, same

import remat_meta as remat
from remat_meta import _C

OFFLOAD = remat.CheckpointPolicy.OFFLOAD
HOST = ("host", None, "", False)


class Convolution(torch.nn.Module):
    def __init__(self, channels=64):
        super().__init__()
        self.conv, self.norm = torch.nn.Conv2d(channels, channels, 3, padding=1), torch.nn.BatchNorm2d(channels)

    def forward(self, x):
        return x + self.norm(self.conv(x)).relu()


MODELS = {
    "gpt": (lambda: Block(256, 4), lambda: torch.randn(2, 256, 256)),
    "convolutions": (Convolution, lambda: torch.randn(4, 64, 56, 56)),
}
LAYERS = 8


def saved_on_cpu(block):
    def run(x):
        with torch.autograd.graph.save_on_cpu():
            return block(x)

    return run


def modes_of(gbps):
    rows = {
        "plain": (lambda block: block, None),
        "checkpoint": (remat.checkpoint(), None),
        "save_on_cpu": (saved_on_cpu, None),
    }
    rules = remat.PolicyTable()
    for op in ("aten::addmm", "aten::convolution", "aten::_scaled_dot_product*", "aten::gelu", "aten::relu"):
        rules.op(op, OFFLOAD)
    for speed in gbps:
        for name, options in {"inputs": {}, "inputs, results of large ops": {"policy": rules}}.items():
            store = _C._offload_engine([HOST], 4096, None, 8 << 20, None, None, False, (speed, 10.0))
            region = remat.checkpoint(offload_store=store, offload_inputs=True, replay="auto", **options)
            rows[f"remat, {speed:g} GB/s: {name}"] = (region, store)
    return rows


class Run:
    """A model that takes steps, each from the same state."""

    def __init__(self, model, wrap=lambda block: block, store=None):
        torch.manual_seed(0)
        block, make_input = MODELS[model]
        self.layers = torch.nn.ModuleList(block() for _ in range(LAYERS))
        self.calls = [wrap(layer) for layer in self.layers]
        self.store, self.x = store, make_input().requires_grad_()
        self.x.grad = torch.zeros_like(self.x)
        self.buffers = [buffer.clone() for buffer in self.layers.buffers()]

    def loss(self):
        return functools.reduce(lambda h, call: call(h), self.calls, self.x).square().mean()

    def step(self, loss):
        """Returns seconds and peak."""
        self.layers.zero_grad(set_to_none=False)
        self.x.grad.zero_()
        with torch.no_grad():
            for buffer, value in zip(self.layers.buffers(), self.buffers, strict=True):
                buffer.copy_(value)
        with remat.MemoryMeter() as meter:
            begin = time.perf_counter()
            loss().backward()
            return time.perf_counter() - begin, meter.peak_bytes()

    def results(self, loss):
        self.step(loss)
        gradients = (leaf.grad for leaf in (self.x, *self.layers.parameters()))
        return [tensor.clone() for tensor in (*gradients, *self.layers.buffers())]


def in_turns(steps, rounds):
    """Runs `steps` in turns, `rounds` times after a warm-up round. Returns the median seconds and the highest peak of each."""
    rows = [[step() for step in steps] for _ in range(rounds + 1)][1:]
    return [(statistics.median(row[i][0] for row in rows), max(row[i][1] for row in rows)) for i in range(len(steps))]


def hidden(stats, speed):
    copies_us = (stats["left_bytes"] + stats["fetched_bytes"]) / speed / 1e3
    return f"{100 * (1 - min(1.0, stats['waited_us'] / copies_us)):.0f} %" if copies_us else ""


def table_of(model, rounds, gbps):
    runs = {name: Run(model, *mode) for name, mode in modes_of(gbps).items()}
    measured = in_turns([functools.partial(run.step, run.loss) for run in runs.values()], rounds)
    plain_s, plain_peak = measured[0]
    print(f"\n{model}: plain {1e3 * plain_s:.0f} ms a step, peak {plain_peak / 1e6:.1f} MB\n")
    print_heads(["", "bitwise", "peak", "time", "moved a step", "hidden"])
    expected = runs["plain"].results(runs["plain"].loss)
    for (name, run), (seconds, peak) in zip(runs.items(), measured, strict=True):
        stats = run.store and run.store.stats()
        moved = f"{stats['left_bytes'] / (rounds + 1) / 1e6:.1f} MB" if stats else ""
        bitwise = "yes" if same(expected, run.results(run.loss)) else "no"
        cells = [name, bitwise, f"{100 * peak / plain_peak:.0f} %", f"{seconds / plain_s:.2f}"]
        print_row([*cells, moved, hidden(stats, float(name.split()[1])) if stats else ""])


def plans_of(model, rounds, gbps, shares):
    run = Run(model)
    plain = run.results(run.loss)
    ((plain_s, plain_peak),) = in_turns([lambda: run.step(run.loss)], rounds)
    profile = remat.profile(run.loss)()
    alone = remat.MemoryPlanner(profile)
    print(f"\n{model}, planned: plain {1e3 * plain_s:.0f} ms a step, peak {plain_peak / 1e6:.1f} MB\n")
    heads = ["link", "budget", "overhead alone", "with the link", "measured", "waits, of predicted", "peak, of predicted"]
    print_heads([*heads, "bitwise", "moved, of planned", "hidden"])
    for speed in gbps:
        window = plain_peak // 16
        store = _C._offload_engine([HOST], 4096, None, window, window, None, False, (speed, 10.0))
        planner = remat.MemoryPlanner(profile, offload=store)
        for share in shares:
            without, plan = alone.plan(plain_peak * share // 100), planner.plan(plain_peak * share // 100)
            if not plan.feasible:
                print(f"| {speed:g} GB/s | {share} % | does not fit |")
                continue
            planned = remat.checkpoint(plan=plan, offload_store=store)(run.loss)
            bitwise = same(plain, run.results(planned))
            before = store.stats()
            steps = [functools.partial(run.step, loss) for loss in (run.loss, planned)]
            (beside_s, _), (seconds, peak) = in_turns(steps, rounds)
            stats = {key: (value - before[key]) / (rounds + 1) for key, value in store.stats().items()}
            cells = [
                f"{speed:g} GB/s",
                f"{share} %",
                f"{100 * without.predicted_overhead:.1f} %" if without.feasible else "does not fit",
                f"{100 * plan.predicted_overhead:.1f} %",
                f"{100 * (seconds / beside_s - 1):.1f} %",
                f"{stats['waited_us'] / 1e3:.1f} of {plan.predicted_wait_us / 1e3:.1f} ms",
                f"{100 * peak / plan.predicted_peak_bytes:.0f} %",
                "yes" if bitwise else "no",
                f"{stats['left_bytes'] / 1e6:.1f} of {plan.offloaded_bytes / 1e6:.1f} MB",
                hidden(stats, speed),
            ]
            print_row(cells)


def keep_freed_memory():
    """Keeps freed memory, as allocators of devices do. By default glibc returns large blocks, and copies fault in new pages."""
    libc, trim_threshold, mmap_threshold = ctypes.CDLL(None), -1, -3
    if libc.mallopt(mmap_threshold, 1 << 30) != 1 or libc.mallopt(trim_threshold, (1 << 31) - 1) != 1:
        raise OSError("mallopt: expected to set the thresholds, got an error")


def main():
    parser = parser_of(__doc__)
    parser.add_argument("models", nargs="*", metavar="MODEL", help=", ".join(MODELS))
    parser.add_argument("--rounds", type=int, default=5, help="steps that are timed, of each row (5)")
    parser.add_argument("--gbps", type=float, nargs="+", default=[1.0, 4.0, 16.0], help="speeds of links (1 4 16)")
    parser.add_argument("--plans", type=int, nargs="*", default=[30, 40, 60], metavar="PERCENT", help="budgets (30 40 60)")
    options = parser.parse_args()
    keep_freed_memory()
    for model in options.models or MODELS:
        table_of(model, options.rounds, options.gbps)
        if options.plans:
            plans_of(model, options.rounds, options.gbps, options.plans)


if __name__ == "__main__":
    main()
