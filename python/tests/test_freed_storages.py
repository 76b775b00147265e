# SPDX-License-Identifier: BSD-3-Clause

"""Memory that is freed between forward and backward is reported, not read."""

import itertools

import pytest
import torch
from fuzz.custom import auto, handled, own, plain
from programs import leaf
from same import assert_equal

import remat_meta as remat

FREED = r"(?s)\[replay\] region 'r.*expected its memory as the forward left it, got a storage that was freed"


def free(tensor):
    size = tensor.untyped_storage().size()
    tensor.untyped_storage().resize_(0)
    return size


@pytest.mark.parametrize("engine", ["function", "tape"])
@pytest.mark.parametrize("size", [0, 64])
def test_a_captured_tensor(engine, size):
    w = torch.randn(100)
    y = remat.checkpoint(region_name="r", replay=engine)(lambda x: (x.sin() * w).exp())(leaf(100))
    w.untyped_storage().resize_(size)
    with pytest.raises(RuntimeError, match=FREED):
        y.sum().backward()


@pytest.mark.parametrize("engine", ["function", "tape"])
def test_a_captured_weight(engine):
    w = leaf(100)
    y = remat.checkpoint(region_name="r", replay=engine)(lambda x: (x.sin() * w).exp())(leaf(100))
    free(w)
    with pytest.raises(RuntimeError, match=FREED):
        y.sum().backward()


@pytest.mark.parametrize("engine", ["function", "tape"])
@pytest.mark.parametrize("part", [slice(None), slice(10, 60)])
def test_an_argument(engine, part):
    x = torch.randn(100)
    w = leaf(1)
    y = remat.checkpoint(region_name="r", replay=engine)(lambda x: (x.sin() * w).exp())(x[part])
    free(x)
    with pytest.raises(RuntimeError, match=FREED):
        y.sum().backward()


@pytest.mark.parametrize("engine", ["function", "tape"])
def test_what_a_slot_is_of_and_no_op_reads_again(engine):
    w = torch.randn(100)
    y = remat.checkpoint(region_name="r", replay=engine)(lambda x: x * w)(leaf(100))
    free(w)
    with pytest.raises(RuntimeError, match=FREED):
        y.sum().backward()


@pytest.mark.parametrize("engine", ["function", "tape"])
def test_a_result_of_a_save_call(engine):
    kept = []

    def fn(x):
        y = remat.region(torch.sin, "sine", recompute=False)(x)
        kept.append(y.detach())
        return y.exp().cos()

    y = remat.checkpoint(region_name="r", replay=engine)(fn)(leaf(100))
    free(kept[0])
    with pytest.raises(RuntimeError, match=FREED):
        y.sum().backward()


def test_a_value_that_crosses_a_cut():
    kept = []

    def fn(x):
        y = x.sin()
        kept.append(y.detach())
        return y.exp().cos().exp()

    y = remat.checkpoint(region_name="r", replay="tape", cuts=remat.Cuts([1]))(fn)(leaf(100))
    free(kept[0])
    with pytest.raises(RuntimeError, match=FREED):
        y.sum().backward()


@pytest.mark.parametrize("engine", ["function", "tape"])
def test_memory_that_is_there_again_before_backward_is_read(engine):
    def run(wrap):
        torch.manual_seed(0)
        w, x = torch.randn(100), leaf(100)
        values = w.clone()
        y = wrap(lambda x: (x.sin() * w).exp())(x).sum()
        size = free(w)
        w.untyped_storage().resize_(size)
        with torch.autograd._unsafe_preserve_version_counter(w):
            w.copy_(values)
        y.backward()
        return [y, x.grad]

    assert_equal(run(lambda fn: fn), run(remat.checkpoint(replay=engine)))


@pytest.mark.parametrize("engine", ["function", "tape"])
def test_what_a_region_has_written_is_read_from_what_it_keeps(engine):
    def run(wrap, may_free):
        torch.manual_seed(0)
        x, buffer = leaf(4, 4), torch.ones(4, 4)

        def fn(x):
            buffer[:, 2].mul_(0.5).add_(x.detach()[:, 1])
            return (x.sin() * buffer).exp()

        y = wrap(fn)(x)
        if may_free:
            free(buffer)
        y.sum().backward()
        return [y, x.grad]

    assert_equal(run(lambda fn: fn, may_free=False), run(remat.checkpoint(replay=engine), may_free=True))


