# SPDX-License-Identifier: BSD-3-Clause

"""tiled(): functions that run slice by slice, each a region."""

import gc

import pytest
import torch
from budget_trainer import same
from same import DEVICE
from torch import nn
from torch.nn import functional as F

import remat_meta as remat
from remat_meta._C import live_region_count

VOCABULARY = 512


def head_and_batch(tokens=64, width=16):
    torch.manual_seed(0)
    head = nn.Linear(width, VOCABULARY, bias=False)
    hidden = torch.randn(tokens, width, requires_grad=True)
    return head, hidden, torch.randint(0, VOCABULARY, (tokens,))


def summed_loss(head):
    return lambda hidden, targets: F.cross_entropy(head(hidden), targets, reduction="sum")


def by_hand(fn, n, *tensors):
    """The reference for tiled(), bit by bit: the same slices without regions."""
    parts = [fn(*slices) for slices in zip(*(t.tensor_split(n) for t in tensors), strict=True)]
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


def step(make_loss, *leaves):
    for leaf in leaves:
        leaf.grad = None
    gc.collect()
    with remat.MemoryMeter() as meter:
        loss = make_loss()
        loss.backward()
        peak = meter.peak_bytes(DEVICE)
    return [loss.detach(), *(leaf.grad for leaf in leaves)], peak


@pytest.mark.parametrize("n", [1, 3, 8, 64])
def test_the_bits_are_those_of_the_slices_without_regions(n):
    head, hidden, targets = head_and_batch()
    loss = summed_loss(head)
    expected, _ = step(lambda: by_hand(loss, n, hidden, targets), hidden, head.weight)
    found, _ = step(lambda: remat.tiled(loss, 0, n)(hidden, targets), hidden, head.weight)
    assert same(expected, found)


def test_one_slice_is_in_memory_at_a_time():
    head, hidden, targets = head_and_batch()
    loss = summed_loss(head)
    logits_bytes = 64 * VOCABULARY * 4
    weight_bytes = 2 * head.weight.numel() * 4  # the gradient, and that of one slice
    _, plain = step(lambda: loss(hidden, targets), hidden, head.weight)
    _, tiled = step(lambda: remat.tiled(loss, 0, 8)(hidden, targets), hidden, head.weight)
    assert plain >= 2 * logits_bytes
    assert tiled <= 3 * logits_bytes / 8 + weight_bytes + 4 * hidden.numel() * 4


