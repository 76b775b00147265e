# SPDX-License-Identifier: BSD-3-Clause

"""torch's own samples of every op, replayed from a tape. Which ones: selection.py."""

import re

import pytest

import remat_meta as remat

from . import harness
from .selection import OPS, limit, op_named, shard
from .tables import NO_TAPE, REFUSED

LIMIT = limit(4)
TAPE = remat.checkpoint(region_name="op", replay="tape")
AUTO = remat.checkpoint(region_name="op", replay="auto")
NEVER = "(?!)"
FINE = ("same", "skipped", "raises")

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
            if re.search(REFUSED.get((mode, name), NEVER), result):
                continue
            if not re.search(NO_TAPE.get(name, NEVER), result):
                found.append(result)
                continue
            fallback = harness.check(op, index, sample, mode, AUTO)
            if fallback not in FINE:
                found.append(f"falling back: {fallback}")
    return found


@pytest.mark.parametrize("op", shard(OPS), ids=harness.name_of)
def test_an_op_from_a_tape_is_bitwise_plain(op):
    assert not failures(op)


@pytest.mark.parametrize("name", NO_TAPE)
def test_an_op_of_the_table_is_still_refused_by_tapes(name):
    op = op_named(name)
    results = (harness.check(op, i, s, "region", TAPE) for i, s in harness.samples(op, 0))
    assert any(re.search(NO_TAPE[name], result) for result in results)
