#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Compares auto_checkpoint() with torch's own checkpointing at equal memory.

  bench_auto_peers.py [MODEL ...]

For each peer (torch.utils.checkpoint of every block; selective checkpointing that saves matrix products;
activation_memory_budget under aot_eager, where it compiles) prints its peak and its time over plain, and the time of a model
that auto_checkpoint() planned for that peak. Modes take turns; CPU time of the thread, medians of the ratios of rounds.
"""

import argparse
import functools
import gc
import statistics
import time
import warnings

import budget_models
import torch
from torch.utils import checkpoint as torch_checkpoint

import remat_meta as remat

ROUNDS = 15
MATMULS = [
    getattr(torch.ops.aten, op).default
    for op in ("mm", "addmm", "bmm", "_scaled_dot_product_flash_attention_for_cpu", "convolution")
]


def blocks(model):
    """Checkpoints every block with the library's own switch."""
    model.module.gradient_checkpointing_enable({"use_reentrant": False})


def saving_matmuls(model):
    contexts = functools.partial(torch_checkpoint.create_selective_checkpoint_contexts, MATMULS)
    model.module.gradient_checkpointing_enable({"use_reentrant": False, "context_fn": contexts})


def compiled(share):
    def wrap(model):
        import torch._functorch.config as config

        config.activation_memory_budget = share
        torch._dynamo.reset()
        call = torch.compile(lambda *batch: model.call(model.module, batch), backend="aot_eager")
        model.step = lambda: call(*model.batch)
        model.step().backward()

    return wrap


PEERS = {"torch checkpoint": blocks, "SAC, matmuls": saving_matmuls, "compile, budget 0.5": compiled(0.5)}


def made(name, change=None):
    model = budget_models.make(name)
    model.step = lambda: model.call(model.module, model.batch)
    if change is not None:
        change(model)
    return model


def measured(model):
    """Returns CPU seconds and peak of one step."""
    model.module.zero_grad(set_to_none=False)
    torch.manual_seed(1)
    gc.collect()
    gc.disable()
    with remat.MemoryMeter() as meter:
        begin = time.thread_time()
        loss = model.step()
        loss.backward()
        seconds = time.thread_time() - begin
        del loss
        peak = meter.peak_bytes()
    gc.enable()
    return seconds, peak


def planned(name, budget):
    model = made(name)
    measured(model)  # gradients exist from here on, as in the peer's steps
    step = remat.auto_checkpoint(lambda *batch: model.call(model.module, batch), budget, name=name)
    model.step = lambda: step(*model.batch)
    for _ in range(5):
        measured(model)
    return model, remat.memory_plan(step)


def compare(name, peer):
    plain, other = made(name), made(name, PEERS[peer])
    for model in (plain, other):
        for _ in range(2):
            measured(model)
    peak = measured(other)[1]
    plain_peak = measured(plain)[1]
    ours, plan = planned(name, peak)
    ratios, own = [], []
    for _ in range(ROUNDS):
        reference = measured(plain)[0]
        ratios.append(measured(other)[0] / reference - 1)
        own.append(measured(ours)[0] / reference - 1)
    over = statistics.median(ratios)
    points = [point.peak_bytes for point in plan.frontier() if point.overhead <= over]
    print(
        f"{name:14} {peer:20} peak {peak / 1e6:8.2f} MB ({100 * peak / plain_peak:.0f} % of plain): "
        f"{100 * over:+5.1f} %; auto_checkpoint in {plan.predicted_peak_bytes / 1e6:.2f} MB: "
        f"{100 * statistics.median(own):+5.1f} % (predicted {100 * plan.predicted_overhead:.1f} % run again); in that time "
        f"{min(points) / 1e6 if points else float('nan'):.2f} MB are predicted",
        flush=True,
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=["gpt2", "bart", "t5"], metavar="MODEL")
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    for name in parser.parse_args().models:
        for peer in PEERS:
            try:
                compare(name, peer)
            except Exception as error:
                print(f"{name:14} {peer:20} does not run: {type(error).__name__}: {str(error).splitlines()[0][:150]}", flush=True)


if __name__ == "__main__":
    main()
