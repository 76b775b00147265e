# SPDX-License-Identifier: BSD-3-Clause

"""Every combination of a checkpoint, torch.compile and its backends: see compile_cells.py."""

import functools

import pytest
import torch
from compile_cells import BACKENDS, KEEPS, WAYS, predicted_bytes, run_cell
from same import assert_equal

pytestmark = [pytest.mark.torch_warns, pytest.mark.usefixtures("fresh_compiler")]

plain_cell = functools.cache(functools.partial(run_cell, keep="full", name="plain"))


@pytest.mark.parametrize("keep", KEEPS)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("way", WAYS)
def test_a_cell_is_as_without_a_checkpoint_and_keeps_what_was_predicted(way, backend, keep):
    plain, cell = plain_cell(way, backend), run_cell(way, backend, keep, "remat")
    assert plain.error is None
    if way == "compiled autograd" and backend == "eager":
        # In this cell the graph calls a region of eager code, which is refused before a gradient is computed.
        assert "expected a backward by autograd's engine, got one by compiled autograd" in cell.error
        assert cell.tensors[0] is None and cell.tensors[-1] is None
        return
    assert cell.error is None
    assert cell.kept == predicted_bytes(way, backend, keep, plain.kept)
    if backend == "inductor":
        # Inductor's kernels may round differently with another split between forward and backward, as with torch's checkpoint.
        for expected, got in zip(plain.tensors, cell.tensors, strict=True):
            torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-6)
    else:
        assert_equal(plain.tensors, cell.tensors)


def test_after_a_refused_backward_the_next_step_is_right():
    refused = run_cell("compiled autograd", "eager", "full", "remat")
    assert refused.error
    assert_equal(plain_cell("regional", "eager").tensors, run_cell("regional", "eager", "full", "remat").tensors)


@pytest.mark.parametrize("name", ["plain", "remat"])
def test_a_compiled_step_breaks_nowhere_in_remat(name):
    torch._dynamo.utils.counters.clear()
    assert run_cell("whole step", "aot_eager", "full", name).error is None
    breaks = torch._dynamo.utils.counters["graph_break"]
    assert breaks and not [reason for reason in breaks if "remat_meta" in reason]
