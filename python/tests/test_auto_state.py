# SPDX-License-Identifier: BSD-3-Clause

"""auto_checkpoint(): changes that the first forward, which is dropped, makes to Python state."""

import collections
import copy
import dataclasses
import functools
import random
import warnings

import numpy as np
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


def test_the_forward_that_is_dropped_leaves_no_python_state():
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


def test_an_iterator_cannot_be_read_twice():
    fn = remat.auto_checkpoint(lambda xs: sum(x.sin() for x in xs).sum(), "50%", name="f")
    with pytest.raises(TypeError, match="'f': expected arguments and captured values that can be read twice, got list_iterator"):
        fn(iter([torch.randn(2, requires_grad=True)]))


class Cache:
    """Like a cache of keys and values: each forward that gets it fills it."""

    def __init__(self):
        self.layers = []
        self.newest = None
        self.tokens = collections.deque(maxlen=3)

    def update(self, x):
        self.layers.append(x)
        self.newest = {"x": x}
        self.tokens.append(len(self.layers))
        return torch.stack(self.layers).sum(0)


class Output(collections.OrderedDict):
    """Like outputs of transformers: cannot be updated."""

    def update(self, *_):
        raise TypeError("cannot be updated")


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
    """Returns the arguments of the last step of each."""
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


def test_a_dictionary_in_a_list():
    def f(w, batches):
        batch = batches[0]
        batch["y"] = batch.pop("x") @ w
        batch.setdefault("count", []).append(1)
        return batch["y"].tanh() @ w

    plain, planned = check(f, lambda: ([{"x": torch.ones(4, 4), "count": []}],))
    for batches in (*plain, *planned):
        assert list(batches[0]) == ["count", "y"] and batches[0]["count"] == [1]


def test_a_class_of_dictionaries_that_cannot_be_updated():
    def f(w, output):
        output["y"] = output["x"] @ w
        del output["x"]
        return output["y"].tanh() @ w

    def make_arguments():
        output = Output()
        output["x"] = torch.ones(4, 4)
        return (output,)

    plain, planned = check(f, make_arguments)
    assert list(plain[0]) == list(planned[0]) == ["y"]


def test_a_cache_of_keys_and_values():
    def f(w, cache):
        x = cache.update(torch.ones(4, 4) @ w)
        return cache.update(x.sin() @ w).cos()

    (plain,), (planned,) = check(f, lambda: (Cache(),))
    assert len(plain.layers) == len(planned.layers) == 2
    assert plain.tokens == planned.tokens


def test_what_holds_itself():
    def f(w, loop):
        loop.append(1)
        return (loop[0] @ w).sin() @ w

    def make_arguments():
        loop = [torch.ones(4, 4)]
        loop.append(loop)
        return (loop,)

    (plain,), (planned,) = check(f, make_arguments)
    assert len(plain) == len(planned) == 3


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


