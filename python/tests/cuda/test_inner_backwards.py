# SPDX-License-Identifier: BSD-3-Clause

"""Backwards inside a region's function, with nodes that autograd would run on a thread of the device."""

import pytest
import torch
from same import assert_same

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
