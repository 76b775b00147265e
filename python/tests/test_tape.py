# SPDX-License-Identifier: BSD-3-Clause

"""Replay from a tape: the function runs once; what a tape cannot hold is refused or replayed by the function."""

import contextlib
import gc
import random
import threading
import warnings
import weakref

import pytest
import torch
from programs import leaf
from same import DEVICE, assert_same, plain
from torch import nn

import remat_meta as remat
from remat_meta._C import live_region_count


def taped(fn):
    return remat.checkpoint(replay="tape")(fn)


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        square = x * x
        ctx.save_for_backward(x, square)
        return square * x

    @staticmethod
    def backward(ctx, grad):
        x, square = ctx.saved_tensors
        return grad * (square * 2 + x * x)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(8, 24)

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (2, 4)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        y = nn.functional.scaled_dot_product_attention(q, k, v, dropout_p=0.2, is_causal=True)
        return y.transpose(1, 2).flatten(2)


MODELS = {
    "mlp": lambda: nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Dropout(0.4), nn.Linear(16, 8), nn.LayerNorm(8)),
    "in place": lambda: nn.Sequential(
        nn.Linear(8, 8), nn.ReLU(inplace=True), nn.Linear(8, 8), nn.SiLU(inplace=True), nn.Linear(8, 8)
    ),
    "attention": Attention,
    "lstm": lambda: nn.LSTM(8, 8, num_layers=2, dropout=0.3, batch_first=True),
    "encoder": lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True),
    "batch norm": lambda: nn.Sequential(nn.Conv1d(5, 5, 3, padding=1), nn.BatchNorm1d(5), nn.ReLU(inplace=True)),
    "weight norm": lambda: nn.utils.parametrizations.weight_norm(nn.Linear(8, 8)),
    "spectral norm": lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(8, 8)),
}


def runs_under_autocast(model, x):
    """False for an LSTM if oneDNN has none in bfloat16: on CPUs without AVX-512."""
    try:
        with torch.autocast(DEVICE, torch.bfloat16):
            model(x)
    except RuntimeError as error:
        return "could not create a primitive descriptor" not in str(error)
    return True


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
def test_models_are_bitwise_plain_and_run_once(make, autocast):
    if autocast and not runs_under_autocast(make(), leaf(2, 5, 8)):
        pytest.skip("plain code raises")
    runs = []

    def program(wrap):
        model, x = make(), leaf(2, 5, 8)

        def fn(x):
            runs.append(0)
            return model(x)

        for _ in range(2):
            with torch.autocast(DEVICE, torch.bfloat16, enabled=autocast):
                y = wrap(fn)(x.sin())
                y = y[0] if isinstance(y, tuple) else y
                wrap(torch.exp)(y).sum().backward()
        return [y, x.grad, *(p.grad for p in model.parameters()), *model.buffers()]

    assert_same(program, taped)
    assert len(runs) == 4


def test_side_effects_happen_once(capsys):
    class Cache(nn.Module):
        def __init__(self):
            super().__init__()
            self.keys, self.calls = None, 0

        def forward(self, x):
            print("forward")
            self.calls += 1
            self.keys = x.detach() if self.keys is None else torch.cat([self.keys, x.detach()])
            return (x * random.random() * self.calls + self.keys.sum()).exp()

    def program(wrap):
        random.seed(3)
        cache, x = Cache(), leaf(4)
        for _ in range(2):
            wrap(cache)(x.sin()).sum().backward()
        assert cache.calls == 2
        return x.grad, cache.keys, torch.tensor(random.random())

    assert_same(program, taped)
    assert capsys.readouterr().out.count("forward") == 4


def test_custom_functions_come_from_the_tape():
    assert_same(lambda wrap: program_of(wrap, lambda x: Cube.apply(x.sin()).tanh()), taped)


def program_of(wrap, fn):
    x = leaf(3, 4)
    wrap(fn)(x).sum().backward()
    return x.grad


def test_named_calls_and_policies_work_on_a_tape():
    def fn(x):
        y = remat.native_op(lambda x: (x @ x.t()).sin(), "call", remat.CheckpointPolicy.SAVE)(x.exp())
        return (y @ y).tanh().sum() * x

    assert_same(lambda wrap: program_of(wrap, fn), taped)
    for policy in ("save_matmuls", "recompute_pointwise"):
        assert_same(lambda wrap: program_of(wrap, fn), remat.checkpoint(replay="tape", policy=policy))


