# SPDX-License-Identifier: BSD-3-Clause

"""Links of a set speed copy memory of the CPU: they refuse tensors of a GPU, in the forward."""

import pytest
import torch
from same import assert_same

import remat_meta as remat
from remat_meta import _C

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU or the stand-in")

OFFLOAD = remat.CheckpointPolicy.OFFLOAD


def simulated(kind, directory, device=None):
    return _C._offload_engine([(kind, None, str(directory), False)], 0, None, 1 << 20, None, device, False, (2.0, 100.0))


@pytest.mark.parametrize("kind", ["host", "disk"])
@pytest.mark.parametrize("replay", ["function", "tape"])
def test_a_simulated_link_refuses_tensors_of_a_gpu_in_the_forward(kind, replay, tmp_path):
    store = simulated(kind, tmp_path)
    fn = remat.checkpoint(policy=lambda *_: OFFLOAD, offload_store=store, replay=replay)(lambda x: x.sin().cos().sin())
    with pytest.raises(NotImplementedError, match=r"\[sim_link\] device: expected memory of the CPU, got cuda:0"):
        fn(torch.ones(1000, device="cuda", requires_grad=True))
    with pytest.raises(NotImplementedError, match=r"\[sim_link\] device: expected memory of the CPU, got cuda:0"):
        store.terms("cuda:0")
    x = torch.ones(1000, requires_grad=True)  # The store still works.
    fn(x).sum().backward()
    plain = torch.ones(1000, requires_grad=True)
    plain.sin().cos().sin().sum().backward()
    assert torch.equal(x.grad, plain.grad)


def test_a_simulated_link_for_the_cpu_leaves_tensors_of_a_gpu_where_they_are(tmp_path):
    store = simulated("host", tmp_path, torch.device("cpu"))
    fn = remat.checkpoint(policy=lambda *_: OFFLOAD, offload_store=store)(lambda x: x.sin().cos().sin())
    x = torch.ones(1000, device="cuda", requires_grad=True)
    fn(x).sum().backward()
    assert x.grad is not None and store.stats()["left_count"] == 0


def test_memory_that_two_streams_read_is_not_used_again_before_both_have():
    """A tensor fetched for a node of the side stream is read by a node of the current stream, too."""

    def program(wrap):
        def squares(h):
            a = h * h
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                b = h * h
            return a, b

        x, z = (torch.full((1 << 16,), number, device="cuda", requires_grad=True) for number in (0.5, 0.25))
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            later = z.sin().exp()  # its nodes run after those of both readers, and make tensors on the side stream
        a, b = wrap(squares)(x.sin())
        torch.cuda.current_stream().wait_stream(side)
        (a.sum() + b.sum() + later.sum()).backward()
        return x.grad, z.grad

    def offloaded(call):
        store = remat.offload("host", min_bytes=0)
        return remat.checkpoint(offload_store=store)(remat.native_op(call, "squares", remat.CheckpointPolicy.OFFLOAD))

    assert_same(program, offloaded)


def test_memory_that_was_fetched_ahead_on_another_stream_is_not_used_again_before_it_is_read():
    """The store fetches the side stream's tensor ahead, while the region on the current stream runs backward."""
    size = 3 << 19  # no other tensor has this size

    def program(wrap):
        side = torch.cuda.Stream()
        y, z = (torch.full((number,), 0.5, device="cuda", requires_grad=True) for number in (1 << 16, size))
        with torch.cuda.stream(side):
            x = torch.full((size,), 0.25, device="cuda", requires_grad=True)
            h = x.sin()
        later = z.sin().exp()  # its nodes run after those of both regions, and make tensors on the current stream
        with torch.cuda.stream(side):
            on_side = wrap(torch.exp)(h) * 2  # the store alone has what exp saved
            grad = torch.ones_like(on_side)
        middle = y.sin()
        middle.register_hook(lambda _: torch.cuda.synchronize())  # the tensor is there before side's node runs
        here = wrap(torch.exp)(middle) * 2
        grads = [grad, torch.ones_like(here), torch.ones_like(later)]  # kept: their memory asks for no event of the side stream
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.autograd.backward([on_side, here, later], grads)
        torch.cuda.synchronize()
        return x.grad, y.grad, z.grad

    store = remat.offload("host", min_bytes=0)

    def offloaded(call):
        return remat.checkpoint(offload_store=store)(remat.native_op(call, "exp", remat.CheckpointPolicy.OFFLOAD))

    assert_same(program, offloaded)
    assert store.stats()["prefetched_count"] > 0
