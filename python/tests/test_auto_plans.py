# SPDX-License-Identifier: BSD-3-Clause

"""auto_checkpoint(): budgets and options, plans and their files, and refusals."""

import copy
import logging
import pickle
import re
import warnings

import pytest
import torch
from budget_trainer import MEASURED, Net, Trainer, batch_of, loss_of, same, train, trainers
from same import DEVICE
from torch import nn
from torch.utils.checkpoint import checkpoint

import remat_meta as remat


@pytest.mark.parametrize("where", ["the model", "a block", "in place", "its forward", "a function"])
def test_what_torch_compile_has_made_is_refused(where):
    model = Net()
    if where == "the model":
        model = torch.compile(model, backend="eager")
    elif where == "a block":
        model = torch.nn.Sequential(Net(), torch.compile(Net(), backend="eager"))
    elif where == "in place":
        model.compile(backend="eager")
    elif where == "its forward":
        model.forward = torch.compile(model.forward, backend="eager")
    else:
        model = torch.compile(lambda x: x.sin().sum(), backend="eager")
    got = {"a block": "module '1'", "a function": "a function"}.get(where, "a module")
    with pytest.raises(NotImplementedError, match=f"expected what runs op by op, got {got} of torch.compile"):
        remat.auto_checkpoint(model, "60%")


def test_a_budget_that_is_too_small_is_refused_with_the_least():
    _, planned = trainers("2%")
    words = r"'Net': memory_budget: expected \d+ bytes or more \(\d+\.\d+ kB\), got \d+ \(\"2%\"\)"
    with pytest.raises(ValueError, match=words) as error:
        for i in range(MEASURED + 1):
            planned.step(batch_of(seed=i))
    assert "are gradients and workspace" in str(error.value) or "if nothing is kept" in str(error.value)
    with pytest.raises(ValueError, match="memory_budget"):
        planned.step(batch_of())


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpoints_inside_are_refused_in_the_first_call(use_reentrant):
    layer = nn.Linear(8, 8)
    model = remat.auto_checkpoint(lambda x: checkpoint(layer, x, use_reentrant=use_reentrant).sin().sum(), "95%")
    x = torch.ones(4, 8, requires_grad=True)
    for _ in range(2):
        with pytest.raises(NotImplementedError, match=r"without regions of its own, .* turn off .*gradient_checkpointing"):
            model(x)
    checkpoint(layer, x, use_reentrant=use_reentrant).sum().backward()  # torch's own checkpoint is back
    assert "CheckpointFunction" in str(checkpoint(layer, x, use_reentrant=True).grad_fn)


def test_no_budget_and_wrong_budgets(monkeypatch):
    monkeypatch.delenv("REMAT_MEMORY_BUDGET", raising=False)
    with pytest.raises(ValueError, match="REMAT_MEMORY_BUDGET"):
        remat.auto_checkpoint(Net())
    for text in ("8 parrots", "", "fraction:2", "device:50%", "-3GB", "0", 0, "0%", "110%", "device:0GB"):
        with pytest.raises(ValueError, match="memory_budget: expected"):
            remat.auto_checkpoint(Net(), text)
    with pytest.raises(TypeError, match="memory_budget: expected bytes"):
        remat.auto_checkpoint(Net(), 0.5)
    with pytest.raises(ValueError, match="expected one budget, got memory_budget and fraction"):
        remat.auto_checkpoint(Net(), "8GB", fraction=0.5)
    with pytest.raises(ValueError, match="of_peak: expected more than 0, and at most 1"):
        remat.auto_checkpoint(Net(), of_peak=60)
    with pytest.raises(TypeError, match="expected a module, or a function"):
        remat.auto_checkpoint(3, "50%")
    with pytest.raises(ValueError, match="steps: expected 1 to 1000"):
        remat.auto_checkpoint(Net(), "50%", steps=0)


async def coroutine(x):
    return x


def generator(x):
    yield x


@pytest.mark.parametrize(("fn", "got"), [
    ("60%", 'got str. Write auto_checkpoint(model, "60%")'),
    (Net, "got the class Net"),
    (None, "got NoneType"),
    (coroutine, "got a coroutine function"),
    (generator, "got a generator function"),
])
def test_what_has_no_steps_is_refused(fn, got):
    with pytest.raises(TypeError, match=re.escape(got)):
        remat.auto_checkpoint(fn, "50%")


