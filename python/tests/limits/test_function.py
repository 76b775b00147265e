# SPDX-License-Identifier: BSD-3-Clause

"""Effects of the function that a replay repeats."""

import torch
from programs import leaf
from same import assert_same

import remat_meta as remat

from .common import assert_raises, region


def test_p1_the_first_call_of_a_lazy_module_raises():
    def program(wrap):
        x, module = leaf(4), torch.nn.LazyLinear(3)
        wrap(lambda x: module(x).sin())(x).sum().backward()
        return x.grad

    assert_raises(program, region(), "The function branches on state", remat.ReplayMismatch)
    assert_same(program, region("tape"))


def test_p2_an_attribute_of_a_plain_tensor_argument_is_not_there_in_the_replay():
    def program(wrap):
        w = leaf(4)
        x = w * 1
        x.scale = 3.0
        wrap(lambda x: (x * x.scale).sin())(x).sum().backward()
        return w.grad

    assert_raises(program, region(), "has no attribute 'scale'", AttributeError)
    assert_same(program, region("tape"))


def test_p10_an_argument_that_is_a_view_is_none_in_the_replay():
    def program(wrap):
        w, rows = leaf(4), torch.arange(4).view(2, 2)
        wrap(lambda rows: (w[rows] if rows._is_view() else w[rows].exp()).sin())(rows).sum().backward()
        return w.grad

    assert_raises(program, region(), "The function branches on state", remat.ReplayMismatch)
    assert_same(program, region("tape"))


def test_p3_the_state_of_generators_as_data_is_that_of_the_replay():
    def program(wrap):
        x = leaf(4)
        torch.manual_seed(3)
        y = wrap(lambda x: (x * float(torch.initial_seed())).sin())(x)
        torch.manual_seed(4)
        y.sum().backward()
        return x.grad

    assert_raises(program, region(), "A number differs", remat.ReplayMismatch)
    assert_same(program, region("tape"))


def test_p4_a_cache_that_is_filled_before_and_left_before_backward_raises():
    class Sine(torch.nn.Module):
        def forward(self, weight):
            return weight.sin()

    def program(wrap):
        x, module = leaf(4), torch.nn.Linear(4, 4)
        torch.nn.utils.parametrize.register_parametrization(module, "weight", Sine())
        with torch.nn.utils.parametrize.cached():
            module.weight  # fills cached()'s cache
            y = wrap(lambda x: module(x).sin())(x)
        y.sum().backward()
        return x.grad

    assert_raises(program, region(), "The function branches on state", remat.ReplayMismatch)
    assert_same(program, region("tape"))


def test_p4_a_cache_that_a_region_fills_and_that_stays_raises():
    def program(wrap):
        x, module = leaf(4), torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(4, 4))
        with torch.nn.utils.parametrize.cached():
            if is_filled:
                module.weight  # fills cached()'s cache
            wrap(lambda x: module(x).exp())(x).sum().backward()
        return x.grad

    is_filled = False
    assert_raises(program, region(), "the function branches on state", remat.ReplayMismatch)
    assert_same(program, region("tape"))
    is_filled = True
    assert_same(program, region())


def test_p6_a_generator_that_the_function_makes_cannot_be_named():
    def program(wrap):
        x = leaf(4)
        wrap(lambda x: x * torch.rand(4, generator=torch.Generator().manual_seed(1)))(x).sum().backward()

    assert_raises(program, region(), "expected a default generator or one of", NotImplementedError)


def test_p7_the_first_batch_of_an_observer_is_refused():
    def program(wrap):
        x, observer = leaf(4, 4), torch.ao.quantization.default_fused_per_channel_wt_fake_quant()
        wrap(lambda x: observer(x) * 2)(x).sum().backward()

    assert_raises(program, region(), "to keep its size, got a storage of", NotImplementedError)


def test_p8_an_argument_that_is_handed_through_is_not_written_before_backward():
    def program(wrap):
        x, w = leaf(4), leaf(4)
        y, h = wrap(lambda h, w: (w.exp(), h))(x * 1.0, w)
        h += y
        h.sum().backward()
        return x.grad, w.grad

    assert_raises(program, region(), "expected the argument as the forward got it", RuntimeError)
    assert_same(program, region("tape"))
