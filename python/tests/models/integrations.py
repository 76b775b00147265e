# SPDX-License-Identifier: BSD-3-Clause

"""Runs the scripts of examples/integrations as they are, on torch's checkpoint, and without checkpoints.

Marks in their lines say which lines belong to what: `code  # remat` to remat, `code  # checkpoint` to any checkpoint. With
torch's checkpoint, `# torch: code` replaces the lines of remat; without checkpoints, `# without: code` does."""

import contextlib
import gc
import re
import time
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock

import torch

import remat_meta as remat
from remat_meta._C import live_region_count

SCRIPTS = Path(__file__).resolve().parents[3] / "examples" / "integrations"
# Packages that are not in requirements.txt.
NEEDS = {"trl_sft": ("trl", "datasets"), "torchtitan_llama": ("torchtitan", "datasets", "tensorboard")}
LEFT_OUT = {"plain": ("remat", "checkpoint"), "torch": ("remat",), "launched": ("remat",), "remat": ()}
TAKEN = {"plain": "without", "torch": "torch", "launched": "torch", "remat": None}


def text_for(script, mode):
    """Returns the script's text without checkpoints ("plain"), with torch's ("torch", "launched"), or as it is ("remat")."""
    lines = (SCRIPTS / f"{script}.py").read_text().splitlines()
    left_out = tuple(f"  # {mark}" for mark in LEFT_OUT[mode])
    kept = ["" if line.endswith(left_out) else line for line in lines]
    return "\n".join(re.sub(rf"^( *)# {TAKEN[mode]}: ", r"\1", line) for line in kept) + "\n"


@dataclass
class Run:
    """`state`: weights, buffers and generator at the end. For each backward: the number of `regions` that wait for it; the peak
    in bytes above what was allocated, and the CPU time in seconds, since the backward before."""

    state: dict = field(default_factory=dict)
    regions: list = field(default_factory=list)
    peaks: list = field(default_factory=list)
    seconds: list = field(default_factory=list)


@contextlib.contextmanager
def watched(done):
    """Records regions, peak and time at each backward."""
    backward = torch.autograd.backward
    with remat.MemoryMeter() as meter:
        before, start = meter.current_bytes(), time.process_time()

        def watched_backward(*args, **kwargs):
            nonlocal before, start
            done.regions.append(live_region_count())
            backward(*args, **kwargs)
            done.seconds.append(time.process_time() - start)
            done.peaks.append(meter.peak_bytes() - before)
            meter.reset_peak()
            before, start = meter.current_bytes(), time.process_time()

        with mock.patch("torch.autograd.backward", watched_backward):
            yield


@contextlib.contextmanager
def patches_taken_off():
    patch, patches = remat.patch_torch_checkpoint, []

    def noted_patch():
        patches.append(patch())
        return patches[-1]

    try:
        with mock.patch.object(remat, "patch_torch_checkpoint", noted_patch):
            yield
    finally:
        while patches:
            patches.pop().undo()


def state_of(model):
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()} | {"generator": torch.get_rng_state()}


def run(script, mode):
    """Runs the script in this process; "launched": as python -m remat_meta --patch does."""
    done = Run()
    path = str(SCRIPTS / f"{script}.py")
    names = {"__name__": "__main__", "__file__": path}
    with watched(done), patches_taken_off():
        if mode == "launched":
            remat.patch_torch_checkpoint()
        exec(compile(text_for(script, mode), path, "exec"), names)
    done.state = state_of(names["model"])
    names.clear()
    gc.collect()
    return done
