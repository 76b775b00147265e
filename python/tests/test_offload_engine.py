# SPDX-License-Identifier: BSD-3-Clause

"""offload(): a store whose copies run beside the step. On the CPU both memories are host memory."""

import copy
import gc
import os
import subprocess
import sys
import threading
import warnings

import pytest
import torch
from programs import Refused, grads_of, leaf
from same import DEVICE, assert_same, plain
from torch.nn import functional as F

import remat_meta as remat
from remat_meta import _C

OFFLOAD, SAVE = remat.CheckpointPolicy.OFFLOAD, remat.CheckpointPolicy.SAVE
ENGINES = ("function", "tape", "auto")
all_engines = pytest.mark.parametrize("replay", ENGINES)
MATMULS = remat.PolicyTable().op("aten::addmm", OFFLOAD).op("aten::mm", OFFLOAD).op("aten::bmm", OFFLOAD)


def all_offloaded(context, op, *args, **kwargs):
    return OFFLOAD


def engine(**options):
    return remat.offload("host", **{"min_bytes": 0, **options})


def bytes_of(store):
    """Bytes that have left, or are about to leave."""
    stats = store.stats()
    return stats["left_bytes"] + stats["leaving_bytes"]


def slow_engine(gbps=0.05, latency_us=100.0):
    """An engine whose copies are always still under way."""
    if torch.get_default_device().type != "cpu":
        pytest.skip("links of a set speed copy memory of the CPU: cuda/test_offload_links.py")
    return _C._offload_engine([("host", None, "", False)], 0, None, 1 << 20, None, None, False, (gbps, latency_us))


class Layer(torch.nn.Module):
    def __init__(self, size):
        super().__init__()
        self.norm, self.up, self.down = torch.nn.LayerNorm(size), torch.nn.Linear(size, 4 * size), torch.nn.Linear(4 * size, size)

    def forward(self, x):
        h = F.gelu(self.up(self.norm(x)))
        return x + F.dropout(self.down(h), 0.1)


def stack(wrap, layers=6, steps=3, size=16):
    torch.manual_seed(3)
    model = torch.nn.ModuleList(Layer(size) for _ in range(layers))
    for _ in range(steps):
        h = torch.randn(8, size)
        for layer in model:
            h = wrap(layer)(h)
        h.square().mean().backward()
    return grads_of(model)


CASES = {
    "a rule for matmuls": {"policy": MATMULS},
    "a rule for all ops": {"policy": all_offloaded},
    "inputs": {"offload_inputs": True},
    "both": {"policy": MATMULS, "offload_inputs": True},
}
all_cases = pytest.mark.parametrize("options", CASES.values(), ids=CASES)


@all_engines
@all_cases
@pytest.mark.parametrize("make", [engine, slow_engine], ids=["fast", "slow"])
def test_steps_are_bitwise_as_plain(make, options, replay):
    store = make()
    assert_same(stack, remat.checkpoint(offload_store=store, replay=replay, **options))
    stats = store.stats()
    assert stats["left_count"] + stats["stayed_count"] > 0
    assert stats["away_bytes"] == 0


@all_engines
@all_cases
def test_nested_regions_are_bitwise_as_plain(options, replay):
    store = engine()
    region = remat.checkpoint(offload_store=store, replay=replay, **options)

    def nested(layer):
        return region(lambda x: region(layer)(x * 1).sin())

    def program(wrap):
        return stack(nested if wrap is not plain else lambda layer: lambda x: layer(x * 1).sin())

    assert_same(program, region)
    assert store.stats()["away_bytes"] == 0


@all_engines
def test_inputs_of_regions_leave_and_parameters_stay(replay):
    store = engine()
    region = remat.checkpoint(offload_store=store, offload_inputs=True, replay=replay)
    weight = leaf(16, 16)
    h = torch.randn(8, 16)
    for _ in range(5):
        h = region(lambda x, weight: (x @ weight).tanh())(h, weight)
    # All of five inputs except the last, which leaves with the next one; the weight stays.
    assert bytes_of(store) == 4 * 8 * 16 * 4
    h.sum().backward()


def test_inputs_need_a_store():
    with pytest.raises(ValueError, match="region 'block': offload_inputs: expected offload_store, got none"):
        remat.checkpoint(region_name="block", offload_inputs=True)(torch.sin)(leaf(3))


