# SPDX-License-Identifier: BSD-3-Clause

"""auto_checkpoint(): steps of several kinds, with the same arguments and other ops or saved tensors."""

import warnings

import pytest
import torch
from budget_trainer import MEASURED, Net, batch_of, loss_of, same, train, trainers
from same import DEVICE, generator_of
from torch import nn

import remat_meta as remat


def freeze(count):
    def before(model):
        for i, block in enumerate(model.blocks):
            block.requires_grad_(i >= count)

    return before


def train_as(plain, planned, kinds):
    """Returns the peaks of the planned model's steps."""
    peaks = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for i, kind in enumerate(kinds):
            before, run = kind if isinstance(kind, tuple) else (kind, loss_of)
            peaks += [peak for _, peak in train(plain, planned, [batch_of(seed=i)], before=before, run=run)]
    return peaks


def test_layers_that_thaw_one_after_the_other_are_measured_each_time():
    plain, planned = trainers("75%")
    for count in (4, 2, 0):
        peaks = train_as(plain, planned, [freeze(count)] * 8)
        plan = remat.memory_plan(planned.model)
        assert all(peak <= plan.budget_bytes for peak in peaks[MEASURED + 1 :])


def test_layers_that_thaw_and_freeze_in_turn():
    plain, planned = trainers("60%")
    peaks = train_as(plain, planned, [freeze(count) for _ in range(8) for count in (4, 2, 0)])
    budget = remat.memory_plan(planned.model).budget_bytes
    assert all(peak <= budget for peak in peaks[15:])


def test_kinds_in_turn_of_which_no_plan_fits_raise_like_one_kind():
    plain, planned = trainers("5%")
    with pytest.raises(ValueError, match="memory_budget: expected .* bytes or more"):
        train_as(plain, planned, [freeze(count) for _ in range(20) for count in (2, 0)])
    with pytest.raises(RuntimeError, match="none fits: "):
        remat.memory_plan(planned.model)


def test_a_kind_that_no_plan_fits_does_not_wait_for_one_that_does_not_come_again():
    plain, planned = trainers("5%")
    with pytest.raises(ValueError, match="memory_budget: expected .* bytes or more"):
        train_as(plain, planned, [freeze(2), *[freeze(0)] * 30])


def nothing_saved(model, batch):
    return torch.zeros((), requires_grad=True) + loss_of(model, batch).detach()


def test_a_step_that_saves_nothing_does_not_stand_for_others():
    plain, planned = trainers("50%")
    train_as(plain, planned, [freeze(0)] * 5)

    def all_frozen(model):
        model.requires_grad_(False)

    def thawed(count):
        def before(model):
            model.requires_grad_(True)
            freeze(count)(model)

        return before

    train_as(plain, planned, [(all_frozen, nothing_saved)] * 2)
    for count in (3, 1):
        peaks = train_as(plain, planned, [thawed(count)] * 8)
        assert peaks[-1] <= remat.memory_plan(planned.model).budget_bytes


def network(width, results):
    return nn.Sequential(nn.Linear(width, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, results))


def adversaries_step(order, generator, discriminator, z, real):
    """Runs one iteration of a GAN; returns all gradients."""
    models = nn.ModuleList([generator, discriminator])
    models.zero_grad()
    if order == "both at once":
        (discriminator(real).mean() - discriminator(generator(z).detach()).mean()).backward()
        gradients = [p.grad for p in discriminator.parameters()]
        models.zero_grad()
        discriminator(generator(z)).mean().backward()
    else:
        discriminator(real).mean().backward()
        fake = generator(z)
        discriminator(fake.detach()).mean().backward()
        gradients = [p.grad.clone() for p in discriminator.parameters()]
        models.zero_grad()
        (-discriminator(fake).mean()).backward()
    return gradients + [p.grad for p in models.parameters()]


@pytest.mark.parametrize("order", ["both at once", "one forward"])
def test_a_generator_and_a_discriminator_are_both_planned(order):
    torch.manual_seed(0)
    generator, discriminator = network(16, 32), network(32, 1)
    z, real = torch.randn(64, 16), torch.randn(64, 32)
    expected = adversaries_step(order, generator, discriminator, z, real)
    remat.auto_checkpoint(generator, "100%", name="generator")
    remat.auto_checkpoint(discriminator, "100%", name="discriminator")
    for _ in range(20):
        got = adversaries_step(order, generator, discriminator, z, real)
        assert all(torch.equal(a, b) for a, b in zip(expected, got, strict=True))
    assert remat.memory_plan(generator).feasible
    assert remat.memory_plan(discriminator).feasible


