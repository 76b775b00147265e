# SPDX-License-Identifier: BSD-3-Clause

"""Random programs that torch.compile traces. REMAT_COMPILED_N: programs (default 12)."""

import os

import pytest
import torch

from .compiled import Writer, fault_of

pytestmark = pytest.mark.torch_warns


@pytest.mark.parametrize("seed", range(int(os.environ.get("REMAT_COMPILED_N", "12"))))
def test_random_programs_are_right_in_a_graph(seed):
    fault = fault_of(seed)
    torch._dynamo.reset()
    assert fault is None, fault


def test_every_word_comes_up():
    sources = "".join(Writer(seed).source() for seed in range(200))
    for word in (
        'checkpoint(policy="', "checkpoint()", "checkpoint(policy=P", "SAVE, keep", "RECOMPUTE, keep", "all_regions", "dropout",
        ".op(", ".call(", "def P", "[0] = 0.5", ".t()", "rand_like",
    ):
        assert word in sources, word