def test_results_are_close_to_those_of_the_whole():
    """Sums are in another order, so there is a tolerance."""
    head, hidden, targets = head_and_batch()
    loss = summed_loss(head)
    whole, _ = step(lambda: loss(hidden, targets), hidden, head.weight)
    tiled, _ = step(lambda: remat.tiled(loss, 0, 8)(hidden, targets), hidden, head.weight)
    for a, b in zip(whole, tiled, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("dim", [0, 1, -2])
def test_tensors_are_joined_along_the_dimension(dim):
    torch.manual_seed(0)
    x = torch.randn(6, 7, 3, requires_grad=True)

    def f(x, *, scale):
        return {"y": (x * scale).sin(), "both": (x.cos(), x.tan()), "sum": x.sum()}

    out = remat.tiled(f, dim, 4)(x, scale=torch.tensor(2.0))
    assert torch.equal(out["y"], (x * 2).sin()) and torch.equal(out["both"][0], x.cos())
    assert torch.equal(out["both"][1], x.tan()) and out["sum"].dim() == 0
    out["y"].sum().backward()
    expected = torch.autograd.grad((x * 2).sin().sum(), x)[0]
    assert torch.equal(x.grad, expected)


def test_more_tiles_than_elements_and_no_elements():
    f = remat.tiled(lambda x: x.sin(), 0, 8)
    for n in (0, 1, 3):
        x = torch.randn(n, 2, requires_grad=True)
        y = f(x)
        y.sum().backward()
        assert torch.equal(y, x.sin()) and torch.equal(x.grad, x.cos())


@pytest.mark.parametrize(("results", "message"), [
    ([{"a": 1, "b": 2}, {"b": 2, "a": 1}], "result of tile 1: expected the same containers as of tile 0"),
    ([{"a": 1}, {"b": 1}], "result of tile 1: expected the same containers"),
    ([1, (1,)], "result of tile 1: expected the same containers"),
    ([0, 1], "result of tile 1: expected a scalar, as tile 0 has, got a tensor with dimensions"),
    ([1, 0], "result of tile 1: expected a tensor with dimensions, as tile 0 has, got a scalar"),
])  # fmt: skip
def test_tiles_return_the_same(results, message):
    waiting = list(results)

    def f(x):
        result = waiting.pop(0)
        return torch.utils._pytree.tree_map(lambda kind: x * kind if kind else x.sum(), result)

    with torch.no_grad(), pytest.raises(ValueError, match=message):
        remat.tiled(f, 0, 2)(torch.ones(4, 2))


def test_without_gradients_it_is_a_plain_loop():
    calls = []
    f = remat.tiled(lambda x: calls.append(len(x)) or x.sin(), 0, 2)
    with torch.no_grad():
        f(torch.ones(5))
    assert calls == [3, 2] and live_region_count() == 0


def test_dropout_draws_in_the_replay_what_it_drew():
    torch.manual_seed(0)
    x = torch.randn(8, 64, requires_grad=True)
    y = remat.tiled(lambda x: F.dropout(x.sin(), 0.5), 0, 4)(x)
    y.sum().backward()
    assert torch.equal(x.grad, torch.where(y != 0, 2 * x.cos(), torch.zeros(())))


def test_in_a_step_with_a_budget_the_plan_says_what_is_kept():
    head, hidden, targets = head_and_batch()
    loss = remat.tiled(summed_loss(head), 0, 8)
    expected, plain = step(lambda: by_hand(summed_loss(head), 8, hidden, targets), hidden, head.weight)
    planned = remat.auto_checkpoint(lambda h, t: loss(h, t), "60%", name="head")
    for _ in range(6):
        found, peak = step(lambda: planned(hidden, targets), hidden, head.weight)
        assert same(expected, found)
    assert peak <= remat.memory_plan(planned).predicted_peak_bytes <= 0.65 * plain


@pytest.mark.parametrize("engine", ["function", "tape"])
def test_inside_of_a_region(engine):
    head, hidden, targets = head_and_batch()
    loss = summed_loss(head)
    expected, _ = step(lambda: by_hand(loss, 4, hidden.sin(), targets), hidden, head.weight)

    def f(hidden):
        return remat.tiled(loss, 0, 4)(hidden.sin(), targets)

    found, _ = step(lambda: remat.checkpoint(replay=engine)(f)(hidden), hidden, head.weight)
    assert same(expected, found)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda x: remat.tiled(3), TypeError, "fn: expected a function, got int"),
        (lambda x: remat.tiled(torch.sin, 0, 0), ValueError, "tiles: expected 1 or more, got 0"),
        (lambda x: remat.tiled(torch.sin, 0, "4"), TypeError, "n: expected a number, got str"),
        (lambda x: remat.tiled(torch.sin, 0.5), TypeError, "dim: expected a number, got float"),
        (lambda x: remat.tiled(lambda y: y)(3), ValueError, "arguments: expected a tensor to cut, got none"),
        (lambda x: remat.tiled(torch.sin, 2)(x), ValueError, "argument 0: expected a tensor with dimension 2, got one of 2"),
        (lambda x: remat.tiled(torch.add)(x, x[:3]), ValueError, "argument 1: expected 4 elements along dimension 0"),
        (lambda x: remat.tiled(lambda x: x.sum(0))(x), ValueError, "result of tile 0: expected a scalar, or 1 elements"),
        (lambda x: remat.tiled(lambda x: 3)(x), RuntimeError, "fn must return a Tensor, .*; got int"),
        (lambda x: remat.tiled(torch.sin, replay="magic"), ValueError, "magic"),
    ],
)
def test_what_cannot_be_cut_says_what_to_do(call, error, message):
    with pytest.raises(error, match=message):
        call(torch.randn(4, 3, requires_grad=True))
    assert live_region_count() == 0
