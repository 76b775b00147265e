# SPDX-License-Identifier: BSD-3-Clause

"""A tape that is given up in the middle: the function is called again, and compared as if there had been no tape."""

import itertools

import pytest
import torch
from programs import leaf
from same import DEVICE, assert_same
from torch import nn

import remat_meta as remat

pytestmark = pytest.mark.torch_warns  # warns that there is no tape
names = itertools.count()
needs_names = pytest.mark.skipif(not hasattr(torch.Tensor, "refine_names"), reason="no tensors with names since torch 2.13")
SAVE = remat.CheckpointPolicy.SAVE


def auto_region(**options):
    """A region with a name of its own, for which no tape has been refused yet."""
    return lambda fn: remat.checkpoint(replay="auto", region_name=f"given up {next(names)}", **options)(fn)


def gives_up(x):
    """Runs a backward in the function."""
    leaf = x.detach().requires_grad_()
    return x * torch.autograd.grad((leaf * leaf).sum(), leaf)[0]


OTHER = r"expected aten::(sin|cos)\(.*as in the forward, got aten::(sin|cos)\("


def alternating(before, calls):
    def fn(x):
        calls.append(1)
        x = x if before else gives_up(x)
        x = x.sin() if len(calls) % 2 else x.cos()
        return (gives_up(x) if before else x) * 2

    return fn


@pytest.mark.parametrize("before", [False, True], ids=["after", "before"])
def test_the_first_replay_of_the_function_is_compared(before):
    # If the backward in the function has something to recompute, it is the first to call the function again.
    with pytest.raises(RuntimeError, match=OTHER):
        auto_region()(alternating(before, []))(leaf(3, 4)).sum().backward()


@pytest.mark.parametrize("outer", ["auto", "function"])
def test_a_region_inside_is_compared_too(outer):
    def fn(x):
        return auto_region()(alternating(False, calls))(x.exp()).sin()

    calls = []
    around = remat.checkpoint(replay=outer, region_name=f"around {outer} {next(names)}")
    with pytest.raises(RuntimeError, match=OTHER):
        around(fn)(leaf(3, 4)).sum().backward()


def test_the_region_around_a_region_whose_tape_stands_is_compared():
    def fn(x):
        calls.append(1)
        y = auto_region()(lambda t: t.sin().exp())(x)
        return gives_up(y.sin() if len(calls) % 2 else y.cos())

    calls = []
    with pytest.raises(RuntimeError, match=OTHER):
        auto_region()(fn)(leaf(3, 4)).sum().backward()


def test_saved_calls_of_a_tape_that_is_given_up_are_compared():
    def fn(x):
        calls.append(1)
        y = remat.native_op(torch.sin, "one" if len(calls) % 2 else "two", SAVE)(x)
        return gives_up(y)

    calls = []
    with pytest.raises(RuntimeError, match=r"expected call '(one|two)' \(SAVE\).*got call '(one|two)'"):
        auto_region()(fn)(leaf(3, 4)).sum().backward()


def test_draws_of_a_tape_that_is_given_up_are_compared():
    def fn(x):
        calls.append(1)
        if len(calls) > 1:
            torch.manual_seed(7)
        return gives_up(nn.functional.dropout(x, 0.5))

    calls = []
    with pytest.raises(RuntimeError, match="draws other random numbers"):
        auto_region()(fn)(leaf(3, 4)).sum().backward()


def test_who_asks_whether_it_recomputes_may_leave_ops_out():
    def program(wrap):
        def fn(x):
            y = x.sin()
            if not remat.is_recomputing():
                seen.append(y.detach().sum())
            return gives_up(y)

        seen = []
        x = leaf(3, 4)
        y = wrap(fn)(x)
        y.sum().backward()
        return y, x.grad, *seen

    assert_same(program, auto_region())


def in_place(x, buffer):
    y = x * 2
    y[0].mul_(2)
    buffer.add_(y.detach().sum())
    return y.sin() * buffer.clone() + y.view(-1)[1:5].sum()


def unwritten(x, buffer):
    y = torch.empty(3, 4)
    y.copy_(x.detach())
    z = torch.zeros_like(x)
    z[1] = x[1]
    return z * y + buffer * 2


def from_the_host(x, buffer):
    host = torch.from_numpy(torch.arange(4.0).numpy())
    return x * host + torch.tensor([1.0, 2.0, 3.0, 4.0]) * buffer + x[torch.tensor([0, 2, 1])]


def drawn(x, buffer):
    return nn.functional.dropout(x, 0.4) * torch.rand(4) + buffer


