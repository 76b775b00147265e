# SPDX-License-Identifier: BSD-3-Clause

"""Values that a region keeps for its replays lie on the stream that made them; a replay begins on another one."""

import pytest
import torch
from same import assert_same

import remat_meta as remat

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.torch_warns,  # gradients come from other streams, without remat too
]


def leaf(*sizes):
    return torch.randn(*sizes, device="cuda", requires_grad=True)


def checkpointed(**options):
    return lambda fn: remat.checkpoint(**options)(fn)


ways = pytest.mark.parametrize("wrap", [checkpointed(), checkpointed(replay="auto")], ids=["function", "auto"])


def wait_with(*_tensors):
    """Keeps the tensors until the device is done, so that the programs need no record_stream()."""
    torch.cuda.synchronize()


def write_rows(t):
    t[1:3] = t[:2] * 10.0


@ways
def test_a_backward_inside_finds_what_a_save_call_has_written_on_a_side_stream(wrap):
    def program(wrap):
        def fn(x):
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                h = x.clone()
                remat.native_op(write_rows, "write", remat.CheckpointPolicy.SAVE)(h)
                inner = h.detach().requires_grad_()
                (g,) = torch.autograd.grad((inner * w).sin().sum(), w)
            return x.sin(), g

        side = torch.cuda.Stream()
        x, w = leaf(4, 4), leaf(4, 4)
        y, g = wrap(fn)(x)
        torch.cuda.current_stream().wait_stream(side)
        y.sum().backward()
        wait_with(x, w)
        return x.grad, g

    assert_same(program, wrap)


@ways
def test_a_backward_inside_finds_what_the_region_has_written_outside_on_a_side_stream(wrap):
    def program(wrap):
        def fn(x):
            with torch.cuda.stream(side):
                h = x * buffer
                buffer.mul_(0.5).add_(h.detach())
                inner = (h * buffer).detach().requires_grad_()
                (g,) = torch.autograd.grad((inner * w).sin().sum(), w)
            return x.sin(), g

        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            buffer = torch.full((4, 4), 3.0, device="cuda")
        x, w = leaf(4, 4), leaf(4, 4)
        side.wait_stream(torch.cuda.current_stream())
        y, g = wrap(fn)(x)
        torch.cuda.current_stream().wait_stream(side)
        y.sum().backward()
        wait_with(x, w, buffer)
        return x.grad, g, buffer

    assert_same(program, wrap)


@ways
@pytest.mark.parametrize("written_by", ["ops", "save call", "save call on an argument"])
def test_a_side_stream_that_waits_for_nothing_in_the_function_writes_a_tensor_from_outside(wrap, written_by):
    def program(wrap):
        def fn(x, b):
            with torch.cuda.stream(side):
                if written_by == "ops":
                    h = x * b
                    b.mul_(0.5).add_(h.detach())
                else:
                    remat.native_op(write_rows, "write", remat.CheckpointPolicy.SAVE)(b)
                return (x * b).sin().exp()

        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            buffer = torch.full((4, 4), 3.0, device="cuda")
        x = leaf(4, 4)
        side.wait_stream(torch.cuda.current_stream())
        once = wrap(fn if written_by == "save call on an argument" else lambda t: fn(t, buffer))
        y = once(x, buffer) if written_by == "save call on an argument" else once(x)
        with torch.cuda.stream(side):
            loss = y.sum()
        loss.backward()
        wait_with(x, y, loss)
        return x.grad, buffer

    assert_same(program, wrap)


@pytest.mark.parametrize("replay", ["function", "auto", "tape"])
def test_what_another_stream_writes_after_the_region_has_read_it(replay):
    def program(wrap):
        def read(x):
            return (x * (buffer + 0.5)).sin().exp()

        def write(x):
            y = x.sin()
            buffer.mul_(0.5).add_(y.detach())
            return y.exp()

        side = torch.cuda.Stream()
        x, buffer = leaf(4, 4), torch.full((4, 4), 3.0, device="cuda")
        y = wrap(read)(x)
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            z = wrap(write)(x)
        y.sum().backward()
        del y
        with torch.cuda.stream(side):  # may get the memory of what the region has let go of
            others = [torch.full((4, 4), 7.0, device="cuda") for _ in range(8)]
        torch.cuda.current_stream().wait_stream(side)
        wait_with(x, z, others)
        return x.grad, buffer

    assert_same(program, checkpointed(replay=replay))