@pytest.mark.parametrize("engine", ["function", "tape"])
@pytest.mark.parametrize("view", ["w[4]", "w[:, 1]", "w.t()", "w.expand(2, 6, 6)", "w.unfold(0, 2, 2)", "w.view(-1)"])
def test_a_view_of_freed_memory(engine, view):
    w = torch.randn(6, 6)
    y = remat.checkpoint(region_name="r", replay=engine)(lambda x: (x.sin() * eval(view, {"w": w}).sum()).exp())(leaf(6, 6))
    free(w)
    with pytest.raises(RuntimeError, match=FREED):
        y.sum().backward()


@pytest.mark.parametrize("look", ["w.detach()", "w.view(-1)", "w.view_as(w)", "w.shape"])
def test_freed_memory_at_which_a_function_only_looks(look):
    w, x = torch.randn(6, 6), leaf(6, 6)

    def fn(x):
        eval(look, {"w": w})
        return x.sin().exp()

    y = remat.checkpoint()(fn)(x)
    free(w)
    y.sum().backward()
    assert_equal(x.cos() * x.sin().exp(), x.grad)


CALLS = {  # calls that save the buffer b
    "native_op": lambda policy: lambda x, b: remat.native_op(lambda x, b: x * b, "call", policy)(x, b),
    "op of auto_forward": lambda policy: remat.op(auto.of_buffer, "call", policy),
    "op of a handle": lambda policy: remat.op(handled.of_buffer, "call", policy),
    "function with a name": lambda policy: own.of_buffer("call", policy.name),
    "function without a name": lambda policy: plain.of_buffer,
}
in_every_way = pytest.mark.parametrize(
    ("call", "policy", "size", "captured", "engine"),
    list(itertools.product(CALLS, ["SAVE", "OFFLOAD", "RECOMPUTE"], [0, 64], [False, True], ["function", "tape"])),
)


def through(call, policy, engine, b, captured):
    """Returns a region that passes `b`, captured or as an argument, to a call."""
    call = CALLS[call](remat.CheckpointPolicy[policy])
    region = remat.checkpoint(region_name="r", replay=engine, offload_store=remat.offload(min_bytes=0))
    return region(lambda x: call(x, b).sin()) if captured else lambda x: region(lambda x, b: call(x, b).sin())(x, b)


@in_every_way
def test_a_buffer_that_a_call_has_saved(call, policy, size, captured, engine):
    b = torch.randn(100)
    y = through(call, policy, engine, b, captured)(leaf(100)).sum()
    y.backward(retain_graph=True)
    b.untyped_storage().resize_(size)
    with pytest.raises(RuntimeError, match=FREED):
        y.backward()


@in_every_way
def test_a_buffer_that_a_call_has_saved_and_that_is_there_again(call, policy, size, captured, engine):
    def gradient(wrap):
        torch.manual_seed(0)
        x, b = leaf(100), torch.randn(100)
        y = wrap(b)(x).sum()
        storage = b.untyped_storage()
        values = storage.clone()
        storage.resize_(size)
        storage.resize_(values.nbytes())
        storage.copy_(values)
        y.backward()
        return x.grad

    outside = CALLS[call](remat.CheckpointPolicy.SAVE)
    wants = gradient(lambda b: lambda x: outside(x, b).sin())
    assert_equal(wants, gradient(lambda b: through(call, policy, engine, b, captured)))


class SavesMiddle(torch.autograd.Function):
    """No op can keep its saved tensor, so the function is called again."""

    @staticmethod
    def forward(ctx, x):
        middle = x.tanh()
        ctx.save_for_backward(middle)
        return middle * 2

    @staticmethod
    def backward(ctx, grad):
        (middle,) = ctx.saved_tensors
        return grad * 2 * (1 - middle * middle)


@pytest.mark.parametrize("policy", [remat.CheckpointPolicy.SAVE, remat.CheckpointPolicy.OFFLOAD])
def test_what_a_kept_view_is_a_part_of(policy):
    bank = torch.randn(6, 4)

    def fn(x):
        bank[1] = x.detach()
        return SavesMiddle.apply(x)

    table = remat.PolicyTable().op("*", policy)
    store = remat.host_memory_store()
    y = remat.checkpoint(region_name="r", policy=table, offload_store=store)(fn)(leaf(4))
    free(bank)
    with pytest.raises(RuntimeError, match=FREED):
        y.sum().backward()