def test_regions_inside_of_steps_of_one_kind_while_the_other_is_measured():
    w = torch.randn(16, 16, requires_grad=True)
    has_region = [False]

    def part(x):
        return (x @ w).tanh()

    @remat.auto_checkpoint(memory_budget="80%")
    def step(x):
        for _ in range(5):
            x = remat.checkpoint()(part)(x) if has_region[0] else part(x)
        return x.sum()

    x = torch.randn(8, 16)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for i in range(12):
            has_region[0] = i % 2 == 1
            step(x).backward()


def test_the_least_budget_fits_where_sizes_depend_on_data():
    w = torch.randn(16, 16, requires_grad=True)
    generator = generator_of(0)

    @remat.auto_checkpoint(fraction=0)
    def step(x):
        for _ in range(6):
            x = (x[x.sum(1) > 0] @ w).tanh() * 2
        return x.sum()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(6):
            step(torch.randn(64, 16, generator=generator)).backward()


def test_a_plan_file_is_of_the_kind_that_comes_first(tmp_path):
    path = tmp_path / "plan.json"
    for _ in range(2):
        plain, planned = trainers("60%", plan=path)
        train_as(plain, planned, [freeze(3 if i in (2, 3, 4, 7) else 0) for i in range(12)])
        assert path.exists()


def test_a_file_of_another_kind_that_comes_later_does_not_raise(tmp_path):
    path = tmp_path / "plan.json"
    plain, planned = trainers("60%", plan=path)
    train_as(plain, planned, [freeze(0)] * 5)
    plain, planned = trainers("60%", plan=path)
    plain.model.eval(), planned.model.eval()
    train_as(plain, planned, [freeze(0)] * 2)
    plain.model.train(), planned.model.train()
    train_as(plain, planned, [freeze(3)] * 6)
    assert remat.memory_plan(planned.model).feasible


def test_why_there_is_no_plan():
    model = remat.auto_checkpoint(Net(), "60%")
    with pytest.raises(RuntimeError, match="got none yet: no step has run"):
        remat.memory_plan(model)
    for _ in range(2):
        loss_of(model, batch_of()).backward()
    with pytest.raises(RuntimeError, match="got none yet: 1 of 3 steps have been measured"):
        remat.memory_plan(model)


def test_measuring_that_never_succeeds_is_given_up_with_a_warning():
    model = remat.auto_checkpoint(Net(), "60%", name="model")
    with pytest.warns(UserWarning, match=r"\[auto_checkpoint\] 'model': measuring is given up.*retain_graph"):
        for _ in range(12):
            loss = loss_of(model, batch_of())
            loss.backward(retain_graph=True)
            loss.backward()
    with pytest.raises(RuntimeError, match="got none yet: measuring was given up; .*twice"):
        remat.memory_plan(model)


def wide(kind, x, times):
    """Makes large temporaries that autograd does not save."""
    if kind == "in the graph":
        return ((x.repeat(times, 1) + 1) * 2 - 3).view(times, *x.shape).mean(0)
    if kind == "without a graph":
        with torch.no_grad():
            large = x.repeat(times, 1) + 1
            large = large * 2
            mean = (large - 3).mean()
        return x * mean
    mask = ~(x.detach().repeat(times, 1) > 0)
    return x * mask.float().mean()


@pytest.mark.parametrize("kind", ["in the graph", "without a graph", "mask"])
@pytest.mark.parametrize("place", [0, 1, 7])
def test_a_step_that_leaves_its_plan_takes_no_more_than_plain(kind, place):
    torch.manual_seed(5)
    weights = [torch.randn(32, 32).div_(6).requires_grad_() for _ in range(12)]
    times = [0]

    def step(x):
        for i, weight in enumerate(weights):
            if i == place and times[0]:
                x = wide(kind, x, times[0])
            x = (x @ weight).tanh()
        return x.square().mean()

    planned = remat.auto_checkpoint(step, "50%")
    for i, size in enumerate([0] * 5 + [4, 0, 12, 0, 40]):
        peaks, gradients = [], []
        for run in (step, planned):
            for weight in weights:
                weight.grad = None
            times[0] = size
            x = torch.randn(512, 32, generator=generator_of(i))
            with remat.MemoryMeter() as meter, warnings.catch_warnings():
                warnings.simplefilter("ignore")
                run(x).backward()
                peaks.append(meter.peak_bytes(DEVICE))
            gradients.append([weight.grad for weight in weights])
        assert same(*gradients)
        if i > 3:
            # After the step has left its plan, a segment may make two tensors of x's size. The first step of a kind makes the
            # large tensors again, while those that cross its cuts are in memory.
            assert peaks[1] <= peaks[0] + 3 * x.nbytes
