#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Trains a GPT on CUDA with each way of checkpointing, and compares bits, peaks of the caching allocator, and times by events.

  bench_cuda.py table [--dtype fp32|bf16] [--size medium|tiny] [--seconds N] [--out FILE]
  bench_cuda.py host  [--size medium|tiny] [--seconds N] [--out FILE]
  bench_cuda.py offload                      one small program for compute-sanitizer

"table" trains a GPT-2 medium (24 layers, 1024 wide, 16 heads, vocabulary 50257) on batches of 8 x 512 tokens, with dropout.
bf16 is autocast with float32 weights. TF32 is off. "host" trains a GPT of 8 layers, 256 wide, on one sequence of
128 tokens, where launching takes longer than computing. "tiny" is for the stand-in: tests/cuda_stand_in/README.md.

Gradients exist before a step begins. A first pass, with deterministic algorithms, compares the bits of the loss and of all
gradients with a plain step of the same seed, also for the steps that auto_checkpoint() measures. Peaks and times are those of
a second pass, without deterministic algorithms. "step" is the peak beyond what is allocated when the step begins, which is
what budgets and plans count. Times are medians of rounds in which all ways take turns. The table is written to FILE after
each pass, and to stdout at the end. Exits with 3 if bits differ or a way of checkpointing raises an error.
"""

import argparse
import functools
import gc
import os
import pathlib
import statistics
import time
import traceback
import typing
import warnings

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # needed by deterministic matrix products

import torch
from peers import Gpt
from torch.utils import checkpoint as torch_checkpoint

import remat_meta as remat

WARM_UP = 3  # steps, after which a store takes no more memory from the system
WARM_UP_OF_BUDGETS = 5  # auto_checkpoint() measures three steps and plans when the fourth begins
MATMULS = [getattr(torch.ops.aten, op).default for op in ("mm", "addmm", "bmm", "baddbmm")]  # the preset save_matmuls's ops


class Shape(typing.NamedTuple):
    layers: int
    width: int
    heads: int
    vocabulary: int
    batch: int
    length: int
    min_bytes: int  # smaller storages are not offloaded


SHAPES = {
    ("table", "medium"): Shape(24, 1024, 16, 50257, 8, 512, 1 << 20),
    ("table", "tiny"): Shape(8, 32, 4, 101, 2, 32, 4096),
    ("host", "medium"): Shape(8, 256, 4, 1009, 1, 128, 4096),
    ("host", "tiny"): Shape(8, 32, 4, 101, 1, 16, 256),
}


class Training:
    """A model, its batch and its gradients, for steps with any way of checkpointing."""

    def __init__(self, shape, dtype):
        torch.manual_seed(0)
        self.shape = shape
        self.autocast = functools.partial(torch.autocast, "cuda", torch.bfloat16, enabled=dtype == "bf16")
        with torch.device("cuda"):
            self.model = Gpt(shape.width, shape.heads, shape.length, shape.layers, shape.vocabulary, dropout=0.1)
            self.batch = torch.randint(0, shape.vocabulary, (shape.batch, shape.length))
        self.gradients = [torch.zeros_like(p) for p in self.model.parameters()]
        for parameter, gradient in zip(self.model.parameters(), self.gradients, strict=True):
            parameter.grad = gradient

    def loss(self, wrap):
        """Returns the step's function, with each block wrapped."""
        calls = [wrap(block) for block in self.model.blocks]

        def loss(tokens):
            with self.autocast():
                return self.model.loss(calls, tokens)

        return loss

    def ready(self, seed=1):
        """Zeroes the gradients and seeds the generators for a step."""
        torch._foreach_zero_(self.gradients)
        torch.manual_seed(seed)
        torch.cuda.synchronize()

    def results(self, loss):
        """Loss and gradients of a step, as bits."""
        self.ready()
        value = loss(self.batch)
        value.backward()
        return [t.detach().view(torch.int32) for t in (value, *self.gradients)]


class Way:
    """One way of checkpointing. `begin` returns the step's function, a new one for each pass."""

    def __init__(self, name, begin, warm_up=WARM_UP):
        self.name, self._begin, self.warm_up = name, begin, warm_up
        self.bits = self.error = self.plan = self.store = self.loss = None
        self.peaks = {}
        self.ms = []

    def begin(self, training):
        self.store = None
        self.loss = self._begin(self, training)


