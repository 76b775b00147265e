# SPDX-License-Identifier: BSD-3-Clause

"""Memory that is made, shared or changed without an op."""

import numpy as np
import pytest
import torch
from programs import leaf
from same import assert_same

import remat_meta as remat

from .common import ANOTHER, UNVERSIONED, assert_raises, region


def tensor_without_an_op():
    tensor = torch._C._dynamo.guards._empty_strided_cpu((4,), (1,), torch.float32)  # as compiled functions do
    tensor.numpy()[:] = 2
    return tensor


def reads(make):
    def program(wrap):
        x, kept = leaf(4), []
        wrap(lambda x: (x * make(kept)).sin().exp())(x).sum().backward()
        return x.grad

    return program


def test_m1_a_tensor_made_without_an_op_raises_unless_nothing_is_compared():
    assert_raises(reads(lambda kept: tensor_without_an_op()), region(), ANOTHER, remat.ReplayMismatch)
    assert_same(reads(lambda kept: tensor_without_an_op()), region(determinism_check="none"))


def kept_blob(kept):
    kept.append(torch.from_dlpack(np.ones(4, np.float32)))
    return kept[-1]


def test_m2_wrapped_memory_that_the_function_makes_and_that_still_lives_raises():
    assert_raises(reads(kept_blob), region(), ANOTHER, remat.ReplayMismatch)
    assert_same(reads(kept_blob), region("tape"))


def test_m3_wrapped_memory_that_is_written_raises_where_nothing_is_compared():
    def written(kept):
        return torch.from_dlpack(np.ones(4, np.float32)).add_(1)

    words = "expected to write what the forward wrote, got another tensor"
    assert_raises(reads(written), region(determinism_check="none"), words)
    assert_same(reads(written), region())


@pytest.mark.parametrize("replay", ["function", "tape"])
def test_m6_a_write_by_way_of_another_tensor_on_captured_memory_raises_in_backward(replay):
    def program(wrap):
        x, captured = leaf(4), torch.ones(4)
        wrap(lambda x: (torch.from_dlpack(captured).add_(1), (x * captured).sin().exp())[1])(x).sum().backward()
        return x.grad

    assert_raises(program, region(replay), UNVERSIONED)


def test_m11_swap_tensors_refuses_what_a_region_needs():
    held = [torch.ones(4)]
    y = region()(lambda x: (x * held[0].exp()).exp())(leaf(4))
    with pytest.raises(RuntimeError, match="Expected no weakrefs to t1's Tensor object"):
        torch.utils.swap_tensors(held[0], torch.zeros(4))
    y.sum().backward()
    torch.utils.swap_tensors(held[0], torch.zeros(4))


@pytest.mark.parametrize("replay", ["function", "tape"])
@pytest.mark.parametrize("captured", [True, False])
def test_m16_a_view_that_was_given_other_memory_and_is_written_raises_where_its_base_is_an_argument(captured, replay):
    def program(wrap):
        x, base = leaf(4, 4), torch.ones(4, 4)
        moved = base[1:3]
        moved.data = torch.full((2, 4), 3.0)

        def fn(x, base, *passed):
            (moved if captured else passed[0]).mul_(0.5)
            return (x * base * moved.sum()).sin()

        wrap(fn)(*([x, base] if captured else [x, base, moved])).sum().backward()
        return x.grad

    assert_raises(program, region(replay), "modified by an inplace operation.*expected the argument as the forward got it")


@pytest.mark.parametrize("replay", ["function", "tape"])
def test_m17_memory_that_a_replay_needs_is_freed(replay):
    def program(wrap):
        x, held = leaf(4), torch.ones(4)
        y = wrap(lambda x: (x + held).sin())(x)
        held.untyped_storage().resize_(0)
        y.sum().backward()

    assert_raises(program, region(replay), "got a storage that was freed or made smaller since")
