# SPDX-License-Identifier: BSD-3-Clause

"""The order in which gradients are added: autograd runs the node with the highest number first, and the threads of
devices count for themselves.
"""

import concurrent.futures

import pytest
import torch

from cuda.device_runs import all_replays, assert_same, leaf, needs_cuda, region

pytestmark = needs_cuda
STEPS = 4
EARLIER_NODES = 100


def node_of_the_device(w):
    (g,) = torch.autograd.grad(w.sin().sum(), w, create_graph=True)
    return g.grad_fn


def count_up_to_the_device(w):
    """Makes nodes until this thread has as many as the thread of the device."""
    last = node_of_the_device(w)._sequence_nr()
    assert w.sin().grad_fn._sequence_nr() < last
    while w.sin().grad_fn._sequence_nr() < last:
        pass


def on_a_fresh_thread(step):
    """A program of some steps, whose forward's thread begins with the number that the device's thread has."""

    def steps(wrap):
        torch.manual_seed(7)
        w = leaf(4, 4)
        count_up_to_the_device(w)
        return [step(wrap, w) for _ in range(STEPS)]

    def program(wrap):
        for _ in range(EARLIER_NODES):
            node_of_the_device(leaf(4, 4))
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            return pool.submit(steps, wrap).result()

    return program


def chain(w, count):
    def fn(x):
        for _ in range(count):
            x = (x * w).sin()
        return x

    return fn


def taken_grads(*leaves):
    grads = [leaf.grad for leaf in leaves]
    for each in leaves:
        each.grad = None
    return grads


@all_replays
@pytest.mark.parametrize("accumulates", [False, True], ids=["grad", "backward"])
@pytest.mark.parametrize("count", [2, 4, 8])
@pytest.mark.torch_warns  # backward() with create_graph warns, without regions too
def test_replays_do_not_shift_what_a_double_backward_makes(count, accumulates, replay):
    """A replay makes nodes on the thread of the device, before a backward with create_graph makes its own there."""

    def step(wrap, w):
        x = leaf(4, 4)
        outside = w.mul(3).sum() + w.sin().sum()
        y = wrap(chain(w, count))(x)
        if accumulates:
            y.sum().backward(create_graph=True)
            g, x.grad, w.grad = x.grad, None, None
        else:
            (g,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        ((g * g).sum() + outside + y.sum()).backward()
        return taken_grads(w, x)

    assert_same(on_a_fresh_thread(step), region(replay))


@all_replays
def test_replays_do_not_shift_a_third_backward(replay):
    def step(wrap, w):
        x = leaf(4, 4)
        outside = w.mul(3).sum() + w.sin().sum()
        y = wrap(chain(w, 3))(x)
        (g,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        (h,) = torch.autograd.grad((g * g).sum() + outside, x, create_graph=True)
        (h * g).sum().add(outside).add(y.sum()).backward()
        return taken_grads(w, x)

    assert_same(on_a_fresh_thread(step), region(replay))
