# SPDX-License-Identifier: BSD-3-Clause

"""Autograd's thread of a device, on which replays run: settings, generators, threads of Python, forks."""

import contextlib
import subprocess
import sys
import threading
import time

import pytest
import torch
from same import plain
from torch import nn

import remat_meta as remat
from cuda.device_runs import (
    all_replays,
    assert_same,
    calls_again,
    leaf,
    needs_cuda,
    on_main_thread,
    region,
    repeated,
    step_after,
    two_devices,
)

pytestmark = needs_cuda


def test_a_replay_of_the_function_runs_on_the_thread_of_the_device():
    threads = []

    def fn(x):
        threads.append((on_main_thread(), remat.is_recomputing(), torch.is_grad_enabled(), torch.cuda.current_device()))
        return (x.sin() * x).exp()

    region()(fn)(leaf(4)).sum().backward()
    assert threads == [(True, False, True, 0), (False, True, True, 0)]
    threads.clear()
    with torch.autograd.set_multithreading_enabled(False):
        region()(fn)(leaf(4)).sum().backward()
    assert threads == [(True, False, True, 0), (True, True, True, 0)]


@two_devices
def test_a_replay_for_another_device_runs_on_its_thread_with_it_as_the_current_one():
    seen = []

    def program(wrap):
        def fn(x):
            seen.append((threading.get_ident(), torch.cuda.current_device()))
            return (x.sin() * torch.rand(4, device=x.device)).exp() * torch.ones(4, device=x.device).cumsum(0)

        x, y = leaf(4), leaf(4, device="cuda:1")
        with torch.cuda.device(1):
            b = wrap(fn)(y)
        (wrap(fn)(x).sum() + b.sum().to("cuda:0")).backward()
        return x.grad, y.grad

    assert_same(program, region())
    (_, device_of_y), (_, device_of_x) = seen[2:4]
    assert (device_of_y, device_of_x) == (1, 0)
    assert len({thread for thread, _ in seen}) == 3


# Threads of Python
def run_threads(work, count):
    errors = []

    def guarded(i):
        try:
            work(i)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert not any(thread.is_alive() for thread in threads)
    assert not errors, errors


@all_replays
def test_threads_go_back_through_one_graph(replay):
    def program(wrap):
        x, w = leaf(4, 4), leaf(4, 4)
        y = wrap(lambda x: (torch.dropout(x @ w, 0.5, True).sin() * x).exp())(x.sin())
        results = [None] * 4

        def work(i):
            for _ in range(5):
                results[i] = torch.autograd.grad(y.sum(), (x, w), retain_graph=True)

        run_threads(work, 4)
        return results

    assert_same(program, region(replay))


@all_replays
def test_threads_with_graphs_of_their_own_share_the_thread_of_the_device(replay):
    def program(wrap):
        leaves = [(leaf(4, 4), leaf(4, 4)) for _ in range(4)]

        def work(i):
            x, w = leaves[i]
            for _ in range(5):
                wrap(lambda x: wrap(lambda x: (x @ w).sin() * x)(x).exp())(x.sin()).sum().backward()

        run_threads(work, 4)
        return [tensor.grad for pair in leaves for tensor in pair]

    assert_same(program, region(replay))


def slow(x):
    """Gives other threads time to ask for the same replay."""
    if remat.is_recomputing():
        time.sleep(0.02)
    return x


@calls_again
@pytest.mark.parametrize("other", ["cpu", pytest.param("cuda:1", marks=two_devices)])
def test_nodes_of_two_devices_ask_for_one_replay_at_the_same_time(other, replay):
    calls = []

    def program(wrap):
        x, y = leaf(4, 4), leaf(4, 4, device=other)

        def fn(x, y):
            calls.append(on_main_thread())
            return slow(x).sin().exp().cos(), slow(y).sin().exp().cos(), (x.exp() * y.sin().to("cuda")).sin()

        for _ in range(5):
            a, b, c = wrap(fn)(x, y)
            torch.autograd.backward([a.sum(), b.sum(), c.sum()])
        return x.grad, y.grad

    assert_same(program, region(replay))
    assert len(calls) >= 15 or replay == "auto"  # the plain run, the forward, and at least one replay for each of five steps


# State that belongs to a thread
@calls_again
def test_the_thread_of_the_device_sees_the_settings_of_the_forward(replay):
    seen = []

    def program(wrap):
        x, w = leaf(4, 4), leaf(4, 4)

        def fn(x):
            autocast = torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda"), torch.is_autocast_enabled("cpu")
            seen.append((torch.get_default_device(), torch.empty(0).device, *autocast))
            noise = torch.rand(4, 4)  # on the default device
            with torch.no_grad():
                scale = (x @ w).exp().float()
            return ((x @ w).sin() * noise.cuda() * scale).float()

        with torch.device("cuda"), torch.autocast("cuda", torch.bfloat16):
            y = wrap(fn)(x.sin())
        with torch.autocast("cpu", torch.bfloat16):
            y.sum().backward()
        return x.grad, w.grad

    assert_same(program, region(replay))
    assert len(set(seen)) == 1


