# SPDX-License-Identifier: BSD-3-Clause

"""Requests from issue trackers, one section per line of docs/how-to/coming-from.md. A test that runs torch's own
checkpoint asserts what goes wrong there, so that the page stays true."""

import functools
import gc
import re
import weakref
from pathlib import Path

import pytest
import torch
import torch.utils.checkpoint as stock
from programs import comes_true
from same import DEVICE, assert_same
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

import remat_meta as remat
from remat_meta._C import live_region_count
from remat_meta.testing import assert_bitwise_equal

ROOT = Path(__file__).resolve().parents[2]
region = remat.checkpoint(region_name="block")


def leaf(*shape):
    return torch.randn(*shape, requires_grad=True)


def dropped_in(fn):
    return lambda *args: remat.torch_checkpoint(fn, *args)


def stock_call(use_reentrant=False, **options):
    def wrap(fn):
        return lambda *args: stock.checkpoint(fn, *args, use_reentrant=use_reentrant, **options)

    return wrap


def assert_differs(program, wrap):
    with pytest.raises(AssertionError):
        assert_same(program, wrap)


# A checkpoint for C++
def test_the_python_calls_are_those_of_the_cpp_library():
    maps = Path("/proc/self/maps").read_text()
    assert "libremat.so" in maps  # the library that a C++ program links


# Two implementations
def one_layer(x):
    def program(wrap):
        layer = nn.Linear(3, 3)
        wrap(lambda x: layer(x).sin())(x).sum().backward()
        return [layer.weight.grad, layer.bias.grad]

    return program


def test_inputs_need_not_require_grad_and_no_flag_is_asked_for():
    x = torch.randn(2, 3)
    assert_same(one_layer(x), dropped_in)  # warnings are errors here
    assert_same(one_layer(x), lambda fn: lambda x: remat.torch_checkpoint(fn, x, use_reentrant=True))
    with pytest.warns(UserWarning, match="use_reentrant"):
        stock.checkpoint(torch.sin, leaf(2))
    with pytest.warns(UserWarning, match="Gradients will be None"), pytest.raises(RuntimeError, match="require grad"):
        one_layer(x)(stock_call(use_reentrant=True))


# Adapters on a frozen base
class Adapted(nn.Module):
    """A frozen layer with a low-rank one beside it."""

    def __init__(self):
        super().__init__()
        self.base = nn.Linear(4, 4).requires_grad_(False)
        self.down, self.up = nn.Linear(4, 2, bias=False), nn.Linear(2, 4, bias=False)

    def forward(self, x):
        return (self.base(x) + self.up(self.down(x))).tanh()


def adapted_blocks(wrap):
    embedding = nn.Embedding(5, 4).requires_grad_(False)
    blocks = [Adapted(), Adapted()]
    x = embedding(torch.tensor([0, 3, 1]))
    for block in blocks:
        x = wrap(block)(x)
    x.pow(2).sum().backward()
    return [p.grad for block in blocks for p in block.parameters() if p.requires_grad]


def test_adapters_get_gradients_behind_a_frozen_embedding():
    assert len(assert_same(adapted_blocks, dropped_in)) == 4
    with pytest.warns(UserWarning, match="Gradients will be None"), pytest.raises(RuntimeError, match="require grad"):
        adapted_blocks(stock_call(use_reentrant=True))


# State that the function changes
def counted(wrap):
    seen = torch.zeros(2)

    def fn(x):
        seen.add_(1)
        return (x * seen).sin().exp()

    x = leaf(2)
    wrap(fn)(x).sum().backward()
    return [seen, x.grad]


def test_state_written_in_place_is_written_once():
    assert_same(counted, dropped_in)
    assert_differs(counted, stock_call())


def cached(wrap):
    class Layer:
        cache = torch.ones(1, 2)

        def __call__(self, x):
            self.cache = torch.cat([self.cache, x.detach()])
            return (x.sin() * self.cache.sum()).exp()

    layer, x = Layer(), leaf(1, 2)
    wrap(layer)(x).sum().backward()
    return [layer.cache, x.grad]


def test_a_cache_that_grows_is_refused_by_name():
    with pytest.raises(remat.ReplayMismatch, match="aten::cat.*a cache that has grown"):
        cached(dropped_in)
    assert_differs(cached, stock_call())  # silently: two rows instead of one, and other gradients


# Batch norm
def normed(wrap):
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Sigmoid())
    wrap(model)(leaf(4, 3)).sum().backward()
    return list(model.buffers())


def test_batch_norm_statistics_are_those_of_one_forward():
    assert_same(normed, dropped_in)
    assert_differs(normed, stock_call())