def each_block(wrap):
    return lambda way, training: training.loss(wrap)


def budget(share):
    return lambda way, training: remat.auto_checkpoint(training.loss(lambda block: block), share, name=f"gpt, {share}")


def offloaded(way, training):
    way.store = remat.offload("host", min_bytes=training.shape.min_bytes)
    return training.loss(remat.checkpoint(offload_inputs=True, offload_store=way.store))


def torch_checkpointed(**options):
    return lambda block: functools.partial(torch_checkpoint.checkpoint, block, use_reentrant=False, **options)


def ways():
    selective = functools.partial(torch_checkpoint.create_selective_checkpoint_contexts, MATMULS)
    return [
        Way("plain", each_block(lambda block: block)),
        Way("plain again", each_block(lambda block: block)),
        Way("torch's checkpoint", each_block(torch_checkpointed())),
        Way("torch's SAC, matmuls", each_block(torch_checkpointed(context_fn=selective))),
        Way("remat, function", each_block(remat.checkpoint())),
        Way("remat, tape", each_block(remat.checkpoint(replay="tape"))),
        Way("remat, save_matmuls", each_block(remat.checkpoint(policy="save_matmuls"))),
        Way("remat, budget 50 %", budget("50%"), WARM_UP_OF_BUDGETS),
        Way("remat, budget 30 %", budget("30%"), WARM_UP_OF_BUDGETS),
        Way("remat, inputs offloaded", offloaded),
    ]


class Report:
    """The table, with the results that there are so far."""

    def __init__(self, title, rows, options):
        self.title, self.rows, self.out = title, rows, options.out

    def text(self):
        plain = self.rows[0]
        columns = ["", "bitwise", "max allocated", "max reserved", "step", "of plain", "plan", "of plan", "ms", "over plain"]
        lines = [f"**{self.title}**", "", "| " + " | ".join(columns) + " |", "|---" * len(columns) + "|"]
        lines += ["| " + " | ".join(self._cells(way, plain)) + " |" for way in self.rows]
        notes = [f"- {way.name}: {note}" for way in self.rows for note in self._notes(way)]
        return "\n".join([*lines, "", *notes]) + "\n"

    def _cells(self, way, plain):
        cells = [way.name, {None: "", True: "yes", False: "**no**"}[way.bits]]
        peaks, base = way.peaks, plain.peaks
        cells += [f"{peaks[key] / 1e6:.2f} MB" if peaks else "" for key in ("allocated", "reserved", "step")]
        cells.append(f"{100 * peaks['step'] / base['step']:.1f} %" if peaks and base else "")
        predicted = way.plan.predicted_peak_bytes if way.plan else None
        cells.append(f"{predicted / 1e6:.2f} MB" if predicted else "")
        cells.append(f"{100 * (peaks['step'] / predicted - 1):+.2f} %" if predicted and peaks else "")
        if way.ms:
            ratios = [a / b for a, b in zip(way.ms, plain.ms, strict=False)]
            cells += [f"{statistics.median(way.ms):.2f}", f"{100 * (statistics.median(ratios) - 1):+.1f} %"]
        else:
            cells += ["", ""]
        return cells

    def _notes(self, way):
        if way.error:
            yield way.error
        if way.plan:
            yield f"{100 * way.plan.predicted_overhead:.1f} % of the step is predicted to run again"
        if way.store and way.ms:
            yield self._copies(way.store.stats(), way.store.terms("cuda")["places"][0], way.warm_up + 1 + len(way.ms))

    @staticmethod
    def _copies(stats, link, steps):
        copies_us = (stats["left_bytes"] / link["out_gbps"] + stats["fetched_bytes"] / link["in_gbps"]) / 1e3
        hidden = 100 * (1 - min(1.0, stats["waited_us"] / copies_us)) if copies_us else 100
        return (
            f"{stats['left_bytes'] / steps / 1e6:.2f} MB leave in a step, link of {link['out_gbps']:.1f} GB/s out and "
            f"{link['in_gbps']:.1f} GB/s in, {stats['stayed_count'] / steps:.1f} tensors stay, threads wait "
            f"{stats['waited_us'] / steps / 1e3:.2f} ms: {hidden:.0f} % of the time of copies is hidden"
        )

    def write(self):
        if self.out:
            self.out.write_text(self.text())


