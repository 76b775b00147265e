# SPDX-License-Identifier: BSD-3-Clause

"""auto_checkpoint(): models within a budget, measured and planned while they train."""

import copy
import inspect
import io
import logging
import pickle
import threading
import warnings

import pytest
import torch
import torch.distributed as distributed
from budget_trainer import MEASURED, Net, Trainer, batch_of, loss_of, same, train, trainers
from same import DEVICE, generator_of
from torch import nn

import remat_meta as remat

SAVE = remat.CheckpointPolicy.SAVE


def test_a_model_trains_bitwise_and_within_the_budget():
    plain, planned = trainers()
    peaks = train(plain, planned, [batch_of(seed=i) for i in range(MEASURED + 3)])
    plan = remat.memory_plan(planned.model)
    assert plan.feasible and plan.budget_bytes < 0.51 * peaks[-1][0]
    for plain_peak, peak in peaks[:MEASURED]:
        assert peak < 0.65 * plain_peak  # a third of plain_peak are gradients of weights
    for _, peak in peaks[MEASURED:]:
        assert peak <= plan.budget_bytes
        assert peak == pytest.approx(plan.predicted_peak_bytes, rel=0.02)  # no plan covers the loss


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
            trainer.model(batch_of(seed=9)[0])  # without a backward
            trainer.model.train()
    assert remat.memory_plan(planned.model).feasible


def accumulate(model, batch):
    """Runs micro-batches, each with its backward except the last."""
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
        with torch.autocast(DEVICE, torch.bfloat16):
            return loss_of(model, batch)

    plain, planned = trainers("60%")
    peaks = train(plain, planned, [batch_of(seed=i) for i in range(6)], run=run)
    plan = remat.memory_plan(planned.model)
    assert peaks[-1][1] <= plan.budget_bytes
    assert peaks[-1][1] == pytest.approx(plan.predicted_peak_bytes, rel=0.02)


def test_micro_batches_in_one_autocast_block():
    """From the second micro-batch on, the casts of the weights already exist."""

    def run(model, batch):
        with torch.autocast(DEVICE, torch.bfloat16):
            return accumulate(model, batch)

    plain, planned = trainers("100%")
    with pytest.warns(UserWarning, match="is not like the one that was measured: expected aten::_to_copy"):
        train(plain, planned, [batch_of(seed=i) for i in range(2)], run=run)
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
                    generator = generator_of(i)
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


class Scaled(torch.autograd.Function):
    """Doubles its argument; in a region it is a named call by a handle."""

    @staticmethod
    def forward(ctx, x):
        handle = remat.get_handle(ctx, "scaled", remat.CheckpointPolicy.SAVE)
        y = x.sin() * 2
        handle.save_for_backward({"x": x})
        return handle.record_outputs(y)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * x.cos() * 2


class Layers(nn.Module):
    """Layers whose calls all have the same names."""

    def __init__(self, policy):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(6))
        self.policy = policy

    def forward(self, x):
        for layer in self.layers:
            x = remat.native_op(lambda h, layer=layer: layer(h).tanh(), "layer", self.policy)(x).exp()
            x = remat.region(torch.sigmoid, "gate", recompute=self.policy != remat.CheckpointPolicy.SAVE)(x)
            x = Scaled.apply(x)
        return x.mean()


@pytest.mark.parametrize("policy", [SAVE, remat.CheckpointPolicy.OFFLOAD, remat.CheckpointPolicy.RECOMPUTE])
def test_named_calls_leave_what_is_kept_to_the_plan(policy):
    torch.manual_seed(0)
    model = Layers(policy)
    planned = remat.auto_checkpoint(copy.deepcopy(model), "50%", steps=1)
    for seed in range(5):
        x = torch.randn(128, 64, generator=generator_of(seed))
        gradients = []
        for module in (model, planned):
            module.zero_grad()
            with remat.MemoryMeter() as meter:
                module(x).backward()
                peak = meter.peak_bytes(DEVICE)
            gradients.append([parameter.grad for parameter in module.parameters()])
        assert all(map(torch.equal, *gradients))
    plan = remat.memory_plan(planned)
    assert plan.feasible and peak <= plan.budget_bytes
    profile = remat.profile(model)(x)
    assert remat.checkpoint(plan=profile.plan("60%"))(model)(x).requires_grad


def test_what_no_tape_replays_says_what_to_do_within_a_budget():
    def f(x):
        y = x.sin()
        torch.autograd.grad(y.sum(), x)
        return y.cos().sum()

    planned = remat.auto_checkpoint(f, "70%", name="step")
    words = r"got a backward in the function[\s\S]*\[auto_checkpoint\] 'step': .*belongs outside"
    with pytest.raises(NotImplementedError, match=words):
        planned(torch.randn(8, requires_grad=True))


@remat.auto_checkpoint(memory_budget="60%")
def decorated(x):
    return x.sin()


def test_a_decorated_function_is_pickled_by_its_name():
    assert pickle.loads(pickle.dumps(decorated)) is decorated


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


@pytest.mark.parametrize("part", [False, True])
@pytest.mark.parametrize("has_graph", [False, True])
def test_an_argument_that_gets_a_gradient_by_a_write_gets_it_once(part, has_graph):
    """The first forward is dropped: its writes must not remain in the graph."""

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


@pytest.mark.parametrize("outside", [False, True])
def test_a_model_in_distributed_data_parallel(tmp_path, outside):
    """auto_checkpoint() of the module that DDP wraps, or of DDP's wrapper."""
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


def test_in_transforms_of_torch_func_it_is_a_plain_call():
    torch.manual_seed(0)
    model = Net().eval()
    x = batch_of()[0]
    expected = torch.func.grad(lambda x: model(x)["logits"].sum())(x)
    remat.auto_checkpoint(model, "80%")
    assert torch.equal(torch.func.grad(lambda x: model(x)["logits"].sum())(x), expected)