def a_result_is_written(x, buffer):
    y = remat.native_op(torch.exp, "exp", SAVE)(x)
    z = y.detach()
    z.mul_(3)
    z[0].add_(1)
    w = remat.native_op(lambda a, b: a.sin() * b, "reads it", SAVE)(x, z)
    return w.sin() * z + z.cos() * buffer


def a_call_writes(x, buffer):
    def write(a, b):
        b.mul_(2)
        buffer.add_(1)
        return a * b.clone()

    y = torch.ones(3, 4).mul_(2)
    z = remat.native_op(write, "write", SAVE)(x, y)
    y.add_(1)
    return z.sin() * y + buffer.clone() * y.sin()


def by_autocast(x, buffer):
    with torch.autocast(DEVICE, torch.bfloat16):
        y = linear(x)
        return (linear(y.relu()) + buffer.to(torch.bfloat16)).float()


def nested(x, buffer):
    inner = remat.checkpoint(replay="auto", region_name=f"inside {next(names)}")
    y = inner(lambda t: t.sin() * buffer)(x)
    return inner(lambda t: gives_up(t.exp()))(y)


linear = nn.Linear(4, 4)


@pytest.mark.parametrize(
    "part",
    [in_place, unwritten, from_the_host, drawn, a_result_is_written, a_call_writes, by_autocast, nested],
    ids=lambda part: part.__name__,
)
@pytest.mark.parametrize("where", ["first", "last"])
@pytest.mark.parametrize("around", [False, True], ids=["alone", "in a region"])
def test_what_a_tape_knows_of_memory_is_not_compared(part, where, around):
    def program(wrap):
        def fn(x):
            return gives_up(part(x, buffer)) if where == "last" else part(gives_up(x), buffer)

        torch.manual_seed(3)
        linear.zero_grad()
        buffer = torch.ones(4)
        x = leaf(3, 4)
        y = wrap(lambda t: wrap(fn)(t.cos()).sin())(x) if around else wrap(fn)(x)
        y.sum().backward()
        return y, x.grad, buffer, torch.rand(2), *(p.grad for p in linear.parameters() if p.grad is not None)

    assert_same(program, auto_region())


def padded(nested):
    return torch.nested.to_padded_tensor(nested, 0.0).sum()


def nested_leaf():
    """Autograd asks for its sizes at a place where nothing may be thrown."""
    return torch.nested.nested_tensor([torch.randn(2, 4), torch.randn(3, 4)], requires_grad=True)


def test_a_strict_tape_refuses_a_nested_tensor_from_outside():
    nested = nested_leaf()
    with pytest.raises(NotImplementedError, match=r"region 'r': expected what a tape can replay, got op .*not strided"):
        remat.checkpoint(replay="tape", region_name="r")(lambda x: x.sin() + padded(nested))(leaf(3, 4))


@pytest.mark.parametrize("replay", ["function", "auto"])
def test_a_nested_tensor_from_outside_is_as_plain(replay):
    def program(wrap):
        nested, x = nested_leaf(), leaf(3, 4)
        wrap(lambda x: (x.sin() * padded(nested)).exp())(x).sum().backward()
        return x.grad, padded(nested.grad)

    assert_same(program, remat.checkpoint(replay=replay, region_name=f"nested {replay}"))


def test_a_nested_tensor_that_only_the_replay_reads_is_a_mismatch():
    def fn(x):
        calls.append(1)
        y = x.sin()
        return (y if len(calls) % 2 else y + padded(nested_leaf())).exp()

    calls = []
    y = remat.checkpoint(region_name="r")(fn)(leaf(3, 4))
    with pytest.raises(remat.ReplayMismatch, match=r"region 'r', slot 1, op 1: expected aten::exp"):
        y.sum().backward()


def named(x):
    return (x.sin() * x.refine_names("rows", "columns").exp().rename(None)).exp()


@needs_names
def test_a_strict_tape_refuses_a_tensor_with_names():
    with pytest.raises(NotImplementedError, match="a tensor with names for its dimensions"):
        remat.checkpoint(replay="tape", region_name="r")(named)(leaf(3, 4))


@needs_names
def test_a_tensor_with_names_is_as_plain():
    def program(wrap):
        x = leaf(3, 4)
        wrap(named)(x).sum().backward()
        return x.grad

    assert_same(program, auto_region())
    assert_same(program, remat.checkpoint())


def test_a_strict_tape_refuses_again_what_the_function_has_caught():
    def fn(x):
        try:
            x.to_sparse()
        except NotImplementedError:
            caught.append(1)
        return x.sin().exp()

    caught = []
    with pytest.raises(NotImplementedError, match=r"region 'r': expected what a tape can replay, got op aten::.*sparse"):
        remat.checkpoint(replay="tape", region_name="r")(fn)(leaf(3, 4))
    assert caught
