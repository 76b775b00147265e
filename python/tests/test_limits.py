# SPDX-License-Identifier: BSD-3-Clause

"""Limits of docs/limits.md that no other file shows, each under its id."""

import contextlib
import functools
import gc
import io
import itertools
import pathlib
import re
import subprocess
import sys
import textwrap
import threading
import weakref

import numpy as np
import pytest
import ranks
import torch
import torch.distributed as dist
from programs import Square, leaf
from same import assert_equal, assert_same, plain
from torch.distributed.tensor.debug import CommDebugMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode
from wrappers import Opaque, Passing, Quantized

import remat_meta as remat
from remat_meta import _C

SAVE, OFFLOAD = remat.CheckpointPolicy.SAVE, remat.CheckpointPolicy.OFFLOAD
MIB = 1 << 20
ANOTHER = "It reads another tensor than the forward did"
UNSEEN = "expected the values that the forward saved"
UNVERSIONED = "was written without a new version, through data"


numbers = itertools.count()


def region(replay="function", **options):
    """Each with a name of its own: a tape that is trusted is not compared again."""
    return remat.checkpoint(region_name=f"block {next(numbers)}", replay=replay, **options)


def copying():
    return torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor.clone(), lambda tensor: tensor)


def call(fn, policy=SAVE, name="call"):
    return remat.native_op(fn, name, policy)


def outcome(program, wrap):
    torch.manual_seed(7)
    return program(wrap)


def assert_silent(program, wrap):
    """Plain code gives something else, and nobody is told."""
    with pytest.raises(AssertionError):
        assert_equal(outcome(program, plain), outcome(program, wrap))


def assert_raises(program, wrap, words, error=RuntimeError):
    """Plain code runs."""
    outcome(program, plain)
    with pytest.raises(error, match=words):
        outcome(program, wrap)


def count_of(make, first, then):
    """A program whose function multiplies by make(first), and in a replay of it by make(then)."""

    def program(wrap):
        number, x = [first], leaf(4)
        y = wrap(lambda x: (x * make(number[0])).sin().exp())(x)
        number[0] = then
        y.sum().backward()
        return x.grad

    return program


def in_a_process(code):
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


# S: silent


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


def by_batch_norm(y):
    with torch.no_grad():  # y is taken for running statistics, and written
        torch.nn.functional.batch_norm(torch.randn(6, 4), y.detach(), torch.ones(4), training=True)


def written_after_the_region(write, is_gone, exp=torch.exp):
    """A program that writes what the region has returned and left outside, and may let go of it."""

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
@pytest.mark.parametrize("write", [by_numpy, by_data, by_batch_norm])
def test_s2_s5_what_is_written_without_a_version_and_gone_in_backward_is_not_seen(write, replay):
    assert_silent(written_after_the_region(write, is_gone=True), region(replay))
    assert_same(written_after_the_region(write, is_gone=False), region(replay))


@pytest.mark.parametrize("write", [by_numpy, by_data, by_batch_norm])
def test_s3_s5_what_a_save_call_keeps_is_not_to_be_written_without_a_version(write):
    def kept(policy):
        return written_after_the_region(write, is_gone=False, exp=call(torch.exp, policy))

    assert_silent(kept(SAVE), region())
    assert_raises(kept(SAVE), region("tape"), UNSEEN)
    assert_same(kept(OFFLOAD), region(offload_store=remat.host_memory_store()))


@pytest.mark.parametrize("requires_grad", [False, True], ids=["buffer", "parameter"])
def test_s4_a_few_elements_of_large_memory_may_be_written_by_way_of_data_unseen(requires_grad):
    def program(wrap):
        x, b = leaf(4), torch.ones(100_000, requires_grad=requires_grad)
        y = wrap(lambda x: (x * b.sum()).sin().exp())(x)
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
        y = wrap(lambda x: (x * wrapped.sum()).sin().exp())(x)
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


counted = [0]


@torch.library.custom_op("remat_limits::count", mutates_args=())
def count(x: torch.Tensor) -> torch.Tensor:
    counted[0] += 1
    return x * counted[0]


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


def in_a_thread(work):
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


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


