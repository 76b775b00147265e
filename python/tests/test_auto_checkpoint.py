# SPDX-License-Identifier: BSD-3-Clause

"""auto_checkpoint(): models within a budget, measured and planned while they train."""

import copy
import gc
import inspect
import io
import logging
import os
import pickle
import subprocess
import sys
import threading
import warnings

import pytest
import torch
import torch.distributed as distributed
from residual_block import Block
from torch import nn
from torch.nn import functional as F

import remat_meta as remat

MEASURED = 3  # steps before a plan


class Net(nn.Module):
    """Blocks, of which the first `depth` run; after number `relu_at` comes a relu."""

    def __init__(self, depth=6, width=32):
        super().__init__()
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
        self.batch_norm = nn.BatchNorm1d(width)
        self.head = nn.Linear(width, 10)
        self.depth = depth
        self.relu_at = None

    def forward(self, x):
        for i, block in enumerate(self.blocks[: self.depth]):
            x = block(x)
            if i == self.relu_at:
                x = x.relu() * 1.5
        x = self.batch_norm(x.flatten(0, 1)).view_as(x)
        return {"logits": self.head(x), "kind": "text"}


def loss_of(model, batch):
    x, y = batch
    return F.cross_entropy(model(x)["logits"].flatten(0, 1), y.flatten())


