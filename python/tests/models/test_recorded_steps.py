# SPDX-License-Identifier: BSD-3-Clause

"""Recordings of models' steps give each byte at the peak its op and line, and each replay its forward."""

import os
import re
import subprocess

import harness
import hf_models
import pytest
import torch
import vision_models

import remat_meta as remat

PROGRAM = os.environ.get("REMAT_TRACE_PROGRAM")
pytestmark = [pytest.mark.torch_warns, pytest.mark.skipif(PROGRAM is None, reason="remat-trace is not built")]

CASES = hf_models.CASES | vision_models.CASES
MODELS = ["gpt2", "mixtral", "timm-resnet", "torchvision-resnet"]
MODES = {
    "function": {},
    "tape": {"replay": "tape"},
    "rules": {"policy": "save_matmuls"},
    "rules on a tape": {"policy": "save_matmuls", "replay": "tape"},
}


def trace(*arguments):
    return subprocess.run([PROGRAM, *map(str, arguments)], capture_output=True, text=True, check=True).stdout


def train(case, model):
    torch.manual_seed(1)
    case.loss(model, case.batch()).backward()


def record(case, options, path, nested):
    """Records a step whose blocks are regions. Returns the peak bytes according to the meter."""
    torch.manual_seed(0)
    model = case.model().train()
    harness.wrap_forwards(model, case.blocks, lambda forward, name: case.region(forward, name, **options))
    if nested:
        model.forward = remat.checkpoint(region_name="model", _any_output=True)(model.forward)
    train(case, model)  # not recorded: in first steps tapes are compared by hashes
    model.zero_grad()
    with remat.record(path, source_lines=True), remat.MemoryMeter() as meter:
        train(case, model)
        return meter.peak_bytes()


def check(path, peak):
    text = trace(path)
    assert f"peak {peak / 1e6:.3f} MB of what was made while recording" in text
    ops, lines = re.search(r"of which ([\d.]+) % have their op and ([\d.]+) % their line", text).groups()
    assert float(ops) >= 99.9 and float(lines) >= 99.9
    assert re.search(r"^replay +[1-9]", text, re.MULTILINE)
    assert trace("diff", path).startswith("no difference: ")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", MODELS)
def test_bytes_at_the_peak_have_their_op_and_line(name, mode, tmp_path):
    path = tmp_path / "step.rec"
    check(path, record(CASES[name], MODES[mode], path, nested=False))


def test_nested_regions(tmp_path):
    path = tmp_path / "step.rec"
    check(path, record(CASES["torchvision-resnet"], {}, path, nested=True))
