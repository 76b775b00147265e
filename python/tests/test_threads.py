# SPDX-License-Identifier: BSD-3-Clause

"""Several threads, and which of them wait for each other."""

import faulthandler
import subprocess
import sys
import threading
import time

import torch
from programs import Square, checkpointed, ended_well, leaf
from same import assert_equal, generator_of
from torch import nn

import remat_meta as remat


def test_two_threads_on_one_graph():
    model = nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Dropout(0.5), nn.Linear(16, 16))
    x = leaf(8, 16)
    y = checkpointed(model)(x)
    expected = torch.autograd.grad(y.sum(), x, retain_graph=True)
    results = [None] * 2

    def work(i):
        for _ in range(20):
            results[i] = torch.autograd.grad(y.sum(), x, retain_graph=True)
            assert torch.equal(results[i][0], expected[0])

    run_threads([threading.Thread(target=work, args=(i,)) for i in range(2)])
    assert_equal(expected, results[0])
    assert_equal(expected, results[1])


def test_four_threads_with_graphs_of_their_own():
    def train(wrap, seed):
        generator = generator_of(seed)
        x = torch.randn(8, 16, generator=generator).requires_grad_()
        w = torch.randn(16, 16, generator=generator).requires_grad_()
        for _ in range(10):
            wrap(lambda x: Square.apply((x @ w).sin()).exp())(x).sum().backward()
        return x.grad, w.grad

    expected = [train(lambda fn: fn, seed) for seed in range(4)]
    results = [None] * 4

    def work(i):
        results[i] = train(checkpointed, i)

    run_threads([threading.Thread(target=work, args=(i,)) for i in range(4)])
    assert_equal(expected, results)


def test_a_thread_that_waits_for_a_replay_lets_go_of_the_gil():
    """Replays that draw take turns; the one that sleeps needs the GIL to continue."""
    waits = []

    def fn(x):
        if remat.is_recomputing():
            waits.append(1)
            time.sleep(0.05)
        return torch.dropout(x.sin(), 0.5, True).exp()

    first, second = (checkpointed(fn)(leaf(4)) for _ in range(2))
    # A hang would hold the GIL, so only a thread without Python can end it.
    faulthandler.dump_traceback_later(60, exit=True)
    try:
        thread = threading.Thread(target=lambda: first.sum().backward())
        thread.start()
        while not waits:
            time.sleep(0.001)
        result = second.grad_fn._saved_result  # Python asks, so this replay begins with the GIL
        thread.join()
    finally:
        faulthandler.cancel_dump_traceback_later()
    assert_equal(second, result)


def run_threads(threads):
    for thread in threads:
        thread.daemon = True
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
        assert not thread.is_alive(), "a thread hangs"


FIRST_REGIONS = """
import faulthandler, threading
import torch, remat_meta as remat

faulthandler.dump_traceback_later(60, exit=True)
w = torch.randn(4, 4, requires_grad=True)
begin = threading.Barrier(4)

def run(x):
    begin.wait()
    remat.checkpoint(policy=lambda context, op, *args, **kwargs: None)(lambda x: (x @ w).sin())(x).sum().backward()

threads = [threading.Thread(target=run, args=(torch.randn(4, 4),)) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print("done")
"""


def test_the_first_regions_of_a_process_may_be_those_of_several_threads():
    for _ in range(3):
        finished = subprocess.run([sys.executable, "-u", "-c", FIRST_REGIONS], capture_output=True, text=True, check=False)
        assert finished.stdout == "done\n", finished.stderr
        assert ended_well(finished), finished.stderr
