# SPDX-License-Identifier: BSD-3-Clause

"""Runs every test with one thread and a fixed seed, and checks that none leaves state behind."""

import gc
import warnings

import pytest
import torch

torch.set_num_threads(1)
gc.collect()
gc.freeze()  # collections skip all that exists after the imports, so they cost next to nothing


@pytest.fixture(autouse=True)
def fresh_state():
    torch.manual_seed(0)
    yield
    assert torch.is_grad_enabled()
    assert not torch.is_autocast_enabled(torch.empty(0).device.type)
    gc.collect()


@pytest.fixture(autouse=True)
def warnings_are_errors(request):
    if request.node.get_closest_marker("torch_warns"):
        yield
        return
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


@pytest.fixture
def fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()
