# SPDX-License-Identifier: BSD-3-Clause

"""Memory that is shared without an op, or written by a thread that the region does not see."""

import threading

import pytest
import torch
from programs import leaf
from same import assert_same

import remat_meta as remat

ENGINES = ("function", "tape", "auto")
ALIASES = {
    "dlpack": torch.from_dlpack,
    "numpy": lambda tensor: torch.from_numpy(tensor.numpy()),
    "part of an array": lambda tensor: torch.from_numpy(tensor.numpy()[1:]),
    "buffer": lambda tensor: torch.frombuffer(memoryview(tensor.numpy()), dtype=tensor.dtype),
}


def saved(fn):
    return remat.native_op(fn, policy=remat.CheckpointPolicy.SAVE, name="saved")


def write_alias(alias, x):
    h = x.detach() * 2
    alias(h).add_(1)
    return (x * h).sin()


def write_alias_of_a_saved_result(alias, x):
    h = saved(lambda x: x * 2)(x.detach())
    y = (x * h).sin()
    alias(h).add_(1)
    return y + (x * h).sin()


def write_alias_in_a_saved_call(alias, x):
    h = x.detach() * 2
    y = (x * h).sin()
    saved(lambda h: alias(h).add_(1).sum())(h)
    return y + (x * h).sin()


@pytest.mark.parametrize("replay", ENGINES)
@pytest.mark.parametrize("alias", ALIASES)
@pytest.mark.parametrize("write", (write_alias, write_alias_of_a_saved_result, write_alias_in_a_saved_call))
def test_a_write_by_way_of_another_tensor_on_what_the_region_made_raises(write, alias, replay):
    region = remat.checkpoint(region_name="shared", replay=replay)(lambda x: write(ALIASES[alias], x))
    with pytest.raises(NotImplementedError, match=r"region 'shared', op aten::add_.*share memory through ops.*clone"):
        region(leaf(4))


@pytest.mark.parametrize("replay", ENGINES)
@pytest.mark.parametrize("alias", ALIASES)
def test_reads_by_way_of_another_tensor_are_right(alias, replay):
    def reads(x):
        made, given = ALIASES[alias](x.detach() * 2), ALIASES[alias](x.detach())
        return (x * made.sum() * given.clone().add_(1).sum()).sin()

    def program(wrap):
        x = leaf(4)
        y = wrap(reads)(x)
        y.sum().backward()
        return y, x.grad

    assert_same(program, remat.checkpoint(replay=replay))


def in_a_thread(work):
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


THREADS = {
    "a result": lambda h: h.add_(1),
    "a view of it": lambda h: h[1:].mul_(3),
    "without a graph": lambda h: h.detach().zero_(),
}


@pytest.mark.parametrize("replay", ENGINES)
@pytest.mark.parametrize("first", (0, 3), ids=("always", "once the tape is trusted"))
@pytest.mark.parametrize("work", THREADS)
def test_what_another_thread_of_the_function_writes_is_right(work, first, replay):
    def steps(wrap):
        count, gradients = [0], []

        def fn(x):
            h = x.detach() * 2
            y = x * h.cos()
            if count[0] >= first:
                in_a_thread(lambda: THREADS[work](h))
                y = (y + h).sin()
                in_a_thread(lambda: THREADS[work](h))
            return (y * h).sin()

        region = wrap(fn)
        for count[0] in range(6):
            x = leaf(4)
            region(x).sum().backward()
            gradients.append(x.grad)
        return gradients

    assert_same(steps, remat.checkpoint(replay=replay, region_name=f"thread {work} {first}"))


class Halve(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x.mul_(0.5))
        return x

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 0.5


@pytest.mark.parametrize("replay", ENGINES)
def test_what_a_custom_function_marks_as_dirty_is_right(replay):
    def program(wrap):
        gradients = []
        region = wrap(lambda x, w: (Halve.apply(x.sin()) * Halve.apply(w * 3)).exp())
        for _ in range(4):
            x, w = leaf(4), torch.rand(4)
            region(x, w).sum().backward()
            gradients.append(x.grad)
        return gradients

    assert_same(program, remat.checkpoint(replay=replay))


def test_a_tape_lets_go_of_what_no_slot_needs():
    def fn(x):
        h = torch.zeros(1 << 18)
        in_a_thread(lambda: h.add_(1))
        return x.sin() * (h.sum() > 0)

    y = remat.checkpoint(replay="tape")(fn)(leaf(4))
    assert remat.memory_report().bytes < 1 << 10
    y.sum().backward()
