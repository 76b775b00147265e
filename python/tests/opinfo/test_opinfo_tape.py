# SPDX-License-Identifier: BSD-3-Clause

"""torch's own samples of every op, replayed from a tape.

REMAT_OPINFO_SAMPLES, REMAT_OPINFO_SHARD: as test_opinfo.py has them.
"""

import gc
import os
import re

import pytest

import remat_meta as remat

from . import harness
from .tables import DIFFER_FROM_THEMSELVES, NO_TAPE, REFUSED

LIMIT = int(os.environ.get("REMAT_OPINFO_SAMPLES", "4"))
SHARD, SHARDS = map(int, os.environ.get("REMAT_OPINFO_SHARD", "0/1").split("/"))
TAPE = remat.checkpoint(region_name="op", replay="tape")
AUTO = remat.checkpoint(region_name="op", replay="auto")
OPS = [op for op in harness.entries() if harness.name_of(op) not in DIFFER_FROM_THEMSELVES]
FINE = ("same", "skipped", "raises")

gc.freeze()  # torch's samples are many objects: conftest.py collects after each test

pytestmark = pytest.mark.torch_warns


def failures(op):
    """What differs on the op's samples. What cannot be taped must be in the table, and the same by
    falling back."""
    found = []
    name = harness.name_of(op)
    for index, sample in harness.samples(op, LIMIT):
        for mode in harness.MODES:
            result = harness.check(op, index, sample, mode, TAPE)
            if result in FINE:
                continue
            known = NO_TAPE.get((mode, name), NO_TAPE.get(name))
            if known is None or not re.search(known, result):
                found.append(result)
                continue
            fallback = harness.check(op, index, sample, mode, AUTO)
            refusal = REFUSED.get((mode, name))
            if fallback not in FINE and not (refusal and re.search(refusal, fallback)):
                found.append(f"falling back: {fallback}")
    return found


@pytest.mark.parametrize("op", OPS[SHARD::SHARDS], ids=harness.name_of)
def test_an_op_from_a_tape_is_bitwise_plain(op):
    assert not failures(op)


@pytest.mark.parametrize("key", NO_TAPE, ids=str)
def test_an_op_of_the_table_is_still_refused_by_tapes(key):
    modes, name = ([key[0]], key[1]) if isinstance(key, tuple) else (harness.MODES, key)
    (op,) = [op for op in OPS if harness.name_of(op) == name]
    results = (
        harness.check(op, i, sample, mode, TAPE) for i, sample in harness.samples(op, 0) for mode in modes
    )
    assert any(re.search(NO_TAPE[key], result) for result in results)
