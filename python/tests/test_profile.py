# SPDX-License-Identifier: BSD-3-Clause

"""Steps are measured, planned for budgets, and run within them: bitwise equal, with the predicted peak."""

import gc
import threading

import pytest
import torch
from residual_block import Block
from same import DEVICE
from torch import nn
from torch.nn import functional as F

import remat_meta as remat
from remat_meta._C import live_region_count


def mlp():
    torch.manual_seed(0)
    model = nn.Sequential(*[Block(32) for _ in range(6)], nn.Linear(32, 4))
    x, y = torch.randn(64, 32), torch.randint(0, 4, (64,))
    return model, (x, y), lambda x, y: F.cross_entropy(model(x), y)


def convolutions():
    """A model in which batch norm writes its statistics and relu writes in place."""
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True)) for _ in range(6)]
    model = nn.Sequential(nn.Conv2d(3, 8, 1), *layers, nn.Flatten(), nn.Linear(8 * 24 * 24, 4))
    x, y = torch.randn(4, 3, 24, 24), torch.randint(0, 4, (4,))
    return model, (x, y), lambda x, y: F.cross_entropy(model(x), y)


class Skips(nn.Module):
    def __init__(self):
        super().__init__()
        self.down = nn.ModuleList(nn.Linear(32, 32) for _ in range(4))
        self.up = nn.ModuleList(nn.Linear(64, 32) for _ in range(4))

    def forward(self, x):
        skips = []
        for layer in self.down:
            x = layer(x).tanh()
            skips.append(x)
        for layer in self.up:
            x = layer(torch.cat([x, skips.pop()], -1)).sigmoid()
        return x


def skips():
    torch.manual_seed(0)
    model = Skips()
    return model, (torch.randn(128, 32),), lambda x: model(x).square().mean()


def attention():
    torch.manual_seed(0)
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 4, 64, batch_first=True), 3, enable_nested_tensor=False)
    return model, (torch.randn(4, 24, 32),), lambda x: model(x).square().mean()


MODELS = [mlp, convolutions, skips, attention]


def step(model, fn, args):
    """Returns loss, gradients and buffers of a step, and its peak above the bytes alive before."""
    for parameter in model.parameters():
        parameter.grad = None
    torch.manual_seed(1)
    gc.collect()
    gc.disable()
    try:
        with remat.MemoryMeter() as meter:
            loss = fn(*args)
            loss.backward()
            value = loss.detach().clone()
            del loss
            peak = meter.peak_bytes(DEVICE)
    finally:
        gc.enable()
    drawn = torch.rand(1)
    return [value, drawn, *(p.grad.clone() for p in model.parameters()), *(b.clone() for b in model.buffers())], peak


def restore(model, state):
    with torch.no_grad():
        for buffer, value in zip(model.buffers(), state, strict=True):
            buffer.copy_(value)


@pytest.mark.parametrize("make", MODELS)
def test_a_step_runs_within_its_budget_with_the_bits_of_plain(make):
    model, args, fn = make()
    state = [buffer.clone() for buffer in model.buffers()]
    step(model, fn, args)  # first uses allocate memory that stays
    restore(model, state)
    plain, plain_peak = step(model, fn, args)
    restore(model, state)
    for parameter in model.parameters():
        parameter.grad = None
    profile = remat.profile(fn, steps=1)(*args)
    restore(model, state)
    assert profile.plain_peak_bytes == pytest.approx(plain_peak, rel=0.005)  # the allocator rounds, temporaries are freed
    planner = remat.MemoryPlanner(profile)
    least = planner.frontier[0].peak_bytes
    overheads = []
    for share in (0, 0.1, 0.25, 0.5, 0.75, 1):
        budget = int(least + share * (plain_peak - least)) + 1
        plan = planner.plan(budget)
        assert plan.feasible
        assert plan.predicted_peak_bytes <= budget
        overheads.append(plan.predicted_overhead)
        planned = remat.checkpoint(replay="tape", region_name="planned", cuts=plan.cuts)(fn)
        step(model, planned, args)
        restore(model, state)
        got, peak = step(model, planned, args)
        restore(model, state)
        assert all(torch.equal(a, b) for a, b in zip(got, plain, strict=True))
        # A few small tensors live longer or shorter than in the profile: random number states, wrapped numbers.
        assert peak == pytest.approx(plan.predicted_peak_bytes, rel=0.005)
    assert overheads == sorted(overheads, reverse=True)
    gc.collect()
    assert live_region_count() == 0


