# SPDX-License-Identifier: BSD-3-Clause

"""Regions whose ops run on several streams and devices: a replay runs where the forward ran."""

import contextlib

import pytest
import torch
from same import assert_same

import remat_meta as remat

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.torch_warns,  # warns of gradients that come from other streams, without remat too
]
two_devices = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")


def leaf(*sizes, device="cuda"):
    return torch.randn(*sizes, device=device, requires_grad=True)


def checkpointed(**options):
    return lambda fn: remat.checkpoint(**options)(fn)


def on_side_stream(side, fn, *args):
    """Calls fn on `side` after `side` has waited for the current stream."""
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        return fn(*args)


ways = pytest.mark.parametrize("wrap", [checkpointed(), checkpointed(replay="auto"), checkpointed(intercept=False)],
                               ids=["function", "auto", "unseen"])  # fmt: skip


@ways
def test_a_part_on_a_side_stream(wrap):
    def program(wrap):
        def fn(x):
            h = (x * w).sin()
            k = on_side_stream(side, lambda: (h @ w).sin().exp())
            torch.cuda.current_stream().wait_stream(side)
            return (k * h).tanh()

        side = torch.cuda.Stream()
        x, w = leaf(8, 8), leaf(8, 8)
        wrap(fn)(x).square().sum().backward()
        return x.grad, w.grad

    assert_same(program, wrap)


@ways
def test_results_on_two_streams(wrap):
    def program(wrap):
        def fn(x):
            h = (x * w).sin()
            k = on_side_stream(side, lambda: (h @ w).sin().exp())
            return k, (h @ w.t()).cos().exp()

        side = torch.cuda.Stream()
        x, w = leaf(8, 8), leaf(8, 8)
        k, m = wrap(fn)(x)
        torch.cuda.current_stream().wait_stream(side)
        (k.square().sum() + m.square().sum()).backward()
        return x.grad, w.grad

    assert_same(program, wrap)


@ways
@pytest.mark.parametrize("outer", [True, False], ids=["nested", "alone"])
def test_a_region_on_a_side_stream_whose_backward_begins_on_another(wrap, outer):
    def program(wrap):
        def fn(x):
            return ((x * w).sin() @ w).exp()

        def around(x):
            y = on_side_stream(side, wrap(fn), x)
            torch.cuda.current_stream().wait_stream(side)
            return y.sin()

        side = torch.cuda.Stream()
        x, w = leaf(8, 8), leaf(8, 8)
        (wrap(around) if outer else around)(x).sum().backward()
        return x.grad, w.grad

    assert_same(program, wrap)


@ways
def test_waits_at_the_end_of_a_function_keep_memory_for_a_side_stream(wrap):
    """The side stream still reads a tensor that the function drops after its last saved tensor."""

    def program(wrap):
        def on_two_streams(h):
            shift = h.detach() * 1.5 + 0.25
            k = on_side_stream(side, lambda: (h + shift).exp())
            torch.cuda.current_stream().wait_stream(side)
            return k + 1  # a replay would stop here

        def on_one_stream(z):  # replayed next, while the side stream may lag behind
            return (z.sin() * 2).exp() + z.cos().exp()

        side = torch.cuda.Stream()
        x, z = leaf(512), leaf(512)
        h = x.sin()
        other = wrap(on_one_stream)(z)
        (wrap(on_two_streams)(h).sum() + other.sum()).backward()
        return x.grad, z.grad

    for _ in range(3):
        assert_same(program, wrap)


@ways
def test_what_a_side_stream_has_yet_to_read_is_not_used_again(wrap):
    """Plain code keeps `h` for backward; a region drops it when the function returns."""

    def program(wrap):
        def fn(x):
            h = x.sin()
            return on_side_stream(side, lambda: (h @ w).tanh())

        side = torch.cuda.Stream()
        x, w = leaf(64, 64), leaf(64, 64)
        y = wrap(fn)(x)
        others = [torch.full((64, 64), float(i), device="cuda") for i in range(6)]
        torch.cuda.current_stream().wait_stream(side)
        y.sum().backward()
        return y, x.grad, w.grad, others

    assert_same(program, wrap)


@pytest.mark.parametrize("library", ["blas", "linalg"])
def test_another_preferred_library_in_backward_raises(library):
    names = {"blas": ("cublas", "cublaslt"), "linalg": ("cusolver", "magma")}[library]
    prefer = {"blas": torch.backends.cuda.preferred_blas_library, "linalg": torch.backends.cuda.preferred_linalg_library}
    before = prefer[library]()
    try:
        prefer[library](names[0])
        y = remat.checkpoint()(lambda x: (x @ x).exp())(leaf(4, 4))
        prefer[library](names[1])
        with pytest.raises(RuntimeError, match=f"expected the precision .* as in the forward, .*preferred_{library}_library"):
            y.sum().backward()
    finally:
        prefer[library](before)


