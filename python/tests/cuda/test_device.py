# SPDX-License-Identifier: BSD-3-Clause

"""register_device() in a process with a GPU: it refuses, and CUDA works on as before."""

import sys

import pytest
import torch
from test_package import run_python

import remat_meta as remat
from remat_meta.__main__ import device_state

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU or the stand-in")


def refusal():
    with pytest.raises(NotImplementedError) as raised:
        remat.register_device()
    return str(raised.value)


def test_the_device_is_refused_beside_a_gpu_and_says_what_to_do():
    text = refusal()
    assert f"expected a process without another accelerator, got {torch.cuda.device_count()} of cuda" in text
    assert "CUDA_VISIBLE_DEVICES=" in text
    assert "checkpoints do not need" in text


def test_a_refusal_changes_nothing():
    refusal()
    assert torch._C._get_privateuse1_backend_name() == "privateuseone"
    assert torch.accelerator.current_accelerator().type == "cuda"
    assert not hasattr(torch, "remat_meta") and "torch.remat_meta" not in sys.modules
    x = torch.arange(4.0, device="cuda", requires_grad=True)
    for fn in (torch.sin, remat.checkpoint()(torch.sin)):
        x.grad = None
        fn(x).sum().backward()
        assert torch.equal(x.grad.cpu(), torch.arange(4.0).cos())


def test_the_library_refuses_as_the_package_does():
    with pytest.raises(NotImplementedError, match="expected a process without another accelerator"):
        remat._C.register_device()
    assert torch._C._get_privateuse1_backend_name() == "privateuseone"


def test_asking_does_not_initialise_cuda():
    assert run_python("""
    import torch, remat_meta as remat
    try:
        remat.register_device()
    except NotImplementedError:
        print(torch.cuda.is_initialized())
    """).endswith("False\n")


def test_the_state_of_the_device_says_that_it_is_refused():
    assert "register_device() refuses beside cuda" in device_state()