def test_profiling_leaves_gradients_as_they_were():
    model, args, fn = convolutions()
    step(model, fn, args)
    gradients = [p.grad for p in model.parameters()]
    before = [gradient.clone() for gradient in gradients]
    remat.profile(fn, steps=1)(*args)
    assert all(torch.equal(p.grad, b) for p, b in zip(model.parameters(), before, strict=True))
    assert all(p.grad is g for p, g in zip(model.parameters(), gradients, strict=True))
    assert live_region_count() == 0


def test_profiling_leaves_gradients_as_they_were_after_an_error():
    model, args, fn = convolutions()
    calls = []

    def fails(x, y):
        calls.append(0)
        loss = fn(x, y)
        if len(calls) == 3:
            raise RuntimeError("mine")
        return loss

    with pytest.raises(RuntimeError, match="mine"):
        remat.profile(fails)(*args)
    assert all(p.grad is None for p in model.parameters())
    gc.collect()
    assert live_region_count() == 0
    assert len(remat.profile(fn, steps=1)(*args)) > 10


def test_gradients_that_are_there_are_part_of_the_step():
    _, args, fn = mlp()
    fresh = remat.profile(fn, steps=1)(*args)
    fn(*args).backward()
    again = remat.profile(fn, steps=1)(*args)
    assert again.plain_peak_bytes < fresh.plain_peak_bytes


def test_plans_say_what_they_do():
    _, args, fn = mlp()
    profile = remat.profile(fn, steps=1, name="mlp")(*args)
    plan = profile.plan("60%")
    assert plan.budget_bytes == int(0.6 * profile.plain_peak_bytes)
    assert plan.least_budget_bytes < plan.budget_bytes
    assert "segment" in plan.table()
    assert "3.up: keeps" in plan.explain("3")
    assert profile.plan(plan.budget_bytes).to_json() == plan.to_json()
    for wrong in (None, 0.6, True, [1]):
        with pytest.raises(TypeError, match="budget: expected bytes or a text like .*, got"):
            profile.plan(wrong)
        with pytest.raises(TypeError, match="budget: expected bytes or a text like .*, got"):
            remat.MemoryPlanner(profile).plan(wrong)
    with pytest.raises(ValueError, match="budget: expected bytes below"):
        profile.plan(2**70)
    small = profile.plan(1000)
    assert not small.feasible
    assert "feasible=False, budget_bytes=1000" in repr(small) and "overhead=" in repr(plan.frontier())
    assert "aten::" in small.limit and "gradients" in small.limit
    with pytest.raises(ValueError, match=r"feasible: expected a plan within its budget of 1000 bytes, got the one that needs"):
        remat.checkpoint(plan=small)(fn)(*args)


def test_files_of_another_process_are_read(tmp_path):
    _, args, fn = mlp()
    profile = remat.profile(fn, steps=1)(*args)
    plan = profile.plan("50%")
    read = remat.StepProfile.from_json(profile.to_json())
    assert read.to_json() == profile.to_json()
    assert remat.MemoryPlan.from_json(plan.to_json(), read).cuts == plan.cuts
    _, other_args, other_fn = skips()
    other = remat.profile(other_fn, steps=1)(*other_args)
    with pytest.raises(ValueError, match=r"\[memory plan\] mine:.*expected .*aten::"):
        remat.MemoryPlan.from_json(plan.to_json(), other, "mine")
    with pytest.raises(ValueError, match=r"\[memory plan\] profile"):
        remat.StepProfile.from_json(profile.to_json()[:-40])