# Autocast
def cast_before(wrap):
    """The weight's cast is in autocast's cache when the region begins, and gone in backward."""
    layer, x = nn.Linear(4, 4), leaf(2, 4)
    with torch.autocast(DEVICE, torch.bfloat16):
        h = layer(x)
        y = wrap(lambda h: layer(h).sin())(h)
    y.float().sum().backward()
    return [x.grad, layer.weight.grad]


@pytest.mark.parametrize("cache", [True, False])
def test_autocast_is_that_of_the_forward_whatever_is_in_its_cache(cache):
    def program(wrap):
        layer, x = nn.Linear(4, 4), leaf(2, 4)
        with torch.autocast(DEVICE, torch.bfloat16, cache_enabled=cache):
            y = wrap(lambda x: layer(layer(x)).sin())(x)
        y.float().sum().backward()
        return [x.grad, layer.weight.grad]

    assert_same(program, dropped_in)
    assert_same(cast_before, dropped_in)
    assert_differs(cast_before, stock_call(use_reentrant=True))


# Kernels behind a custom Function
class Squared(torch.autograd.Function):
    """Computes with numpy, so that no op of torch shows how."""

    runs = 0

    @staticmethod
    def forward(ctx, x):
        Squared.runs += 1
        ctx.save_for_backward(x)
        return torch.from_numpy(x.detach().cpu().numpy() ** 2).to(x.device)

    @staticmethod
    def backward(ctx, grad):
        return 2 * ctx.saved_tensors[0] * grad


def runs_of(wrap, call):
    Squared.runs = 0
    wrap(lambda x: call(x.sin()).exp())(leaf(3)).sum().backward()
    return Squared.runs


def test_a_saved_region_keeps_a_kernel_that_the_dispatcher_cannot_see():
    def save_all(*args, **keywords):
        return stock.CheckpointPolicy.MUST_SAVE

    contexts = functools.partial(stock.create_selective_checkpoint_contexts, save_all)
    assert runs_of(region, remat.region(Squared.apply, "kernel", recompute=False)) == 1
    assert runs_of(stock_call(context_fn=contexts), Squared.apply) == 2


# Random numbers
def dropped(wrap):
    x = leaf(64)
    wrap(lambda x: nn.functional.dropout(x.sin(), 0.5).exp())(x).sum().backward()
    return x.grad


def drawn(wrap, generator):
    generator.manual_seed(1)
    x = leaf(8)
    wrap(lambda x: (x.sin() * torch.rand(8, generator=generator)).exp())(x).sum().backward()
    return [x.grad, generator.get_state()]


def test_dropout_masks_are_those_of_the_forward():
    assert_same(dropped, dropped_in)
    assert_differs(dropped, stock_call(preserve_rng_state=False))


def test_a_generator_of_your_own_draws_the_same_numbers():
    draws = torch.Generator(DEVICE)
    assert_same(functools.partial(drawn, generator=draws), remat.checkpoint(generators=[draws]))
    assert_differs(functools.partial(drawn, generator=draws), stock_call())


def test_a_generator_that_is_not_listed_is_refused():
    with pytest.raises(NotImplementedError, match="Add it to generators"):
        drawn(region, generator=torch.Generator(DEVICE))


# Memory that stays
def left_after_an_error(wrap):
    """True if an exception in the replay leaves what the region held."""
    runs, x = [], leaf(5)

    def fn(x):
        runs.append(1)
        y = x.sin()
        if len(runs) > 1:
            raise KeyError
        return y.exp().sin()

    y = wrap(fn)(x)
    with pytest.raises(KeyError):
        y.sum().backward()
    held = weakref.ref(x)
    del x, y
    return not comes_true(lambda: held() is None)


def test_nothing_is_left_without_the_collector():
    regions = live_region_count()
    gc.collect()
    gc.disable()
    try:
        assert not left_after_an_error(region)
        for _ in range(3):
            x = leaf(5)
            held = weakref.ref(x)
            region(lambda x: x.sin().exp())(x).sum().backward()
            del x
            assert comes_true(lambda: held() is None)
    finally:
        gc.enable()
    assert comes_true(lambda: live_region_count() == regions)


# In-place ops at the edge of a segment
def segmented(wrap):
    layers = [nn.Linear(3, 3), nn.BatchNorm1d(3), nn.ReLU(inplace=True), nn.Linear(3, 3), nn.BatchNorm1d(3), nn.ReLU()]
    x = leaf(4, 3)
    wrap(nn.Sequential(*layers))(x).sum().backward()
    return [x.grad, layers[0].weight.grad, layers[3].weight.grad]


def test_an_inplace_relu_may_open_a_segment():
    assert_same(segmented, lambda model: lambda x: remat.checkpoint_sequential(model, 3, x))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        segmented(lambda model: lambda x: stock.checkpoint_sequential(model, 3, x, use_reentrant=False))