@ways
def test_a_note_for_the_allocator_is_no_write(wrap):
    def program(wrap):
        def fn(x):
            side = torch.cuda.Stream()  # another stream each time
            y = on_side_stream(side, lambda: (x * w).sin().exp())
            x.record_stream(side)
            torch.cuda.current_stream().wait_stream(side)
            y.record_stream(torch.cuda.current_stream())
            return (y * y).sum()

        x, w = leaf(4, 4), leaf(4, 4)
        wrap(fn)(x).backward()
        return x.grad, w.grad

    assert_same(program, wrap)


def test_a_note_in_and_after_a_save_call():
    def program(wrap):
        def call(t):
            u = t.sin()
            for used in (t, u):
                used.record_stream(torch.cuda.current_stream())
            return u.exp()

        def fn(x):
            y = save(x * 1)
            y.record_stream(torch.cuda.current_stream())
            return y.sin().exp()

        save = call if wrap is None else remat.native_op(call, "call", remat.CheckpointPolicy.SAVE)
        x = leaf(4, 4)
        (fn if wrap is None else remat.checkpoint()(fn))(x).sum().backward()
        return (x.grad,)

    torch.manual_seed(7)
    expected = program(None)
    torch.manual_seed(7)
    assert torch.equal(expected[0], program(True)[0])


def test_a_tape_takes_no_ops_on_other_streams():
    def fn(x):
        y = on_side_stream(side, torch.sin, x)
        torch.cuda.current_stream().wait_stream(side)
        return y

    side = torch.cuda.Stream()
    with pytest.raises(NotImplementedError, match=r"op aten::sin: another stream or current device than the region began"):
        remat.checkpoint(replay="tape")(fn)(leaf(4))


@two_devices
@pytest.mark.parametrize("replay", ["function", "auto", "tape"])
def test_a_replay_has_the_current_device_of_the_forward(replay):
    def program(wrap):
        def fn(x):
            ones = torch.ones(8, 8, device="cuda")  # on the current device
            return ((x.to("cuda:0") * ones) @ w).sin().exp().to("cuda:1")

        x, w = leaf(8, 8, device="cuda:1"), leaf(8, 8, device="cuda:0")
        wrap(fn)(x).square().sum().backward()
        return x.grad, w.grad

    assert_same(program, checkpointed(replay=replay))


@two_devices
@pytest.mark.parametrize("replay", ["function", "auto", "tape"])
def test_ops_on_two_devices(replay):
    def program(wrap):
        def fn(x):
            h = x.sin().exp()
            # Two readers of h: three gradients would be added in the order in which autograd's threads finish.
            return (h.to("cuda:1") @ w).sin().exp(), h.cos().exp()

        x, w = leaf(8, 8, device="cuda:0"), leaf(8, 8, device="cuda:1")
        a, b = wrap(fn)(x)
        (a.sum().to("cuda:0") + b.sum()).backward()
        return x.grad, w.grad

    assert_same(program, checkpointed(replay=replay))


@two_devices
def test_after_a_replay_the_thread_has_its_device_and_streams_again():
    def fn(x):
        return x.sin().exp()

    class Watch(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, g):
            seen.append((torch.cuda.current_device(), torch.cuda.current_stream()))
            return g

    seen = []
    with torch.cuda.device(1):
        side = torch.cuda.Stream()
        x = leaf(4, device="cuda:1")
        with torch.cuda.stream(side):
            y = remat.checkpoint()(fn)(Watch.apply(x))
    y.sum().backward()
    assert seen == [(1, side)]


@pytest.mark.parametrize("wrap", [checkpointed(), checkpointed(early_stop=False)], ids=["stops early", "to the end"])
def test_a_side_stream_that_only_the_caller_waits_for_writes_a_tensor_from_outside(wrap):
    def program(wrap):
        def fn(x):
            y = x * (buffer + 0.5)
            on_side_stream(side, lambda: buffer.mul_(0.5).add_(y.detach().tanh()))
            y.record_stream(side)
            return y.sin().exp()

        side = torch.cuda.Stream()
        x, z, buffer = leaf(512), leaf(512), torch.ones(512, device="cuda")
        h = x.sin()
        other = wrap(lambda t: (t.sin() * 2).exp() + t.cos().exp())(z)
        y = wrap(fn)(h)
        torch.cuda.current_stream().wait_stream(side)
        (y.sum() + other.sum()).backward()
        return x.grad, z.grad, buffer

    assert_same(program, wrap)


