#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Compares replay from a tape and policies by op with plain PyTorch, torch's checkpoint, its SAC and torch_remat.

  bench_tape.py [--rounds N] [--bytes]

Rows, each as ratios to a plain step taken in turns, medians, one thread:
  chain   200 ops on 8 numbers in one region, so that dispatch dominates. `replay` is how much longer a backward
          takes than plain's, over a plain forward.
  block   one GPT2Block of Transformers, d = 64, in one region.
  tiny    six blocks of a GPT, d = 64, each a region that saves the results of its matmuls.
The last column is the largest difference of a gradient from plain's. --bytes prints the host memory of tapes
and their records instead. torch_remat runs where it is installed; SAC and torch_remat have no tape, so they
have rows for `tiny` only.
"""

import argparse
import functools
import os
import statistics

import torch
from peers import (
    GPT,
    Engine,
    Peer,
    Regions,
    Selective,
    TorchCheckpoint,
    chain_body,
    gradients,
    has_torch_remat,
    ratio,
    run_jobs,
    timed,
)

import remat_meta as remat

ENGINES = ("function", "tape")


def peers():
    return Peer(), TorchCheckpoint("torch", use_reentrant=False), *map(Engine, ENGINES)


def chain():
    def cases():
        for peer in peers():
            body, leaves = chain_body(peer, "recompute", 200)
            torch.manual_seed(1)
            x = torch.rand(8).requires_grad_()
            yield peer.name, functools.partial(peer.checkpoint(body, "chain"), x), torch.ones(8), (*leaves, x)

    return {name: rest for name, *rest in cases()}


def block():
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    from transformers import GPT2Config
    from transformers.models.gpt2.modeling_gpt2 import GPT2Block

    config = GPT2Config(n_embd=64, n_head=4, attn_implementation="sdpa")

    def cases():
        for peer in peers():
            torch.manual_seed(1)
            module = GPT2Block(config, layer_idx=0).train()
            x = torch.randn(1, 16, 64, requires_grad=True)

            def first(hidden, module=module):
                result = module(hidden)
                return result[0] if isinstance(result, tuple) else result

            def forward(fn=peer.checkpoint(first, "block"), x=x):
                torch.manual_seed(2)
                return fn(x)

            yield peer.name, forward, torch.ones(1, 16, 64), (*module.parameters(), x)

    return {name: rest for name, *rest in cases()}


def tiny():
    others = [Selective(), *([Regions("torch_remat", "torch_remat")] if has_torch_remat() else []), *map(Engine, ENGINES)]
    shape = (64, 4, 16, 1, 6, 64)
    models = {"plain": GPT(shape, Peer(), "none")} | {peer.name: GPT(shape, peer, "matmul") for peer in others}
    return {name: (model.forward, None, model.params) for name, model in models.items()}


def rows(title, cases, rounds):
    expected = gradients(*cases["plain"])
    samples = run_jobs({name: timed(forward, seed) for name, (forward, seed, _) in cases.items()}, rounds, warm_up=3)
    plain = samples["plain"]
    for name, (forward, seed, leaves) in cases.items():
        mine = samples[name]
        steps = [[(sum(sample),) for sample in side] for side in (mine, plain)]
        replay = statistics.median((a[1] - b[1]) / b[0] for a, b in zip(mine, plain, strict=True))
        difference = max((a - b).abs().max() for a, b in zip(gradients(forward, seed, leaves), expected, strict=True))
        micros = statistics.median(sum(sample) for sample in mine) / 1e3
        yield [title, name, f"{micros:,.0f}", f"{ratio(mine, plain, 0):.2f}", f"{replay:.2f}",
               f"{ratio(*steps, 0):.2f}", f"{difference:.0e}"]  # fmt: skip


def tapes():
    """Lists (description, function, argument) of regions whose tapes are measured."""

    def sines(x):
        return functools.reduce(lambda y, _: y.sin(), range(1000), x)

    weight = torch.randn(8, 8, requires_grad=True)

    def products(x):
        for _ in range(200):
            x = (x @ weight).tanh()
        return x

    layers = (torch.nn.Conv2d(4, 4, 3, padding=1), torch.nn.BatchNorm2d(4), torch.nn.ReLU())
    yield "1,000 `sin`", sines, torch.rand(8)
    yield "200 matrix products, each with a `tanh`", products, torch.rand(8, 8)
    yield "`TransformerEncoderLayer`", torch.nn.TransformerEncoderLayer(64, 4, 128), torch.rand(2, 8, 64)
    yield "10 times convolution, batch norm, ReLU", torch.nn.Sequential(*layers * 10), torch.rand(2, 4, 8, 8)


def print_bytes():
    print("| region | records | bytes | bytes a record |\n|---|---|---|---|")
    for title, fn, x in tapes():
        y = remat.checkpoint(replay="tape")(fn)(x.requires_grad_())
        tape = remat.region_tapes()[-1]
        print(f"| {title} | {len(tape)} | {tape.bytes:,} | {tape.bytes / len(tape):,.0f} |", flush=True)
        del y, tape


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--bytes", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.bytes:
        print_bytes()
        return
    header = ["row", "peer", "step, us", "forward", "replay", "step", "difference"]
    print("| " + " | ".join(header) + " |\n|" + "---|" * len(header))
    for make in (chain, block, tiny):
        for row in rows(make.__name__, make(), args.rounds):
            print("| " + " | ".join(row) + " |", flush=True)


if __name__ == "__main__":
    main()
