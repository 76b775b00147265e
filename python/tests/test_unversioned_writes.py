# SPDX-License-Identifier: BSD-3-Clause

"""Ops that write saved tensors without a new version: autograd uses the written values, which no replay computes."""

import pytest
import torch
from torch import nn

import remat_meta as remat

ENGINES = ("function", "tape", "auto")
UNVERSIONED = "without a new version"


def gradients(program, wrap):
    torch.manual_seed(0)
    return program(wrap)


def assert_raises_and_recovers(program, engine):
    """Checks a program in which plain autograd uses later writes: the region raises, and the next step is right."""
    with pytest.raises(RuntimeError, match=UNVERSIONED):
        gradients(program, remat.checkpoint(region_name="block", replay=engine))
    assert_same(unrelated, engine)


def assert_same(program, engine):
    expected = gradients(program, lambda function: function)
    actual = gradients(program, remat.checkpoint(region_name="block", replay=engine))
    assert all(torch.equal(plain, ours) for plain, ours in zip(expected, actual, strict=True))


def unrelated(wrap):
    x = torch.randn(3, 4, requires_grad=True)
    wrap(lambda x: x.sin().exp())(x).sum().backward()
    return [x.grad]


def batch_norm_block():
    return nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.ReLU())


def eval_then_train(wrap):
    block = batch_norm_block()
    x = torch.randn(5, 4, requires_grad=True)
    wrapped = wrap(lambda x, training: block.train(training)(x))
    first = wrapped(x, False)
    second = wrapped(x * 2, True)
    (first.sum() + second.sin().sum()).backward()
    return [x.grad] + [parameter.grad for parameter in block.parameters()]


def eval_then_train_in_plain_code(wrap):
    block = batch_norm_block()
    x = torch.randn(5, 4, requires_grad=True)
    first = wrap(lambda x: block.eval()(x))(x)
    second = block.train()(x * 2)
    (first.sum() + second.sin().sum()).backward()
    return [x.grad] + [parameter.grad for parameter in block.parameters()]


def eval_then_train_inside(wrap):
    norm = nn.BatchNorm1d(4)
    x = torch.randn(5, 4, requires_grad=True)

    def function(x):
        y = norm(x)
        norm.eval()
        z = norm(y * 2)
        norm.train()
        norm(x.detach())
        return (z * y).sin()

    wrap(function)(x).sum().backward()
    return [x.grad, norm.weight.grad]


def train_as_argument(wrap):
    mean, variance = torch.zeros(4), torch.ones(4)
    x = torch.randn(5, 4, requires_grad=True)

    def function(x, training):
        return nn.functional.batch_norm(x, mean, variance, training=training).sin()

    wrapped = wrap(function)
    (wrapped(x, False).sum() + wrapped(x, True).sum()).backward()
    return [x.grad]


def trained_in_the_region_that_reads(wrap):
    """The first region trains, then reads the statistics; a second region trains again."""
    norm = nn.BatchNorm1d(4)
    x = torch.randn(5, 4, requires_grad=True)

    def function(x):
        y = norm(x)
        norm.eval()
        z = norm(y * 2)
        norm.train()
        return (z * y).sin()

    first = wrap(function)(x)
    second = wrap(lambda x: norm(x))(x)
    (first.sum() + second.sin().sum()).backward()
    return [x.grad, norm.weight.grad]


def fused_step_inside(wrap):
    weight = torch.randn(4, 4, requires_grad=True)
    x = torch.randn(3, 4, requires_grad=True)

    def function(x):
        y = (x @ weight).tanh()
        with torch.no_grad():
            torch._fused_sgd_(
                [weight],
                [torch.ones(4, 4)],
                [],
                weight_decay=0.0,
                momentum=0.0,
                lr=0.1,
                dampening=0.0,
                nesterov=False,
                maximize=False,
                is_first_step=False,
            )
        return y.sin()

    wrap(function)(x * 1).sum().backward()
    return [x.grad, weight.grad]


def shared_noise(wrap):
    x = torch.randn(3, 4, requires_grad=True)
    noise = torch.zeros(3, 4)
    wrapped = wrap(lambda x: torch.ops.aten.rrelu_with_noise(x, noise, 0.1, 0.3, True).exp())
    (wrapped(x * 1).sum() + wrapped(x * 2).sum()).backward()
    return [x.grad, noise]


def observer_scale(wrap):
    """A product saves the scale, then the observer writes it."""
    x = torch.randn(3, 4, requires_grad=True)
    low, high = torch.tensor([-0.5]), torch.tensor([0.5])
    scale, zero_point = torch.tensor([0.7]), torch.tensor([0], dtype=torch.int32)
    on = torch.tensor([1])

    def function(x):
        y = (x * scale).sin()
        seen = torch.fused_moving_avg_obs_fake_quant(
            x, on, on, low, high, scale, zero_point, 0.1, 0, 255, 0
        )
        return y + seen

    wrap(function)(x * 1).sum().backward()
    return [x.grad]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    "program",
    [
        eval_then_train,
        eval_then_train_in_plain_code,
        eval_then_train_inside,
        train_as_argument,
        trained_in_the_region_that_reads,
        fused_step_inside,
        shared_noise,
        observer_scale,
    ],
)
def test_a_saved_tensor_that_is_written_without_a_version_raises(program, engine):
    assert_raises_and_recovers(program, engine)


