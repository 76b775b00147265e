# SPDX-License-Identifier: BSD-3-Clause

"""Casts of weights: explicit ones in the function, and those from autocast's cache."""

import pytest
import torch
from programs import leaf
from same import DEVICE, assert_same
from torch import nn
from torch.testing._internal.two_tensor import TwoTensor

import remat_meta as remat

ENGINES = ("function", "tape", "auto")
CASTS = {
    "autocast round": None,
    "autocast inside": lambda x, w: autocast_linear(x, w),
    "to": lambda x, w: x.to(torch.bfloat16) @ w.to(torch.bfloat16),
    "copy": lambda x, w: x.bfloat16() @ w.to(torch.bfloat16, copy=True),
    "type": lambda x, w: x.half() @ w.type(torch.half),
    "no grad": lambda x, w: x.bfloat16() @ no_grad_cast(w),
    "reduced": lambda x, w: x * w.bfloat16().sum(),
    "view of it": lambda x, w: x.bfloat16() @ w.bfloat16().t(),
    "embedding": lambda x, w: x * nn.functional.embedding(torch.arange(4), w.bfloat16()),
    "written": lambda x, w: x.bfloat16() @ w.bfloat16().mul_(2),
}


def autocast_linear(x, w):
    with torch.autocast(DEVICE, torch.bfloat16):
        return nn.functional.linear(x, w)


def no_grad_cast(w):
    with torch.no_grad():
        return w.bfloat16()


def layers(n=3):
    torch.manual_seed(0)
    return [nn.Parameter(torch.randn(8, 8)) for _ in range(n)]


def flat_layers():
    """Parameters that share a storage."""
    flat = torch.randn(3, 8, 8)
    return [nn.Parameter(part) for part in flat]


@pytest.mark.parametrize("nested", (False, True))
@pytest.mark.parametrize("weights", (layers, flat_layers))
@pytest.mark.parametrize("cast", CASTS)
def test_a_cast_of_another_weight_raises(cast, weights, nested):
    weights, which = weights(), [0]

    def fn(x):
        w = weights[which[0]]
        return (CASTS[cast](x, w) if CASTS[cast] else nn.functional.linear(x, w)).tanh().float()

    region = remat.checkpoint()(fn)
    if nested:
        region = remat.checkpoint()(lambda x, inner=region: inner(x.sin()))
    with torch.autocast(DEVICE, torch.bfloat16, enabled=cast == "autocast round"):
        y = region(leaf(4, 8))
    which[0] = 1
    with pytest.raises(remat.ReplayMismatch, match="cast of another parameter"):
        y.sum().backward()


@pytest.mark.parametrize("replay", ENGINES)
@pytest.mark.parametrize("cast", CASTS)
def test_casts_of_the_same_weights_are_right(cast, replay):
    def program(wrap):
        weights, x = layers(2) + flat_layers(), leaf(4, 8)

        def fn(x):
            y = x
            for w in (*weights, weights[0]):
                y = (CASTS[cast](y, w) if CASTS[cast] else nn.functional.linear(y, w)).tanh().float()
            return y

        for _ in range(3):
            with torch.autocast(DEVICE, torch.bfloat16, enabled=cast == "autocast round"):
                y = wrap(fn)(wrap(fn)(x))
            y.sum().backward()
        return [x.grad, *[w.grad for w in weights]]

    assert_same(program, remat.checkpoint(replay=replay))


@pytest.mark.parametrize("change", ("late bound", "exchanged", "swapped", "argument"))
def test_which_weight_is_cast_is_compared(change):
    weights, x = layers(), leaf(4, 8)
    modules = [nn.Linear(8, 8) for _ in range(2)]
    swap = [False]

    def fn(x, *given):
        with torch.autocast(DEVICE, torch.bfloat16):
            if change == "late bound":
                return modules[swap[0]](x).tanh().float()
            if change == "swapped":
                a, b = (w.bfloat16() for w in (weights[1], weights[0]))
                if swap[0]:
                    a, b = b, a
                return (a.sin() * b.exp()).float().sum() * x
            if change == "argument":
                a, b = given[::-1] if swap[0] else given
                return (a.bfloat16().sin() * b.bfloat16().exp()).float().sum() * x
            return modules[0](x).tanh().float()

    y = remat.checkpoint()(fn)(x, *weights[:2])
    swap[0] = True
    modules[0].weight = nn.Parameter(torch.randn(8, 8))
    with pytest.raises(remat.ReplayMismatch):
        y.sum().backward()


