# SPDX-License-Identifier: BSD-3-Clause

"""Worker processes, asyncio tasks, generators, context variables, copies of wrapped functions."""

import asyncio
import contextvars
import copy
import functools
import pickle
import warnings

import pytest
import torch
from programs import checkpointed, leaf
from same import assert_equal, plain
from torch.utils.data import DataLoader, Dataset

import remat_meta as remat


def program(wrap, seed):
    """Returns the gradient of a small step with a SAVE call and dropout."""
    torch.manual_seed(seed)
    x = leaf(4)
    exp = remat.region(torch.exp, "exp", recompute=False)
    wrap(lambda x: torch.dropout(exp(x.sin()), 0.5, True).cos() * x)(x).sum().backward()
    return x.grad


class Gradients(Dataset):
    """Item i is the gradient of program(i), computed in the worker."""

    def __init__(self, wrap):
        self.wrap = wrap

    def __len__(self):
        return 4

    def __getitem__(self, i):
        return program(self.wrap, i)


def loader(method):
    # `checkpointed` is pickled for the worker.
    return DataLoader(Gradients(checkpointed), batch_size=2, num_workers=1, multiprocessing_context=method)


def expected_batches():
    return [torch.stack([program(plain, i) for i in (first, first + 1)]) for first in (0, 2)]


@pytest.mark.torch_warns
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_regions_in_workers_and_around_them(method):
    x = leaf(3)
    y = checkpointed(lambda x: x.sin().exp())(x)  # the graph of y is alive while workers run
    assert_equal(expected_batches(), list(loader(method)))
    y.sum().backward()
    assert_equal(x.detach().cos() * x.detach().sin().exp(), x.grad)


@pytest.mark.torch_warns
def test_workers_that_are_forked_inside_a_region_are_in_none():
    def fn(x):
        first, *_ = list(loader("fork"))
        return (x.sin() * first.sum()).exp()

    def step(wrap):
        x = torch.linspace(0, 1, 3).requires_grad_()
        wrap(fn)(x).sum().backward()
        return x.grad

    assert_equal(step(plain), step(checkpointed))


def test_tasks_take_turns_between_forward_and_backward():
    log = []

    async def task(wrap, seed):
        generator = torch.Generator().manual_seed(seed)
        x = torch.randn(4, generator=generator).requires_grad_()
        scale = contextvars.ContextVar("scale", default=1.0)
        scale.set(float(seed))
        y = wrap(lambda x: (x * scale.get()).sin().exp())(x)
        log.append(seed)
        await asyncio.sleep(0)
        z = wrap(lambda y: y.cos() * y)(y)
        await asyncio.sleep(0)
        z.sum().backward()
        return x.grad

    async def main(wrap):
        return await asyncio.gather(*(task(wrap, seed) for seed in range(5)))

    expected = asyncio.run(main(plain))
    log.clear()
    assert_equal(expected, asyncio.run(main(checkpointed)))
    assert log == list(range(5))  # all forwards came before the first backward


def test_a_coroutine_function_is_refused_by_name():
    async def fn(x):
        return x.sin()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warns of a coroutine that was never awaited
        with pytest.raises(RuntimeError, match=r"region 'block', output: fn must return a Tensor.*got coroutine"):
            checkpointed(fn)(leaf(2))


def test_a_backward_in_another_task_or_thread_has_the_context_of_the_forward():
    scale = contextvars.ContextVar("scale", default=1.0)

    async def forward(x):
        scale.set(3.0)
        return checkpointed(lambda x: (x * scale.get()).sin().exp())(x)

    async def main(x):
        y = await asyncio.create_task(forward(x))
        assert scale.get() == 1.0
        await asyncio.to_thread(y.sum().backward)
        return x.grad

    x = leaf(3)
    y = x.detach().requires_grad_()
    (y * 3.0).sin().exp().sum().backward()
    assert_equal(y.grad, asyncio.run(main(x)))


def test_generators_may_hold_regions_and_be_left_in_the_middle():
    def layers(wrap, x):
        for _ in range(3):
            x = wrap(lambda x: torch.dropout(x.sin().exp(), 0.5, True))(x)
            yield x

    def step(wrap):
        torch.manual_seed(0)
        x = leaf(4)
        first, second = layers(wrap, x), layers(wrap, x)
        pairs = list(zip(first, second, strict=True))  # the generators take turns
        left = next(layers(wrap, x))
        (sum(a * b for a, b in pairs) + left).sum().backward()
        return x.grad

    assert_equal(step(plain), step(checkpointed))


def test_a_function_may_use_a_generator_of_its_own_but_none_that_is_used_up():
    def squares(x):
        for i in range(3):
            yield x.sin() ** i

    def step(wrap):
        x = torch.linspace(0, 1, 3).requires_grad_()
        wrap(lambda x: sum(squares(x)).exp())(x).sum().backward()
        return x.grad

    assert_equal(step(plain), step(checkpointed))
    x = leaf(3)
    y = checkpointed(lambda x, numbers: sum(x.sin() * n for n in numbers))(x, (n for n in (1.0, 2.0)))
    with pytest.raises(RuntimeError, match="as in the forward, got the end of the function"):
        y.sum().backward()


def scaled_sine(x, scale=2.0):
    return (x * scale).sin().exp()


@pytest.mark.parametrize(
    "wrap",
    [
        remat.checkpoint(region_name="copied", early_stop=False),
        lambda fn: remat.region(fn, "copied", recompute=False),
        lambda fn: functools.partial(remat.checkpoint()(remat.native_op(fn, "c", remat.CheckpointPolicy.SAVE)), scale=2.0),
        lambda fn: remat.trace_scope(fn, "copied"),
    ],
)
def test_copies_of_wrapped_functions_do_the_same(wrap):
    expected = torch.linspace(0, 1, 3).requires_grad_()
    scaled_sine(expected).sum().backward()
    wrapped = wrap(scaled_sine)
    for other in (copy.copy(wrapped), copy.deepcopy(wrapped), pickle.loads(pickle.dumps(wrapped))):
        x = torch.linspace(0, 1, 3).requires_grad_()
        checkpointed(lambda x, other=other: other(x).sin())(x)  # also inside a region
        other(x).sum().backward()
        assert_equal(expected.grad, x.grad)


def test_a_module_with_a_wrapped_forward_is_deep_copied_with_its_parameters():
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Tanh())
    model.forward = remat.checkpoint(region_name="model")(model.forward)
    other = copy.deepcopy(model)
    x = torch.ones(2, 3)
    other(x).sum().backward()
    assert all(p.grad is not None for p in other.parameters())
    assert all(p.grad is None for p in model.parameters())
