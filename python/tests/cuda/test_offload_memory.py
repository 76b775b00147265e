# SPDX-License-Identifier: BSD-3-Clause

"""Device memory that an offload engine holds: none for tensors that nothing can ask for, whether copies are done or not."""

import gc
import time

import pytest
import torch

import remat_meta as remat

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU or the stand-in")

OFFLOAD = remat.CheckpointPolicy.OFFLOAD
LAYERS = 6
SIZE = 1 << 20  # elements: 4 MiB each


def host(tmp_path):
    return remat.offload("host", min_bytes=0)


def disk(tmp_path):
    return remat.offload("disk", directory=tmp_path, min_bytes=0)


def full(tmp_path):
    with pytest.warns(UserWarning, match="expected room in host memory"):
        store = remat.offload("host", min_bytes=0, host_bytes=3 * 4 * SIZE)
        step(store)
    return store



stores = pytest.mark.parametrize("make", [host, disk, full])
engines = pytest.mark.parametrize("replay", ["function", "tape"])


class Stop(Exception):
    pass


def sines(x):
    for _ in range(LAYERS):
        x = x.sin()
    return x


def region(store, replay="function"):
    return remat.checkpoint(policy=lambda *_: OFFLOAD, offload_store=store, replay=replay)(sines)


def step(store, replay="function"):
    x = torch.full((SIZE,), 0.5, device="cuda", requires_grad=True)
    region(store, replay)(x).sum().backward()
    expected = torch.full((SIZE,), 0.5, device="cuda", requires_grad=True)
    sines(expected).sum().backward()
    assert torch.equal(x.grad.cpu(), expected.grad.cpu())


def wait_for(is_true):
    """Waits, since a device's thread releases its last node some time after backward has returned."""
    end = time.monotonic() + 10
    while not is_true() and time.monotonic() < end:
        gc.collect()
    return is_true()


def check_nothing_is_held(store, before):
    assert wait_for(lambda: torch.cuda.memory_allocated() == before)
    stats = store.stats()
    assert stats["device_bytes"] == 0
    assert stats["away_bytes"] == 0 and stats["leaving_bytes"] == 0


@pytest.fixture(autouse=True)
def quiet_device():
    torch.cuda.synchronize()
    yield
    torch.cuda.synchronize()


@stores
@engines
def test_nothing_is_held_after_backward(make, replay, tmp_path):
    store = make(tmp_path)
    before = torch.cuda.memory_allocated()
    for _ in range(3):
        step(store, replay)
        check_nothing_is_held(store, before)


@stores
@engines
def test_nothing_is_held_after_a_graph_is_dropped(make, replay, tmp_path):
    store = make(tmp_path)
    before = torch.cuda.memory_allocated()
    for _ in range(2):
        y = region(store, replay)(torch.full((SIZE,), 0.5, device="cuda", requires_grad=True))
        del y
        check_nothing_is_held(store, before)
    step(store, replay)


@stores
def test_nothing_is_held_after_an_exception_in_the_forward(make, tmp_path):
    store = make(tmp_path)
    before = torch.cuda.memory_allocated()

    @remat.checkpoint(policy=lambda *_: OFFLOAD, offload_store=store)
    def fails(x):
        sines(x)
        raise Stop

    with pytest.raises(Stop):
        fails(torch.ones(SIZE, device="cuda", requires_grad=True))
    check_nothing_is_held(store, before)


@stores
@engines
def test_nothing_is_held_after_an_exception_in_backward(make, replay, tmp_path):
    store = make(tmp_path)
    before = torch.cuda.memory_allocated()

    def fail(_):
        raise Stop

    def run():
        x = torch.ones(SIZE, device="cuda", requires_grad=True)
        h = x * 1
        h.register_hook(fail)
        y = region(store, replay)(h)
        with pytest.raises(Stop):
            y.sum().backward()

    run()
    step(store, replay)  # makes the device's thread release the exception
    check_nothing_is_held(store, before)


@stores
@engines
def test_what_a_partial_backward_has_fetched_is_counted_and_goes_with_the_graph(make, replay, tmp_path):
    store = make(tmp_path)
    before = torch.cuda.memory_allocated()
    x = torch.full((SIZE,), 0.5, device="cuda", requires_grad=True)
    middle = region(store, replay)(x)
    y = region(store, replay)(middle)
    torch.cuda.synchronize()
    (grad,) = torch.autograd.grad(y.sum(), middle)
    others = before + 4 * 4 * SIZE  # x, middle, y, grad
    assert wait_for(lambda: store.stats()["device_bytes"] >= torch.cuda.memory_allocated() - others)
    del x, middle, y, grad
    # A read from a disk whose result is no longer needed still fills its memory to the end.
    assert wait_for(lambda: store.stats()["device_bytes"] == 0)
    check_nothing_is_held(store, before)


@stores
def test_memory_that_is_still_being_filled_is_not_used_again(make, tmp_path):
    store = make(tmp_path)
    for step_number in range(6):
        x = torch.full((SIZE,), 0.5, device="cuda", requires_grad=True)
        middle = region(store)(x)
        y = region(store)(middle).sum()
        torch.cuda.synchronize()  # all tensors have left, so that they are prefetched
        torch.autograd.grad(y, middle)
        del x, middle, y
        values = [torch.full((SIZE,), float(10 * step_number + i), device="cuda") for i in range(LAYERS)]
        torch.cuda.synchronize()
        for i, value in enumerate(values):
            assert torch.equal(value.cpu(), torch.full((SIZE,), float(10 * step_number + i)))


@stores
def test_a_retained_graph_holds_nothing_that_has_left(make, tmp_path):
    store = make(tmp_path)
    before = torch.cuda.memory_allocated()
    x = torch.full((SIZE,), 0.5, device="cuda", requires_grad=True)
    y = region(store)(x).sum()
    for _ in range(2):
        y.backward(retain_graph=True)
        x.grad = None
    del x, y
    check_nothing_is_held(store, before)


@engines
def test_nothing_is_held_on_streams_of_the_program(replay, tmp_path):
    store = host(tmp_path)
    before = torch.cuda.memory_allocated()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        step(store, replay)
    check_nothing_is_held(store, before)
    for _ in range(2):  # the second time uses memory that was freed under a copy
        step(store, replay)
        with torch.cuda.stream(side):
            step(store, replay)
    check_nothing_is_held(store, before)
