# SPDX-License-Identifier: BSD-3-Clause

"""Ten thousand steps leave nothing behind, without the garbage collector."""

import gc
import itertools
import os

import torch
from allocations import allocated_bytes, open_files
from mixture import Calls, Mixture

from remat_meta import _C

PARTS = 10
STEPS = int(os.environ.get("REMAT_SOAK_STEPS", "10000")) // PARTS


def test_ten_thousand_steps_are_flat():
    model, x, call = Mixture(4), torch.randn(2, 4, requires_grad=True), Calls(on=True)

    def step(i):
        loss = model(x, call, replay="auto" if i % 3 == 0 else "function")
        if i % 10:
            loss.backward(retain_graph=i % 5 == 0)
        for tensor in [x, *model.parameters()]:
            tensor.grad = None

    gc.collect()
    gc.disable()
    try:
        for i in range(200):
            step(i)
        allocated_bytes(), open_files()
        objects, files, used = len(gc.get_objects()), open_files(), [allocated_bytes()]
        for _ in range(PARTS):
            for i in range(STEPS):
                step(i)
            used.append(allocated_bytes())
        assert len(gc.get_objects()) <= objects + 10  # at most one object in 1,000 steps
        assert open_files() == files
        assert _C.live_region_count() == 0
    finally:
        gc.enable()
    # The C library moves its memory around; a leak of one byte per step would show in each part.
    assert min(after - before for before, after in itertools.pairwise(used)) < STEPS