def test_named_calls_are_offloaded():
    store = engine()

    def program(wrap):
        x = leaf(32, 32)
        body = lambda x: remat.native_op(lambda x: x.exp().tanh(), "exp", OFFLOAD)(x.sin()).cos()  # noqa: E731
        y = x
        for _ in range(4):
            y = wrap(body)(y)
        y.sum().backward()
        return y, x.grad

    assert_same(program, remat.checkpoint(offload_store=store))
    stats = store.stats()
    assert stats["left_count"] + stats["stayed_count"] > 0


@all_engines
@pytest.mark.parametrize("make", [engine, slow_engine], ids=["fast", "slow"])
def test_a_graph_that_is_kept_gives_its_tensors_again(make, replay):
    store = make()

    def program(wrap):
        x = leaf(16, 16)
        y = x
        for _ in range(4):
            y = wrap(lambda x: (x @ x.t()).tanh())(y)
        y.sum().backward(retain_graph=True)
        first = x.grad.clone()
        y.cos().sum().backward(retain_graph=True)
        part = torch.autograd.grad(y[0, 0], x)[0]
        return y, first, x.grad, part

    assert_same(program, remat.checkpoint(policy=MATMULS, offload_inputs=True, offload_store=store, replay=replay))
    gc.collect()
    assert store.stats()["away_bytes"] == 0