class Hidden(torch.Tensor):
    """Has another tensor where nobody looks."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.size(), dtype=inner.dtype)

    def __init__(self, inner):
        self.get = lambda: inner

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return func(*[arg.get() if isinstance(arg, Hidden) else arg for arg in args], **(kwargs or {}))


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
        y = wrap(lambda x: (x * nested.to_padded_tensor(0.0).reshape(4, 4)).exp())(x)
        nested.data.zero_()
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


@pytest.mark.torch_warns  # that there is no GPU
def test_s21_kernels_of_inductor_write_a_captured_tensor_once_more():
    torch._dynamo.reset()
    buffer = torch.zeros(4)
    compiled = torch.compile(lambda x: (buffer.add_(1), (x * 2).sin())[1])
    compiled(leaf(4)).sum().backward()  # compiles

    def times_written(replay):
        buffer.zero_()
        y = region(replay)(lambda x: compiled(x).exp())(leaf(4))
        with contextlib.suppress(remat.ReplayMismatch):
            y.sum().backward()
        return buffer[0].item()

    assert (times_written("function"), times_written("tape")) == (2, 1)
    torch._dynamo.reset()


@pytest.mark.parametrize("replay", ["function", "tape"])
def test_s22_hooks_that_a_function_opens_are_not_called_for_what_runs_again(replay):
    def program(wrap):
        x, packed = leaf(4), []

        def fn(x):
            with torch.autograd.graph.saved_tensors_hooks(lambda t: packed.append(0) or t, lambda t: t):
                return x.sin().exp()

        wrap(fn)(x).sum().backward()
        return torch.tensor(len(packed))

    assert outcome(program, plain).item() == 2
    assert outcome(program, region(replay)).item() == 0


def test_s23_hooks_inside_that_give_other_strides_may_change_last_bits_of_plain_code():
    def program(wrap):
        x = leaf(257, 129)

        def fn(x):
            contiguous = torch.autograd.graph.saved_tensors_hooks(lambda t: t.contiguous().clone(), lambda t: t)
            with contiguous:
                h = x.sin()[:, 5:77].t()
                return (h.sum(0) * h).sum()

        wrap(fn)(x).backward()
        return x.grad

    torch.testing.assert_close(outcome(program, plain), outcome(program, region()))
    assert_silent(program, region())


def test_s24_hooks_that_give_tensors_back_as_they_are_may_change_last_bits_of_plain_double_backward():
    def program(wrap):
        x = leaf(4)

        def fn(x):
            with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t):
                h = x * 1
                h[:2].exp_()
                return h.sin()

        (gradient,) = torch.autograd.grad(wrap(fn)(x).sum(), x, create_graph=True)
        gradient.sum().backward()
        return x.grad

    torch.testing.assert_close(outcome(program, plain), outcome(program, region()))
    assert_silent(program, region())


def test_s25_hooks_run_twice_where_a_save_call_of_the_region_sets_one_too():
    def program(wrap):
        w, u, x, calls = leaf(4), leaf(4), leaf(4), []
        h = w * 2

        def fn(x):
            y = call(lambda x: (u.register_hook(lambda grad: None), x.sin())[1])(x)
            h.register_hook(lambda grad: calls.append(0))
            h.grad_fn.register_hook(lambda given, got: calls.append(0))
            return (y * 2).exp()

        wrap(fn)(x).sum().backward()
        h.sum().backward()
        return torch.tensor(len(calls))

    assert (outcome(program, plain).item(), outcome(program, region()).item()) == (2, 4)


def test_s27_a_hook_replaced_on_a_captured_tensor_that_the_region_writes_is_lost():
    def program(wrap):
        w, x, handles = leaf(4), leaf(4), []
        h = w * 2

        def fn(x):
            while handles:
                handles.pop().remove()
            handles.append(h.register_hook(lambda grad: grad * 3))
            h.mul_(2)
            return (x * h).exp()

        for _ in range(2):
            y = wrap(fn)(x)
        y.sum().backward()
        return w.grad

    assert_silent(program, region())


def test_s29_a_hook_on_a_node_that_is_set_after_a_backward_inside_is_not_noticed():
    def program(wrap):
        x, w = leaf(4), leaf(4)
        h = w * 2

        def fn(x):
            (h * h * x).sum().backward(inputs=[w], retain_graph=True)
            return (x * w.grad.detach()).sin()

        y = wrap(fn)(x)
        h.grad_fn.register_prehook(lambda grads: (grads[0] * 4,))
        y.sum().backward()
        return x.grad

    assert outcome(program, plain).shape == (4,)
    assert_silent(program, region())


def test_s30_what_plain_statements_would_put_back_stays_where_a_replay_has_stopped():
    def program(wrap):
        x, state = leaf(4), [0]

        def fn(x):
            state[0] = 1
            y = x.exp()
            z = x * 2
            state[0] = 0
            return y + z.detach()

        wrap(fn)(x).sum().backward()
        return torch.tensor(state)

    assert_silent(program, region())
    assert_same(program, region(early_stop=False))
    assert_same(program, region("tape"))


def test_s31_what_the_function_leaves_behind_is_left_twice():
    def program(wrap):
        x, calls = leaf(4), []
        wrap(lambda x: (calls.append(0), x.sin().exp())[1])(x).sum().backward()
        return torch.tensor(len(calls))

    assert outcome(program, region()).item() == 2
    assert_same(program, region("tape"))


def test_s32_a_tensor_that_is_assigned_outside_has_its_retained_grad_with_a_tape_only():
    def program(wrap):
        x, left = leaf(4), {}

        def fn(x):
            left["h"] = x.sin()
            left["h"].retain_grad()
            return left["h"].exp()

        wrap(fn)(x).sum().backward()
        return torch.tensor(left["h"].grad is not None)

    assert_silent(program, region())
    assert_same(program, region("tape"))


def test_s33_a_handler_of_all_exceptions_meets_the_stop():
    def program(wrap):
        x, met = leaf(4), []

        def fn(x):
            try:
                return x.exp() * 3
            except BaseException:
                met.append(0)
                raise

        wrap(fn)(x).sum().backward()
        return torch.tensor(len(met))

    assert (outcome(program, plain).item(), outcome(program, region()).item()) == (0, 1)
    assert_same(program, region(early_stop=False))


class WritesItsSaved(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x * 2)
        return x * x

    @staticmethod
    def backward(ctx, grad):
        (saved,) = ctx.saved_tensors
        result = saved * grad
        saved.data.mul_(0.5)
        return result


@pytest.mark.parametrize("replay", ["function", "tape"])
def test_s34_what_a_backward_writes_to_a_saved_tensor_by_way_of_data_is_not_there_the_next_time(replay):
    def program(wrap):
        x = leaf(4)
        y = wrap(lambda x: WritesItsSaved.apply(x.sin()))(x).sum()
        y.backward(retain_graph=True)
        y.backward()
        return x.grad

    assert_silent(program, region(replay))


class ReturnsAViewOfItsSaved(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(w)
        return (x * w).sum()

    @staticmethod
    def backward(ctx, grad):
        (w,) = ctx.saved_tensors
        return w.view(-1).view_as(w), None


@pytest.mark.parametrize("replay", ["function", "tape"])
def test_s35_a_gradient_that_is_a_view_of_a_saved_weight_has_memory_of_its_own(replay):
    def program(wrap):
        x, w = leaf(4), leaf(4)
        wrap(lambda z: ReturnsAViewOfItsSaved.apply(x, w) * z)(torch.ones(())).backward()
        x.grad.mul_(10)
        return w

    assert_silent(program, region(replay))


@pytest.mark.parametrize("change", ["number", "tensor"])
def test_s38_without_interception_what_has_changed_is_not_noticed(change):
    def program(wrap):
        x, w, count = leaf(4), torch.ones(4), [0]

        def fn(x):
            count[0] += 1
            return (x + (count[0] if change == "number" else w)).sin()

        y = wrap(fn)(x)
        if change == "tensor":
            w.add_(1)
        y.sum().backward()
        return x.grad

    assert_silent(program, region(intercept=False))
    with pytest.raises(RuntimeError):
        program(region())


def test_s39_without_the_state_of_generators_a_replay_draws_other_numbers():
    def program(wrap):
        x = leaf(4)
        wrap(lambda x: x * torch.rand(4))(x).sum().backward()
        return x.grad

    assert_silent(program, region(preserve_rng_state=False))


# M: memory changed or shared without an op


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


# W: writes to tensors from outside


def writes(write, *shape):
    """`write(buffer, x)` in a region that then reads the buffer."""

    def program(wrap):
        x, buffer = leaf(*shape), torch.zeros(shape)
        wrap(lambda x: (write(buffer, x.detach()), (x * buffer).exp())[1])(x).sum().backward()
        return x.grad

    return program


def test_w3_an_empty_tensor_that_an_out_op_resizes_raises():
    def program(wrap):
        x, buffer = leaf(4), torch.empty(0)
        wrap(lambda x: (torch.mul(x.detach(), 2, out=buffer), (x * buffer).exp())[1])(x).sum().backward()
        return x.grad

    assert_raises(program, region(), "A shape differs", remat.ReplayMismatch)
    assert_same(program, region("tape"))


@pytest.mark.torch_warns  # that it resizes
def test_w5_a_matmul_of_vectors_into_a_tensor_from_outside_changes_its_shape():
    program = writes(lambda buffer, x: torch.matmul(x, torch.ones(4, 4), out=buffer), 4)
    assert_raises(program, region(), "expected in-place ops that write data only", NotImplementedError)


def test_w6_a_tensor_that_is_an_argument_and_captured_and_is_written_raises():
    def program(wrap):
        w, x = leaf(4), torch.zeros(4)
        wrap(lambda a: (x.add_(w), (a * w).exp())[1])(x).sum().backward()
        return w.grad

    assert_raises(program, region(), "requires_grad differs", remat.ReplayMismatch)
    assert_same(program, region("tape"))


def test_w7_a_custom_function_that_gets_a_captured_tensor_before_a_write_raises():
    def program(wrap):
        x, buffer = leaf(4), torch.zeros(4)

        def fn(x):
            y = Square.apply(buffer)
            buffer.add_(x)
            return (x * buffer + y).sin()

        wrap(fn)(x).sum().backward()
        return x.grad

    assert_raises(program, region(), "It was saved between other ops")
    assert_same(program, region("tape"))


def test_w10_a_nested_region_hands_torchs_checkpoint_a_captured_tensor_that_it_has_written():
    def program_with(checkpoint):
        def program(wrap):
            def outer(x):
                def inner(x):
                    h.select(0, 1).mul_(2)
                    return checkpoint(lambda h: (h.sin() * 0.5).exp().tanh().neg(), h)

                wrap(inner)(x)
                return x.sin()

            w = leaf(4, 4)
            h = w.exp() * 2
            wrap(outer)(w).sum().backward()
            return w.grad

        return program

    of_torch = functools.partial(torch.utils.checkpoint.checkpoint, use_reentrant=False)
    assert_raises(program_with(of_torch), region(), "It was saved between other ops")
    assert_same(program_with(of_torch), region("tape"))
    assert_same(program_with(lambda fn, h: region()(fn)(h)), region())


class Halved(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x.mul_(0.5))
        return x

    @staticmethod
    def backward(ctx, grad):
        return grad * 0.5


def test_w8_a_custom_function_that_marks_a_captured_tensor_as_dirty_raises():
    def program(wrap):
        x, h = leaf(4), leaf(4) * 2
        wrap(lambda x: (Halved.apply(h) * x).exp())(x).sum().backward()
        return x.grad

    assert_raises(program, region(), "modified by an inplace operation.*expected the tensor as the forward saved it")
    assert_same(program, region("tape"))


@pytest.mark.parametrize("replay", ["function", "tape"])
def test_w9_allow_mutation_on_saved_tensors_is_not_followed(replay):
    def program(wrap):
        x = leaf(4)
        with torch.autograd.graph.allow_mutation_on_saved_tensors():
            h = x * 2
            y = wrap(lambda h: h.sin().exp())(h)
            h.mul_(3)
            y.sum().backward()
        return x.grad

    assert_raises(program, region(replay), "modified by an inplace operation.*tensor argument 0")


# B: a backward inside the region


def test_b1_a_grad_that_was_not_empty_and_is_read_after_a_backward_inside_raises():
    def program(wrap):
        x, w = leaf(4), leaf(4)
        w.grad = torch.ones(4)
        wrap(lambda x: ((w * w).sum().backward(), (x * w.grad).sin())[1])(x).sum().backward()
        return x.grad

    assert_raises(program, region(), ANOTHER, remat.ReplayMismatch)


def test_b4_a_gradient_in_a_nested_region_by_a_tensor_that_it_has_written_raises():
    def program(wrap):
        x = leaf(4)

        def outer(x):
            h = x * 1.5

            def inner(a):
                a.mul_(2)
                (g,) = torch.autograd.grad((h * a).sum(), h, retain_graph=True)
                return (a * g).sin()

            return wrap(inner)(h).exp()

        wrap(outer)(x).sum().backward()
        return x.grad

    assert_raises(program, region(), "expected the gradients that it gave in the forward", remat.ReplayMismatch)


def test_b5_a_gradient_through_a_custom_function_of_a_captured_tensor_that_was_written_raises():
    def program(wrap):
        x, buffer = leaf(4), torch.ones(4)

        def fn(x):
            buffer.copy_(x.sin())
            (g,) = torch.autograd.grad(Square.apply(buffer).sum(), buffer, retain_graph=True)
            return (x * g).sin()

        wrap(fn)(x).sum().backward()
        return x.grad

    assert_raises(program, region(), "reaches the graph of the forward", NotImplementedError)


def test_b6_a_function_that_asks_requires_grad_of_what_its_write_has_changed_raises():
    def program(wrap):
        x, buffer = leaf(4), torch.ones(4)

        def fn(x):
            y = x.sin() if buffer.requires_grad else x.cos()
            buffer.copy_(x.sin())
            return (y * buffer).exp()

        wrap(fn)(x).sum().backward()
        return x.grad

    assert_raises(program, region(), "The function branches on state", remat.ReplayMismatch)
    assert_same(program, region("tape"))


def test_b7_a_gradient_edge_of_a_captured_tensor_that_was_written_raises():
    def program(wrap):
        x, h = leaf(4), leaf(4) * 2

        def fn(x):
            h.mul_(x.detach())
            edge = torch.autograd.graph.get_gradient_edge(h)
            (g,) = torch.autograd.grad((h * h).sum(), edge, retain_graph=True)
            return (x * g).sin()

        wrap(fn)(x).sum().backward()
        return x.grad

    assert_raises(program, region(), "differentiated Tensors appears to not have been used")


class SavedGradient(torch.autograd.Function):
    """Its gradient is a tensor that it has saved."""

    @staticmethod
    def forward(ctx, x):
        y = x.exp()
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, grad):
        return ctx.saved_tensors[0]


@pytest.mark.parametrize("how", ["policy", "hooks"])
def test_b10_a_gradient_inside_that_is_a_saved_tensor_raises(how):
    def fn(x):
        (g,) = torch.autograd.grad(SavedGradient.apply(x).sum(), x, retain_graph=True)
        return (g * x).exp()

    inner = region(policy=["aten::mul"]) if how == "policy" else region()
    with copying() if how == "hooks" else contextlib.nullcontext():
        y = region()(lambda x: inner(fn)(x * 2).cos())(leaf(4))
    with pytest.raises(remat.ReplayMismatch, match="It reads another tensor that the function makes"):
        y.sum().backward()


def test_b11_a_grad_to_which_a_save_call_and_other_code_add_raises():
    def program(wrap):
        x, w = leaf(4), leaf(4)

        def fn(x):
            y = call(lambda x: ((w * w).sum().backward(), x * 1)[1])(x)
            (w * w * w).sum().backward()
            return y.sin()

        wrap(fn)(x).sum().backward()
        return x.grad

    words = "expected tensors that the function makes or that SAVE calls return"
    assert_raises(program, region(), words, NotImplementedError)


def test_b12_a_function_that_reads_what_a_node_has_saved_raises():
    def program(wrap):
        x = leaf(4)

        def fn(x):
            y = x.exp()
            return (x * y.grad_fn._saved_result).sin()

        wrap(fn)(x).sum().backward()
        return x.grad

    assert_raises(program, region(), "expected backwards through the graph of the forward")
    assert_same(program, region("tape"))


# H: hooks


def test_h4_a_pack_hook_that_throws_in_a_save_call_and_is_caught_raises():
    def program(wrap):
        x = leaf(4)

        def full(tensor):
            raise ValueError("disk full")

        def fn(x):
            h = x.sin()
            with contextlib.suppress(ValueError):
                with torch.autograd.graph.saved_tensors_hooks(full, lambda tensor: tensor):
                    h = call(lambda h: h.exp().sin(), OFFLOAD)(h)
            return h.exp()

        wrap(fn)(x).sum().backward()
        return x.grad

    assert_raises(program, region(), "expected the exception that it threw in the forward", remat.ReplayMismatch)
    assert_same(program, region("tape"))


def test_h6_an_argument_that_hooks_bring_back_has_another_storage_offset():
    def program(wrap):
        x = leaf(64)
        with copying() if wrap is not plain else contextlib.nullcontext():
            y = wrap(lambda a: (a * 2 if a.storage_offset() else a + 1).sin())((x * 2)[16:32])
        y.sum().backward()
        return x.grad

    assert_raises(program, region(), "The function branches on state", remat.ReplayMismatch)
    assert_same(program, region("tape"))


def test_h7_a_backward_where_saved_tensor_hooks_are_disabled_raises():
    def program(wrap):
        x = leaf(4)
        y = wrap(lambda x: x.sin().exp())(x)
        with torch.autograd.graph.disable_saved_tensors_hooks("none here"):
            y.sum().backward()
        return x.grad

    assert_raises(program, region(), "got the end of the function", remat.ReplayMismatch)
    assert_same(program, region("tape"))


# A: modes, autocast and settings


def test_a1_comm_debug_mode_round_the_backward_alone_forbids_writes_to_what_modules_return():
    def program(wrap):
        net, x = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(inplace=True)), leaf(4, 4)
        y = wrap(net)(x)
        with CommDebugMode():
            y.sum().backward()
        return x.grad

    assert_raises(program, region(), "is a view and is being modified inplace")
    assert_same(program, region("tape"))


def test_a2_flop_counter_mode_in_a_function_and_comm_debug_mode_round_the_forward_raise():
    def program(wrap):
        net, x = torch.nn.Linear(4, 4), leaf(4, 4)

        def fn(x):
            with FlopCounterMode(display=False):
                return net(x).sin()

        with CommDebugMode():
            y = wrap(fn)(x)
        y.sum().backward()
        return x.grad

    assert_raises(program, region(), "leave the hooks of arguments and captured tensors", NotImplementedError)


def flop_counter_mode():
    return FlopCounterMode(display=False)


def counts_where_the_function_goes_backward(mode, round_forward):
    def program(wrap):
        x = leaf(4, 4)
        net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 4))

        def fn(x):
            with contextlib.nullcontext() if round_forward else mode():
                z = x * 2
                h = net(z)
                (g,) = torch.autograd.grad(h.sin().sum(), z, retain_graph=True)
                return (h * g).sin()

        with mode() if round_forward else contextlib.nullcontext():
            y = wrap(fn)(x)
        y.sum().backward()
        return x.grad

    return program


def test_a3_a_mode_that_counts_by_hooks_in_a_function_that_goes_backward_raises():
    program = counts_where_the_function_goes_backward(CommDebugMode, round_forward=False)
    assert_raises(
        program, region(), "expected to pass 8 hooks on gradients as in the forward, got 0", remat.ReplayMismatch
    )


@pytest.mark.parametrize("mode", [flop_counter_mode, CommDebugMode])
def test_a4_such_a_mode_round_the_forward_alone_of_a_function_that_goes_backward_raises(mode):
    program = counts_where_the_function_goes_backward(mode, round_forward=True)
    assert_raises(
        program, region(), "expected to pass 8 hooks on gradients as in the forward, got 0", remat.ReplayMismatch
    )


@pytest.mark.parametrize("place", ["forward", "backward"])
def test_a5_a_mode_round_one_pass_alone_and_a_policy_that_keeps_views_raise(place):
    def program(wrap):
        x = leaf(3, 4)
        with Passing() if place == "forward" else contextlib.nullcontext():
            y = wrap(lambda x: torch.einsum("ij,kj->ik", x.sin(), x.cos()).exp())(x)
        with Passing() if place == "backward" else contextlib.nullcontext():
            y.sum().backward()
        return x.grad

    assert_raises(program, region(policy=["aten::view"]), "call 'aten::view#1' .SAVE.", remat.ReplayMismatch)
    assert_same(program, region())


def test_a6_a_cache_of_casts_that_a_function_that_goes_backward_asks_for_raises():
    def program(wrap):
        x, w = leaf(4, 4), leaf(4, 4)

        def fn(x):
            with torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=True):
                (g,) = torch.autograd.grad((x @ w).float().sum(), w, retain_graph=True)
                return (x @ w).float().sin() + g.sum()

        wrap(fn)(x).sum().backward()
        return x.grad

    assert_raises(program, region(), "It reads a cast of another parameter", remat.ReplayMismatch)


def test_a7_a_profiler_that_records_shapes_prints_that_it_cannot_read_placeholders():
    printed = in_a_process("""
        import torch
        import remat_meta as remat

        def fn(x):
            remat.native_op(lambda x: x * 2, "call", remat.CheckpointPolicy.SAVE)(x).view(2, 2)
            return x.sin().exp()

        x = torch.randn(4, requires_grad=True)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True):
            remat.checkpoint()(fn)(x).sum().backward()
        print("right", torch.equal(x.grad, x.detach().cos() * x.detach().sin().exp()))
    """)
    assert "right True" in printed
    assert "Exception in RecordFunction callback: [placeholder]" in printed


# C: tensor classes


@pytest.mark.parametrize("make", [Opaque, lambda tensor: torch.ones_like(Opaque(tensor))], ids=["c1", "c2"])
def test_c1_c2_a_wrapper_that_the_function_makes_raises_in_the_replay(make):
    def program(wrap):
        x = leaf(4)
        wrap(lambda x: (x * (make(torch.ones(4)) * 2).inner).sin())(x).sum().backward()
        return x.grad

    assert_raises(program, region(), ANOTHER, remat.ReplayMismatch)
    words = "got op aten::mul.Tensor: a tensor of a Python class of its own"
    assert_raises(program, region("tape"), words, NotImplementedError)


@pytest.mark.torch_warns  # that compressed layouts are new
@pytest.mark.parametrize("name", ["zeros_like", "full_like"])
def test_c5_zeros_like_of_a_compressed_sparse_tensor_raises(name):
    def program(wrap):
        x, sparse = leaf(4), torch.eye(4).to_sparse_csr()
        make = {"zeros_like": torch.zeros_like, "full_like": lambda t: torch.full_like(t, 2.0)}[name]
        wrap(lambda x: (make(sparse), x.sin().exp())[1])(x).sum().backward()
        return x.grad

    words = {"zeros_like": ANOTHER, "full_like": "expected in-place ops on strided tensors from outside"}[name]
    with pytest.raises((remat.ReplayMismatch, NotImplementedError), match=words):
        outcome(program, region())


@pytest.mark.torch_warns  # that nested tensors are new
def test_c6_a_jagged_nested_tensor_that_the_function_makes_raises():
    def program(wrap):
        x = leaf(4, 8)

        def fn(x):
            parts = [torch.ones(3, 8), torch.ones(5, 8)]
            return (x.sum() * torch.nested.nested_tensor(parts, layout=torch.jagged)).sin().values()

        wrap(fn)(x).sum().backward()
        return x.grad

    assert_raises(program, region(), "returned an invalid gradient|as in the forward, got")
    assert_same(program, region("tape"))


def test_n11_the_result_of_a_kept_attention_is_written_by_the_outer_region():
    def program(wrap):
        x, w = leaf(1, 4, 4), leaf(1, 4, 4)

        def attention(x):
            y = torch.nn.functional.scaled_dot_product_attention(w, x, w)
            w.sin()
            return y

        def block(x):
            y = (attention if wrap is plain else region(policy="save_matmuls")(attention))(x)
            y += x
            return y.sin()

        wrap(block)(x).sum().backward()

    assert_raises(program, region(), "expected in-place ops that autograd notices", NotImplementedError)


class Dequantized(Hidden):
    """detach() gives a plain tensor."""


def test_c7_a_class_whose_detach_is_plain_raises_in_a_nested_region():
    def program(wrap):
        x = leaf(4, 4)
        wrap(lambda *given: wrap(lambda x, w: (x @ w).sin())(*given))(x, Dequantized(torch.ones(4, 4))).sum().backward()
        return x.grad

    assert_raises(program, region(), r"expected float32 \[4, 4\] on cpu as in the forward, got")


# N: named calls and policies


class SavesAWrapper(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(Opaque(x.detach()))
        return torch.ones(4)

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.saved_tensors[0].inner


def test_n1_a_kept_result_that_a_custom_function_saves_in_a_subclass_is_a_placeholder():
    def program(wrap):
        x = leaf(4)
        wrap(lambda x: SavesAWrapper.apply(call(lambda x: x * 2)(x)).exp())(x).sum().backward()
        return x.grad

    assert_raises(program, region(), r"\[placeholder\] slot 'call' .*expected a use of its shape only")
    assert_same(program, region("tape"))


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
            x @ w  # fills the cache
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

    words = "slot 'aten::_pack_padded_sequence#0'.*got a read of its memory"
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


# T: tapes and cuts


def test_t1_a_nested_tape_under_autocast_that_reads_a_part_of_a_weight_raises():
    w = torch.nn.Parameter(torch.randn(2, 4, 4))

    def rows(h):
        return torch.bmm(h[None].expand(2, 4, 4), w)[0]

    def outer(x):
        return region("tape")(lambda h: rows(h).sin() @ w[0])(rows(x).sin()).exp()

    x = leaf(4, 4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rows(x)  # fills the cache
        y = region()(outer)(x)
    with pytest.raises(RuntimeError, match=r"expected uint8 \[|as in the forward, got"):
        y.float().sum().backward()


@pytest.mark.parametrize("how", ["gets", "captures"])
def test_t2_a_nested_tape_of_an_argument_that_came_back_from_hooks_raises(how):
    def outer(a):
        if how == "gets":
            return region("tape")(lambda b: b.sin().exp())(a).sin()
        return region("tape")(lambda b: (a * b).sin().exp())(a.cos()).sin()

    with copying():
        y = region()(outer)((leaf(8, 16) * 2)[1:])
    with pytest.raises(RuntimeError, match=r"expected uint8 \[512\] on cpu as in the forward, got float32"):
        y.sum().backward()


def test_t4_memory_that_nobody_has_written_in_a_tape_inside_a_tape_is_compared():
    def inner(x):
        memory = torch.empty(8)
        memory[:4].copy_(x.detach())
        memory[4:6] = 1.0
        return (x * memory[:4]).sin() * memory[:6].sum()

    def step():
        held = [torch.full((8,), 3.0) for _ in range(50)]  # what freed memory has in it
        del held
        y = region("tape")(lambda x: region("tape", policy=["aten::copy_"])(inner)(x * 2).cos())(leaf(4))
        held = [torch.full((8,), 5.0) for _ in range(50)]
        del held
        y.sum().backward()

    with pytest.raises(RuntimeError, match=UNSEEN):
        for _ in range(5):
            step()


def test_t5_cuts_of_a_first_call_may_be_too_late_for_a_second_one_under_autocast():
    w = torch.nn.Parameter(torch.randn(4, 4))
    block = region("tape", cuts=remat.Cuts([3]))(lambda x: x.sin() @ w)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        block(leaf(4, 4))  # its record 2 is the cast of w
        with pytest.raises(
            ValueError, match=r"cuts.positions\[0\]: expected a record that the function has after its first"
        ):
            block(leaf(4, 4))


def test_t6_a_cut_region_inside_one_that_calls_its_function_again_is_cut_elsewhere_under_autocast():
    x, w = leaf(4, 4), torch.nn.Parameter(torch.randn(4, 4))
    cut = region("tape", cuts=remat.Cuts([2]))(lambda x: ((x.sin() @ w).exp() @ w).sin())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        x @ w  # fills the cache
        y = region()(lambda x: cut(x.cos()).sin())(x)
    with pytest.raises(RuntimeError, match="It was saved between other ops"):
        y.float().sum().backward()


def test_t7_memory_that_the_function_exchanges_and_gives_back_raises_with_a_tape():
    def program(wrap):
        x, w, other = leaf(4, 4), leaf(4, 4), torch.randn(4, 4)

        def fn(x):
            whole, w.data = w.data, other
            y = torch.nn.functional.linear(x, w)
            w.data = whole
            return y.exp()

        wrap(fn)(x).sum().backward()
        return x.grad, w.grad

    assert_same(program, region())
    assert_raises(program, region("tape"), "expected the memory that it had in the forward, got other memory", RuntimeError)


@pytest.mark.torch_warns  # nested tensors are a prototype
def test_t8_a_jagged_tensor_catches_the_refusal_of_a_strict_tape():
    linear = torch.nn.Linear(8, 8)

    def attention(nested):
        q = linear(nested).unflatten(-1, (2, 4)).transpose(1, 2)
        return torch.nn.functional.scaled_dot_product_attention(q, q, q).transpose(1, 2).flatten(-2)

    def program(wrap):
        rows = [torch.randn(n, 8) for n in (3, 5, 2)]
        nested = torch.nested.nested_tensor(rows, layout=torch.jagged, requires_grad=True)
        wrap(attention)(nested).values().sum().backward()

    assert_raises(program, region("tape"), "they must be contiguous|expected what a tape can replay")


# P: what the function does again


def test_p1_the_first_call_of_a_lazy_module_raises():
    def program(wrap):
        x, module = leaf(4), torch.nn.LazyLinear(3)
        wrap(lambda x: module(x).sin())(x).sum().backward()
        return x.grad

    assert_raises(program, region(), "The function branches on state", remat.ReplayMismatch)
    assert_same(program, region("tape"))


def test_p2_an_attribute_of_a_plain_tensor_argument_is_not_there_in_the_replay():
    def program(wrap):
        w = leaf(4)
        x = w * 1
        x.scale = 3.0
        wrap(lambda x: (x * x.scale).sin())(x).sum().backward()
        return w.grad

    assert_raises(program, region(), "has no attribute 'scale'", AttributeError)
    assert_same(program, region("tape"))


def test_p3_the_state_of_generators_as_data_is_that_of_the_replay():
    def program(wrap):
        x = leaf(4)
        torch.manual_seed(3)
        y = wrap(lambda x: (x * float(torch.initial_seed())).sin())(x)
        torch.manual_seed(4)
        y.sum().backward()
        return x.grad

    assert_raises(program, region(), "A number differs", remat.ReplayMismatch)
    assert_same(program, region("tape"))


def test_p4_a_cache_that_is_filled_before_and_left_before_backward_raises():
    class Sine(torch.nn.Module):
        def forward(self, weight):
            return weight.sin()

    def program(wrap):
        x, module = leaf(4), torch.nn.Linear(4, 4)
        torch.nn.utils.parametrize.register_parametrization(module, "weight", Sine())
        with torch.nn.utils.parametrize.cached():
            module.weight  # fills it
            y = wrap(lambda x: module(x).sin())(x)
        y.sum().backward()
        return x.grad

    assert_raises(program, region(), "The function branches on state", remat.ReplayMismatch)
    assert_same(program, region("tape"))


def test_p4_a_cache_that_a_region_fills_and_that_stays_raises():
    def program(wrap):
        x, module = leaf(4), torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(4, 4))
        with torch.nn.utils.parametrize.cached():
            if is_filled:
                module.weight  # fills it
            wrap(lambda x: module(x).exp())(x).sum().backward()
        return x.grad

    is_filled = False
    assert_raises(program, region(), "the function branches on state", remat.ReplayMismatch)
    assert_same(program, region("tape"))
    is_filled = True
    assert_same(program, region())


def test_p6_a_generator_that_the_function_makes_cannot_be_named():
    def program(wrap):
        x = leaf(4)
        wrap(lambda x: x * torch.rand(4, generator=torch.Generator().manual_seed(1)))(x).sum().backward()

    assert_raises(program, region(), "expected a default generator or one of", NotImplementedError)


def test_p7_the_first_batch_of_an_observer_is_refused():
    def program(wrap):
        x, observer = leaf(4, 4), torch.ao.quantization.default_fused_per_channel_wt_fake_quant()
        wrap(lambda x: observer(x) * 2)(x).sum().backward()

    assert_raises(program, region(), "to keep its size, got a storage of", NotImplementedError)


def test_p8_an_argument_that_is_handed_through_is_not_written_before_backward():
    def program(wrap):
        x, w = leaf(4), leaf(4)
        y, h = wrap(lambda h, w: (w.exp(), h))(x * 1.0, w)
        h += y
        h.sum().backward()
        return x.grad, w.grad

    assert_raises(program, region(), "expected the argument as the forward got it", RuntimeError)
    assert_same(program, region("tape"))


# D: threads, processes, distributed


@pytest.mark.skipif(not dist.is_available() or not dist.is_gloo_available(), reason="needs gloo")
@pytest.mark.parametrize(
    "check",
    [
        "s20_under_offload_the_value_from_before_a_collective_is_used",
        "d6_collectives_that_differentiate_have_no_strict_tape_and_are_right_without",
    ],
)
def test_s20_d6_on_two_ranks(check):
    ranks.assert_right("limit_checks", 2, check)


def test_d1_a_thread_of_the_function_gets_a_placeholder_in_the_replay():
    def program(wrap):
        x, errors = leaf(4), []

        def fn(x):
            h = call(lambda x: x * 2)(x)

            def work():
                try:
                    h.sum()
                except RuntimeError as error:
                    errors.append(str(error))

            in_a_thread(work)
            return x.sin().exp()

        wrap(fn)(x).sum().backward()
        return errors

    assert outcome(program, plain) == []
    (error,) = outcome(program, region())
    assert error.startswith("[placeholder] slot 'call' (SAVE)")


def test_d3_a_tensor_that_another_thread_makes_inside_the_region_raises():
    def program(wrap):
        x = leaf(4)

        def fn(x):
            made = []
            in_a_thread(lambda: made.append(torch.ones(4)))
            return (x * made[0]).sin()

        wrap(fn)(x).sum().backward()
        return x.grad

    assert_raises(program, region(), ANOTHER, remat.ReplayMismatch)
    assert_same(program, region("tape"))


# J: torch.func, torch.jit, torch.compile


@pytest.mark.torch_warns
def test_j2_a_dual_tensor_as_argument_loses_its_tangent():
    from torch.autograd import forward_ad

    def program(wrap):
        x = leaf(4)
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(x, torch.ones(4))

            def fn(d):
                tangent = forward_ad.unpack_dual(d).tangent
                return d.sin() if tangent is None else (d * tangent).sin()

            forward_ad.unpack_dual(wrap(fn)(dual)).primal.sum().backward()
        return x.grad

    assert_raises(program, region(), "The function branches on state", remat.ReplayMismatch)


@pytest.mark.parametrize("replay", ["function", "tape"])
def test_j3_batched_gradients_of_a_region_that_draws_raise(replay):
    def program(wrap):
        x = leaf(4)
        y = wrap(lambda x: (x * torch.rand(4)).sin())(x)
        return torch.autograd.grad(y, x, torch.eye(4), is_grads_batched=True)

    assert_raises(program, region(replay), "vmap: We do not yet support calling random operations")


def test_j4_a_random_factory_that_differs_in_vmap_raises():
    def program(wrap):
        x = leaf(4, 3)
        rows = torch.vmap(lambda row: (row * torch.rand(3)).sin(), randomness="different")
        wrap(rows)(x).sum().backward()
        return x.grad

    assert_raises(program, region(), ANOTHER, remat.ReplayMismatch)


@pytest.mark.parametrize("policy", [SAVE, OFFLOAD, remat.CheckpointPolicy.RECOMPUTE])
def test_j10_a_call_inside_vmap_raises(policy):
    def program(wrap):
        x = leaf(4, 3)
        wrap(torch.vmap(lambda row: call(torch.exp, policy)(row.sin()).cos()))(x).sum().backward()
        return x.grad

    words = "region '.*', call 'call'.*outside of torch.func's transforms"
    if policy == remat.CheckpointPolicy.RECOMPUTE:
        assert_raises(program, region(), ANOTHER, remat.ReplayMismatch)
        assert_same(program, region("tape"))
    else:
        assert_raises(program, region(), words, NotImplementedError)
        assert_raises(program, region("tape"), words, NotImplementedError)
    round_it = call(torch.vmap(lambda row: row.sin().exp()), SAVE)
    assert_same(lambda wrap: [wrap(lambda x: round_it(x).cos())(leaf(4, 3))], region())


@pytest.mark.torch_warns  # that TorchScript is old
def test_j5_torch_jit_fork_raises_without_a_tape():
    @torch.jit.script
    def forked(x):
        return torch.jit.wait(torch.jit.fork(torch.sin, x)).exp()

    def program(wrap):
        x = leaf(4)
        wrap(lambda x: forked(x) * x)(x).sum().backward()
        return x.grad

    assert_raises(program, region(), "as in the forward, got", remat.ReplayMismatch)
    assert_same(program, region("tape"))


@pytest.mark.torch_warns
def test_j6_torch_script_runs_other_ops_in_its_first_calls():
    @torch.jit.script
    def scripted(x):
        return (x.sin() * x.cos()).exp().tanh()

    with pytest.raises(remat.ReplayMismatch, match="as in the forward, got"):
        region()(lambda x: scripted(x) * x)(leaf(4)).sum().backward()
    for _ in range(4):
        scripted(leaf(4)).sum().backward()

    def program(wrap):
        x = leaf(4)
        wrap(lambda x: scripted(x) * x)(x).sum().backward()
        return x.grad

    assert_same(program, region("tape"))


@pytest.mark.torch_warns
def test_j7_the_first_call_of_a_compiled_function_raises_with_a_strict_tape():
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: (x.sin() * x).exp(), backend="aot_eager")
    with pytest.raises(Exception, match="expected what a tape can replay, got a backward in the function"):
        region("tape")(compiled)(leaf(4))
    compiled(leaf(4)).sum().backward()
    torch._dynamo.reset()


@pytest.mark.torch_warns
def test_j8_torch_cond_has_no_kernel_for_the_key_that_sees_ops():
    def program(wrap):
        x = leaf(4)
        wrap(lambda x: torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,)).exp())(x).sum().backward()
        return x.grad

    torch._dynamo.reset()
    with pytest.raises(Exception, match="could not find kernel for"):
        outcome(program, region())
    torch._dynamo.reset()


# R: the dry device, which registers itself for good


def test_r1_a_dry_graph_behind_a_real_output_has_no_device_thread():
    printed = in_a_process("""
        import torch
        import remat_meta as remat

        class Real(torch.autograd.Function):
            @staticmethod
            def forward(ctx, dry):
                return torch.ones(3)

            @staticmethod
            def backward(ctx, grad):
                return grad.to("remat_meta")

        torch.ones(2, requires_grad=True).sum().backward()
        remat.register_device()
        try:
            Real.apply(torch.ones(3, device="remat_meta", requires_grad=True) * 2).sum().backward()
        except RuntimeError as error:
            print(error)
    """)
    assert "device_ready_queues_.size()" in printed


def test_r3_r4_statistics_have_the_dtype_of_the_input_and_meta_tensors_pass_unseen():
    printed = in_a_process("""
        import torch
        import remat_meta as remat

        remat.register_device()

        def statistics(device):
            x, w = torch.ones(2, 4, 3, 3, dtype=torch.bfloat16, device=device), torch.ones(4, device=device)
            return torch.ops.aten.native_batch_norm(x, w, w, None, None, True, 0.1, 1e-5)[1]

        print(statistics("remat_meta").dtype, statistics("cpu").dtype)
        dry, meta = torch.ones(3, 3, device="remat_meta"), torch.ones(3, 3, device="meta")
        print(torch.bmm(dry[None], meta[None]).device)
        try:
            dry + meta
        except RuntimeError as error:
            print(error)
    """)
    assert printed.splitlines()[:2] == ["torch.bfloat16 torch.float32", "meta"]
    assert "Tensor on device meta is not on the expected device remat_meta:0" in printed


# K: cost and memory


def test_k4_n_gradients_inside_replay_n_times_what_the_region_has_done():
    def program(wrap):
        runs, x = [0], leaf(4)

        class Counted(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                runs[0] += 1
                ctx.save_for_backward(x)
                return x * 2

            @staticmethod
            def backward(ctx, grad):
                return grad * 2 + 0 * ctx.saved_tensors[0]

        def fn(x):
            h = x
            for _ in range(5):
                h = Counted.apply(h)
                (g,) = torch.autograd.grad(h.sum(), x, retain_graph=True)
                h = h * g
            return h

        wrap(fn)(x)
        return runs[0]

    assert (outcome(program, plain), outcome(program, region())) == (5, 5 + 1 + 2 + 3 + 4 + 5)


def test_k6_after_an_exception_in_backward_regions_stay_until_the_next():
    def refuse(grad):
        raise ValueError("refused")

    gc.collect()
    before = _C.live_region_count()
    x = leaf(4)
    others = region()(lambda x: x.sin().exp())(x) + region()(lambda x: x.cos().exp())(x * 2)
    y = region()(lambda x: x.tan().exp())(x * 3) * 1
    y.register_hook(refuse)  # which runs first
    loss = (others + y).sum()
    with pytest.raises(ValueError, match="refused"):
        loss.backward()
    del others, y, loss
    gc.collect()
    assert _C.live_region_count() > before
    leaf(2).sin().sum().backward()
    assert _C.live_region_count() == before


def test_k7_a_captured_tensor_into_which_the_region_writes_a_value_with_a_gradient_is_a_cycle():
    class Module:
        def __init__(self):
            self.buffer = torch.zeros(4)

    def regions_that_a_step_leaves(replay, detached=False):
        gc.collect()
        before = _C.live_region_count()
        module, x = Module(), leaf(4)

        def fn(x, module=module):
            module.buffer.copy_(x.detach().sin() if detached else x.sin())
            return x.exp().sin()

        region(replay)(fn)(x).sum().backward()
        held.append(weakref.ref(module))
        del module, fn
        gc.collect()
        return _C.live_region_count() - before

    held = []
    assert regions_that_a_step_leaves("function", detached=True) == 0
    assert regions_that_a_step_leaves("tape") == 0
    assert regions_that_a_step_leaves("function") == 1
    held[-1]().buffer = None
    gc.collect()
    assert held[-1]() is None


@pytest.mark.parametrize("overwrites", [False, True])
def test_k9_an_op_that_overwrites_a_kept_result_counts_as_a_read_of_it(overwrites):
    def fn(x):
        h = call(lambda x: x * 2)(x)
        if overwrites:
            h.detach().zero_()
        return (x + 0).sin()

    before = remat.memory_report().bytes  # of the cycles that the tests above have left
    y = region()(fn)(leaf(100))
    assert remat.memory_report().bytes - before == (400 if overwrites else 0)
    y.sum().backward()


ROOT = pathlib.Path(__file__).parents[2]


def rows_of_the_page():
    """Its id and what is in its last column."""
    lines = (ROOT / "docs" / "limits.md").read_text().splitlines()
    return [(row[1], row[2]) for row in (re.match(r"\| ([A-Z]\d+) \|.*\| ([^|]+) \|$", line) for line in lines) if row]


def test_each_limit_of_the_page_has_an_id_of_its_own_and_names_a_test_that_there_is():
    rows = rows_of_the_page()
    ids = [name for name, _ in rows]
    assert len(ids) > 100 and len(set(ids)) == len(ids)
    here = (ROOT / "python/tests/test_limits.py").read_text() + (ROOT / "python/tests/limit_checks.py").read_text()
    cases = "".join(path.read_text() for path in (ROOT / "tests").rglob("*.cpp"))
    for name, tests in rows:
        if re.match(r"L\b", tests):
            assert re.search(rf"def (test_)?(\w+_)?{name.lower()}_", here), name
        for file, test in re.findall(r"([\w/]+\.py)::(\w+)", tests):
            assert f"def {test}(" in (ROOT / "python/tests" / file).read_text(), (name, test)
        for case in re.findall(r'\.cpp "([^"]+)"', tests):
            assert case in re.sub(r'"\s*\n\s*"', "", cases), (name, case)
