# SPDX-License-Identifier: BSD-3-Clause

"""torch.func and forward-mode AD around regions and in them: correct, or an error in the forward that says what to do."""

import functools

import pytest
import torch
import torch.autograd.forward_ad as forward_ad
from programs import leaf
from same import assert_equal, plain
from torch import nn
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, linearize, vjp, vmap

import remat_meta as remat
from remat_meta import CheckpointPolicy

pytestmark = [pytest.mark.torch_warns]

ENGINES = {"function": {}, "tape": {"replay": "tape"}, "auto": {"replay": "auto"}, "policy": {"policy": "save_matmuls"}}

torch.manual_seed(0)
MODEL = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 4))
X = torch.randn(3, 4)


def body(x):
    return MODEL(x).sin() * x


def total(x):
    return body(x).sum()


def tangent(fn, x):
    with forward_ad.dual_level():
        return forward_ad.unpack_dual(fn(forward_ad.make_dual(x, x.cos()))).tangent


def reverse_over_forward(fn):
    x = X.clone().requires_grad_()
    return torch.autograd.grad(tangent(fn, x).sin().sum(), [x, *MODEL.parameters()])


class Wrapped(nn.Module):
    def __init__(self, wrap):
        super().__init__()
        self.model, self.wrap = MODEL, wrap

    def forward(self, x):
        return self.wrap(lambda x: self.model(x).sin() * x)(x).sum()


AROUND = {
    "grad": lambda wrap: grad(lambda x: wrap(body)(x).sum())(X),
    "vjp": lambda wrap: vjp(wrap(body), X)[1](X),
    "jvp": lambda wrap: jvp(wrap(body), (X,), (X.cos(),)),
    "linearize": lambda wrap: linearize(wrap(body), X)[1](X.cos()),
    "jacrev": lambda wrap: jacrev(wrap(body))(X),
    "jacfwd": lambda wrap: jacfwd(wrap(body))(X),
    "hessian": lambda wrap: hessian(lambda x: wrap(body)(x).sum())(X),
    "vmap": lambda wrap: vmap(wrap(body))(X),
    "gradients of each row": lambda wrap: vmap(grad(lambda x: wrap(body)(x).sum()))(X),
    "gradients of parameters": lambda wrap: grad(functools.partial(functional_call, Wrapped(wrap)))(
        dict(Wrapped(wrap).named_parameters()), (X,)
    ),
    "of a named call": lambda wrap: grad(
        lambda x: wrap(lambda x: remat.native_op(body, "call", CheckpointPolicy.SAVE)(x))(x).sum()
    )(X),
    "of a region in a region": lambda wrap: grad(lambda x: wrap(wrap(body))(x).sum())(X),
    "dual": lambda wrap: tangent(wrap(body), X),
    "reverse over forward": lambda wrap: reverse_over_forward(wrap(body)),
}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", AROUND)
def test_in_a_transform_a_region_is_a_plain_call(name, engine):
    region = remat.checkpoint(region_name=engine, **ENGINES[engine])
    assert_equal(AROUND[name](plain), AROUND[name](region))
    x = leaf(3, 4)
    got = torch.autograd.grad(region(body)(x).sum(), [x, *MODEL.parameters()])
    assert_equal(torch.autograd.grad(total(x), [x, *MODEL.parameters()]), got)


def test_it_is_said_once_that_nothing_is_recomputed():
    torch.set_warn_always(True)
    try:
        with pytest.warns(UserWarning, match=r"region 'block': called inside of a transform.*nothing is recomputed"):
            grad(lambda x: remat.checkpoint(region_name="block")(body)(x).sum())(X)
    finally:
        torch.set_warn_always(False)


def test_a_region_whose_backward_runs_in_a_level_is_replayed():
    x = leaf(3, 4)
    y = remat.checkpoint(region_name="outer")(body)(x)
    with forward_ad.dual_level():
        got = torch.autograd.grad(y.sum(), x)
    assert_equal(torch.autograd.grad(total(x), x), got)


REFUSED = "expected no gradient transform of torch.func"
INSIDE = {
    "grad": lambda x: grad(total)(x * 2) * x,
    "vjp": lambda x: vjp(body, x * 2)[1](x),
    "jvp": lambda x: jvp(body, (x * 2,), (x.cos(),)),
    "jacrev": lambda x: jacrev(body)(x * 2).sum((0, 1)),
    "jacfwd": lambda x: jacfwd(body)(x * 2).sum((0, 1)),
    "hessian": lambda x: hessian(total)(x * 2).sum((0, 1)),
    "gradients of each row": lambda x: vmap(grad(total))(x * 2),
    "vmap": lambda x: vmap(body)(x * 2),
    "functional_call": lambda x: functional_call(MODEL, {k: v * 2 for k, v in MODEL.named_parameters()}, (x,)),
    "dual": lambda x: tangent(body, x * 2),
}
REFUSALS = {
    **{(name, engine): REFUSED for name in INSIDE for engine in ENGINES if name not in ("vmap", "functional_call", "dual")},
    ("dual", "tape"): "op aten::_make_dual: a tensor with a tangent",
    ("dual", "policy"): "expected results without tangents",
}


def step(fn, wrap):
    x = X.clone().requires_grad_()
    results = torch.utils._pytree.tree_leaves(wrap(fn)(x))
    return results, lambda: torch.autograd.grad(sum(y.sin().sum() for y in results), [x, *MODEL.parameters()])


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", INSIDE)
def test_transforms_in_a_region_are_right_or_refused_in_the_forward(name, engine):
    region = remat.checkpoint(region_name=engine, **ENGINES[engine])
    if words := REFUSALS.get((name, engine)):
        with pytest.raises(NotImplementedError, match=rf"region '{engine}'.*{words}"):
            step(INSIDE[name], region)
    else:
        expected, backward = step(INSIDE[name], plain)
        got, replay = step(INSIDE[name], region)
        assert_equal([expected, backward()], [got, replay()])


def test_a_hessian_in_a_save_call_is_refused():
    with pytest.raises(NotImplementedError, match=r"call 'kept' \(SAVE\), op aten::fill_.*expected to write"):
        step(remat.native_op(INSIDE["hessian"], "kept", CheckpointPolicy.SAVE), remat.checkpoint(region_name="block"))


@pytest.mark.parametrize("name", sorted(INSIDE.keys() - {"hessian"}))
def test_a_save_call_may_have_any_other_of_them_in_it(name):
    expected, backward = step(INSIDE[name], plain)
    kept = remat.native_op(INSIDE[name], "kept", CheckpointPolicy.SAVE)
    got, replay = step(kept, remat.checkpoint(region_name="block"))
    assert_equal([expected, backward()], [got, replay()])
