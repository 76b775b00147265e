#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Measures the cost of a step as its content grows: each row has the time per unit of steps of n, 4n and 16n units.

  bench_scaling.py [--rounds N] [--unit N] [ROW ...]

A step is forward and backward. Times are microseconds of the fastest round, on one thread. `growth` is the time per
unit at 16n over that at n: 1 is linear, 16 is quadratic.
"""

import functools
import gc
import time

import torch
import torch.nn.functional as F
from peers import parser_of, print_heads, print_row

import remat_meta as remat
from remat_meta import CheckpointPolicy, PolicyTable

SAVE = CheckpointPolicy.SAVE
ROWS = {}  # name: (function that makes a step of n units, name of the unit, number that divides --unit to give n)


def leaf(*shape):
    return torch.rand(*shape).requires_grad_()


def saved(op):
    return PolicyTable().op(op, SAVE)


def region(fn, **options):
    """Returns a step of one region with one argument."""
    x = leaf(8)
    return lambda: remat.checkpoint(**options)(fn)(x)


def chained(op, n, **options):
    return region(lambda x: functools.reduce(lambda x, _: op(x), range(n), x * 1), **options)


def drop(x):
    return F.dropout(x, 0.1)


def times_each(weights, **options):
    return region(lambda x: functools.reduce(torch.mul, weights, x), **options)


def writes_each(n, **options):
    buffers = [torch.zeros(8) for _ in range(n)]

    def fn(x):
        for buffer in buffers:
            buffer.add_(x.detach())
            x = x.sin()
        return x

    return region(fn, **options)


for engine in ("function", "tape"):
    for name, unit, op, divide, more in (
        ("ops", "op", torch.sin, 1, {}),
        ("draws", "draw", drop, 1, {}),
        ("draws_saved", "SAVE draw", drop, 1, {"policy": saved("aten::bernoulli_")}),
        ("calls_saved", "SAVE call", torch.sin, 1, {"policy": saved("aten::sin")}),
        ("calls_saved_read", "SAVE call and its reader", lambda x: x.sin().cos(), 2, {"policy": saved("aten::sin")}),
        ("calls_in_place", "SAVE call in place", lambda x: x.mul_(1.01).sin().cos(), 2, {"policy": saved("aten::mul_")}),
    ):
        ROWS[f"{name}_{engine}"] = functools.partial(chained, op, replay=engine, **more), unit, divide
    for name, unit, make in (
        ("outside_read", "storage", lambda n, **options: times_each([leaf(1) for _ in range(n)], **options)),
        ("outside_views", "view of one storage", lambda n, **options: times_each(leaf(n, 1).unbind(), **options)),
        ("outside_written", "storage", writes_each),
    ):
        ROWS[f"{name}_{engine}"] = functools.partial(make, replay=engine), unit, 2


def row(unit, divide=1):
    return lambda make: ROWS.setdefault(make.__name__, (make, unit, divide))


@row("region", 8)
def regions(n):
    x = leaf(8)
    return lambda: functools.reduce(lambda y, _: remat.checkpoint()(torch.sin)(y), range(n), x)


@row("argument")
def arguments(n):
    xs = [leaf(1) for _ in range(n)]
    return lambda: remat.checkpoint()(lambda *xs: torch.cat(xs).sin())(*xs)


@row("output", 4)
def outputs(n):
    xs = leaf(n, 1)
    return lambda: torch.cat(remat.checkpoint()(lambda xs: tuple(x.sin() for x in xs.unbind()))(xs))


@row("SAVE call's result", 4)
def results_saved(n):
    x = leaf(n, 1)
    parts = remat.native_op(lambda x: tuple(p.sin() for p in x.unbind()), "parts", SAVE)
    return lambda: remat.checkpoint()(lambda x: torch.cat(parts(x)).sin())(x)


@row("gradient inside", 8)
def gradients_inside(n):
    def fn(y):
        for _ in range(n):
            with torch.enable_grad():
                z = y.detach().requires_grad_()
                (g,) = torch.autograd.grad(z.sin().sum(), z)
            y = y + g
        return y.sin()

    return region(fn)


def cut_pairs(n, groups=()):
    cuts = remat.Cuts(list(range(2, 2 * n, 2)), groups=groups)
    return region(lambda x: functools.reduce(lambda x, _: x.sin().cos(), range(n), x), replay="tape", cuts=cuts)


ROWS["cut_segments"] = cut_pairs, "segment", 4


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
    parser = parser_of(__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--unit", type=int, default=1000, help="n of rows that are not divided")
    parser.add_argument("rows", nargs="*")
    args = parser.parse_args()
    print_heads(["row", "unit", "n", "us at n", "at 4n", "at 16n", "growth"])
    for name, (make, unit, divide) in ROWS.items():
        if args.rows and not any(part in name for part in args.rows):
            continue
        n = max(args.unit // divide, 8)
        try:
            times = [timed(make(count), args.rounds) / count * 1e6 for count in (n, 4 * n, 16 * n)]
        except Exception as error:
            print_row([f"`{name}`", unit, f"{n}", f"{type(error).__name__}: {str(error)[:300]}"])
            continue
        print_row([f"`{name}`", unit, f"{n}", *(f"{t:.1f}" for t in times), f"{times[2] / times[0]:.1f}"])


if __name__ == "__main__":
    main()
