# SPDX-License-Identifier: BSD-3-Clause

"""Silent limits: values that no op shows."""

import io

import numpy as np
import pytest
import torch
from programs import leaf
from same import assert_same
from torch.utils._python_dispatch import TorchDispatchMode
from wrappers import Quantized

import remat_meta as remat

from .common import (
    MIB,
    OFFLOAD,
    SAVE,
    UNSEEN,
    Hidden,
    assert_raises,
    assert_silent,
    call,
    count,
    count_of,
    counted,
    in_a_thread,
    region,
)


def filled_by_numpy(number):
    tensor = torch.zeros(4)
    tensor.numpy()[:] = number
    return tensor


def test_s1_memory_that_an_op_has_filled_and_the_host_writes_is_not_compared():
    assert_silent(count_of(filled_by_numpy, 1.0, 2.0), region())


def test_s1_a_tape_notices_it_in_its_first_replay():
    assert_raises(count_of(filled_by_numpy, 1.0, 2.0), region("tape"), UNSEEN)


def by_numpy(y):
    y.detach().numpy()[:] = 3


def by_data(y):
    y.data.mul_(2)


def by_fused_step(y):
    rates = {"weight_decay": 0.0, "momentum": 0.0, "lr": 0.5, "dampening": 0.0}
    flags = {"nesterov": False, "maximize": False, "is_first_step": False}
    torch._fused_sgd_([y.detach()], [torch.ones(4)], [], **rates, **flags)


def by_batch_norm(y):
    with torch.no_grad():  # takes y for running statistics, and writes it
        torch.nn.functional.batch_norm(torch.randn(6, 4), y.detach(), torch.ones(4), training=True)


def written_after_the_region(write, is_gone, exp=torch.exp):
    """A program that writes the region's result after the region, and may release it."""

    def program(wrap):
        x, left = leaf(4), []

        def fn(x):
            y = exp(x.sin())
            left.append(y)
            return (y * y).cos()

        z = wrap(fn)(x)
        write(left[0])
        if is_gone:
            left.clear()
        z.sum().backward()
        return x.grad

    return program


@pytest.mark.parametrize("replay", ["function", "tape"])
@pytest.mark.parametrize("write", [by_numpy, by_data, by_fused_step])
def test_s2_s5_what_is_written_without_a_version_and_gone_in_backward_is_not_seen(write, replay):
    assert_silent(written_after_the_region(write, is_gone=True), region(replay))
    assert_raises(written_after_the_region(write, is_gone=False), region(replay), "expected memory that somebody else has")


@pytest.mark.parametrize("write", [by_numpy, by_data, by_fused_step])
def test_s3_s5_what_a_save_call_keeps_is_not_to_be_written_without_a_version(write):
    def kept(policy):
        return written_after_the_region(write, is_gone=False, exp=call(torch.exp, policy))

    assert_silent(kept(SAVE), region())
    assert_raises(kept(SAVE), region("tape"), UNSEEN)
    words = "expected memory that somebody else has"
    assert_raises(kept(OFFLOAD), region(offload_store=remat.host_memory_store()), words)


@pytest.mark.parametrize("is_gone", [False, True], ids=["still there", "gone"])
@pytest.mark.parametrize("replay", ["function", "tape"])
def test_m7_what_batch_norm_writes_outside_of_regions_raises(replay, is_gone):
    program = written_after_the_region(by_batch_norm, is_gone)
    assert_raises(program, region(replay), "native_batch_norm has written since, without a new version")


@pytest.mark.parametrize("requires_grad", [False, True], ids=["buffer", "parameter"])
def test_s4_a_few_elements_of_large_memory_may_be_written_by_way_of_data_unseen(requires_grad):
    def program(wrap):
        x, b = leaf(4), torch.ones(100_000, requires_grad=requires_grad)
        y = wrap(lambda x: (x * b.sum()).sin().exp().cos())(x)
        b.data[3] = 7
        y.sum().backward()
        return x.grad

    assert_silent(program, region())
    assert_raises(program, region("tape"), UNSEEN)


def wrapped_then_filled(size):
    def make(number):
        array = np.zeros(size, np.float32)
        tensor = torch.from_numpy(array)
        array[-1] = number
        return tensor.sum()

    return make


