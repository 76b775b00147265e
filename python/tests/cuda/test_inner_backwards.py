# SPDX-License-Identifier: BSD-3-Clause

"""Backwards inside a region's function, with nodes that autograd would run on a thread of the device."""

import pytest
import torch
from same import assert_same, plain

import remat_meta as remat

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def leaf(*sizes, device="cuda"):
    return torch.rand(*sizes, device=device, requires_grad=True)


def checkpointed(**options):
    return lambda fn: remat.checkpoint(**options)(fn)


auto = pytest.param(checkpointed(replay="auto"), marks=pytest.mark.torch_warns, id="auto")  # warns that there is no tape
to_the_end = pytest.param(checkpointed(early_stop=False), id="to the end")
ways = pytest.mark.parametrize("wrap", [pytest.param(checkpointed(), id="function"), auto, to_the_end])


@ways
def test_a_gradient_inside_makes_no_slots_shift(wrap):
    def program(wrap):
        def fn(x):
            h = x * w
            torch.autograd.grad(h, x, torch.full_like(x, 1.0), create_graph=True)
            return (torch.full_like(x, 3.0) * w).sum()

        x, w = leaf(4), leaf(4)
        wrap(fn)(x).backward()
        return (w.grad,)

    assert_same(program, wrap)


@ways
def test_a_gradient_inside_is_part_of_the_result(wrap):
    def program(wrap):
        def fn(x):
            h = (x * w).sin()
            (g,) = torch.autograd.grad((h * h).sum(), x, create_graph=True)
            return (g * h).exp().sum()

        x, w = leaf(4, 4), leaf(4, 4)
        wrap(fn)(x).backward()
        return x.grad, w.grad

    assert_same(program, wrap)


@ways
def test_a_backward_inside_adds_to_leaves_once(wrap):
    def program(wrap):
        def fn(x):
            (w * w).sin().sum().backward()
            return (x * w).sin().exp().sum()

        x, w = leaf(4, 4), leaf(4, 4)
        wrap(fn)(x).backward()
        return x.grad, w.grad

    assert_same(program, wrap)


@ways
def test_nested_regions_have_backwards_inside(wrap):
    def program(wrap):
        def inner(x):
            (g,) = torch.autograd.grad((x.sin() * w).sum(), x, create_graph=True)
            return (x * g).exp()

        def outer(x):
            y = wrap(inner)(x.sin())
            (g,) = torch.autograd.grad(y.sum(), x, create_graph=True)
            return (y * g).sin()

        x, w = leaf(4, 4), leaf(4, 4)
        wrap(outer)(x).sum().backward()
        return x.grad, w.grad

    assert_same(program, wrap)


@ways
def test_a_backward_inside_reaches_a_graph_on_the_host(wrap):
    def program(wrap):
        def fn(x):
            h = (x.cpu() * w).sin()
            (g,) = torch.autograd.grad((h * h).sum(), x, create_graph=True)
            return (g * h.cuda()).exp().sum()

        x, w = leaf(4, 4), leaf(4, 4, device="cpu")
        wrap(fn)(x).backward()
        return x.grad, w.grad

    assert_same(program, wrap)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
@pytest.mark.torch_warns  # warns of streams, without remat too
@ways
def test_replays_on_two_devices_with_backwards_inside_do_not_wait_for_each_other(wrap):
    def program(wrap):
        def across(x):
            y = x.to("cuda:1") * 2
            (g,) = torch.autograd.grad((y.sin() * y).sum(), x, create_graph=True)
            return (x * g.detach()).exp()

        def alone(x):
            return (x.sin() * x).exp()

        x, z = leaf(4, 4, device="cuda:0"), leaf(4, 4, device="cuda:1")
        (wrap(across)(x).sum() + wrap(alone)(z).sum().to("cuda:0")).backward()
        return x.grad, z.grad

    for _ in range(5):
        assert_same(program, wrap)


@ways
def test_gradients_are_added_in_the_order_of_the_forward(wrap):
    """Nodes of a replay, which another thread numbers, must not run after those of captured tensors."""

    def program(wrap):
        def fn(x):
            inside = w * parts[0]
            (g,) = torch.autograd.grad((inside * inside + outside[0] + outside[1]).sum(), w, retain_graph=True)
            return (x * g).exp().sum()

        x, w = leaf(64, 64), leaf(64, 64)
        parts = torch.randn(3, 64, 64, device="cuda")
        outside = [w * part for part in parts[1:]]
        wrap(fn)(x).backward()
        return (x.grad,)

    assert_same(program, wrap)


def _last_number():
    return torch.ones((), requires_grad=True).view(()).grad_fn._sequence_nr()


def _make_nodes(least):
    with torch.enable_grad():
        while _last_number() < least:
            pass


def _nodes_of_the_device():
    """The number of the last node that the device's thread has made."""
    numbers = []
    value = leaf(1) * 1
    value.register_hook(lambda grad: numbers.append(torch.enable_grad()(_last_number)()))
    value.backward()
    return numbers[0]


def _let_the_device_count_on():
    """Makes the device's thread number its nodes from beyond all that this thread has made."""
    # Twice, since remat takes the numbers that replays have used off those of later nodes.
    least = 2 * _last_number() + 1000
    value = leaf(1) * 1
    value.register_hook(lambda grad: _make_nodes(least))
    value.backward()


def _three_terms(wrap):
    w = torch.rand(64, 64, device="cuda", generator=torch.Generator("cuda").manual_seed(0)).requires_grad_()
    early = w.sin()
    slope = wrap(lambda x: torch.autograd.grad((x.sin() * x).sum(), x, create_graph=True)[0])(w)
    (early.square().sum() + slope.square().sum()).backward()
    return w.grad


def test_s49_nodes_of_a_gradient_inside_have_numbers_of_the_thread_that_calls():
    _make_nodes(_nodes_of_the_device() + 1000)
    plain_grad = _three_terms(plain)
    assert not torch.equal(plain_grad, _three_terms(checkpointed()))
    with torch.autograd.set_multithreading_enabled(False):
        assert torch.equal(_three_terms(plain), _three_terms(checkpointed()))
    _let_the_device_count_on()
    assert torch.equal(_three_terms(plain), _three_terms(checkpointed()))
    assert not torch.equal(plain_grad, _three_terms(plain))