class Ema(nn.Module):
    """A module with Python state of all kinds."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("mean", torch.zeros(4))
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
        if self.calls == 1:
            self.linear.weight.register_hook(lambda g: g * 2)
            self.linear.bias.requires_grad_(False)
            self.linear.bias.data = self.linear.bias.data + 1
            self.linear.register_parameter("scale", nn.Parameter(torch.ones(4) * 0.5))
        return (self.linear(x + self.mean) * self.linear.scale).sin() * self.calls


def steps_of(model, step):
    found = []
    for i in range(6):
        model.zero_grad()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the first call runs other ops
            loss = step(torch.full((2, 4), 0.1 * i + 1)).square().sum()
        loss.backward()
        gradients = [p.grad.clone() for p in model.parameters() if p.grad is not None]
        found += [loss.detach(), model.mean.clone(), model.linear.bias.detach().clone(), *gradients]
    assert model.calls == 6
    return found


WAYS = {
    "itself": lambda model: model,
    "captured": lambda model: lambda x: model(x),
    "its forward": lambda model: model.forward,
    "partial": lambda model: functools.partial(lambda m, x: m(x), model),
    "default": lambda model: lambda x, m=model: m(x),
    "decorated": lambda model: functools.wraps(model.forward)(lambda x: model(x)),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_module_however_the_function_has_it(way):
    torch.manual_seed(0)
    model = Ema()
    plain = copy.deepcopy(model)
    expected = steps_of(plain, WAYS[way](plain))
    assert same(expected, steps_of(model, auto(WAYS[way](model))))


class Owner:
    """Has state in attributes, slots and other objects."""

    def __init__(self):
        torch.manual_seed(0)
        self.model = Ema()
        self.count = Count(0, [])
        self.random = random.Random(3)
        self.array = np.zeros(3)
        self.bytes = bytearray(b"abc")
        self.generator = np.random.default_rng(5)

    def loss(self, x):
        self.count.n += 1
        self.count.seen.append(self.count.n)
        self.array += 1
        self.bytes[0] = (self.bytes[0] + 1) % 256
        self.drawn = self.random.random() + self.generator.random()
        return self.model(x) * self.drawn * float(self.array[0])

    __call__ = loss


@dataclasses.dataclass(slots=True)
class Count:
    n: int
    seen: list


@pytest.mark.parametrize("method", ["loss", "__call__"])
def test_an_object_that_the_function_is_of(method):
    plain, planned = Owner(), Owner()
    function = planned if method == "__call__" else planned.loss
    assert same(steps_of(plain.model, plain.loss), steps_of(planned.model, auto(function)))
    assert planned.count == plain.count == Count(6, [1, 2, 3, 4, 5, 6])
    assert planned.bytes == plain.bytes and planned.drawn == plain.drawn


@pytest.mark.parametrize("make", [
    lambda xs: ({"x": (x for x in xs)},),
    lambda xs: ([[iter(xs)]],),
    lambda xs: (map(torch.sin, xs),),
])  # fmt: skip
def test_an_iterator_within_an_argument(make):
    def read(value):
        value = value["x"] if isinstance(value, dict) else value
        while isinstance(value, list):
            value = value[0]
        return sum(x.sin().sum() for x in value)

    arguments = make([torch.ones(2, requires_grad=True)] * 2)
    with pytest.raises(TypeError, match="that can be read twice, got (generator|list_iterator|map)"):
        auto(read)(*arguments)


def test_an_iterator_that_is_captured():
    batches = iter([torch.ones(2, requires_grad=True)] * 3)
    with pytest.raises(TypeError, match="captured values that can be read twice, got list_iterator"):
        auto(lambda: next(batches).sin().sum())()


def test_lazy_modules_are_measured_when_they_have_their_shapes():
    def train(wrap):
        torch.manual_seed(0)
        model = wrap(nn.Sequential(nn.LazyLinear(8), nn.GELU(), nn.Linear(8, 1)))
        for _ in range(7):
            model(torch.ones(3, 5)).square().sum().backward()
        return model, [p.grad for p in model.parameters()]

    (_, expected), (model, found) = train(lambda m: m), train(auto)
    assert same(expected, found) and remat.memory_plan(model) is not None


class Stubborn(list):
    def clear(self):
        raise TypeError("never")


def test_a_class_of_lists_that_refuses_to_be_cleared():
    def f(w, stubborn, parts):
        stubborn.append(1)
        parts.append(1)
        return (torch.ones(4, 4) @ w).sin() @ w

    (plain, plain_parts), (planned, parts) = check(f, lambda: (Stubborn(), []))
    assert plain == planned == [1] and plain_parts == parts == [1]


class Watched:
    def __init__(self):
        self.shapes = []

    def see(self, module, args, output):
        self.shapes.append(tuple(output.shape))


def test_what_hooks_of_modules_write_is_put_back():
    net = nn.Sequential(nn.Linear(8, 8), nn.Tanh())
    captured, watched, bound = [], Watched(), []
    net[0].register_forward_hook(lambda module, args, output: captured.append(output.detach()))
    net[1].register_forward_pre_hook(lambda module, args: captured.append(args[0].detach()))
    net[1].register_forward_hook(watched.see)
    net[1].register_forward_hook(functools.partial(lambda to, *rest: to.append(1), bound))
    remat.auto_checkpoint(net, "100%")(torch.randn(4, 8)).sum().backward()
    assert len(captured) == 2
    assert watched.shapes == [(4, 8)]
    assert bound == [1]
