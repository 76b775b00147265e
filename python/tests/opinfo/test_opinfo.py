# SPDX-License-Identifier: BSD-3-Clause

"""Regions with torch's own samples of every op. selection.py decides which samples and configurations run."""

import collections

import pytest
import torch

import remat_meta as remat

from . import harness, tally
from .configurations import DTYPES, EVERY, POLICIES, Configuration
from .selection import OPS, SAMPLES, SHARD, configurations_of, op_named, shard, turns
from .tables import DIFFER_FROM_THEMSELVES, REFUSED

pytestmark = pytest.mark.torch_warns
once = pytest.mark.skipif(SHARD != 0, reason="shard 0 runs it")

COMPARABLE = [op for op in OPS if harness.name_of(op) not in DIFFER_FROM_THEMSELVES]


def results(op):
    """Runs the op's cases. Returns how each ended, and its configuration."""
    configurations = configurations_of(op)
    for dtype in dict.fromkeys(c.dtype for c in configurations):
        for case in harness.cases(op, dtype, SAMPLES):
            for configuration in (c for c in configurations if c.dtype == dtype):
                yield harness.check(case, configuration), configuration


@pytest.mark.parametrize("op", shard(COMPARABLE), ids=harness.name_of)
def test_an_op_in_a_region_is_bitwise_plain(op):
    ends, failures = collections.Counter(), []
    for result, configuration in results(op):
        end = tally.end_of(harness.name_of(op), configuration, result)
        ends[end] += 1
        if end == "failed":
            failures.append(result)
    tally.add(ends)
    assert not failures, "\n".join(failures)
    # Otherwise the harness calls the op wrongly: cases that raise in plain code test nothing.
    assert ends["raises"] <= 9 * ends["same"]


@once
def test_every_op_of_torch_is_there():
    assert len(COMPARABLE) >= 531


@once
@pytest.mark.parametrize("rotation", range(3))
def test_the_ops_together_meet_every_configuration(rotation):
    assert {c for op in COMPARABLE for c in configurations_of(op, 5, rotation)} == set(EVERY)


@once
def test_another_rotation_takes_other_configurations():
    first, second = ({*turns(5, rotation)["exp"]} for rotation in range(2))
    assert len(first) == 5 and len(first & second) < 3


@once
@pytest.mark.parametrize("name", DIFFER_FROM_THEMSELVES)
def test_an_op_of_the_table_differs_from_itself(name):
    op = op_named(name)
    dtypes = [dtype for dtype in DTYPES if harness.has_gradients(op, dtype)]
    assert dtypes
    for dtype in dtypes:
        if not any(harness.differs_from_itself(case) for case in harness.cases(op, dtype, 0) * 40):
            pytest.skip(f"this processor's kernel gives the same bits each time in {dtype}")


def refusals():
    """Yields each entry, op, mode and engine, with the configurations that it covers."""
    for refusal in REFUSED:
        for name in refusal.ops:
            covered = [c for c in EVERY if harness.applies(op_named(name), c) and refusal.covers(name, c)]
            for mode, replay in sorted({(c.mode, c.replay) for c in covered}):
                alike = [c for c in covered if (c.mode, c.replay) == (mode, replay)]
                yield pytest.param(refusal, name, alike, id=f"{name}-{mode}-{replay}")


@once
@pytest.mark.parametrize("refusal, name, configurations", list(refusals()))
def test_a_refused_op_is_still_refused(refusal, name, configurations):
    op = op_named(name)
    results = (harness.check(case, c) for c in configurations for case in harness.cases(op, c.dtype, 0))
    assert any(refusal.explains(result) for result in results)


def broken(fn):
    """An engine that draws other random numbers in its replay, and computes another function."""

    def wrapped(*args, **kwargs):
        torch.rand(1)
        return fn(*args, **kwargs)

    return wrapped


@once
def test_the_harness_sees_a_broken_engine():
    (case,) = harness.cases(op_named("nn.functional.dropout"), torch.float32, 1)
    assert "other bits" in harness.check(case, Configuration(), broken)


class ForgetsBits(remat.OffloadStore):
    """A store that gives back zeros."""

    def put(self, tensor):
        return Zeros(tensor)


class Zeros:
    def __init__(self, tensor):
        self.zeros = torch.zeros_like(tensor)  # not the tensor: whoever shares its memory gets that memory

    def get(self):
        return self.zeros


@once
def test_the_harness_sees_a_broken_store():
    (case,) = harness.cases(op_named("exp"), torch.float64, 1)
    # Nested, since backward gets the memory of a returned result itself.
    configuration = Configuration(dtype=torch.float64, mode="nested", policy="all_offload")
    options = {**POLICIES["all_offload"], "offload_store": ForgetsBits()}
    assert "other bits" in harness.check(case, configuration, remat.checkpoint(**options))