@two_devices
@ways
def test_a_backward_inside_leaves_the_current_device(wrap):
    def program(wrap):
        def fn(x):
            with torch.cuda.device(1):
                y = x.sin()
                inner = y.detach().requires_grad_()
                (inner * w).sin().sum().backward()
                return y * torch.rand(4, 4, device="cuda").to(y.device)

        x, w = leaf(4, 4, device="cuda:0"), leaf(4, 4, device="cuda:0")
        wrap(fn)(x).sum().backward()
        return x.grad, w.grad

    assert_same(program, wrap)


@pytest.mark.parametrize("replay", ["function", "tape"])
def test_a_copy_to_the_host_is_there_when_a_replay_reads_it(replay):
    """The forward waits for the copy; a tape has no such waits, so its copy is a blocking one."""

    def program(wrap):
        def fn(x):
            on_host = x.sin().exp().to("cpu", non_blocking=True)
            torch.cuda.synchronize()
            return (on_host.sin() * 2).exp()

        x = leaf(512)
        y = wrap(fn)(x).sum()
        torch.zeros(512, pin_memory=True)  # takes the memory of the forward's copy, and frees it
        y.backward()
        return (x.grad,)

    assert_same(program, checkpointed(replay=replay))


@pytest.mark.parametrize("kept", ["hooks", "store"])
def test_a_copy_to_the_host_is_there_when_remat_keeps_it(kept):
    """A tensor that a region keeps of a non-blocking copy is copied as soon as the op has run."""

    def program(wrap):
        def fn(x):
            on_host = torch.empty(512, pin_memory=True)
            with torch.no_grad():
                on_host.copy_(x, non_blocking=True)
            return (x * on_host.to("cuda", non_blocking=True)).exp()

        x = leaf(512)
        y = wrap(fn)(x).sum()
        torch.zeros(512, pin_memory=True)
        y.backward()
        return (x.grad,)

    if kept == "hooks":
        options = {"replay": "tape", "cuts": remat.Cuts([2]), "saved_tensors_hooks": (torch.clone, torch.clone)}
    else:

        def policy(context, op, *args, **kwargs):
            copies = op == torch.ops.aten.copy_.default
            return remat.CheckpointPolicy.OFFLOAD if copies else remat.CheckpointPolicy.RECOMPUTE

        options = {"policy": policy, "offload_store": remat.offload("host", min_bytes=0)}
    assert_same(program, checkpointed(**options))


@pytest.mark.parametrize("where", ["forward", "backward"])
def test_numbers_of_the_host_on_a_device_are_compared_alike_under_a_mode(where):
    class PassThrough(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            return func(*args, **(kwargs or {}))

    def program(wrap):
        def fn(x):
            return x.exp().index_fill(0, torch.tensor([1], device="cuda"), 0.5).sin()

        x = leaf(4)
        with PassThrough() if where == "forward" else contextlib.nullcontext():
            y = wrap(fn)(x).sum()
        with PassThrough() if where == "backward" else contextlib.nullcontext():
            y.backward()
        return (x.grad,)

    assert_same(program, checkpointed())


def test_a_store_of_ones_own_gives_a_tensor_to_readers_on_two_streams():
    copier = torch.cuda.Stream()

    class Ticket:
        def __init__(self, copy, device):
            self.copy, self.device = copy, device

        def get(self):
            with torch.cuda.stream(copier):
                back = self.copy.to(self.device, non_blocking=True)
            torch.cuda.current_stream().wait_stream(copier)
            back.record_stream(torch.cuda.current_stream())
            return back

    class Store(remat.OffloadStore):
        def put(self, tensor):
            copy = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
            copier.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(copier):
                copy.copy_(tensor, non_blocking=True)
            tensor.record_stream(copier)
            return Ticket(copy, tensor.device)

    def policy(context, op, *args, **kwargs):
        moved = op in (torch.ops.aten.sin.default, torch.ops.aten.mm.default, torch.ops.aten.exp.default)
        return remat.CheckpointPolicy.OFFLOAD if moved else remat.CheckpointPolicy.RECOMPUTE

    def program(wrap):
        def fn(x):
            current = torch.cuda.current_stream()
            h = x.sin()
            side.wait_stream(current)
            with torch.cuda.stream(side):
                k = (h @ w).sin()
                q = (k @ w) * 0.01
            current.wait_stream(side)
            return q.exp() * k * h

        side = torch.cuda.Stream()
        x, w = leaf(64, 64), leaf(64, 64)
        once = wrap(fn)
        once(once(x)).sum().backward()
        return x.grad, w.grad

    assert_same(program, checkpointed(offload_store=Store(), policy=policy))