@all_engines
def test_second_derivatives_are_bitwise_as_plain(replay):
    def program(wrap):
        x = leaf(8, 8)
        y = wrap(lambda x: (x @ x).tanh())(wrap(lambda x: (x @ x).sin())(x))
        (first,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(first.square().sum(), x)
        return first, second

    assert_same(program, remat.checkpoint(policy=MATMULS, offload_inputs=True, offload_store=engine(), replay=replay))


@all_engines
def test_what_is_never_asked_for_goes(replay):
    store = slow_engine()
    region = remat.checkpoint(policy=all_offloaded, offload_store=store, replay=replay)
    for _ in range(3):
        h = leaf(64, 64)
        for _ in range(4):
            h = region(lambda x: (x @ x.t()).tanh())(h)
    del h
    gc.collect()
    assert store.stats()["away_bytes"] == 0
    assert store.stats()["leaving_bytes"] == 0
    assert_same(stack, region)


@all_engines
def test_exceptions_let_go_of_what_was_put(replay):
    store = engine()
    region = remat.checkpoint(policy=all_offloaded, offload_store=store, replay=replay)

    def fails(x):
        torch.exp((x @ x.t()).tanh())
        raise Refused

    def fails_in_backward(gradient):
        raise Refused

    for _ in range(3):
        with pytest.raises(Refused):
            region(fails)(leaf(8, 8))
        y = region(lambda x: (x @ x.t()).tanh())(region(torch.exp)(leaf(8, 8)))
        y.register_hook(fails_in_backward)
        with pytest.raises(Refused):
            y.sum().backward()
        del y
    gc.collect()
    assert store.stats()["away_bytes"] == 0
    assert_same(stack, region)


def test_threads_share_an_engine():
    store = engine(prefetch_bytes=4096)
    expected = stack(plain, steps=1)
    results, errors = {}, []

    def work(number):
        try:
            region = remat.checkpoint(policy=MATMULS, offload_inputs=True, offload_store=store, replay=ENGINES[number % 3])
            for _ in range(5):
                results[number] = own_stack(region)
        except Exception as error:
            errors.append(error)

    def own_stack(wrap):  # without random numbers, since all threads share the default generator
        model = torch.nn.ModuleList(Layer(16) for _ in range(4)).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.fill_(0.1)
        h = torch.linspace(-1, 1, 128).reshape(8, 16)
        for layer in model:
            h = wrap(lambda x, layer=layer: x + layer.down(F.gelu(layer.up(layer.norm(x)))))(h)
        h.square().mean().backward()
        return grads_of(model)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors
    one = own_stack(plain)
    for got in results.values():
        assert all(torch.equal(a, b) for a, b in zip(one, got, strict=True))
    assert len(results) == 6 and expected
    assert store.stats()["away_bytes"] == 0


def test_what_somebody_else_has_is_not_copied():
    store = engine()
    kept = []

    def fn(x):
        y = (x @ x.t()).tanh()
        kept.append(y.detach())
        return y.exp()

    region = remat.checkpoint(policy=remat.PolicyTable().op("aten::tanh", OFFLOAD), offload_store=store)
    h = leaf(16, 16)
    for _ in range(4):
        h = region(fn)(h)
    assert store.stats()["left_count"] == 0
    h.sum().backward()


@all_engines
@pytest.mark.parametrize("is_written", [False, True])
def test_what_others_write_without_a_version_is_what_plain_code_reads(is_written, replay):
    """A result that others hold stays in memory: backward reads their writes, as without remat."""
    store = engine()

    def program(wrap):
        x, kept = leaf(4, 4), []
        exp = remat.native_op(torch.exp, "exp", OFFLOAD) if wrap is not plain else torch.exp

        def fn(x):
            y = exp(x.sin())
            kept.append(y)
            return (y * 2).sum()

        y = wrap(fn)(x)
        if is_written:
            torch.from_dlpack(kept[0].detach()).fill_(3)
        y.backward()
        return x.grad

    assert_same(program, remat.checkpoint(offload_store=store, replay=replay))


def test_limits_of_size():
    def left_with(**options):
        store = remat.offload("host", **options)
        region = remat.checkpoint(policy=all_offloaded, offload_store=store)
        h = torch.randn(8, 16)
        layers = [Layer(16) for _ in range(4)]
        for layer in layers:
            h = region(layer)(h)
        return bytes_of(store)

    everything = left_with(min_bytes=0)
    assert everything > 0
    assert left_with() == 0  # only tensors of 1 MiB and more leave
    assert 0 < left_with(min_bytes=1500) < everything
    assert left_with(min_bytes=0, device="cpu" if DEVICE == "cuda" else "cuda") == 0
    assert left_with(min_bytes=0, device=torch.device(DEVICE)) == everything


def test_windows_of_bytes_change_no_value():
    for options in ({"prefetch_bytes": 0}, {"prefetch_bytes": 600}, {"max_leaving_bytes": 0}, {"max_bytes": 4096}):
        store = engine(**options)
        assert_same(stack, remat.checkpoint(policy=all_offloaded, offload_inputs=True, offload_store=store))
        assert store.stats()["prefetched_count"] == 0 or options.get("prefetch_bytes") != 0


@pytest.mark.parametrize(
    "options, words",
    [
        ({"memory": "gpu"}, 'memory: expected "host", "disk" or both in an order, got \'gpu\''),
        ({"memory": ()}, "memory: expected"),
        ({"memory": ("host", "host")}, "memory: expected"),
        ({"memory": "disk"}, 'directory: expected a folder on the disk for "disk", got None'),
        ({"directory": "/tmp"}, 'directory: expected none, as memory is not "disk", got \'/tmp\''),
        ({"host_bytes": -1}, "host_bytes: expected a number of bytes or None"),
        ({"disk_bytes": "1"}, "disk_bytes: expected a number of bytes or None"),
        ({"min_bytes": "1MB"}, "min_bytes: expected a number of bytes, 0 or more, below .*, got '1MB'"),
        ({"min_bytes": None}, "min_bytes: expected a number of bytes, 0 or more, below .*, got None"),
        ({"max_bytes": -1}, "max_bytes: expected a number of bytes or None, 0 or more, below .*, got -1"),
        ({"prefetch_bytes": True}, "prefetch_bytes: expected"),
        ({"max_leaving_bytes": 1.5}, "max_leaving_bytes: expected"),
        ({"max_leaving_bytes": 1 << 64}, "max_leaving_bytes: expected a number of bytes or None, 0 or more, below"),
        ({"memory": 1}, "memory: expected"),
        ({"when_full": "warn"}, "when_full: expected one of keep, raise, got 'warn'"),
    ],
)
def test_wrong_options_are_named(options, words):
    with pytest.raises(ValueError, match=r"\[offload\] " + words):
        remat.offload(**options)


def test_a_folder_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"\[disk_memory\] directory: expected a folder .*'.*nowhere': No such file"):
        remat.offload("disk", directory=tmp_path / "nowhere")


@all_engines
@pytest.mark.parametrize("memory", ["disk", ("disk", "host"), ("host", "disk")])
def test_steps_by_way_of_the_disk_are_bitwise_as_plain(memory, replay, tmp_path):
    limits = {"disk": {"disk_bytes": 1 << 16}, "host": {"host_bytes": 1 << 14}}[memory if isinstance(memory, str) else memory[0]]
    store = remat.offload(memory, directory=tmp_path, min_bytes=0, checksums=True, **limits)
    region = remat.checkpoint(policy=all_offloaded, offload_inputs=True, offload_store=store, replay=replay)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a memory without room warns
        assert_same(stack, region)
    stats = store.stats()
    assert stats["left_count"] + stats["stayed_count"] > 0
    assert stats["away_bytes"] == 0
    assert not list(tmp_path.iterdir())


