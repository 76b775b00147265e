# SPDX-License-Identifier: BSD-3-Clause

"""Objects that an exception in backward keeps alive: on a GPU, as in plain autograd, the device's thread releases it after
backward has raised."""

import contextlib
import gc
import weakref

import pytest
import torch
from programs import comes_true

import remat_meta as remat
from remat_meta import _C

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU or the stand-in")

WRAPS = {
    "plain": lambda fn: fn,
    "function": remat.checkpoint(replay="function"),
    "tape": remat.checkpoint(replay="tape"),
    "saved": remat.checkpoint(policy=["*"]),
}


class Thing:
    """An object that the function holds."""


@pytest.fixture
def no_collector():
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize("raises", ["in the hook", "nowhere"])
@pytest.mark.parametrize("wrap", WRAPS)
def test_nothing_is_left_of_a_backward_once_its_thread_is_done(wrap, raises, no_collector):
    def step(thing):
        def hook(grad):
            if raises == "in the hook":
                raise ValueError(f"bomb with {thing}")

        def fn(x):
            y = x.sin()
            y.register_hook(hook)
            return y.exp() * y

        x = torch.ones(3, device="cuda", requires_grad=True)
        WRAPS[wrap](fn)(x).sum().backward()

    for _ in range(30):
        thing = Thing()
        watched = weakref.ref(thing)
        with contextlib.suppress(ValueError):
            step(thing)
            assert raises == "nowhere"
        del thing
        # No other work runs on the device until the thread has released it.
        assert comes_true(lambda: watched() is None)
        assert comes_true(lambda: _C.live_region_count() == 0)