def test_as_a_decorator_of_a_method():
    class Layers(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(16, 16)

        @remat.auto_checkpoint(memory_budget="80%", steps=1)
        def forward(self, x):
            for _ in range(6):
                x = self.linear(x).tanh()
            return x.sum()

    model, x = Layers(), torch.randn(8, 16)
    for _ in range(3):
        model(x).backward()
    assert remat.memory_plan(model.forward).feasible


def test_as_a_decorator():
    w = torch.randn(16, 16, requires_grad=True)

    @remat.auto_checkpoint(memory_budget="80%", steps=1)
    def step(x):
        for _ in range(6):
            x = (x @ w).tanh()
        return x.sum()

    x = torch.randn(8, 16)
    for _ in range(3):
        step(x).backward()
    assert remat.memory_plan(step).feasible
    assert step.__name__ == "step"


def test_budgets_of_other_kinds(monkeypatch):
    monkeypatch.setenv("REMAT_MEMORY_BUDGET", "55%")
    weights = sum(p.nbytes for p in Net().parameters())
    for given in ({}, {"of_peak": 0.6}, {"fraction": 0.3}, {"device_bytes": 3_000_000}, {"memory_budget": 900_000}):
        plain, planned = trainers(**{"budget": None, **{"budget" if k == "memory_budget" else k: v for k, v in given.items()}})
        peaks = train(plain, planned, [batch_of(seed=i) for i in range(5)])
        plan = remat.memory_plan(planned.model)
        assert peaks[-1][1] <= plan.budget_bytes
        if "device_bytes" in given:  # for weights, momentum and the gradients that exist
            assert 3_000_000 - 4 * weights <= plan.budget_bytes <= 3_000_000 - 2 * weights
        if "fraction" in given:
            assert plan.least_budget_bytes < plan.budget_bytes < plan.frontier()[-1].peak_bytes


def test_under_torch_compile_the_budget_holds():
    torch._dynamo.reset()
    plain, planned = trainers("50%")
    planned.model.compile(backend="eager")
    peaks = train(plain, planned, [batch_of(seed=i) for i in range(6)])
    plan = remat.memory_plan(planned.model)
    assert peaks[-1][1] <= plan.budget_bytes < peaks[-1][0]
    torch._dynamo.reset()


def test_a_step_within_a_budget_is_a_graph_break():
    torch._dynamo.reset()
    model = nn.Sequential(nn.Linear(32, 32), nn.GELU())
    x = batch_of(seed=9)[0]
    expected = model(x)
    strictly = torch.compile(remat.auto_checkpoint(model, "60%"), backend="eager", fullgraph=True)
    with torch.no_grad():
        assert torch.equal(strictly(x), expected)
    with pytest.raises(torch._dynamo.exc.Unsupported, match="a step within a budget runs op by op"):
        strictly(x)
    torch._dynamo.reset()


class Momentum(nn.Module):
    """A network and a second one, whose weights the forward moves towards those of the first, under no_grad."""

    def __init__(self):
        super().__init__()
        self.query = nn.Sequential(*[nn.Sequential(nn.Linear(64, 64), nn.Tanh()) for _ in range(6)])
        self.key = copy.deepcopy(self.query).requires_grad_(False)

    def forward(self, x):
        query = self.query(x)
        with torch.no_grad():
            for mine, theirs in zip(self.key.parameters(), self.query.parameters(), strict=True):
                mine.mul_(0.9).add_(theirs, alpha=0.1)
            key = self.key(x)
        return (query * key).sum()


@pytest.mark.parametrize("budget", ["100%", "200kB", "260kB"])
def test_what_overwrites_captured_tensors_runs_as_it_is_where_that_fits(budget):
    torch.manual_seed(4)
    plain, planned = Trainer(Momentum(), set_to_none=False), Trainer(Momentum(), set_to_none=False)
    planned.model.load_state_dict(plain.model.state_dict())
    remat.auto_checkpoint(planned.model, budget)
    batches = [(torch.randn(64, 64),) for _ in range(6)]
    peaks = train(plain, planned, batches, run=lambda model, batch: model(*batch))
    assert [peak for _, peak in peaks[MEASURED + 1 :]] == [peak for peak, _ in peaks[MEASURED + 1 :]]
    with pytest.raises(RuntimeError, match="it fits as it is"):
        remat.memory_plan(planned.model)


@pytest.mark.torch_warns
def test_traced_and_exported_models_are_plain():
    model = nn.Sequential(nn.Linear(32, 32), nn.GELU())
    x = batch_of(seed=1)[0]
    expected = model(x)
    remat.auto_checkpoint(model, "60%")
    assert torch.equal(torch.jit.trace(model, x, check_trace=False)(x), expected)
    del model.forward
    assert torch.equal(torch.export.export(model, (x,)).module()(x), expected)


def test_a_plan_file_serves_another_model_of_the_kind(tmp_path, caplog):
    path = tmp_path / "plan.json"
    plain, planned = trainers("50%", plan=path)
    train(plain, planned, [batch_of(seed=i) for i in range(5)])
    first = remat.memory_plan(planned.model)
    again, loaded = trainers("50%", plan=path)
    with caplog.at_level(logging.INFO, logger="remat_meta"):
        peaks = train(again, loaded, [batch_of(seed=i) for i in range(3)])
    assert not caplog.records
    assert all(peak <= first.budget_bytes for _, peak in peaks)
    assert remat.memory_plan(loaded.model).to_json() == first.to_json()
    other, less = trainers("70%", plan=path)  # plans anew from the same profile
    train(other, less, [batch_of(seed=i) for i in range(2)])
    assert remat.memory_plan(less.model).predicted_overhead < first.predicted_overhead


def test_a_plan_file_of_another_model_is_refused(tmp_path):
    path = tmp_path / "plan.json"
    plain, planned = trainers("50%", plan=path)
    train(plain, planned, [batch_of(seed=i) for i in range(5)])
    changed = Net()
    changed.relu_at = 2
    remat.auto_checkpoint(changed, "50%", plan=path)
    with pytest.raises(ValueError, match=r"plan file .*plan.json: expected a plan for this step, .* got aten::relu"):
        changed(batch_of()[0])
    text = path.read_text()
    path.write_text(text.replace(f'"torch":"{torch.__version__.split("+")[0]}"', '"torch":"2.9.0"'))
    with pytest.raises(ValueError, match=f"expected one of torch {torch.__version__.split('+')[0]}, got 2.9.0"):
        remat.auto_checkpoint(Net(), "50%", plan=path)
    path.write_text(text[: len(text) // 2])
    with pytest.raises(ValueError, match="plan.json"):
        remat.auto_checkpoint(Net(), "50%", plan=path)


def test_a_plan_file_for_other_arguments_stays_and_warns(tmp_path):
    path = tmp_path / "plan.json"
    plain, planned = trainers("50%", plan=path)
    train(plain, planned, [batch_of(seed=i) for i in range(5)])
    text = path.read_text()
    again, loaded = trainers("50%", plan=path)
    with pytest.warns(UserWarning, match=r"plan file .*plan.json: expected the arguments that its plan was made for"):
        train(again, loaded, [batch_of(length=24, seed=i) for i in range(5)])
    assert path.read_text() == text
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        other, served = trainers("50%", plan=path)
        train(other, served, [batch_of(length=16), batch_of(length=24)])


def test_a_plan_file_that_is_no_text_is_refused(tmp_path):
    path = tmp_path / "plan.json"
    path.write_bytes('{"a": 1}'.encode("utf-16"))
    loads = (lambda p: remat.auto_checkpoint(Net(), "50%", plan=p), remat.MemoryPlan.load, remat.StepProfile.load)
    for load in loads:
        with pytest.raises(ValueError, match=r"plan.json:1: expected JSON, got a syntax error .* Mend the file"):
            load(str(path))


def test_once_more_with_another_budget():
    plain, planned = trainers("70%")
    train(plain, planned, [batch_of(seed=i) for i in range(5)])
    remat.auto_checkpoint(planned.model, "40%")
    train(plain, planned, [batch_of(seed=i) for i in range(5)])
    assert remat.memory_plan(planned.model).budget_bytes < 0.45 * remat.memory_plan(planned.model).frontier()[-1].peak_bytes


def test_a_profile_and_a_plan_by_hand(tmp_path):
    model = Net()
    x, y = batch_of()

    def step(x, y):
        return loss_of(model, (x, y))

    profile = remat.profile(step, steps=1)(x, y)
    profile.save(tmp_path / "p.json")
    plan = remat.StepProfile.load(tmp_path / "p.json").plan("50%")
    plan.save(tmp_path / "plan.json")
    plan = remat.MemoryPlan.load(tmp_path / "plan.json")
    wrapped = remat.checkpoint(plan=plan)(step)
    for run in (step, wrapped):
        model.zero_grad()
        model.batch_norm.reset_running_stats()
        torch.manual_seed(1)
        with remat.MemoryMeter() as meter:
            run(x, y).backward()
            peak = meter.peak_bytes(DEVICE)
        gradients = [p.grad.clone() for p in model.parameters()]
        if run is step:
            expected = gradients
    assert same(expected, gradients) and peak <= plan.budget_bytes
    pickle.loads(pickle.dumps(wrapped.__reduce__()[1][0]["plan"]))
    with pytest.raises(TypeError, match="plan: expected a MemoryPlan, got str"):
        remat.checkpoint(plan="plan.json")
    with pytest.raises(ValueError, match="expected no cuts beside it"):
        remat.checkpoint(cuts=plan.cuts, plan=plan)


def test_a_plan_saved_by_hand_is_no_plan_file(tmp_path):
    net = nn.Linear(8, 8)
    remat.profile(lambda x: net(x).tanh().sum(), steps=1)(torch.randn(4, 8)).plan("100%").save(tmp_path / "p.json")
    with pytest.raises(ValueError, match="expected one that auto_checkpoint.. has saved, got a plan saved by hand"):
        remat.auto_checkpoint(net, "60%", plan=tmp_path / "p.json")


def test_memory_plan_of_what_has_none():
    with pytest.raises(ValueError, match=r"expected a model or function of auto_checkpoint\(\), got Net"):
        remat.memory_plan(Net())


def test_a_plan_says_what_it_does():
    plain, planned = trainers("50%")
    train(plain, planned, [batch_of(seed=i) for i in range(4)])
    plan = remat.memory_plan(planned.model)
    assert "blocks.3.up" in plan.explain("blocks.3")
    assert plan.table().startswith("budget ")
    assert [point.peak_bytes for point in plan.frontier()] == sorted(point.peak_bytes for point in plan.frontier())
    assert plan.lower_bound <= plan.predicted_overhead


def test_a_share_is_that_of_the_largest_step():
    plain, planned = trainers("55%")
    train(plain, planned, [batch_of(seed=i) for i in range(5)])
    for model in (plain.model, planned.model):
        model.blocks[:4].requires_grad_(False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        train(plain, planned, [batch_of(seed=i) for i in range(4)])
        train(plain, planned, [tuple(part[:1] for part in batch_of(seed=8))] * 2)


@pytest.mark.parametrize(("options", "message"), [
    ({"name": 3}, "name: expected a text, got int"),
    ({"steps": "3"}, "steps: expected a number of steps, got str"),
    ({"steps": 0}, "steps: expected 1 to 1000, got 0"),
    ({"steps": 2**40}, "steps: expected 1 to 1000"),
    ({"plan": 3}, "plan: expected a path, got int"),
    ({"plan": "/tmp"}, "plan file /tmp: expected a file, got a folder or a device"),
    ({"plan": "/dev/zero"}, "plan file /dev/zero: expected a file, got a folder or a device"),
    ({"plan": "/nowhere/plan.json"}, "plan file /nowhere/plan.json: expected a file that can be written, got a folder /nowhere"),
    ({"memory_budget": "lots"}, 'memory_budget: expected bytes with a unit .* got "lots"'),
])
def test_options_are_checked_before_a_step_runs(options, message):
    with pytest.raises((TypeError, ValueError), match=message):
        remat.auto_checkpoint(Net(), **{"memory_budget": "50%", **options})


@pytest.mark.parametrize("text", ["300kB", "300KB", "300 kb", "0.3mb", "300000b", "0.0003GB"])
def test_units_of_budgets(text):
    profile = remat.profile(lambda x: x.sin().sum(), steps=1)(torch.ones(4, requires_grad=True))
    assert profile.plan(text).budget_bytes == 300000
