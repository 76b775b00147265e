# SPDX-License-Identifier: BSD-3-Clause

"""The report printed when memory is out names the owners of the bytes."""

import pytest
import torch
from test_package import run_python

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU or the stand-in")


def test_the_text_tells_tensors_the_allocator_and_the_device_apart():
    # Runs in its own process, since an observer cannot be removed.
    assert run_python("""
    import contextlib, io, sys
    import torch, remat_meta as remat

    torch._C._cuda_init()
    torch._C._cuda_attach_out_of_memory_observer(remat.oom_observer)
    kept, freed = torch.empty(3 << 20, device="cuda"), torch.empty(32 << 20, device="cuda")
    del freed  # 12 MiB in tensors; 128 MiB more that the allocator keeps, until it needs them
    text = io.StringIO()
    with contextlib.redirect_stderr(text):
        try:
            torch.empty(1 << 42, dtype=torch.uint8, device="cuda")
        except torch.OutOfMemoryError:
            pass
    free, total = torch.cuda.mem_get_info()
    assert torch.cuda.memory_allocated() == 12 << 20, torch.cuda.memory_allocated()
    expected = (
        f"[oom_observer] device 0 is out of memory: {1 << 42} B were asked for. Tensors of this process have {12 << 20} B "
        f"(memory_allocated) of the {torch.cuda.memory_reserved()} B that its allocator has (memory_reserved). "
        f"The device has {total} B, of which {free} B are free."
    )
    assert expected in text.getvalue(), text.getvalue()
    print("as expected")
    """).endswith("as expected\n")