# Several backwards
def several_backwards(wrap):
    x = leaf(4)
    inner = wrap(lambda x: x.sin().exp())
    loss = wrap(lambda x: inner(x * 2).tanh())(x).sum()
    (once,) = torch.autograd.grad(loss, x, retain_graph=True)
    (again,) = torch.autograd.grad(loss, x, create_graph=True)
    (second,) = torch.autograd.grad(again.pow(2).sum(), x)
    return [once, again, second]


def test_retained_nested_and_double_backwards_are_plain():
    assert_same(several_backwards, region)
    with pytest.warns(UserWarning), pytest.raises(RuntimeError, match="incompatible with .grad"):
        several_backwards(stock_call(use_reentrant=True))


# Names in state_dict
def test_names_of_parameters_stay():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    names = [name for name, _ in model.named_parameters()]
    for block in model:
        block.forward = region(block.forward)
    assert [name for name, _ in model.named_parameters()] == names == list(model.state_dict())
    model.load_state_dict(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)).state_dict())
    model(torch.randn(1, 2)).sin().sum().backward()
    wrapped = nn.Sequential(checkpoint_wrapper(nn.Linear(2, 2)))
    assert next(name for name, _ in wrapped.named_parameters()) == "0._checkpoint_wrapped_module.weight"


# Eval mode
@pytest.mark.parametrize("training", [True, False])
def test_grad_mode_decides_and_train_mode_does_not(training):
    layer = nn.Sequential(nn.Linear(3, 3), nn.Sigmoid()).train(training)
    before = live_region_count()
    y = region(layer)(torch.randn(2, 3))
    assert live_region_count() == before + 1
    y.sum().backward()
    with torch.no_grad():
        y = region(layer)(torch.randn(2, 3))
        assert live_region_count() == before
    assert not y.requires_grad


# 37: a gradient may exist and be wrong
def test_users_can_compare_every_bit():
    def wrap(checkpoint):
        def put(model):
            model[0].forward = region(model[0].forward)
            model[1].forward = checkpoint(model[1].forward)

        return put

    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Dropout(0.5))
    assert_bitwise_equal(model, torch.randn(4, 3))
    assert_bitwise_equal(model, torch.randn(4, 3), wrap=wrap(region))
    with pytest.raises(AssertionError, match=r"buffer '1\.running_mean': expected the bits of the plain run"):
        assert_bitwise_equal(model, torch.randn(4, 3), wrap=wrap(stock_call()))


# Two checkpoints around one block
def doubled(wrap):
    block, x = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Tanh(), nn.Linear(4, 4), nn.Tanh()), leaf(3, 4)
    wrap(block)(x).sum().backward()
    return [x.grad, *(p.grad for p in block.parameters())]


STOCK = {"reentrant": stock_call(True), "early stop": stock_call(), "to its end": stock_call(early_stop=False)}


@pytest.mark.parametrize("other", STOCK.values(), ids=STOCK)
@pytest.mark.parametrize("ours", [region, dropped_in])
def test_a_region_inside_torchs_checkpoint_is_plain(ours, other):
    assert_same(doubled, lambda block: other(ours(block)))


@pytest.mark.parametrize("other", STOCK.values(), ids=STOCK)
@pytest.mark.parametrize("ours", [region, dropped_in])
def test_torchs_checkpoint_inside_a_region_is_plain(ours, other):
    assert_same(doubled, lambda block: ours(other(block)))


@pytest.mark.parametrize("ours", [region, dropped_in])
def test_torchs_checkpoint_of_a_batch_norm_inside_a_region_is_as_outside_of_it(ours):
    assert_same(lambda wrap: normed(lambda model: wrap(stock_call()(model))), ours)


def test_the_patch_makes_both_of_them_regions():
    def program(wrap):
        block, x = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Sigmoid()), leaf(3, 4)
        wrap(wrap(block))(x).sum().backward()
        return [x.grad, *(p.grad for p in block.parameters()), *block.buffers()]

    with remat.patch_torch_checkpoint():  # warnings are errors
        assert_same(program, stock_call(True))
        assert_same(program, stock_call())


# The page
def test_every_test_that_the_page_names_is_here():
    page = (ROOT / "docs/how-to/coming-from.md").read_text().split("\n## Problems that people report\n")[1].split("\n## ")[0]
    rows = [line for line in page.splitlines() if line.startswith("| ")][1:]
    assert len(rows) == 15
    for row in rows:
        named = re.findall(r"`(test_\w+)`", row)
        assert named and all(name in globals() for name in named), row
        assert re.search(r"[\w.-]+/[\w.-]+#\d+|#\d+", row), row
