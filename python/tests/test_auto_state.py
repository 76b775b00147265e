# SPDX-License-Identifier: BSD-3-Clause

"""auto_checkpoint(): the function is called once in each step, so Python state changes as without remat."""

import copy
import random

import pytest
import torch
from budget_trainer import Net, Trainer, batch_of, same
from same import default_generator
from torch import nn

import remat_meta as remat


class Stateful(Net):
    """Python state that the forward changes: a buffer that is replaced, a counter, Python's random numbers."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(32))
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        self.mean = 0.9 * self.mean + 0.1 * x.detach().mean((0, 1))
        return super().forward(x * (1 + 0.01 * self.calls) * random.uniform(0.9, 1.1) + self.mean)


def test_python_state_changes_as_without_remat():
    torch.manual_seed(3)
    model = Stateful()
    plain, planned = Trainer(copy.deepcopy(model)), Trainer(remat.auto_checkpoint(model, "80%"))
    for i in range(6):
        results = []
        for trainer in (plain, planned):
            random.seed(i)
            results.append((trainer.step(batch_of(seed=i))[0], random.random()))
        assert torch.equal(results[0][0], results[1][0]) and results[0][1] == results[1][1]
        assert same(plain.state(), planned.state())
    assert planned.model.calls == 6


def test_an_exception_in_the_first_forward_leaves_what_plain_leaves():
    states = []
    for wrap in (lambda m: m, lambda m: remat.auto_checkpoint(m, "80%")):
        torch.manual_seed(3)
        model = wrap(Net())
        model.head.register_forward_hook(lambda *_: 1 / 0)
        torch.manual_seed(4)
        with pytest.raises(ZeroDivisionError):
            model(batch_of()[0])
        states.append([default_generator().get_state(), *(b.clone() for b in model.buffers())])
    assert same(*states)


def trained(wrap, f, make_arguments):
    """Returns the results of 6 steps of f, and its arguments at the end."""
    torch.manual_seed(0)
    w = torch.randn(4, 4, requires_grad=True)
    fn = wrap(lambda *arguments, **named: f(w, *arguments, **named))
    found = []
    for _ in range(6):
        arguments = make_arguments()
        w.grad = None
        loss = fn(*arguments).square().sum()
        loss.backward()
        found += [loss.detach(), w.grad.clone()]
    return found, arguments


def auto(fn):
    return remat.auto_checkpoint(fn, "100%", name="f")


def check(f, make_arguments):
    """Returns the arguments of the last step of a plain run and of a run within a budget."""
    (expected, plain), (found, planned) = trained(lambda f: f, f, make_arguments), trained(auto, f, make_arguments)
    assert same(expected, found)
    return plain, planned


def test_a_list_that_the_function_takes_apart():
    def f(w, parts, seen):
        total = parts.pop() @ w
        while parts:
            total = total.sin() + parts.pop(0) @ w
        seen.add(len(seen))
        return total

    torch.manual_seed(1)
    parts = [torch.randn(4, 4) for _ in range(3)]
    plain, planned = check(f, lambda: (list(parts), {7}))
    assert plain == planned == ([], {7, 1})


@pytest.mark.parametrize("make", [
    lambda xs: iter(xs),
    lambda xs: (x for x in xs),
    lambda xs: map(torch.sin, xs),
])  # fmt: skip
def test_an_iterator_is_read_once(make):
    def f(w, xs):
        return sum((x @ w).sin() for x in xs)

    check(f, lambda: (make([torch.ones(4, 4)] * 3),))


def test_an_iterator_that_is_captured_is_read_once():
    batches = iter([torch.ones(2, requires_grad=True)] * 3)
    step = auto(lambda: next(batches).sin().sum())
    for _ in range(3):
        step().backward()
    with pytest.raises(StopIteration):
        next(batches)


@pytest.mark.parametrize("wrap", [lambda f: f, auto])
def test_what_a_function_has_captured(wrap):
    w = torch.ones(4, 4, requires_grad=True)
    calls, history, later = 0, [], None

    def f(x):
        nonlocal calls, later
        calls += 1
        later = [calls]
        history.append(calls)
        return (x @ w).sin() @ w * calls

    fn = wrap(f)
    for _ in range(6):
        fn(torch.ones(4, 4)).sum().backward()
    assert calls == 6 and history == [1, 2, 3, 4, 5, 6] and later == [6]


def test_a_list_of_a_module():
    torch.manual_seed(3)
    model = Net()
    model.blocks[0].history = {"sums": []}
    model.blocks[0].register_forward_hook(lambda block, _, y: block.history["sums"].append(y.sum().item()))
    plain, planned = Trainer(copy.deepcopy(model)), Trainer(remat.auto_checkpoint(model, "80%"))
    for i in range(6):
        assert torch.equal(plain.step(batch_of(seed=i))[0], planned.step(batch_of(seed=i))[0])
    assert len(planned.model.blocks[0].history["sums"]) == 6
    assert planned.model.blocks[0].history == plain.model.blocks[0].history
    assert isinstance(planned.model.blocks, nn.ModuleList)


def test_lazy_modules_are_measured_when_they_have_their_shapes():
    def train(wrap):
        torch.manual_seed(0)
        model = wrap(nn.Sequential(nn.LazyLinear(8), nn.GELU(), nn.Linear(8, 1)))
        for _ in range(7):
            model(torch.ones(3, 5)).square().sum().backward()
        return model, [p.grad for p in model.parameters()]

    (_, expected), (model, found) = train(lambda m: m), train(auto)
    assert same(expected, found) and remat.memory_plan(model) is not None
