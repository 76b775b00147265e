# SPDX-License-Identifier: BSD-3-Clause

"""Which ops and samples of torch a run takes.

REMAT_OPINFO_SAMPLES: samples per op, 0 for all of them.
REMAT_OPINFO_SHARD: "i/n" takes every n-th op, from the i-th on (default "0/1").
"""

import gc
import os

from . import harness
from .tables import DIFFER_FROM_THEMSELVES

ENTRIES = harness.entries()
OPS = [op for op in ENTRIES if harness.name_of(op) not in DIFFER_FROM_THEMSELVES]

gc.freeze()  # torch's samples are many objects: conftest.py collects after each test


def limit(default):
    """Of the samples per op."""
    return int(os.environ.get("REMAT_OPINFO_SAMPLES", default))


def shard(ops):
    first, count = map(int, os.environ.get("REMAT_OPINFO_SHARD", "0/1").split("/"))
    return ops[first::count]


def op_named(name):
    (op,) = [op for op in ENTRIES if harness.name_of(op) == name]
    return op
