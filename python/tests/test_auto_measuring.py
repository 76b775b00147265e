# SPDX-License-Identifier: BSD-3-Clause

"""auto_checkpoint(): the steps that are measured, and torch's profiler beside them."""

import gc
import logging
import threading

import pytest
import torch
from budget_trainer import MEASURED, batch_of, loss_of, same, train, trainers
from same import DEVICE
from torch import nn

import remat_meta as remat


@pytest.mark.parametrize("budget", ["35%", "40%", "0.45MB"])
def test_steps_after_the_first_are_measured_within_the_budget(budget):
    plain, planned = trainers(budget)
    (plain_peak, first), *others = train(plain, planned, [batch_of(seed=i) for i in range(5)])
    assert first <= 0.45 * plain_peak
    assert all(peak <= remat.memory_plan(planned.model).budget_bytes for _, peak in others)


def test_the_first_steps_are_measured_and_then_no_more(caplog):
    _, planned = trainers("80%")
    with caplog.at_level(logging.INFO, logger="remat_meta"):
        for i in range(MEASURED):
            planned.step(batch_of(seed=i))
            with pytest.raises(RuntimeError, match=f"{i} of {MEASURED} steps have been measured"):
                remat.memory_plan(planned.model)
        for i in range(3):
            planned.step(batch_of(seed=i))
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 2
    assert lines[0].startswith("[auto_checkpoint] 'Net': measures ")
    assert "fits " in lines[1] and "no plan is below" in lines[1]


def test_the_function_is_called_exactly_once_in_each_step():
    calls = []
    plain, planned = trainers()
    planned.model.register_forward_hook(lambda *_: calls.append(1))
    for i, length in enumerate([16] * 6 + [24] * 3):
        train(plain, planned, [batch_of(length, seed=i)])
        assert len(calls) == i + 1


@pytest.mark.parametrize("goes_backward", [False, True])
def test_a_function_that_its_backward_calls_again_is_right_and_is_not_measured_in_that_step(goes_backward):
    class CallsAgain(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return 2 * x

        @staticmethod
        def backward(ctx, gradient):
            if not calls:
                calls.append(1)
                with torch.enable_grad():
                    result = called[0](batch).sum()
                if goes_backward:
                    result.backward()
            return 2 * gradient

    def fn(x):
        return (CallsAgain.apply((x @ w).sin()) @ w).cos()

    w = nn.Parameter(torch.randn(16, 16, device=DEVICE))
    batch = torch.randn(64, 16, device=DEVICE)
    planned = remat.auto_checkpoint(fn, fraction=0.0)
    for _ in range(6):
        grads = []
        for called in [fn], [planned]:
            calls, w.grad = [], None
            called[0](batch).sum().backward()
            grads.append(w.grad)
        assert torch.equal(*grads)
    if torch.device(DEVICE).type == "cpu":  # a device's backward, and the call in it, run on a thread of their own
        with pytest.raises(RuntimeError, match="called again while a backward ran"):
            remat.memory_plan(planned)


def train_unmetered(plain, planned, batch):
    for model in (plain, planned):
        model.zero_grad()
        torch.manual_seed(1)
        loss_of(model, batch).backward()
    assert same([p.grad for p in plain.parameters()], [p.grad for p in planned.parameters()])


@pytest.mark.torch_warns
@pytest.mark.parametrize("wait", [0, 1, 2, 5])
def test_a_profiler_of_the_training_loop_starts_when_it_wants(wait):
    plain, planned = trainers("50%")
    schedule = torch.profiler.schedule(wait=wait, warmup=1, active=2, repeat=1)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], schedule=schedule) as profiler:
        for i in range(8):
            train_unmetered(plain.model, planned.model, batch_of(seed=i))
            profiler.step()
    assert len(profiler.events()) > 0
    peaks = train(plain, planned, [batch_of(seed=8)])
    assert peaks[-1][1] <= remat.memory_plan(planned.model).budget_bytes


def test_steps_under_a_profiler_say_that_none_is_measured():
    plain, planned = trainers("50%")
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
        with pytest.warns(UserWarning, match="no step is measured while torch's profiler runs"):
            for i in range(3):
                train_unmetered(plain.model, planned.model, batch_of(seed=i))
    with pytest.raises(RuntimeError, match="got none yet: no step is measured while torch's profiler runs"):
        remat.memory_plan(planned.model)
    train(plain, planned, [batch_of(seed=i) for i in range(5)])
    assert remat.memory_plan(planned.model).feasible


def upstream_and_head():
    def layers():
        return nn.Sequential(*[nn.Sequential(nn.Linear(64, 64), nn.GELU()) for _ in range(4)])

    return layers(), layers()


@pytest.mark.parametrize("backward_every", [1, 2, 100])
def test_kinds_that_do_not_come_again_hold_nothing_of_what_made_their_arguments(backward_every):
    up, head = upstream_and_head()
    remat.auto_checkpoint(head, "70%")
    alive = []
    gc.collect()
    with remat.MemoryMeter() as meter:
        for i in range(12):
            result = head(up(torch.randn(64 + 16 * i, 64)))
            if i % backward_every == 0:
                result.square().mean().backward()
            del result
            up.zero_grad()
            head.zero_grad()
            gc.collect()
            alive.append(meter.current_bytes(DEVICE))
    assert max(alive) == 0


def test_a_backward_on_another_thread_is_said_to_be_missing():
    _, planned = trainers("50%")
    for i in range(4):
        loss = loss_of(planned.model, batch_of(seed=i))
        thread = threading.Thread(target=loss.backward)
        thread.start()
        thread.join()
    with pytest.raises(RuntimeError, match="does not count: no backward came on the thread of its forward"):
        remat.memory_plan(planned.model)