def test_s6_memory_of_the_host_of_more_than_1_mib_is_not_compared_after_it_was_wrapped():
    assert_silent(count_of(wrapped_then_filled(MIB // 4 + 100), 1.0, 2.0), region())
    program = count_of(wrapped_then_filled(MIB // 4), 1.0, 2.0)
    assert_raises(program, region(), "A number differs", remat.ReplayMismatch)


@pytest.mark.parametrize("requires_grad", [False, True], ids=["buffer", "leaf"])
def test_s7_memory_of_the_host_is_compared_as_a_whole_unless_it_is_a_leaf_that_requires_grad(requires_grad):
    def program(wrap):
        array, x = np.ones(5000, np.float32), leaf(4)
        wrapped = torch.from_numpy(array).requires_grad_(requires_grad)
        y = wrap(lambda x: (x * wrapped.sum()).sin().exp().cos())(x)
        array[3] = 7
        y.sum().backward()
        return x.grad

    if requires_grad:
        assert_silent(program, region())
    else:
        assert_raises(program, region(), "got other bytes: the host has written it")


def loaded(size):
    def file_with(number):
        tensor = torch.zeros(size)
        tensor[-1] = number
        with io.BytesIO() as file:
            torch.save(tensor, file)
            return file.getvalue()

    files = {number: file_with(number) for number in (1.0, 2.0)}
    return lambda number: torch.load(io.BytesIO(files[number])).sum()


def test_s8_what_torch_load_gives_is_compared_by_its_first_1_mib():
    assert_silent(count_of(loaded(MIB // 4 + 100), 1.0, 2.0), region())
    assert_raises(count_of(loaded(4), 1.0, 2.0), region(), "A number differs|It reads another", remat.ReplayMismatch)


def test_s10_an_opaque_tensor_that_is_exchanged_or_written_is_not_noticed():
    def exchanged(wrap):
        x, held = leaf(4, 4), [torch.randn(4, 4).to_mkldnn()]
        y = wrap(lambda x: (x * held[0].to_dense()).sin())(x)
        held[0] = torch.zeros(4, 4).to_mkldnn()
        y.sum().backward()
        return x.grad

    def written(wrap):
        x, opaque = leaf(4, 4), torch.randn(4, 4).to_mkldnn()
        y = wrap(lambda x: (x * opaque.to_dense()).sin())(x)
        opaque.mul_(2)
        y.sum().backward()
        return x.grad

    assert_silent(exchanged, region())
    assert_silent(written, region())
    assert_raises(exchanged, region("tape"), "memory that changes its size", NotImplementedError)


def test_s12_a_tensor_laid_on_a_captured_storage_and_overwritten_is_written_once_more():
    def program(wrap):
        x, captured = leaf(4), torch.zeros(4)

        def fn(x):
            torch.empty(0).set_(captured.untyped_storage()).copy_(torch.ones(4))
            return x.sin().exp()

        y = wrap(fn)(x)
        captured.fill_(7)
        y.sum().backward()
        return captured

    assert_silent(program, region())


def calls_of_count(wrap):
    x, counted[0] = leaf(4), 0
    wrap(lambda x: (x * count(x.detach())).sin())(x).sum().backward()
    return x.grad


def test_s13_an_op_that_counts_for_itself_computes_other_values_in_the_replay():
    assert_silent(calls_of_count, region())
    assert_raises(calls_of_count, region("tape"), UNSEEN)


@pytest.mark.parametrize("name", ["apply_", "map_"])
def test_s14_what_apply_and_map_compute_is_not_compared(name):
    def make(number):
        tensor = torch.ones(4)
        if name == "apply_":
            return tensor.apply_(lambda value: value * number)
        return tensor.map_(torch.ones(4), lambda a, b: a * number)

    assert_silent(count_of(make, 1.0, 2.0), region())


def test_s15_what_a_thread_writes_by_way_of_data_is_not_on_a_trusted_tape():
    def steps(first):
        def program(wrap):
            count, gradients = [0], []

            def fn(x):
                h = x.detach() * 2
                y = x * h.cos()
                if count[0] >= first:
                    in_a_thread(lambda: h.data.add_(1))
                return (y * h.exp()).sin()

            block = wrap(fn)
            for count[0] in range(4):
                x = leaf(4)
                block(x).sum().backward()
                gradients.append(x.grad)
            return gradients

        return program

    assert_same(steps(2), region())
    assert_silent(steps(2), remat.checkpoint(replay="tape", region_name="thread, later"))
    assert_raises(steps(0), remat.checkpoint(replay="tape", region_name="thread, at once"), UNSEEN)


def test_s17_without_a_determinism_check_numbers_are_not_compared():
    program = count_of(float, 1.0, 2.0)
    assert_silent(program, region(determinism_check="none"))
    assert_silent(count_of(lambda number: number + 0 * remat.is_recomputing(), 1.0, 2.0), region())


def test_s40_a_tensor_that_a_wrapper_has_in_a_closure_is_not_watched():
    def program(wrap):
        x, inner = leaf(4), torch.ones(4)
        hidden = Hidden(inner)
        y = wrap(lambda x: (x.detach() * hidden + x).sin())(x)
        inner.mul_(2)
        y.sum().backward()
        return x.grad

    assert_silent(program, region())


@torch.library.custom_op("remat_limits::doubled", mutates_args=(), schema="(Tensor(a) x) -> Tensor(a)")
def doubled(x):
    return x * 2


def test_s41_an_op_that_computes_what_its_schema_calls_a_view_is_no_read():
    def program(wrap):
        x, captured = leaf(4), torch.ones(4)
        y = wrap(lambda x: (x.detach() * doubled(captured) + x).sin())(x)
        captured.mul_(2)
        y.sum().backward()
        return x.grad

    assert_silent(program, region())
    assert_raises(program, region("tape"), "a copy where its schema says view", NotImplementedError)


def test_s42_a_tensor_in_a_wrapper_that_is_an_argument_may_be_exchanged_unseen():
    def program(wrap):
        x, w = leaf(4, 4), Quantized(torch.ones(4, 4, dtype=torch.int8), torch.tensor(1.0))
        y = wrap(lambda x, w: (x @ w).sin())(x, w)
        w.scale = torch.tensor(2.0)
        y.sum().backward()
        return x.grad

    assert_silent(program, region())


@pytest.mark.torch_warns  # nested tensors are a prototype
def test_s43_a_captured_nested_tensor_may_be_written_by_way_of_data_unseen():
    def program(wrap):
        x, nested = leaf(4, 4), torch.nested.nested_tensor([torch.ones(2, 4), torch.ones(2, 4)])
        y = wrap(lambda x: (x * nested.to_padded_tensor(0.0).reshape(4, 4)).exp().cos())(x)
        nested.data.zero_()
        y.sum().backward()
        return x.grad

    assert_silent(program, region())


class Scaling(Hidden):
    """A wrapper whose handler scales by an attribute of the class."""

    factor = 1.5

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return super().__torch_dispatch__(func, types, args, kwargs) * cls.factor


def test_s44_what_a_handler_does_by_a_state_of_its_own_is_not_compared(monkeypatch):
    def program(wrap):
        monkeypatch.setattr(Scaling, "factor", 1.5)
        x, w = leaf(4), Scaling(torch.ones(4))
        y = wrap(lambda x: ((x * w).sin() * x).exp().cos())(x)
        monkeypatch.setattr(Scaling, "factor", 3.0)
        y.sum().backward()
        return x.grad

    assert_silent(program, region())


class DoubledSines(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        return result * 2 if func is torch.ops.aten.sin.default else result


def test_s18_a_dispatch_mode_round_the_forward_alone_that_changes_values_is_not_in_the_replay():
    def program(wrap):
        x = leaf(4)
        with DoubledSines():
            y = wrap(lambda x: x.sin().exp().cos())(x)
        y.sum().backward()
        return x.grad

    assert_silent(program, region())
    assert_raises(program, region("tape"), UNSEEN)


def test_s19_a_grad_that_the_function_sets_of_a_tensor_that_it_does_not_read_loses_what_came_since():
    def program(wrap):
        x, w = leaf(4), leaf(4)

        def fn(x):
            y = x.sin()
            w.grad = None
            return y.exp()

        y = wrap(fn)(x)
        (w * 3).sum().backward()
        y.sum().backward()
        return torch.tensor(w.grad is None)

    assert_silent(program, region())
    assert_same(program, region("tape"))