FORKED = """
import os, sys, time, torch
import remat_meta as remat
from remat_meta import _C
kind, folder = sys.argv[1:]
f = lambda x: (x @ x.t()).tanh() + x
def forward(wrap, x, count=6):
    for _ in range(count):
        x = wrap(f)(x)
    return x
if kind == "disk":
    store = remat.offload("disk", directory=folder, min_bytes=0, prefetch_bytes=0)
else:
    limit = 1 << 15 if kind == "limited" else None
    store = _C._offload_engine([("host", None, "", False)], 0, None, 1 << 20, limit, None, False, (1.0, 60000.0))
region = remat.checkpoint(offload_inputs=True, offload_store=store)
torch.manual_seed(0)
x = torch.randn(64, 64, requires_grad=True)
forward(lambda f: f, x).sum().backward()
wanted, x.grad = x.grad, None
forward(region, x).sum().backward()
x.grad = None
y = forward(region, x)
if kind == "prefetched":
    time.sleep(0.5)
    for _ in range(3):
        region(torch.sin)(torch.randn(64, 64, requires_grad=True))
        time.sleep(0.1)
    torch.autograd.grad(region(torch.sin)(y).sum(), y, retain_graph=True)
child = os.fork()
if child == 0:
    import warnings
    warnings.simplefilter("ignore")
    z = torch.randn(64, 64, requires_grad=True)
    forward(lambda f: f, z).sum().backward()
    own, z.grad = z.grad, None
    forward(region, z).sum().backward()
    assert torch.equal(own, z.grad)
    try:
        y.sum().backward()
        assert torch.equal(wanted, x.grad)
    except RuntimeError as error:
        assert "forked" in str(error), error
    os._exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
y.sum().backward()
assert torch.equal(wanted, x.grad)
print("done")
"""


@pytest.mark.parametrize("kind", ["disk", "host", "limited", "prefetched"])
def test_a_forked_process_is_right_or_says_that_it_was_forked(kind, tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", FORKED, kind, tmp_path], capture_output=True, text=True, timeout=120,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},  # with a GPU autograd works in no forked child
    )
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr


def test_tensors_with_dimension_names_stay():
    if not hasattr(torch.Tensor, "align_to"):
        pytest.skip("torch has none since 2.13")
    store = engine()
    region = remat.checkpoint(offload_store=store, offload_inputs=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        x = torch.randn(4, 8, requires_grad=True)
        h = x.refine_names("N", "C") * 1
        y = region(lambda a: a.align_to("C", "N").sin().rename(None))(h)
        del h
        region(torch.sin)(leaf(8, 8))
    y.sum().backward()
    assert torch.equal(x.grad, x.detach().cos())


def test_copies_of_an_engine_are_the_engine():
    store = engine()
    assert copy.deepcopy(store) is store and copy.copy(store) is store
    assert isinstance(store, remat.OffloadStore)


def test_warnings_that_are_errors_leave_a_right_step():
    store = remat.offload("host", min_bytes=0, max_bytes=0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert_same(stack, remat.checkpoint(policy=all_offloaded, offload_store=store))
    assert store.stats()["left_count"] == 0


PROGRAM = """
import os, sys, torch
import remat_meta as remat
from remat_meta import _C
store = _C._offload_engine([("host", None, "", False)], 0, None, 1 << 30, None, None, False, (0.001, 1000.0))
region = remat.checkpoint(policy=lambda context, op, *args, **kwargs: remat.CheckpointPolicy.OFFLOAD, offload_store=store,
                          offload_inputs=True)
h = torch.randn(64, 64, requires_grad=True)
for _ in range(6):
    h = region(lambda x: (x @ x.t()).tanh())(h)
assert store.stats()["leaving_bytes"] > 0
if sys.argv[1] == "fork":
    child = os.fork()
    if child == 0:
        y = region(lambda x: (x @ x.t()).tanh())(torch.randn(8, 8, requires_grad=True))
        y.sum().backward()
        del store, region
        sys.exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    h.sum().backward()
print("done")
"""


@pytest.mark.parametrize("way", ["exit", "fork"])
def test_a_process_ends_with_copies_under_way(way):
    done = subprocess.run([sys.executable, "-c", PROGRAM, way], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