@all_replays
def test_named_generators_draw_the_same_numbers(replay):
    generators = {}

    def program(wrap):
        generator = torch.Generator("cuda").manual_seed(3)
        generators["named"] = generator
        x = leaf(4, 4)

        def fn(x):
            noise = torch.rand(4, 4, device="cuda", generator=generator)
            return ((x * noise).sin() * torch.rand(4, 4, device="cuda")).exp()

        fn = wrap(fn)
        repeated(lambda: fn(x).sum().backward())
        return x.grad, torch.rand(4, device="cuda", generator=generator), generator.get_state()

    def wrap(fn):
        return region(replay, generators=[generators["named"]])(fn)

    assert_same(program, wrap)


def test_a_generator_that_is_not_named_is_refused_in_the_forward():
    generator = torch.Generator("cuda")
    with pytest.raises(NotImplementedError, match="Add it to generators"):
        region()(lambda x: x * torch.rand(4, device="cuda", generator=generator))(leaf(4))


@two_devices
@all_replays
def test_the_generators_of_two_devices_and_of_the_host_draw_the_same_numbers(replay):
    def program(wrap):
        x, y, z = leaf(4), leaf(4, device="cuda:1"), leaf(4, device="cpu")
        fn = wrap(lambda *leaves: [torch.dropout(t.sin(), 0.5, True).exp() for t in leaves])

        def step():
            a, b, c = fn(x, y, z)
            torch.rand(3, device="cuda:1"), torch.rand(2, device="cuda:0"), torch.rand(1)
            (a.sum() + b.sum().to("cuda:0") + c.sum().to("cuda:0")).backward()

        repeated(step)
        return x.grad, y.grad, z.grad

    assert_same(program, region(replay))


@all_replays
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("where", ["around", "inside", "around, off inside", "around backward"])
def test_autocast(where, dtype, replay):
    def autocast(*places, **options):
        return torch.autocast("cuda", dtype, **options) if where in places else contextlib.nullcontext()

    def program(wrap):
        model = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 8)).cuda()
        x = leaf(4, 8)

        def fn(x):
            with autocast("inside"), autocast("around, off inside", enabled=False):
                y = model(x)
            return torch.dropout(y, 0.5, True) @ model[2].weight.to(y.dtype)

        def step():
            with autocast("around", "around, off inside"):
                y = wrap(fn)(x.sin())
            with autocast("around backward"):
                y.float().sum().backward()
            return y

        return [*repeated(step), x.grad, *(p.grad for p in model.parameters())]

    assert_same(program, region(replay))


@all_replays
@pytest.mark.torch_warns  # warns that anomaly detection is on
def test_anomaly_mode(replay):
    def program(wrap):
        x, w = leaf(4, 4), leaf(4, 4)
        with torch.autograd.detect_anomaly():
            repeated(lambda: wrap(lambda x: (x @ w).sin() * x)(x.sin()).sum().backward())
        return x.grad, w.grad

    assert_same(program, region(replay))


@all_replays
@pytest.mark.torch_warns
def test_anomaly_mode_finds_what_is_no_number(replay):
    for wrap in (plain, region(replay)):
        with torch.autograd.detect_anomaly():
            y = wrap(lambda x: (x * 0).sqrt() * x)(leaf(4))
            with pytest.raises(RuntimeError, match=r"Function '(SqrtBackward0|MulBackward0)' returned nan values"):
                (y * 0).sum().backward()
    assert_same(step_after, region(replay))


# Processes
FORKS = """
import os, sys
import torch, remat_meta as remat
wrap = {"plain": lambda fn: fn, "region": remat.checkpoint(region_name="block")}[sys.argv[1]]
backward_in_the_child = sys.argv[2] == "backward"
def step(device):
    x = torch.ones(4, device=device, requires_grad=True)
    y = wrap(lambda x: (x.sin() * x).exp())(x)
    return x, y
x, y = step("cuda")
y.sum().backward()
if os.fork() == 0:
    code = 3
    try:
        x, y = step("cpu")
        if backward_in_the_child:
            y.sum().backward()
        code = 0
    except RuntimeError as error:
        code = 4 if "fork" in str(error) else 5
    os._exit(code)
code = os.waitstatus_to_exitcode(os.wait()[1])
again, y = step("cuda")
y.sum().backward()
assert torch.equal(x.grad, again.grad)
print(code)
"""


@pytest.mark.parametrize("does", ["forward", "backward"])
def test_a_child_that_is_forked_after_a_backward_does_what_a_plain_one_does(does):
    outcomes = []
    for kind in ("plain", "region"):
        command = [sys.executable, "-W", "ignore", "-c", FORKS, kind, does]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        outcomes.append(done.stdout)
    assert outcomes[0] == outcomes[1] == ("0\n" if does == "forward" else "4\n")
