#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Cost of a step as its content grows: each row at n, 4n and 16n units, per unit.

  bench_scaling.py [--rounds N] [--unit N] [ROW ...]

A step is forward and backward; microseconds per unit, the best of the rounds, one thread. `growth` is the time per
unit at 16n over that at n: 1 is linear, 16 is quadratic.
"""

import argparse
import functools
import gc
import time

import torch
import torch.nn.functional as F

import remat_meta as remat
from remat_meta import CheckpointPolicy, PolicyTable

SAVE = CheckpointPolicy.SAVE
ENGINES = ("function", "tape")
ROWS = {}


def row(unit, divide=1, engines=()):
    """Adds a row of n / divide units for make(n), which returns a step of n units; with engines, a row per engine."""

    def add(make):
        for engine in engines:
            ROWS[f"{make.__name__}_{engine}"] = functools.partial(make, engine=engine), unit, divide
        if not engines:
            ROWS[make.__name__] = make, unit, divide
        return make

    return add


def leaf(*shape):
    return torch.rand(*shape).requires_grad_()


def saved(*ops):
    table = PolicyTable()
    for op in ops:
        table = table.op(op, SAVE)
    return table


def chained(op, **options):
    def make(n):
        x = leaf(8)

        def fn(x):
            x = x * 1
            for _ in range(n):
                x = op(x)
            return x

        return lambda: remat.checkpoint(**options)(fn)(x)

    return make


def drop(x):
    return F.dropout(x, 0.1)


def add_chain(name, unit, op, divide=1, **options):
    ROWS[name] = (chained(op, **options), unit, divide)


for engine in ENGINES:
    add_chain(f"ops_{engine}", "op", torch.sin, replay=engine)
    add_chain(f"draws_{engine}", "draw", drop, replay=engine)
    add_chain(f"draws_saved_{engine}", "SAVE draw", drop, replay=engine, policy=saved("aten::bernoulli_"))
    add_chain(f"calls_saved_{engine}", "SAVE call", torch.sin, replay=engine, policy=saved("aten::sin"))
    add_chain(f"calls_saved_read_{engine}", "SAVE call and its reader", lambda x: x.sin().cos(), 2, replay=engine,
              policy=saved("aten::sin"))  # fmt: skip
    add_chain(f"calls_in_place_{engine}", "SAVE call in place", lambda x: x.mul_(1.01).sin().cos(), 2, replay=engine,
              policy=saved("aten::mul_"))  # fmt: skip


@row("region", 8)
def regions(n):
    x = leaf(8)

    def step(y=None):
        y = x
        for _ in range(n):
            y = remat.checkpoint()(torch.sin)(y)
        return y

    return step


@row("argument")
def arguments(n):
    xs = [leaf(1) for _ in range(n)]
    return lambda: remat.checkpoint()(lambda *xs: torch.cat(xs).sin())(*xs)


@row("output", 4)
def outputs(n):
    xs = leaf(n, 1)
    return lambda: torch.cat(remat.checkpoint()(lambda xs: tuple(x.sin() for x in xs.unbind()))(xs))


def times_each(engine, weights):
    def fn(x):
        for w in weights:
            x = x * w
        return x

    x = leaf(8)
    return lambda: remat.checkpoint(replay=engine)(fn)(x)


@row("storage", 2, ENGINES)
def outside_read(n, engine):
    return times_each(engine, [leaf(1) for _ in range(n)])


@row("view of one storage", 2, ENGINES)
def outside_views(n, engine):
    return times_each(engine, leaf(n, 1).unbind())


@row("storage", 2, ENGINES)
def outside_written(n, engine):
    buffers = [torch.zeros(8) for _ in range(n)]

    def fn(x):
        for buffer in buffers:
            buffer.add_(x.detach())
            x = x.sin()
        return x

    x = leaf(8)
    return lambda: remat.checkpoint(replay=engine)(fn)(x)


@row("region", 8, ENGINES)
def regions_write_rows(n, engine):
    x, out = leaf(8), torch.zeros(n, 8)

    def step():
        y = x
        for i in range(n):

            def fn(y, i=i):
                y = y.sin()
                out[i] = y.detach()
                return y.cos()

            y = remat.checkpoint(replay=engine)(fn)(y)
        return y

    return step


@row("tensor", 4)
def foreach_tape(n):
    x, buffers = leaf(8), [torch.zeros(8) for _ in range(n)]

    def fn(x):
        mine = [b.clone() for b in buffers]
        torch._foreach_add_(mine, 1.0)
        return (x * mine[0]).sin() * mine[-1]

    return lambda: remat.checkpoint(replay="tape")(fn)(x)


@row("tensor", 4)
def foreach_saved(n):
    x, buffers = leaf(8), [torch.zeros(8) for _ in range(n)]

    def fn(x):
        torch._foreach_add_(buffers, 1.0)
        return (x * 2).sin().exp()

    return lambda: remat.checkpoint(policy=saved("aten::_foreach_add_.Scalar"))(fn)(x)


@row("SAVE call's result", 4)
def results_saved(n):
    x = leaf(n, 1)

    def fn(x):
        parts = remat.native_op(lambda x: tuple(p.sin() for p in x.unbind()), "parts", SAVE)(x)
        return torch.cat(parts).sin()

    return lambda: remat.checkpoint()(fn)(x)


@row("gradient inside", 8)
def gradients_inside(n):
    x = leaf(8)

    def fn(x):
        y = x
        for _ in range(n):
            with torch.enable_grad():
                z = y.detach().requires_grad_()
                (g,) = torch.autograd.grad(z.sin().sum(), z)
            y = y + g
        return y.sin()

    return lambda: remat.checkpoint()(fn)(x)


def cut_pairs(count, groups=()):
    x = leaf(8)

    def fn(x):
        for _ in range(count):
            x = x.sin().cos()
        return x

    cuts = remat.Cuts(list(range(2, 2 * count, 2)), groups=groups)
    return lambda: remat.checkpoint(replay="tape", cuts=cuts)(fn)(x)


@row("segment", 4)
def cut_segments(n):
    return cut_pairs(n)


@row("group of two segments", 8)
def cut_groups(n):
    return cut_pairs(2 * n, [(i, i + 2) for i in range(0, 2 * n, 2)])


def timed(step, rounds):
    best = float("inf")
    for _ in range(rounds):
        gc.collect()
        start = time.perf_counter()
        step().sum().backward()
        best = min(best, time.perf_counter() - start)
    return best


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--unit", type=int, default=1000, help="n of rows that are not divided")
    parser.add_argument("rows", nargs="*")
    args = parser.parse_args()
    torch.set_num_threads(1)
    print("| row | unit | n | us at n | at 4n | at 16n | growth |\n|---|---|---|---|---|---|---|")
    for name, (make, unit, divide) in ROWS.items():
        if args.rows and not any(part in name for part in args.rows):
            continue
        n = max(args.unit // divide, 8)
        try:
            times = [timed(make(count), args.rounds) / count * 1e6 for count in (n, 4 * n, 16 * n)]
        except Exception as error:
            print(f"| `{name}` | {unit} | {n} | {type(error).__name__}: {str(error)[:300]} |", flush=True)
            continue
        cells = " | ".join(f"{t:.1f}" for t in times)
        print(f"| `{name}` | {unit} | {n} | {cells} | {times[2] / times[0]:.1f} |", flush=True)


if __name__ == "__main__":
    main()
