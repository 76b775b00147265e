# SPDX-License-Identifier: BSD-3-Clause

"""Behaviours 40 and 41 of torch_remat 0.1: reports and traces."""

import re

import torch
from functions import Auto
from programs import checkpointed, leaf

import remat_meta as remat
from remat_meta import CheckpointPolicy


def test_40_a_report_has_calls_and_their_tensors():
    def fn(x):
        y = remat.op(Auto.apply, "square", CheckpointPolicy.SAVE)(x.sin())
        y = remat.native_op(torch.exp, "exp", CheckpointPolicy.SAVE)(y.cos())
        return remat.native_op(torch.cos, "cos", CheckpointPolicy.RECOMPUTE)(y)

    y = remat.checkpoint(region_name="block")(fn)(leaf(2, 3))
    report = remat.memory_report()
    (region,) = report
    assert len(report) == 1 and region.region == "region 'block'"
    assert report.bytes == region.bytes == sum(row.bytes for row in region)
    rows = {row.name: row for row in region}
    power = rows["square: power"]
    assert (power.bytes, power.tensor, power.why) == (24, "float32 [2, 3] on cpu", "SAVE: saved for backward")
    assert rows["square: result"].implicit and "read by aten::cos" in rows["square: result"].why
    assert rows["exp: saved.0 (result)"].bytes == 24 and not any(name.startswith("cos") for name in rows)
    lines = str(report).splitlines()
    assert lines[1].startswith("region 'block': 72 bytes, ")
    assert any(re.match(r" +24  square: power +float32 \[2, 3\] on cpu +SAVE: saved", line) for line in lines)
    assert y.requires_grad


def test_41_a_trace_has_handles_and_native_calls():
    def fn(x):
        y = remat.op(Auto.apply, "square", CheckpointPolicy.RECOMPUTE)(x.sin())
        return remat.native_op(torch.exp, "exp", CheckpointPolicy.SAVE)(y.cos())

    with remat.collect_trace() as trace:
        checkpointed(remat.trace_scope(fn, "scope", metadata="first"))(leaf(3))
    assert trace.format() == "remat trace\nscope [first]\n  square: recompute\n  exp: save"