def step_in_the_block(wrap, m, opt):
    for _ in range(3):
        x = leaf(4, 8)
        wrap(lambda x: m(x).tanh())(x).float().sum().backward()
        opt.step()
    return x.grad


def weight_written_before_the_region(wrap, m, opt):
    x = leaf(4, 8)
    h = m(x)
    with torch.no_grad():
        m.weight.mul_(0.5)
    wrap(lambda h: m(h).tanh())(h).float().sum().backward()
    return x.grad


def weight_written_inside(wrap, m, opt):
    def fn(x):
        h = m(x).tanh()
        with torch.no_grad():
            m.weight.mul_(0.5)
        return m(h)

    x = leaf(4, 8)
    wrap(fn)(x).float().sum().backward()
    return x.grad


def weight_written_by_way_of_data(wrap, m, opt):
    def fn(x):
        m.weight.data.mul_(0.9)
        return m(x).tanh()

    for _ in range(2):
        x = leaf(4, 8)
        wrap(fn)(x).float().sum().backward()
    return x.grad


STALE = (step_in_the_block, weight_written_before_the_region, weight_written_inside, weight_written_by_way_of_data)


@pytest.mark.parametrize("program", STALE)
@pytest.mark.parametrize("nested", (False, True))
def test_a_stale_cast_in_the_cache_raises(program, nested):
    m = nn.Linear(8, 8)
    wrap = remat.checkpoint(region_name="stale")
    outer = (lambda fn: remat.checkpoint()(lambda x: wrap(fn)(x))) if nested else wrap
    with torch.autocast(DEVICE, torch.bfloat16), pytest.raises(NotImplementedError, match="casts in autocast's cache"):
        program(outer, m, torch.optim.SGD(m.parameters(), 1.0))


@pytest.mark.parametrize("replay", ("tape", "auto"))
@pytest.mark.parametrize("program", STALE[:2])
def test_a_tape_has_the_stale_cast(program, replay):
    def run(wrap):
        torch.manual_seed(0)
        m = nn.Linear(8, 8)
        with torch.autocast(DEVICE, torch.bfloat16):
            return program(wrap, m, torch.optim.SGD(m.parameters(), 1.0))

    assert_same(run, remat.checkpoint(replay=replay))


def test_after_the_cache_is_cleared_it_is_right():
    def run(wrap):
        torch.manual_seed(0)
        m = nn.Linear(8, 8)
        opt = torch.optim.SGD(m.parameters(), 1.0)
        with torch.autocast(DEVICE, torch.bfloat16):
            for _ in range(3):
                x = leaf(4, 8)
                wrap(lambda x: m(x).tanh())(x).float().sum().backward()
                opt.step()
                torch.clear_autocast_cache()
        return x.grad, m.weight

    assert_same(run, remat.checkpoint())


@pytest.mark.parametrize("replay", ENGINES)
def test_views_of_casts_of_wrapped_weights_are_casts(replay):
    """The second region finds the casts in autocast's cache, and its replay makes them."""

    def two(*sizes):
        return TwoTensor(torch.rand(sizes), torch.rand(sizes))

    def program(wrap):
        linear = nn.Linear(4, 4)
        linear.weight, linear.bias = nn.Parameter(two(4, 4)), nn.Parameter(two(4))
        x = two(2, 4).requires_grad_()
        region = wrap(lambda x: linear(x).sin().exp())
        with torch.autocast(DEVICE, torch.bfloat16):
            y = region(x) + region(x * 2)
        y.sum().backward()
        return [part for t in (x, linear.weight, linear.bias) for part in (t.grad.a, t.grad.b)]

    assert_same(program, remat.checkpoint(replay=replay))