def batch_of(length=16, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(8, length, 32, generator=generator), torch.randint(0, 10, (8, length), generator=generator)


class Trainer:
    """A model with its optimizer and its own random numbers, which trains beside a plain one."""

    def __init__(self, model, set_to_none=True):
        self.model = model
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        self.set_to_none = set_to_none
        self.random = torch.Generator().manual_seed(7).get_state()

    def step(self, batch, run=loss_of, before=None):
        """Its loss and the peak of its bytes."""
        self.optimizer.zero_grad(set_to_none=self.set_to_none)
        outer = torch.get_rng_state()
        torch.set_rng_state(self.random)
        if before is not None:
            before(self.model)
        gc.collect()
        with remat.MemoryMeter() as meter:
            loss = run(self.model, batch)
            loss.backward()
            value = loss.detach().clone()
            del loss
            peak = meter.peak_bytes()
        self.optimizer.step()
        self.random = torch.get_rng_state()
        torch.set_rng_state(outer)
        return value, peak

    def state(self):
        gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
        return [*(p.detach() for p in self.model.parameters()), *self.model.buffers(), *gradients, self.random]


def same(a, b):
    return len(a) == len(b) and all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def trainers(budget="50%", model=None, **options):
    torch.manual_seed(3)
    model = model or Net()
    plain = Trainer(copy.deepcopy(model))
    return plain, Trainer(remat.auto_checkpoint(model, budget, **options))


def train(plain, planned, batches, **how):
    """Peaks of both, step by step."""
    peaks = []
    for batch in batches:
        expected, plain_peak = plain.step(batch, **how)
        got, peak = planned.step(batch, **how)
        assert torch.equal(expected, got)
        assert same(plain.state(), planned.state())
        peaks.append((plain_peak, peak))
    return peaks


def test_a_model_trains_bitwise_and_within_the_budget():
    plain, planned = trainers()
    peaks = train(plain, planned, [batch_of(seed=i) for i in range(MEASURED + 3)])
    plan = remat.memory_plan(planned.model)
    assert plan.feasible and plan.budget_bytes < 0.51 * peaks[-1][0]
    for plain_peak, peak in peaks[:MEASURED]:
        assert peak < 0.65 * plain_peak  # a third are gradients of weights
    for _, peak in peaks[MEASURED:]:
        assert peak <= plan.budget_bytes
        assert peak == pytest.approx(plan.predicted_peak_bytes, rel=0.02)  # the loss is outside


def test_a_plan_comes_at_once_if_measuring_takes_more_than_the_budget():
    _, planned = trainers("35%")
    _, peak = planned.step(batch_of())
    planned.step(batch_of())
    assert remat.memory_plan(planned.model).budget_bytes < peak


def test_the_first_steps_are_measured_and_then_no_more(caplog):
    _, planned = trainers("80%")
    with caplog.at_level(logging.INFO, logger="remat_meta"):
        for i in range(MEASURED):
            planned.step(batch_of(seed=i))
            with pytest.raises(RuntimeError, match="the first steps are measured"):
                remat.memory_plan(planned.model)
        for i in range(3):
            planned.step(batch_of(seed=i))
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 2
    assert lines[0].startswith("[auto_checkpoint] 'Net': measures ")
    assert "fits " in lines[1] and "no plan is below" in lines[1]


def test_the_function_runs_once_more_in_all():
    runs = []
    plain, planned = trainers()
    planned.model.blocks[0].register_forward_hook(lambda *_: runs.append(1))
    train(plain, planned, [batch_of(seed=i) for i in range(6)])
    assert len(runs) == 7


def test_a_module_stays_what_it_is():
    model = Net()
    keys, kind = list(model.state_dict()), type(model)
    assert remat.auto_checkpoint(model, "50%") is model
    assert list(model.state_dict()) == keys and type(model) is kind
    assert [name for name, _ in model.named_modules()] == [name for name, _ in Net().named_modules()]
    model.load_state_dict(Net().state_dict())
    assert inspect.signature(model.forward) == inspect.signature(Net().forward)


def test_without_grad_mode_it_is_a_plain_call():
    plain, planned = trainers()
    train(plain, planned, [batch_of()])
    x, _ = batch_of(seed=5)
    for model in (plain.model, planned.model):
        model.eval()
    with torch.no_grad():
        assert torch.equal(plain.model(x)["logits"], planned.model(x)["logits"])
    with torch.inference_mode():
        assert torch.equal(plain.model(x)["logits"], planned.model(x)["logits"])
    for model in (plain.model, planned.model):
        model.train()
    train(plain, planned, [batch_of(seed=i) for i in range(5)])
    assert remat.memory_plan(planned.model).feasible


def test_eval_with_gradients_between_steps():
    plain, planned = trainers()
    for i in range(6):
        train(plain, planned, [batch_of(seed=i)])
        for trainer in (plain, planned):
            trainer.model.eval()
            trainer.model(batch_of(seed=9)[0])  # nobody runs backward
            trainer.model.train()
    assert remat.memory_plan(planned.model).feasible


def accumulate(model, batch):
    """Micro-batches, each with its backward but for the last."""
    x, y = batch
    for i in range(3):
        (loss_of(model, (x[2 * i : 2 * i + 2], y[2 * i : 2 * i + 2])) / 4).backward()
    return loss_of(model, (x[6:], y[6:])) / 4


def test_gradients_add_up_over_micro_batches():
    plain, planned = trainers("85%")
    train(plain, planned, [batch_of(seed=i) for i in range(4)], run=accumulate)
    assert remat.memory_plan(planned.model).feasible


@pytest.mark.parametrize("set_to_none", [True, False])
def test_gradients_that_are_there_or_not(set_to_none):
    plain, planned = trainers("60%")
    plain.set_to_none = planned.set_to_none = set_to_none
    peaks = train(plain, planned, [batch_of(seed=i) for i in range(6)])
    plan = remat.memory_plan(planned.model)
    assert max(peak for _, peak in peaks[MEASURED:]) <= plan.budget_bytes


def test_the_loss_inside_of_a_function():
    model = Net()
    step = remat.auto_checkpoint(lambda x, y: loss_of(model, (x, y)), "50%", name="step")
    plain, planned = Trainer(copy.deepcopy(model)), Trainer(model)
    for i in range(6):
        expected, _ = plain.step(batch_of(seed=i))
        got, peak = planned.step(batch_of(seed=i), run=lambda _, batch: step(*batch))
        assert torch.equal(expected, got) and same(plain.state(), planned.state())
    plan = remat.memory_plan(step)
    assert peak == pytest.approx(plan.predicted_peak_bytes, rel=0.001) and peak <= plan.budget_bytes


def test_autocast():
    def run(model, batch):
        with torch.autocast("cpu", torch.bfloat16):
            return loss_of(model, batch)

    plain, planned = trainers("60%")
    peaks = train(plain, planned, [batch_of(seed=i) for i in range(6)], run=run)
    plan = remat.memory_plan(planned.model)
    assert peaks[-1][1] <= plan.budget_bytes
    assert peaks[-1][1] == pytest.approx(plan.predicted_peak_bytes, rel=0.02)


def test_micro_batches_in_one_autocast_block():
    """From the second one on the weights' casts are there already."""

    def run(model, batch):
        with torch.autocast("cpu", torch.bfloat16):
            return accumulate(model, batch)

    plain, planned = trainers("100%")
    train(plain, planned, [batch_of(seed=i) for i in range(4)], run=run)
    assert remat.memory_plan(planned.model).feasible


def test_other_lengths_are_covered_or_measured():
    plain, planned = trainers("60%")
    lengths = [16, 12, 20, 8, 16, 20, 14, 20, 16, 9, 24, 24, 16, 10, 22]
    train(plain, planned, [batch_of(length, seed=i) for i, length in enumerate(lengths)])
    assert remat.memory_plan(planned.model).feasible


def test_a_smaller_last_batch_runs_by_the_plan(caplog):
    plain, planned = trainers("50%")
    train(plain, planned, [batch_of(seed=i) for i in range(5)])
    budget = remat.memory_plan(planned.model).budget_bytes
    with caplog.at_level(logging.INFO, logger="remat_meta"):
        peaks = train(plain, planned, [tuple(part[:3] for part in batch_of(seed=8))] * 2)
    assert not caplog.records and all(peak <= budget for _, peak in peaks)


@pytest.mark.parametrize("change", ["relu_at", "depth"])
def test_another_sequence_of_ops_runs_in_bounded_units_and_is_measured_when_it_comes_again(change):
    plain, planned = trainers("60%")
    train(plain, planned, [batch_of(seed=i) for i in range(5)])

    def changed(model):
        setattr(model, change, 3)

    def usual(model):
        setattr(model, change, {"relu_at": None, "depth": 6}[change])

    with pytest.warns(UserWarning, match=r"\[auto_checkpoint\] 'Net': a step is not like the one .* expected "):
        train(plain, planned, [batch_of(seed=6)], before=changed)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(plain, planned, [batch_of(seed=7)], before=usual)
        train(plain, planned, [batch_of(seed=i) for i in range(5)], before=changed)
        train(plain, planned, [batch_of(seed=i) for i in range(3)], before=usual)


def test_a_function_without_anything_to_save():
    model = Net().requires_grad_(False)
    x, _ = batch_of()
    plain = copy.deepcopy(model)
    remat.auto_checkpoint(model, "60%")
    for _ in range(3):
        torch.manual_seed(1)
        expected = plain(x)["logits"]
        torch.manual_seed(1)
        assert torch.equal(model(x)["logits"], expected)
    model.requires_grad_(True)
    plain, planned = Trainer(copy.deepcopy(model)), Trainer(model)
    with pytest.warns(UserWarning, match="expected the tensors that autograd saved then at record 0"):
        train(plain, planned, [batch_of()])
    train(plain, planned, [batch_of(seed=i) for i in range(6)])


def test_frozen_layers():
    model = Net()
    model.blocks[:3].requires_grad_(False)
    plain, planned = trainers("60%", model)
    train(plain, planned, [batch_of(seed=i) for i in range(6)])


def test_an_input_with_a_graph_of_its_own():
    torch.manual_seed(0)
    encoder, decoder = Net(), Net()
    plain = Trainer(nn.ModuleList([copy.deepcopy(encoder), copy.deepcopy(decoder)]))
    planned = Trainer(nn.ModuleList([encoder, remat.auto_checkpoint(decoder, "60%")]))

    def run(models, batch):
        x, y = batch
        hidden = models[0].blocks[0](x)
        return loss_of(models[1], (hidden, y))

    train(plain, planned, [batch_of(seed=i) for i in range(6)], run=run)
    assert remat.memory_plan(decoder).feasible


def test_two_models_in_one_step():
    torch.manual_seed(0)
    first, second = Net(), Net(depth=4)
    plain = Trainer(nn.ModuleList([copy.deepcopy(first), copy.deepcopy(second)]))
    pair = nn.ModuleList([remat.auto_checkpoint(first, "60%"), remat.auto_checkpoint(second, "70%")])

    def run(models, batch):
        return loss_of(models[0], batch) + loss_of(models[1], batch)

    train(plain, Trainer(pair), [batch_of(seed=i) for i in range(10)], run=run)
    assert remat.memory_plan(first).feasible and remat.memory_plan(second).feasible


def test_two_models_in_turn():
    one, other = trainers("60%"), trainers("60%", Net(depth=3))
    for i in range(9):
        train(*one, [batch_of(seed=i)])
        train(*other, [batch_of(seed=i)])
    assert remat.memory_plan(one[1].model).feasible and remat.memory_plan(other[1].model).feasible


def test_threads_with_models_of_their_own():
    failures = []

    def work(seed):
        try:
            plain, planned = pairs[seed]
            for i in range(8):
                for trainer in (plain, planned):
                    generator = torch.Generator().manual_seed(i)
                    x = torch.randn(8, 16, 32, generator=generator)
                    y = torch.randint(0, 10, (8, 16), generator=generator)
                    trainer.optimizer.zero_grad()
                    loss_of(trainer.model, (x, y)).backward()
                    trainer.optimizer.step()
                weights = zip(plain.model.parameters(), planned.model.parameters(), strict=True)
                assert all(torch.equal(a, b) for a, b in weights)
        except BaseException as error:
            failures.append(error)

    def without_dropout():
        torch.manual_seed(1)
        model = Net()
        for block in model.blocks:
            block.drop.p = 0.0
        return model

    pairs = [trainers("60%", without_dropout()) for _ in range(3)]
    threads = [threading.Thread(target=work, args=(i,)) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures


def test_an_exception_in_the_function_leaves_nothing_behind():
    plain, planned = trainers("60%")
    for i in range(7):
        handle = planned.model.blocks[3].register_forward_hook(lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            planned.model(batch_of(seed=i)[0])
        handle.remove()
        assert not remat.memory_report()
        planned.model.batch_norm.load_state_dict(plain.model.batch_norm.state_dict())
        train(plain, planned, [batch_of(seed=i)])
    assert remat.memory_plan(planned.model).feasible


def test_a_backward_that_runs_twice_is_right_and_not_planned():
    def run(model, batch):
        loss = loss_of(model, batch)
        loss.backward(retain_graph=True)
        return loss

    plain, planned = trainers("60%")
    train(plain, planned, [batch_of(seed=i) for i in range(8)], run=run)
    with pytest.raises(RuntimeError, match="none yet"):
        remat.memory_plan(planned.model)


def chain_of(w, between):
    def f(x):
        for _ in range(6):
            x = torch.tanh(x @ w) * between(x)
        return x.square().mean()

    return f


def steps_of(planned, plain, w, count=6):
    for i in range(count):
        torch.manual_seed(i)
        x = torch.randn(32, 16)
        grads = []
        for f in (plain, planned):
            w.grad = None
            f(x).backward()
            grads.append(w.grad)
        assert torch.equal(*grads)


@pytest.mark.parametrize(
    "between",
    [
        lambda x: torch.empty(4800, 16, device="meta").sin().shape[1] / 16,
        lambda x: torch.empty(4800, 16, device="meta").shape[1] / 16,
        lambda x: torch._lazy_clone(x.detach()).sum(),
    ],
    ids=["meta ops", "meta sizes", "lazy clones"],
)
def test_tensors_without_memory_of_their_own_are_planned(between):
    w = torch.randn(16, 16, requires_grad=True)
    plain = chain_of(w, between)
    planned = remat.auto_checkpoint(plain, "70%")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        steps_of(planned, plain, w)
    assert remat.memory_plan(planned).feasible


def test_steps_with_regions_go_on_without_a_plan():
    w = torch.randn(16, 16, requires_grad=True)
    has_region = [False]

    def between(x):
        scale = lambda y: y.sin() * 2  # noqa: E731
        return (remat.checkpoint()(scale) if has_region[0] else scale)(x)

    plain = chain_of(w, between)
    planned = remat.auto_checkpoint(plain, "70%")
    steps_of(planned, plain, w)
    has_region[0] = True
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        steps_of(planned, plain, w)
    has_region[0] = False
    steps_of(planned, plain, w)
    first = remat.auto_checkpoint(chain_of(w, between), "70%")
    has_region[0] = True
    with pytest.raises(NotImplementedError, match="belongs outside.*without regions of its own|own.*belongs outside"):
        first(torch.randn(32, 16))


def test_what_no_tape_replays_says_what_to_do_within_a_budget():
    def f(x):
        y = x.sin()
        torch.autograd.grad(y.sum(), x)
        return y.cos().sum()

    planned = remat.auto_checkpoint(f, "70%", name="step")
    words = r"got a backward in the function[\s\S]*\[auto_checkpoint\] 'step': .*belongs outside"
    with pytest.raises(NotImplementedError, match=words):
        planned(torch.randn(8, requires_grad=True))


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
    with pytest.raises(ValueError, match=r"'Net': memory_budget: expected \d+ bytes or more, got \d+ \(\"2%\"\)") as error:
        for i in range(MEASURED + 1):
            planned.step(batch_of(seed=i))
    assert "are gradients and workspace" in str(error.value) or "if nothing is kept" in str(error.value)
    with pytest.raises(ValueError, match="memory_budget"):
        planned.step(batch_of())


def test_no_budget_and_wrong_budgets(monkeypatch):
    monkeypatch.delenv("REMAT_MEMORY_BUDGET", raising=False)
    with pytest.raises(ValueError, match="REMAT_MEMORY_BUDGET"):
        remat.auto_checkpoint(Net())
    for text in ("8 parrots", "", "fraction:2", "device:50%", "-3GB"):
        with pytest.raises(ValueError, match="memory_budget: expected"):
            remat.auto_checkpoint(Net(), text)
    with pytest.raises(TypeError, match="memory_budget: expected bytes"):
        remat.auto_checkpoint(Net(), 0.5)
    with pytest.raises(ValueError, match="expected one budget, got memory_budget and fraction"):
        remat.auto_checkpoint(Net(), "8GB", fraction=0.5)
    with pytest.raises(ValueError, match="of_peak: expected 0 to 1"):
        remat.auto_checkpoint(Net(), of_peak=60)
    with pytest.raises(TypeError, match="expected a module or a function"):
        remat.auto_checkpoint(3, "50%")
    with pytest.raises(ValueError, match="steps: expected 1 to 1000"):
        remat.auto_checkpoint(Net(), "50%", steps=0)


def test_budgets_of_other_kinds(monkeypatch):
    monkeypatch.setenv("REMAT_MEMORY_BUDGET", "55%")
    weights = sum(p.nbytes for p in Net().parameters())
    for given in ({}, {"of_peak": 0.6}, {"fraction": 0.3}, {"device_bytes": 3_000_000}, {"memory_budget": 900_000}):
        plain, planned = trainers(**{"budget": None, **{"budget" if k == "memory_budget" else k: v for k, v in given.items()}})
        peaks = train(plain, planned, [batch_of(seed=i) for i in range(5)])
        plan = remat.memory_plan(planned.model)
        assert peaks[-1][1] <= plan.budget_bytes
        if "device_bytes" in given:  # weights, gradients until they are None, momentum
            assert 3_000_000 - 4 * weights <= plan.budget_bytes <= 3_000_000 - 2 * weights
        if "fraction" in given:
            assert plan.least_budget_bytes < plan.budget_bytes < plan.frontier()[-1].peak_bytes


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
    other, less = trainers("70%", plan=path)  # planned anew from the same profile
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
    with pytest.raises(ValueError, match=r"expected one of torch 2.11.0, got 2.9.0"):
        remat.auto_checkpoint(Net(), "50%", plan=path)
    path.write_text(text[: len(text) // 2])
    with pytest.raises(ValueError, match="plan.json"):
        remat.auto_checkpoint(Net(), "50%", plan=path)


def test_copies_and_pickles_of_a_model_are_measured_by_themselves():
    plain, planned = trainers("50%")
    train(plain, planned, [batch_of(seed=i) for i in range(5)])
    stream = io.BytesIO()
    torch.save(planned.model, stream)
    stream.seek(0)
    for copied in (
        copy.deepcopy(planned.model),
        pickle.loads(pickle.dumps(planned.model)),
        torch.load(stream, weights_only=False),
    ):
        assert copied.forward is not planned.model.forward
        beside = Trainer(copy.deepcopy(plain.model))
        train(beside, Trainer(copied), [batch_of(seed=i) for i in range(5)])
        assert remat.memory_plan(copied).feasible


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
            peak = meter.peak_bytes()
        gradients = [p.grad.clone() for p in model.parameters()]
        if run is step:
            expected = gradients
    assert same(expected, gradients) and peak <= plan.budget_bytes
    pickle.loads(pickle.dumps(wrapped.__reduce__()[1][0]["plan"]))
    with pytest.raises(TypeError, match="plan: expected a MemoryPlan, got str"):
        remat.checkpoint(plan="plan.json")
    with pytest.raises(ValueError, match="expected no cuts beside it"):
        remat.checkpoint(cuts=plan.cuts, plan=plan)


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


SCRIPT = """
import sys, torch
from torch import nn
sys.path.insert(0, sys.argv[1])
from test_auto_checkpoint import Net, batch_of, loss_of
torch.manual_seed(0)
model, criterion = Net(), nn.MSELoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for i in range(6):
    optimizer.zero_grad()
    (loss_of(model, batch_of(seed=i)) + criterion(model.head.weight, torch.zeros(10, 32))).backward()
    optimizer.step()
print("forward" in vars(model), "forward" in vars(criterion), sum(p.double().sum() for p in model.parameters()).item())
"""


def run_python(*arguments, budget=None):
    environment = {key: value for key, value in os.environ.items() if key != "REMAT_MEMORY_BUDGET"}
    if budget is not None:
        environment["REMAT_MEMORY_BUDGET"] = budget
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, env=environment)


def test_a_script_that_is_not_changed(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    arguments = (str(script), os.path.dirname(os.path.abspath(__file__)))
    plain = run_python(*arguments)
    by_variable = run_python("-m", "remat_meta", *arguments, budget="60%")
    by_option = run_python("-m", "remat_meta", "--memory-budget", "60%", *arguments)
    checksum = plain.stdout.split()[2]
    assert plain.stdout.split() == ["False", "False", checksum], plain.stderr
    assert by_variable.stdout.split() == ["True", "False", checksum], by_variable.stderr
    assert by_option.stdout.split() == ["True", "False", checksum], by_option.stderr
    assert "measures" in by_variable.stderr
    assert "fits" in by_option.stderr


def test_a_script_that_is_not_there():
    finished = run_python("-m", "remat_meta", "--memory-budget", "60%", "nowhere.py")
    assert finished.returncode == 2
    assert "expected a script, got nowhere.py" in finished.stderr


def test_a_script_without_a_budget():
    finished = run_python("-m", "remat_meta", "train.py")
    assert finished.returncode == 2
    assert "expected --memory-budget or REMAT_MEMORY_BUDGET, got neither" in finished.stderr


@pytest.mark.parametrize("part", [False, True])
@pytest.mark.parametrize("has_graph", [False, True])
def test_an_argument_that_gets_a_gradient_by_a_write_gets_it_once(part, has_graph):
    """The first forward is dropped: what it has written must not come from it any more."""

    def train(wrap):
        torch.manual_seed(0)
        w, u = torch.randn(4, 4, requires_grad=True), torch.randn(4, 4, requires_grad=True)
        found = []

        def f(x):
            x.add_(w)
            return x * x.sin()

        fn = wrap(f)
        for _ in range(5):
            base = torch.randn(2, 4, 4) * (u if has_graph else 1)
            x = base[1] if part else base
            loss = fn(x).square().sum() + base.sum() + x.sum()
            loss.backward()
            found += [loss.detach(), x.detach(), w.grad.clone()]
            found += [u.grad.clone()] if has_graph else []
        return found

    assert same(train(lambda f: f), train(lambda f: remat.auto_checkpoint(f, "100%")))


def test_a_share_is_that_of_the_largest_step():
    plain, planned = trainers("55%")
    train(plain, planned, [batch_of(seed=i) for i in range(5)])
    for model in (plain.model, planned.model):
        model.blocks[:4].requires_grad_(False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        train(plain, planned, [batch_of(seed=i) for i in range(4)])
        train(plain, planned, [tuple(part[:1] for part in batch_of(seed=8))] * 2)


@pytest.mark.parametrize("outside", [False, True])
def test_a_model_in_distributed_data_parallel(tmp_path, outside):
    """auto_checkpoint() of what DDP wraps, or of DDP's wrapper."""
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        torch.manual_seed(3)
        model = Net()
        plain = Trainer(nn.parallel.DistributedDataParallel(copy.deepcopy(model)))
        if outside:
            wrapped = nn.parallel.DistributedDataParallel(model)
            assert remat.auto_checkpoint(wrapped, "50%") is wrapped
        else:
            wrapped = nn.parallel.DistributedDataParallel(remat.auto_checkpoint(model, "50%"))
        planned = Trainer(wrapped)
        train(plain, planned, [batch_of(seed=i) for i in range(6)])
        assert remat.memory_plan(wrapped).predicted_peak_bytes < 0.6 * plain.step(batch_of())[1]
    finally:
        distributed.destroy_process_group()


@pytest.mark.parametrize(("options", "message"), [
    ({"name": 3}, "name: expected a text, got int"),
    ({"steps": "3"}, "steps: expected a number of steps, got str"),
    ({"steps": 0}, "steps: expected 1 to 1000, got 0"),
    ({"steps": 2**40}, "steps: expected 1 to 1000"),
    ({"plan": "/nowhere/plan.json"}, "plan_file: expected a file that can be written, got /nowhere/plan.json"),
    ({"memory_budget": "lots"}, 'memory_budget: expected bytes with a unit .* got "lots"'),
])
def test_options_are_checked_before_a_step_runs(options, message):
    with pytest.raises((TypeError, ValueError), match=message):
        remat.auto_checkpoint(Net(), **{"memory_budget": "50%", **options})


@pytest.mark.parametrize("text", ["300kB", "300KB", "300 kb", "0.3mb", "300000b", "0.0003GB"])
def test_units_of_budgets(text):
    profile = remat.profile(lambda x: x.sin().sum(), steps=1)(torch.ones(4, requires_grad=True))
    assert profile.plan(text).budget_bytes == 300000


def test_in_transforms_of_torch_func_it_is_a_plain_call():
    torch.manual_seed(0)
    model = Net().eval()
    x = batch_of()[0]
    expected = torch.func.grad(lambda x: model(x)["logits"].sum())(x)
    remat.auto_checkpoint(model, "80%")
    assert torch.equal(torch.func.grad(lambda x: model(x)["logits"].sum())(x), expected)