def statistics_are_read_then_trained_in_plain_code(wrap):
    """The region reads the statistics and saves what it computes from them, so plain autograd uses the old ones."""
    norm = nn.BatchNorm1d(4)
    x = torch.randn(5, 4, requires_grad=True)
    region = wrap(lambda x: x * (norm.running_mean + 0.5) * norm.running_var.sqrt())
    first = region(norm(x))
    second = region(norm(x * 2))
    second.sum().backward()
    first.sin().sum().backward()
    return [x.grad, norm.running_mean, norm.running_var]


@pytest.mark.parametrize("engine", ENGINES)
def test_statistics_that_plain_code_trains_after_a_region_has_read_them(engine):
    assert_same(statistics_are_read_then_trained_in_plain_code, engine)


def train_twice(wrap):
    """A Siamese network: both passes train the same statistics."""
    block = batch_norm_block()
    x = torch.randn(5, 4, requires_grad=True)
    wrapped = wrap(block)
    (wrapped(x).sum() + wrapped(x * 2).sin().sum()).backward()
    return [x.grad] + [parameter.grad for parameter in block.parameters()] + list(block.buffers())


def train_twice_inside(wrap):
    norm = nn.BatchNorm1d(4)
    x = torch.randn(5, 4, requires_grad=True)
    wrap(lambda x: norm(norm(x).sin() * 2).cos())(x).sum().backward()
    return [x.grad, norm.weight.grad, *norm.buffers()]


def train_then_eval(wrap):
    block = batch_norm_block()
    x = torch.randn(5, 4, requires_grad=True)
    wrapped = wrap(lambda x, training: block.train(training)(x))
    first = wrapped(x, True)
    second = wrapped(x * 2, False)
    (first.sum() + second.sin().sum()).backward()
    return [x.grad] + [parameter.grad for parameter in block.parameters()]


def eval_graph_is_dropped(wrap):
    """A validation loss that is kept, without a backward."""
    block = batch_norm_block()
    x = torch.randn(5, 4, requires_grad=True)
    wrapped = wrap(block)
    block.eval()
    kept = wrapped(x).sum()
    block.train()
    wrapped(x * 2).sin().sum().backward()
    return [kept.detach(), x.grad] + [parameter.grad for parameter in block.parameters()]


def eval_after_its_backward(wrap):
    block = batch_norm_block()
    x = torch.randn(5, 4, requires_grad=True)
    wrapped = wrap(block)
    for _ in range(3):
        block.eval()
        wrapped(x).sum().backward()
        block.train()
        wrapped(x * 2).sin().sum().backward()
    return [x.grad] + [parameter.grad for parameter in block.parameters()]


def fused_steps(wrap):
    block = batch_norm_block()
    optimizer = torch.optim.SGD(block.parameters(), lr=0.1, momentum=0.9, fused=True)
    x = torch.randn(5, 4, requires_grad=True)
    wrapped = wrap(block)
    for _ in range(3):
        optimizer.zero_grad()
        wrapped(x).sin().sum().backward()
        optimizer.step()
    return [x.grad] + [parameter.detach() for parameter in block.parameters()]


def observer_scale_of_its_own(wrap):
    x = torch.randn(3, 4, requires_grad=True)
    low, high = torch.tensor([-0.5]), torch.tensor([0.5])
    scale, zero_point = torch.tensor([0.7]), torch.tensor([0], dtype=torch.int32)
    on = torch.tensor([1])
    wrapped = wrap(
        lambda x: torch.fused_moving_avg_obs_fake_quant(
            x.sin(), on, on, low, high, scale, zero_point, 0.1, 0, 255, 0
        )
    )
    (wrapped(x * 1).sum() + wrapped(x * 2).sum()).backward()
    return [x.grad, low, high, scale]


def noise_of_its_own(wrap):
    x = torch.randn(3, 4, requires_grad=True)
    wrapped = wrap(lambda x: nn.functional.rrelu(x.sin(), training=True).exp())
    (wrapped(x).sum() + wrapped(x * 2).sum()).backward()
    return [x.grad]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    "program",
    [
        train_twice,
        train_twice_inside,
        train_then_eval,
        eval_graph_is_dropped,
        eval_after_its_backward,
        fused_steps,
        observer_scale_of_its_own,
        noise_of_its_own,
    ],
)
def test_what_backward_does_not_look_at_may_be_written(program, engine):
    assert_same(program, engine)