def attempt(way, work):
    """Runs `work`; if it raises, the way's row shows the error instead of numbers."""
    try:
        work(way)
    except Exception as error:
        traceback.print_exc()
        text = next((line for line in str(error).splitlines() if line), "no text")
        way.error = f"{type(error).__name__}: {text[:300]}"
        way.loss = None


def compare_bits(training, rows):
    """Runs the first pass, which compares bits."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = False
    expected = []

    def compare(way):
        way.begin(training)
        same = []
        for _ in range(way.warm_up + 1 if way.warm_up == WARM_UP_OF_BUDGETS else 2):
            results = training.results(way.loss)
            if not expected:
                expected.extend(t.clone() for t in results)
            same.append(all(torch.equal(a, b) for a, b in zip(expected, results, strict=True)))
        way.bits = all(same)

    for way in rows:
        attempt(way, compare)
    torch.use_deterministic_algorithms(False)


def measure_peaks(training, rows):
    """Begins the second pass: warms each way up, then measures the peak of one step."""

    def peak(way):
        way.begin(training)
        for _ in range(way.warm_up):
            training.results(way.loss)
        gc.collect()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        training.ready()
        begin = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        way.loss(training.batch).backward()
        torch.cuda.synchronize()
        way.peaks = {"allocated": torch.cuda.max_memory_allocated(), "reserved": torch.cuda.max_memory_reserved()}
        way.peaks["step"] = way.peaks["allocated"] - begin
        if way.warm_up == WARM_UP_OF_BUDGETS:
            way.plan = remat.memory_plan(way.loss)

    for way in rows:
        attempt(way, peak)


def measure_times(training, rows, least, until):
    """Times steps in rounds: at least `least` rounds, and up to 15 in all while time.monotonic() is below `until`."""

    def timed(way):
        training.ready()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        way.loss(training.batch).backward()
        end.record()
        torch.cuda.synchronize()
        way.ms.append(start.elapsed_time(end))

    gc.collect()
    gc.disable()
    rounds = 0
    while rounds < least or (rounds < 15 and time.monotonic() < until):
        for way in rows:
            if way.loss is not None:
                attempt(way, timed)
        rounds += 1
    gc.enable()


def table(options):
    until = time.monotonic() + options.seconds
    shape = SHAPES[options.command, options.size]
    rows = ways()
    title = f"{shape.layers} layers, {shape.width} wide, batch {shape.batch} x {shape.length}, {options.dtype}"
    report = Report(f"{title}, {torch.cuda.get_device_name()}", rows, options)
    training = Training(shape, options.dtype)
    for work in (compare_bits, measure_peaks, functools.partial(measure_times, least=3, until=until)):
        work(training, rows)
        report.write()
    print(report.text(), end="")
    return all(way.bits and not way.error for way in rows)


def offload_program():
    """Runs regions whose inputs are offloaded and fetched on two streams of the store, for a memory checker."""
    store = remat.offload("host", min_bytes=0)
    region = remat.checkpoint(offload_inputs=True, offload_store=store)
    weight = torch.randn(256, 256, device="cuda", requires_grad=True)

    def run(wrap):
        weight.grad = None
        h = torch.ones(256, 256, device="cuda")
        for _ in range(6):
            h = wrap(lambda h: (h @ weight).tanh())(h)
        h.sum().backward()
        return weight.grad.clone()

    expected = run(lambda block: block)
    same = all(torch.equal(expected, run(region)) for _ in range(3))
    stats = store.stats()
    print(f"offload: {stats['left_count']} tensors left, {stats['fetched_count']} came back, gradients bitwise: {same}")
    return same and stats["left_count"] > 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["table", "host", "offload"])
    parser.add_argument("--dtype", choices=["fp32", "bf16"], default="fp32")
    parser.add_argument("--size", choices=["medium", "tiny"], default="medium")
    parser.add_argument("--seconds", type=float, default=40.0, help="no round begins later, but for the first three (40)")
    parser.add_argument("--out", type=pathlib.Path, help="the table so far")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("expected a CUDA device, got none. Run it on a machine with a GPU, or under tests/cuda_stand_in/run.sh.")
    warnings.simplefilter("ignore")
    raise SystemExit(0 if (offload_program() if options.command == "offload" else table(options)) else 3)


if __name__ == "__main__":
    main()