def twice(loss):
    leaf = loss.grad_fn.next_functions[0][0].next_functions[0][0].variable
    (gradient,) = torch.autograd.grad(loss, leaf, create_graph=True)
    gradient.sum().backward()


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (
            lambda: remat.profile(lambda x: x.exp().exp(), steps=1)(torch.randn(3, requires_grad=True)),
            ValueError,
            "expected it to return its loss",
        ),
        (
            lambda: remat.profile(lambda x: x.sin().sum(), steps=0)(torch.randn(3, requires_grad=True)),
            ValueError,
            "steps: expected 1 or more, got 0",
        ),
        (lambda: remat.profile(lambda x: x.exp().sum(), steps=True), TypeError, "steps: expected an int, got bool"),
        (lambda: remat.profile(lambda x: x.exp().sum(), name=5), TypeError, "name: expected a str, got int"),
        (
            lambda: remat.profile(lambda x: x.exp().sum(), backward=lambda loss: None)(torch.randn(3, requires_grad=True)),
            ValueError,
            "expected backward to run, got a step in which no node did",
        ),
        (
            lambda: remat.profile(
                lambda x: x.exp().sum(), backward=lambda loss: (loss.backward(retain_graph=True), loss.backward())
            )(torch.randn(3, requires_grad=True)),
            NotImplementedError,
            r"each node once, got SumBackward0 twice \(retain_graph\)",
        ),
        (
            lambda: remat.profile(lambda x: x.exp().sum(), backward=twice)(torch.randn(3, requires_grad=True)),
            NotImplementedError,
            r"that a backward has made \(create_graph\)",
        ),
        (
            lambda: remat.profile(lambda x: x.exp().sum())(torch.randn(3, requires_grad=True).sin()),
            ValueError,
            "to be leaves, or to need no gradient, got one made by SinBackward0",
        ),
        (
            lambda: remat.profile(lambda x: remat.checkpoint(region_name="inner")(torch.exp)(x).exp().sum())(
                torch.randn(3, requires_grad=True)
            ),
            NotImplementedError,
            "without regions of its own, got region 'inner'",
        ),
        (
            lambda: torch.no_grad()(remat.profile(lambda x: x.exp().sum()))(torch.randn(3, requires_grad=True)),
            ValueError,
            "expected grad mode",
        ),
        (
            lambda: remat.profile(lambda x: x.sum(), name="f")(torch.randn(3)),
            NotImplementedError,
            r"\[profile\] 'f': .*nothing to plan",
        ),
        (
            lambda: remat.profile(lambda x: x.detach().clone().resize_(1).sum() * x.sum())(torch.randn(3, requires_grad=True)),
            NotImplementedError,
            "aten::resize_",
        ),
    ],
)
def test_what_cannot_be_profiled_is_refused(call, error, text):
    with pytest.raises(error, match=text):
        call()
    assert live_region_count() == 0


def test_steps_that_run_other_ops_are_refused():
    calls = []

    def fn(x):
        calls.append(0)
        return (x.sin() if len(calls) % 2 else x.cos()).exp().sum()

    with pytest.raises(RuntimeError, match="expected each step to run the same ops, got others in step 1"):
        remat.profile(fn, name="fn")(torch.randn(3, requires_grad=True))


def test_one_measurement_at_a_time():
    x = torch.randn(3, requires_grad=True)
    errors = []

    def other():
        try:
            remat.profile(lambda x: x.exp().sum(), steps=1)(torch.randn(3, requires_grad=True))
        except RuntimeError as error:
            errors.append(str(error))

    def fn(x):
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        return x.sin().exp().sum()

    remat.profile(fn, steps=1)(x)
    assert len(errors) == 2
    assert "expected no other measurement in the process" in errors[0]


@pytest.mark.parametrize("budget", ["8 apples", "-3GB", "", "0.5"])
def test_what_is_no_budget_is_refused(budget):
    _, args, fn = skips()
    with pytest.raises(ValueError, match=r"\[memory plan\] budget: expected bytes with a unit"):
        remat.profile(fn, steps=1)(*args).plan(budget)


def test_a_meter_tells_what_it_counted_after_its_block():
    with remat.MemoryMeter() as meter:
        held = torch.empty(1024)
        torch.empty(512)
        assert (meter.peak_bytes(DEVICE), meter.current_bytes(DEVICE)) == (6144, 4096)
    del held
    assert (meter.peak_bytes(DEVICE), meter.current_bytes(DEVICE), meter.peak_bytes("mps")) == (6144, 4096, 0)
    torch.empty(10000)
    meter.close()
    assert meter.peak_bytes(DEVICE) == 6144
    with pytest.raises(RuntimeError, match="reset_peak: expected one that counts, got one that was closed"):
        meter.reset_peak()
