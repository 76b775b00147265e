# SPDX-License-Identifier: BSD-3-Clause

"""Named calls, policies and stores."""

import contextlib

import pytest
import torch
from programs import leaf
from same import assert_equal, assert_same
from wrappers import Opaque

import remat_meta as remat

from .common import OFFLOAD, SAVE, assert_raises, call, region


@pytest.mark.parametrize("name", ["new_tensor", "new"])
def test_n2_new_tensor_of_a_placeholder_raises(name):
    def program(wrap):
        x = leaf(4)
        wrap(lambda x: (x * getattr(call(torch.sin)(x), name)([1.0, 2.0, 3.0, 4.0])).sin())(x).sum().backward()
        return x.grad

    assert_raises(program, region(), "No module named 'torch.privateuseone'", ModuleNotFoundError)
    assert_same(program, region("tape"))


def test_n3_an_offload_call_in_a_nested_region_meets_casts_that_autocast_has_already():
    def program(wrap):
        x, w = leaf(4, 4), torch.nn.Parameter(torch.randn(4, 4))
        inner = wrap(lambda h: call(lambda h: h @ w, OFFLOAD)(h).sin())
        with torch.autocast("cpu", dtype=torch.bfloat16):
            x @ w  # fills autocast's cache
            y = wrap(lambda x: inner(x.sin()).exp())(x)
        y.float().sum().backward()
        return x.grad

    store = remat.host_memory_store()
    assert_raises(program, region(offload_store=store), "expected bfloat16 .*It was saved between other ops")
    assert_same(program, region("tape", offload_store=store))


def test_n4_the_lengths_of_a_packed_sequence_are_read_by_pointer():
    def program(wrap):
        torch.manual_seed(0)
        lstm, x = torch.nn.LSTM(4, 4, batch_first=True), leaf(2, 5, 4)

        def fn(x):
            packed = torch.nn.utils.rnn.pack_padded_sequence(x * 2, torch.tensor([5, 3]), batch_first=True)
            return lstm(packed)[1][0].sin()

        wrap(fn)(x).sum().backward()
        return x.grad

    words = "call 'aten::_pack_padded_sequence#0'.*got a read of its memory"
    assert_raises(program, region(policy="recompute_pointwise"), words)
    table = remat.PolicyTable().op("aten::_pack_padded_sequence", remat.CheckpointPolicy.RECOMPUTE)
    assert_same(program, region(policy=table.add(remat.recompute_pointwise())))


def test_n9_an_op_that_a_policy_saves_and_that_resizes_its_out_raises():
    def program(wrap):
        x = leaf(4)

        def fn(x):
            values, indices = torch.empty(0), torch.empty(0, dtype=torch.int64)
            torch.sort(x.detach(), out=(values, indices))
            return (x * values).sin()

        wrap(fn)(x).sum().backward()
        return x.grad

    assert_raises(program, region(policy=["aten::sort"]), "A shape differs", remat.ReplayMismatch)
    assert_same(program, region())


class Copies(remat.OffloadStore):
    def __init__(self):
        super().__init__()
        self.layouts = set()

    def put(self, tensor):
        self.layouts.add(tensor.layout)
        return Copy(tensor.clone())


class Copy:
    def __init__(self, tensor):
        self.tensor = tensor

    def get(self):
        return self.tensor


def test_n10_a_store_is_given_no_sparse_tensors():
    store, sparse = Copies(), torch.eye(4).to_sparse()

    def program(wrap):
        x = leaf(4, 4)
        product = call(lambda x: torch.sparse.mm(sparse * 2, x.exp()), OFFLOAD)
        wrap(lambda x: product(x).sin())(x).sum().backward()
        return x.grad

    assert_same(program, region(offload_store=store))
    assert store.layouts == {torch.strided}


def test_n12_a_kept_call_does_not_write_a_tensor_that_the_region_has_made():
    def program(wrap):
        def fn(x):
            y = x * 1.0
            call(lambda: y.mul_(2).sum())()
            return y.sin()

        wrap(fn)(leaf(4)).sum().backward()

    assert_raises(program, region(), "expected to write strided arguments", NotImplementedError)


def test_n13_a_kept_call_does_not_write_a_value_with_a_gradient_for_others():
    def program(wrap):
        held = torch.zeros(4)

        def fn(x):
            call(lambda x: held.copy_(x * 2).sum())(x)
            return (held * x).sin()

        wrap(fn)(leaf(4)).sum().backward()

    assert_raises(program, region(), "into which a SAVE call has written a value with a gradient", NotImplementedError)


def test_n14_a_kept_call_does_not_return_a_subclass():
    def program(wrap):
        w = Opaque(torch.ones(4))
        wrap(lambda x: (call(lambda: w * 2)().inner * x).sin())(leaf(4)).sum().backward()

    assert_raises(program, region(), "expected a plain tensor, got a subclass with __torch_dispatch__", NotImplementedError)


def test_n15_what_remat_refuses_and_the_function_catches_is_not_refused_in_the_replay():
    def program(wrap):
        torch.manual_seed(0)
        x = leaf(4)

        def fn(x):
            y = call(torch.sin)(x)
            try:
                y = call(torch.exp)(y)  # a call with the same name
            except RuntimeError:
                y = y.cos()
            return y * x

        wrap(fn)(x).sum().backward()
        return x.grad

    with pytest.raises(remat.ReplayMismatch, match="expected aten::cos.* as in the forward, got call 'call'"):
        program(region())
    torch.manual_seed(0)
    x = leaf(4)
    (x.sin().cos() * x).sum().backward()
    assert_equal(program(region("tape")), x.grad)


def test_n16_a_block_under_no_grad_gives_its_names_to_the_region_around():
    block = region()(lambda x: call(torch.sin, name="part")(x))

    def twice(scope):
        def fn(x):
            with torch.no_grad():
                for number in range(2):
                    with scope(str(number)):
                        y = block(x.detach())
            return y * x

        def program(wrap):
            x = leaf(3)
            wrap(fn)(x).sum().backward()
            return x.grad

        return program

    assert_raises(twice(contextlib.nullcontext), region(), "expected a name that is used once in a region")
    assert_same(twice(remat.name_scope), region())


class TellsLate(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        handle = remat.get_handle(ctx, "named", SAVE)
        if (out := handle.maybe_load_saved()) is not None:
            return out
        out = handle.record_outputs(x * 2)
        ctx.save_for_backward(x)
        return out

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.saved_tensors[0]


def test_n17_a_ctx_that_is_told_after_the_results_raises():
    def program(wrap):
        x = leaf(3)
        wrap(lambda x: TellsLate.apply(x * 2).cos())(x).sum().backward()
        return x.grad

    assert_raises(program, region(), "It was saved between other ops")
    assert_same(program, region("tape"))


class Refuses(torch.autograd.Function):
    """A function that autograd refuses."""

    @staticmethod
    @remat.auto_forward()
    def forward(ctx, x):
        ctx.mark_dirty(x.clone())
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return grad


def test_n18_a_call_that_fails_after_its_end_does_not_fail_in_the_replay():
    def fn(x):
        y = x.sin()
        try:
            remat.op(Refuses.apply, "named", SAVE)(y)
        except RuntimeError:
            y = y.exp()
        return y.cos()

    def program(wrap):
        x = leaf(3)
        wrap(fn)(x).sum().backward()
        return x.grad

    assert_raises(program, region(), "as in the forward, got", remat.ReplayMismatch)
    assert_same(program, region("tape"))
