# SPDX-License-Identifier: BSD-3-Clause

"""Random programs that torch.compile traces, or that contain compiled pieces. REMAT_COMPILED_N: programs (default 12)."""

import os

import pytest
import torch

from .compiled import Writer, fault_of, fault_of_pieces

pytestmark = pytest.mark.torch_warns
COUNT = int(os.environ.get("REMAT_COMPILED_N", "12"))


@pytest.mark.parametrize("seed", range(COUNT))
def test_random_programs_are_right_in_a_graph(seed):
    fault = fault_of(seed)
    torch._dynamo.reset()
    assert fault is None, fault


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("seed", range(COUNT // 3))
def test_compiled_pieces_are_right_in_regions(seed, backend):
    fault = fault_of_pieces(seed, backend)
    torch._dynamo.reset()
    assert fault is None, fault


def test_every_word_comes_up():
    sources = "".join(Writer(seed).source() for seed in range(200))
    for word in (
        'checkpoint(policy="', "checkpoint()", "checkpoint(policy=P", "SAVE, keep", "RECOMPUTE, keep", "all_regions", "dropout",
        ".op(", ".call(", "def P", "[0] = 0.5", ".t()", "rand_like",
    ):
        assert word in sources, word
    sources = "".join(Writer(seed, pieces=True).source() for seed in range(100))
    for word in ("piece(f", "buffer.mul_", "buffer.add_", "buffer[0] =", "buffer.clone()", 'replay="tape"'):
        assert word in sources, word