def test_a_write_that_nobody_sees_is_found_the_first_time():
    def fn(x):
        y = torch.zeros(3, 4)
        y.numpy()[:] = 3
        return (x.sin() * y).exp()

    with pytest.raises(RuntimeError, match=r"slot \d+: expected the values that the forward saved"):
        program_of(remat.checkpoint(replay="tape", region_name="numpy"), fn)
    assert_same(lambda wrap: program_of(wrap, fn), remat.checkpoint(replay="function"))


def sparse(x):
    return x.sin().to_sparse().to_dense().exp()


def test_numbers_that_the_function_writes_begin_anew_in_every_replay():
    def program(wrap):
        x = leaf(3)

        def fn(x):
            numbers = torch.tensor([1.0, 2.0, 3.0])
            y = x + numbers
            numbers.mul_(2)
            return (y.sin() * numbers).exp()

        y = wrap(fn)(x).sum()
        y.backward(retain_graph=True)
        y.backward()
        return [x.grad]

    assert_same(program, taped)


def test_what_the_function_does_without_autocast_stays_without_it():
    def program(wrap):
        x, weight = leaf(4, 4), leaf(4, 4)

        def fn(x):
            with torch.autocast(DEVICE, enabled=False):
                return (x @ weight).sin().exp()

        with torch.autocast(DEVICE, torch.bfloat16):
            wrap(fn)(x).sum().backward()
        return [x.grad, weight.grad]

    assert_same(program, taped)


def test_a_part_and_the_whole_of_it_come_back_from_hooks():
    def program(wrap):
        x = leaf(4, 3)
        whole = x.sin()
        with torch.autograd.graph.saved_tensors_hooks(torch.clone, lambda held: held):
            wrap(lambda part: (part.sum() * whole).exp() * part.sum())(whole[1:3]).sum().backward()
        return [x.grad]

    assert_same(program, taped)


def test_tape_alone_refuses_in_the_forward_and_auto_says_why_once():
    with pytest.raises(NotImplementedError, match=r"region 'strict': expected what a tape can replay, got op aten"):
        remat.checkpoint(replay="tape", region_name="strict")(sparse)(leaf(3, 4))
    auto = remat.checkpoint(replay="auto", region_name="falls back")
    with pytest.warns(UserWarning, match=r"region 'falls back': its function is called again by replays, since"):
        program_of(auto, sparse)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert_same(lambda wrap: program_of(wrap, sparse), auto)


def test_exceptions_leave_nothing():
    def broken(x):
        x.sin().exp()
        raise KeyError("x")

    before = live_region_count()
    with pytest.raises(KeyError):
        taped(broken)(leaf(2))
    assert live_region_count() == before
    assert_same(lambda wrap: program_of(wrap, lambda x: x.sin().exp().tanh()), taped)


def test_the_function_and_what_it_captures_die_with_the_forward():
    class Thing:
        pass

    thing, alive = Thing(), []

    def fn(x, thing=thing):
        return x.sin().exp()


    alive.append(weakref.ref(thing))
    region = taped(fn)
    y = region(leaf(2))
    del region, fn, thing
    gc.collect()
    assert alive[0]() is None
    y.sum().backward()


def test_threads_share_a_taped_graph():
    def program(wrap):
        x = leaf(50)
        y = wrap(lambda x: torch.dropout(x.sin().exp(), 0.5, True).tanh())(x)
        grads = [None] * 4

        def work(i):
            grads[i] = torch.autograd.grad(y.sum(), x, retain_graph=True)[0]

        threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return grads

    assert_same(program, taped)


@pytest.mark.parametrize("inner", ["function", "tape"])
@pytest.mark.parametrize("outer", ["function", "tape"])
def test_nested_engines(inner, outer):
    def program(wrap):
        weight, x = leaf(4, 4), leaf(3, 4)
        region = remat.checkpoint(replay=inner) if wrap is not plain else plain

        def fn(x):
            shared = x.sin()
            return region(lambda y: (y @ weight).tanh() * shared)(region(torch.exp)(shared)).cos()

        wrap(fn)(x).sum().backward()
        return weight.grad, x.grad


    assert_same(program, remat.checkpoint(replay=outer))


def test_casts_that_autocast_caches_are_not_slots_of_an_outer_region():
    def program(wrap):
        x, weight = leaf(4, 4), leaf(4, 4)
        layer = remat.checkpoint(replay="tape") if wrap is not plain else plain

        def fn(x):
            for _ in range(2):
                x = layer(lambda x: torch.nn.functional.linear(x, weight).float().sin())(x)
            return x

        with torch.autocast(DEVICE, dtype=torch.bfloat16):
            y = wrap(fn)(x)
        y.sum().backward()
        return x.grad, weight.grad

    assert_same(program, remat.checkpoint())


