# SPDX-License-Identifier: BSD-3-Clause

"""torch's own samples of every op, in regions. Which ones: selection.py."""

import re

import pytest
import torch

import remat_meta as remat

from . import harness
from .selection import OPS, limit, op_named, shard
from .tables import DIFFER_FROM_THEMSELVES, REFUSED

LIMIT = limit(8)
CHECKPOINT = remat.checkpoint(region_name="op")

# Samples that raise in plain code, of all of torch's, by mode.
MOST_RAISING = {"region": 3, "save": 4, "nested": 4, "in_place": 6, "out": 17}
raised = dict.fromkeys(harness.MODES, 0)

pytestmark = pytest.mark.torch_warns


def failures(op):
    """What differs on the op's samples; a refusal is one where the table has none."""
    found = []
    for index, sample in harness.samples(op, LIMIT):
        for mode in harness.MODES:
            result = harness.check(op, index, sample, mode, CHECKPOINT)
            raised[mode] += result == "raises"
            refusal = REFUSED.get((mode, harness.name_of(op)))
            if result in ("same", "skipped", "raises"):
                continue
            if refusal is None or not re.search(refusal, result):
                found.append(result)
    return found


@pytest.mark.parametrize("op", shard(OPS), ids=harness.name_of)
def test_an_op_in_a_region_is_bitwise_plain(op):
    assert not failures(op)


def test_there_are_three_hundred_ops():
    assert len({op.name for op in OPS}) >= 300


def test_few_samples_raise_in_plain_code():
    """After all others: the harness called the ops rightly. What raises says nothing of a region."""
    assert all(count <= MOST_RAISING[mode] for mode, count in raised.items()), raised


@pytest.mark.parametrize("name", DIFFER_FROM_THEMSELVES)
def test_an_op_of_the_table_differs_from_itself(name):
    op = op_named(name)
    tries = (harness.differs_from_itself(op, sample) for _, sample in harness.samples(op, 0) * 40)
    assert any(tries)


@pytest.mark.parametrize("mode, name", REFUSED)
def test_a_refused_op_is_still_refused(mode, name):
    op = op_named(name)
    results = (harness.check(op, i, s, mode, CHECKPOINT) for i, s in harness.samples(op, 0))
    assert any(re.search(REFUSED[mode, name], result) for result in results)


def broken(fn):
    """An engine that draws other random numbers in its replay, and computes another function."""

    def wrapped(*args, **kwargs):
        torch.rand(1)
        return fn(*args, **kwargs)

    return wrapped


def test_the_harness_sees_a_broken_engine():
    op = op_named("nn.functional.dropout")
    ((index, sample), *_) = harness.samples(op, 1)
    assert "other bits" in harness.check(op, index, sample, "region", broken)
