# SPDX-License-Identifier: BSD-3-Clause

"""Behaviours 69 to 78 of torch_remat 0.2.2: placeholders, and reasons to keep a result."""

import pytest
import torch
from kept import recompute, save
from programs import checkpointed, leaf
from same import assert_same

import remat_meta as remat


def test_069_a_bare_op_may_read_a_saved_result():
    seen = []

    def fn(x):
        y = save(lambda x: x * 3, "producer")(x.sin())
        seen.append(remat.is_placeholder(y))
        return (y.exp() * y).cos()

    def program(wrap):
        x = leaf(3)
        wrap(fn)(x).sum().backward()
        return x.grad

    assert_same(program, checkpointed)
    assert seen == [False] * 3

    def unseen(x):
        y = save(lambda x: x * 3, "producer")(x.sin())
        return (x * float(y.detach().numpy().sum())).exp()

    with pytest.raises(RuntimeError, match="'producer'.*skipped during recompute.*recompute_needs_tensor"):
        checkpointed(unseen)(leaf(3)).sum().backward()


def reads_by_pointer(mark):
    """A program that reads the result of a SAVE call without an op; mark(y) announces the read."""

    def fn(x):
        y = save(lambda x: x * 3, "producer")(x.sin())
        mark(y)
        return (x * float(y.detach().numpy().sum())).exp()

    def program(wrap):
        x = leaf(3)
        wrap(fn)(x).sum().backward()
        return x.grad

    return program


def test_070_recompute_needs_tensor_keeps_it():
    assert_same(reads_by_pointer(remat.recompute_needs_tensor), checkpointed)


@pytest.mark.parametrize("view", [lambda y: y[1:], lambda y: y.detach(), lambda y: y.view(3, 1)])
def test_071_a_view_stands_for_the_whole(view):
    assert_same(reads_by_pointer(lambda y: remat.recompute_needs_tensor(view(y))), checkpointed)


def test_072_of_two_results_only_the_one_marked_is_kept():
    seen = []

    def fn(x, number):
        out = save(lambda x: (x * 3, x * 5, x * 7), "producer")(x.sin())
        remat.recompute_needs_tensor(*out[:number])
        seen.append([remat.is_placeholder(y) for y in out])
        return x.exp()

    for number in (1, 2):
        seen.clear()
        checkpointed(fn)(leaf(3), number).sum().backward()
        assert seen[1] == [i >= number for i in range(3)]


def test_073_recompute_needs_tensor_does_nothing_elsewhere():
    x = leaf(3)
    remat.recompute_needs_tensor(x, x.sin())

    def fn(x):
        bare = x.sin()
        again = recompute(torch.exp, "a")(bare)
        remat.recompute_needs_tensor(x, bare, again)
        return again.cos()

    packed = []
    hooks = (lambda t: packed.append(1) or t, lambda t: t)
    remat.checkpoint(saved_tensors_hooks=hooks)(fn)(x.exp()).sum().backward()
    assert len(packed) == 1  # the argument
    with pytest.raises(RuntimeError, match="expected a Tensor"):
        remat.recompute_needs_tensor(3)


def test_074_a_recompute_call_may_be_given_a_bare_view():
    def program(wrap):
        x = leaf(3)
        wrap(
            lambda x: recompute(torch.exp, "reader")(save(lambda x: x * 3, "producer")(x.sin())[1:].view(-1))
        )(x).sum().backward()
        return x.grad

    assert_same(program, checkpointed)


def test_075_a_result_that_lives_on_in_views_only():
    program = reads_by_pointer
    assert_same(program(lambda y: remat.recompute_needs_tensor(y.view(-1)[1:].view(2, 1))), checkpointed)

    def of_view(wrap):
        x = leaf(4)

        def fn(x):
            view = save(lambda x: x * 3, "producer")(x.sin()).view(2, 2)[1]
            return recompute(torch.exp, "reader")(view)

        wrap(fn)(x).sum().backward()
        return x.grad

    assert_same(of_view, checkpointed)


def metadata(tensor):
    return (
        tensor.shape, tensor.stride(), tensor.dtype, tensor.device, tensor.requires_grad, tensor.is_leaf,
        tensor.storage_offset(),
    )  # fmt: skip


@pytest.mark.parametrize("kept", [True, False])
def test_076_a_result_comes_back_with_its_metadata(kept):
    seen = []

    def call(x):
        return (x * 3).t(), x.detach().argmax()

    def fn(x):
        y, index = save(call, "a")(x.sin())
        if kept:
            y.exp()
        seen.append((metadata(y), metadata(index)))
        return x.cos()

    checkpointed(fn)(leaf(2, 3)).sum().backward()
    assert seen[0] == seen[1]
    assert seen[0][0][4:6] == (True, False)


def test_077_placeholders_have_views_and_raise_when_read():
    found = []

    def fn(x):
        y = save(lambda x: x * 3, "producer")(x.sin())
        if remat.is_recomputing():
            for view in (y.detach(), y.view(-1), y.t(), y[1:]):
                assert remat.is_placeholder(view)
            assert y.t().stride() == (1, 2)
            reads = [torch.sin, torch.clone, lambda y: y.add_(1), lambda y: y.data_ptr()]
            reads.append(lambda y: y.untyped_storage().data_ptr())
            for read in reads:
                with pytest.raises(RuntimeError, match="skipped during recompute"):
                    read(y.detach())
                found.append(read)
        return x.cos()

    checkpointed(fn)(leaf(3, 2)).sum().backward()
    assert len(found) == 5


def test_078_is_placeholder():
    seen = []

    def fn(x):
        y = save(lambda x: x * 3, "a")(x.sin())
        seen.append([remat.is_placeholder(t) for t in (y, y[1:], x, x.sin())])
        return x.cos()

    checkpointed(fn)(leaf(2)).sum().backward()
    assert seen == [[False] * 4, [True, True, False, False]]