def test_a_call_that_all_regions_keep_is_on_no_tape_inside_another_region():
    def program(wrap):
        x, weight = leaf(4, 4), leaf(4, 4)
        keep = remat.native_op(torch.sin, "keep", remat.CheckpointPolicy.SAVE, keep="all_regions")

        def inner(x):
            return (torch.sin if wrap is plain else keep)(x) * weight

        wrap(lambda x: wrap(inner)(x.exp()).cos())(x).sum().backward()
        return x.grad, weight.grad

    with pytest.warns(UserWarning, match="no tape can be written of it: a call that all regions keep"):
        assert_same(program, remat.checkpoint(replay="auto", region_name="all regions"))
    with pytest.raises(NotImplementedError, match="got a call that all regions keep, in a nested region"):
        program(taped)


# Found by the C++ suite backend.fuzz (tests/fuzz), program 1598923.
def test_a_tape_has_what_a_call_of_all_regions_wrote_for_the_copy_of_a_region_inside():
    def program(wrap):
        x = leaf(4, 4)
        captured = x.clone()

        def write(t):
            t.add_(1)
            return t.clone()

        def inner():
            call = remat.native_op(write, "write", remat.CheckpointPolicy.SAVE, keep="all_regions")
            copy = (write if wrap is plain else call)(captured)
            (wrap if wrap is plain else remat.checkpoint())(lambda t: copy)(captured)
            return copy.cos().sin()

        wrap(lambda: wrap(inner)())().sum().backward()
        return (x.grad,)

    with pytest.warns(UserWarning, match="no tape can be written of it: a call that all regions keep"):
        assert_same(program, remat.checkpoint(replay="auto", region_name="write"))


# Found by the C++ suite backend.fuzz (tests/fuzz), program 655801: of `outside` the outer region reads only what the inner keeps.
@pytest.mark.parametrize(
    "options",
    [{"replay": "tape"}, {"replay": "auto"}, {"replay": "tape", "cuts": remat.Cuts([1], groups=[])}],
    ids=["tape", "auto", "cut"],
)
def test_a_call_of_all_regions_writes_the_argument_of_a_region_inside(options):
    def program(wrap):
        x = leaf(4, 4)
        outside = x.clone()

        def write(t, other):
            t.relu_()
            return other * 2

        def inner(t):
            call = remat.native_op(write, "write", remat.CheckpointPolicy.SAVE, keep="all_regions")
            return (write if wrap is plain else call)(t, x.clone()).sin()

        def outer():
            return (inner if wrap is plain else remat.checkpoint()(inner))(outside).sin()

        wrap(outer)().sum().backward()
        return x.grad, outside.detach()

    assert_same(program, remat.checkpoint(**options))


def test_wrong_engines_are_refused():
    with pytest.raises(ValueError, match=r'replay: expected "function", "tape" or "auto", got "fast"'):
        remat.checkpoint(replay="fast")
    with pytest.raises(ValueError, match="replay: expected intercept = true"):
        remat.checkpoint(replay="tape", intercept=False)


class NumpyExp(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = torch.zeros_like(x)
        y.numpy()[:] = x.detach().exp().numpy()  # a write that no op shows
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.saved_tensors[0]


@pytest.mark.parametrize("order", ((0, 1), (0, 0, 0, 1), (0, 1, 0, 1)))
def test_other_ops_after_the_tape_is_trusted_are_compared_at_once(order):
    which = [0]
    region = remat.checkpoint(replay="tape", region_name=f"other ops {order}")(
        lambda x: (x.sin().exp() if which[0] == 0 else NumpyExp.apply(x.sin())) * 2
    )
    for which[0] in order:
        y = region(leaf(4))
        with pytest.raises(RuntimeError, match="got others from its tape") if which[0] else contextlib.nullcontext():
            y.sum().backward()


def test_auto_calls_the_function_after_a_tape_with_other_values():
    region = remat.checkpoint(replay="auto", region_name="numpy, auto")(lambda x: NumpyExp.apply(x.sin()) * 2)
    with pytest.raises(RuntimeError, match="got others from its tape"):
        region(leaf(4)).sum().backward()
    x = leaf(4)
    region(x).sum().backward()
    assert torch.equal(x.grad, 2 * x.detach().sin().exp() * x.detach().cos())


@pytest.mark.parametrize("replay", ["tape", "auto"])
def test_tensors_on_the_meta_device_have_no_values_to_compare(replay):
    linear = torch.nn.Linear(8, 8, device="meta")
    x = torch.randn(4, 8, device="meta", requires_grad=True)
    for _ in range(3):
        remat.checkpoint(region_name="meta", replay=replay)(lambda x: linear(x).tanh())(x).sum().backward()
    assert x.grad.shape == x.shape and linear.weight.grad.is_meta
