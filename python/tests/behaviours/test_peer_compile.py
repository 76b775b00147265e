# SPDX-License-Identifier: BSD-3-Clause

"""Behaviours 51 and 139 to 144 of torch_remat 0.2.2: torch.compile and torch.func."""

import pytest
import torch
from kept import Runs, Saving, recompute, save
from programs import checkpointed, leaf
from same import assert_equal, assert_same

import remat_meta as remat

pytestmark = [pytest.mark.torch_warns, pytest.mark.usefixtures("fresh_compiler")]


def compiled(fn):
    return torch.compile(fn, backend="aot_eager")


def test_051_scopes_under_compile_change_nothing():
    def fn(x):
        with remat.name_scope("a"):
            return x.sin().exp()

    x = leaf(3)
    compiled(fn)(x).sum().backward()
    assert_equal(x.sin().exp() * x.cos(), x.grad)


@pytest.mark.parametrize("call", [lambda x: x.sin().exp(), lambda x: Saving.apply(x, "internal")])
def test_139_gradients_are_those_of_eager_code(call):
    def program(wrap):
        torch._dynamo.reset()
        x = leaf(3)
        y = wrap(lambda x: wrap_region(save(call, "a")(x.sin()).cos()))(x)
        y.sum().backward()
        return x.grad

    def wrap_region(y):
        return recompute(torch.exp, "b")(y)

    def wrap(fn):
        return compiled(lambda x: checkpointed(fn)(x) * 2 / 2)

    assert_same(program, wrap)


def test_140_a_save_call_around_compiled_code_runs_once():
    log, body = Runs(), compiled(lambda x: x.sin().exp())

    def program(wrap):
        x = leaf(3)

        def fn(x):
            y = save(log("save", body), "a")(x.tan())
            return recompute(log("recompute", body), "b")(y)

        wrap(fn)(x).sum().backward()
        return x.grad

    assert_same(program, checkpointed)
    assert log.count("save") == 2 and log.count("recompute") == 3  # in the plain run and in the region


def test_141_regions_made_before_compiling_work():
    phases = []
    call = save(lambda x: x.sin().exp(), "a")

    def fn(x):
        y = call(x)
        phases.append(remat.is_recomputing())
        return y.cos()

    x = leaf(3)
    compiled(fn)(x).sum().backward()
    assert phases == [False]
    assert_equal(torch.autograd.grad(x.sin().exp().cos().sum(), x)[0], x.grad)


def test_142_options_work_in_compiled_functions():
    packed = []
    hooks = (lambda t: packed.append(1) or t.clone(), lambda t: t)
    region = remat.checkpoint(determinism_check="default", saved_tensors_hooks=hooks)(lambda x: x.sin().exp())

    def program(wrap):
        torch._dynamo.reset()
        x = leaf(3)
        (compiled(lambda x: region(x.tan()) + 1) if wrap is checkpointed else lambda x: x.tan().sin().exp() + 1)(
            x
        ).sum().backward()
        return x.grad

    assert_same(program, checkpointed)
    assert packed


def test_143_names_and_results_are_checked_in_compiled_functions_too():
    def twice(x):
        return checkpointed(lambda x: save(torch.sin, "a")(save(torch.sin, "a")(x)))(x)

    with pytest.raises(RuntimeError, match="expected a name that is used once in a region"):
        compiled(twice)(leaf(3))
    with pytest.raises(RuntimeError, match="must return a Tensor"):
        compiled(lambda x: checkpointed(lambda x: (x, 3))(x)[0])(leaf(3))


def test_144_func_grad_and_vmap_are_right():
    region = checkpointed(lambda x: x.sin().exp())
    x = torch.randn(3)
    assert_equal(torch.func.grad(lambda x: x.sin().exp().sum())(x), torch.func.grad(lambda x: region(x).sum())(x))
    assert_equal(torch.func.vmap(lambda x: x.sin().exp())(x), torch.func.vmap(region)(x))
    x = leaf(3)
    region(x).sum().backward()
    assert_equal(x.sin().exp() * x.cos(), x.grad)
