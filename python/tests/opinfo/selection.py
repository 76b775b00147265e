# SPDX-License-Identifier: BSD-3-Clause

"""Selects the ops, samples and configurations of a run.

REMAT_OPINFO_SAMPLES: samples per op and configuration, 0 for all of them.
REMAT_OPINFO_CONFIGURATIONS: number of configurations of an op, in addition to the base; 0 for all.
REMAT_OPINFO_ROTATION: a number; each number gives every op other configurations.
REMAT_OPINFO_SHARD: "i/n" takes every n-th op, from the i-th on (default "0/1").
"""

import collections
import functools
import gc
import os
import random

from . import harness
from .configurations import BASE, DTYPES, EVERY

OPS = harness.entries(DTYPES)

gc.freeze()  # torch's samples are many objects, and conftest.py collects after each test


def number(variable, default):
    return int(os.environ.get(variable, default))


SAMPLES = number("REMAT_OPINFO_SAMPLES", 6)
CONFIGURATIONS = number("REMAT_OPINFO_CONFIGURATIONS", 5)
ROTATION = number("REMAT_OPINFO_ROTATION", 0)

SHARD, SHARDS = map(int, os.environ.get("REMAT_OPINFO_SHARD", "0/1").split("/"))


def shard(ops):
    return ops[SHARD::SHARDS]


def op_named(name):
    (op,) = [op for op in OPS if harness.name_of(op) == name]
    return op


@functools.cache
def turns(count, rotation):
    """Returns `count` configurations for each op, by name: those that earlier ops have used least."""
    order = list(EVERY)
    random.Random(rotation).shuffle(order)
    times_met = collections.Counter()
    chosen = {}
    for op in OPS:
        mine = sorted((c for c in order if harness.applies(op, c)), key=times_met.__getitem__)
        chosen[harness.name_of(op)] = mine[:count]
        times_met.update(mine[:count])
    return chosen


def configurations_of(op, count=CONFIGURATIONS, rotation=ROTATION):
    """Returns the configurations of BASE and of turns() that apply to the op; with `count` 0, all that apply."""
    if not count:
        return [c for c in EVERY if harness.applies(op, c)]
    base = [c for c in BASE if harness.applies(op, c)]
    return list(dict.fromkeys(base + turns(count, rotation)[harness.name_of(op)]))
