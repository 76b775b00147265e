# SPDX-License-Identifier: BSD-3-Clause

"""Memory from outside that is written without a new version, and saved tensors where nothing is compared."""

import pytest
import torch
from programs import checkpointed, leaf
from same import assert_same

import remat_meta as remat

WRITTEN = r"modified by an inplace operation.*was written without a new version, through data\(\)"


def alias_of(tensor, how):
    return {"data": lambda: tensor.data, "view": lambda: tensor.data[1:], "set": lambda: torch.empty(0).set_(tensor)}[how]()


@pytest.mark.parametrize("how", ["data", "view"])
@pytest.mark.parametrize("size", [4, 5000])
def test_an_alias_that_is_captured_and_changes_by_way_of_the_original_is_noticed(how, size):
    w, x = leaf(size), leaf(size)
    d = alias_of(w, how)
    y = checkpointed(lambda x: (x[-len(d) :] * d.exp()).sin())(x)
    with torch.no_grad():
        w.mul_(2)
    with pytest.raises(RuntimeError, match=WRITTEN):
        y.sum().backward()


@pytest.mark.parametrize("captured", [False, True], ids=["argument", "captured"])
@pytest.mark.parametrize("grad", [False, True], ids=["buffer", "not a leaf"])
@pytest.mark.parametrize("replay", ["function", "tape"])
def test_a_write_through_data_is_noticed(captured, grad, replay):
    b, x = (leaf(4) * 1 if grad else torch.randn(4)), leaf(4)
    region = remat.checkpoint(replay=replay, region_name=f"written {captured} {grad}")
    y = region(lambda x: (x * b.exp()).sin())(x) if captured else region(lambda x, b: (x * b.exp()).sin())(x, b)
    b.data.mul_(2)
    with pytest.raises(RuntimeError, match=WRITTEN):
        y.sum().backward()


@pytest.mark.parametrize("value", [1, 2047, 4095])
def test_one_byte_of_a_small_buffer_is_noticed(value):
    b, x = torch.zeros(4096, dtype=torch.uint8), leaf(4)
    y = checkpointed(lambda x: (x * b.sum()).sin().exp())(x)
    b.data[value] = 1
    with pytest.raises(RuntimeError, match=WRITTEN):
        y.sum().backward()


def test_an_alias_and_its_original_may_both_be_captured_and_written_inside():
    def program(wrap):
        w, x = torch.ones(4), leaf(4)
        d = w.data

        def fn(x):
            y = (x * d.clone()).sin() * w.clone()
            w.add_(1)
            return y.exp() + d

        wrap(fn)(x).sum().backward()
        return x.grad, w

    assert_same(program, checkpointed)


def test_set_data_of_an_argument_leaves_the_region_its_own():
    def program(wrap):
        b, x = torch.ones(4), leaf(4)
        y = wrap(lambda x, b: (x * b.exp()).sin())(x, b)
        b.data = torch.zeros(4)
        y.sum().backward()
        return (x.grad,)

    assert_same(program, checkpointed)


OTHERS = {
    "another op": (lambda x: x.sin(), lambda x: x.cos(), "Another op has saved it"),
    "another shape": (lambda x: x.sin(), lambda x: x[:1].sin(), "expected float32 .* got float32"),
    "another order": (lambda x: x.sin().sum() + x.cos().sum(), lambda x: x.cos().sum() + x.sin().sum(), "Another op"),
}


@pytest.mark.parametrize("other", OTHERS)
def test_without_a_determinism_check_values_are_not_given_to_other_slots(other):
    first, second, says = OTHERS[other]
    flag = [True]
    y = remat.checkpoint(determinism_check="none")(lambda x: first(x) if flag[0] else second(x))(leaf(3))
    flag[0] = False
    with pytest.raises(remat.ReplayMismatch, match=says):
        y.sum().backward()


def test_who_asks_is_recomputing_may_not_exchange_saved_tensors():
    def fn(x):
        y = x.exp()
        return y.sin() if remat.is_recomputing() else y.cos()

    with pytest.raises(remat.ReplayMismatch, match="Another op has saved it"):
        checkpointed(fn)(leaf(3)).sum().backward()


@pytest.mark.parametrize("replay", ["function", "tape"])
def test_a_kept_result_that_a_region_inside_holds_is_nothing_that_autograd_has_saved(replay):
    def inner(x):
        h = remat.native_op(lambda x: x * 2, "double", remat.CheckpointPolicy.SAVE)(x)
        assert h.data is not h  # from now on its memory is watched
        return h[0].exp(), h

    def outer(x):
        y, h = remat.checkpoint(region_name="inner")(inner)(x.sin())
        h.mul_(0.9)  # which has h's own version: autograd notices
        return y

    y = remat.checkpoint(region_name="outer", replay=replay)(outer)(leaf(4, 4))
    words = r"region 'inner', call 'double' .SAVE..*expected its result as it left it, got it modified in-place"
    with pytest.raises(RuntimeError, match=words):
        y.sum().backward()
