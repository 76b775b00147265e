# SPDX-License-Identifier: BSD-3-Clause

"""checkpoint(options)(fn)(args...): gradients, buffers, random streams and results of a plain run."""

import collections
import typing

import pytest
import torch
from programs import Square, checkpointed, grads_of, leaf
from same import DEVICE, assert_equal, assert_same
from torch import nn

import remat_meta as remat


def test_mlp_with_dropout_and_batch_norm_is_bitwise_plain():
    def program(wrap):
        model = nn.Sequential(
            nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(inplace=True), nn.Dropout(0.4),
            nn.Linear(16, 8), nn.GELU(),
        )
        x = leaf(4, 8)
        for _ in range(2):
            wrap(model)(x).pow(2).sum().backward()
        return grads_of(model, x)

    *_, count = [t for t in assert_same(program, checkpointed) if t.dtype == torch.int64]
    assert count == 2  # batches, one for each forward


def test_nested_regions_to_depth_three():
    def program(wrap):
        layers = [nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Dropout(0.3)) for _ in range(4)]

        def inner(x):
            return wrap(layers[1])(wrap(layers[0])(x)).sin()

        def middle(x):
            return wrap(layers[2])(wrap(inner)(x))

        x = leaf(3, 6)
        wrap(lambda x: wrap(layers[3])(wrap(middle)(x)).cos())(x).sum().backward()
        return [g for layer in layers for g in grads_of(layer)] + [x.grad]

    assert_same(program, checkpointed)


def test_retain_graph_partial_grads_and_several_backwards():
    def program(wrap):
        x, w = leaf(3, 5), leaf(5, 5)
        a, b = wrap(lambda x: ((x @ w).sin(), (x @ w).cos().exp()))(x)
        (partial,) = torch.autograd.grad(a.sum(), x, retain_graph=True)
        (other,) = torch.autograd.grad(b.sum(), w, retain_graph=True)
        (a * b).sum().backward(retain_graph=True)
        (a + b).sum().backward()
        return partial, other, x.grad, w.grad

    assert_same(program, checkpointed)


def test_double_backward():
    def program(wrap):
        x = leaf(4, 4)
        y = wrap(lambda x: (x.sin() @ x).exp())(x)
        (first,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        first.pow(2).sum().backward()
        return first, x.grad

    assert_same(program, checkpointed)


def test_in_place_on_outputs_is_legal():
    def program(wrap):
        x = leaf(4, 4)
        y, z = wrap(lambda x: (x.sin() * x, x.exp() + x))(x)
        y.mul_(3)
        z.add_(y)
        z.sum().backward()
        return x.grad, y, z

    assert_same(program, checkpointed)


def test_autograd_grad_inside_the_region():
    def energy_and_force(x):
        energy = (x.sin() * x).pow(2).sum()
        (force,) = torch.autograd.grad(energy, x, create_graph=True)
        return energy, force

    def program(wrap):
        x = leaf(5)
        energy, force = wrap(energy_and_force)(x)
        (energy + force.pow(2).sum()).backward()
        return energy, force, x.grad

    assert_same(program, checkpointed)


def test_custom_function_inside_runs_again():
    Square.forwards = 0
    x = leaf(4)
    y = checkpointed(lambda x: Square.apply(Square.apply(x)))(x)
    assert Square.forwards == 2
    y.sum().backward()
    assert Square.forwards == 4
    assert_equal(4 * x**3, x.grad)


def test_custom_function_inside_is_bitwise_plain():
    def program(wrap):
        x = leaf(4)
        wrap(lambda x: Square.apply(x.sin()).exp())(x).sum().backward()
        return x.grad

    assert_same(program, checkpointed)


def test_casts_that_autocast_caches_without_grad_mode_are_no_divergence():
    def program(wrap):
        x, weight = leaf(4, 4), leaf(4, 4)

        def fn(x, w):
            with torch.autocast(DEVICE, dtype=torch.bfloat16), torch.no_grad():
                frozen = torch.mm(weight, x).float()
            return (w * frozen).sin()

        wrap(fn)(x, weight).sum().backward()
        return x.grad, weight.grad

    assert_same(program, remat.checkpoint())


def test_autocast_of_the_forward_holds_in_the_replay():
    def program(wrap):
        w, x = leaf(8, 8), leaf(4, 8)
        with torch.autocast(DEVICE, dtype=torch.bfloat16):
            y = wrap(lambda x: (x @ w).relu() @ w)(x)
        assert y.dtype == torch.bfloat16
        y.float().sum().backward()
        return x.grad, w.grad

    assert_same(program, checkpointed)


Point = collections.namedtuple("Point", "x y")


class Pair(typing.NamedTuple):
    left: torch.Tensor
    right: torch.Tensor


class MyTuple(tuple):
    pass


@pytest.mark.parametrize(
    "make",
    [
        lambda a, b: a,
        lambda a, b: (a, b),
        lambda a, b: [a, (b, [a])],
        lambda a, b: {"a": a, "b": {"c": [b]}},
        lambda a, b: Point(a, (b,)),
        lambda a, b: Pair(a, b),
        lambda a, b: torch.return_types.max([a, b]),
        lambda a, b: MyTuple((a, b)),
        lambda a, b: collections.OrderedDict(a=a, b=b),
    ],
    ids=["tensor", "tuple", "list", "dict", "namedtuple", "NamedTuple", "structseq", "subclass", "OrderedDict"],
)
def test_any_nesting_of_tensors_comes_back_as_it_is(make):
    seen = []

    def fn(x):
        seen.append(make(x.sin(), x.exp() * x))
        return seen[-1]

    def program(wrap):
        x = leaf(3)
        out = wrap(fn)(x)
        assert out is seen[-1]
        sum(t.sum() for t in torch.utils._pytree.tree_leaves(list_of(out))).backward()
        return x.grad

    assert_same(program, checkpointed)


def list_of(out):
    if torch.is_tensor(out):
        return [out]
    return [t for item in (out.values() if isinstance(out, dict) else out) for t in list_of(item)]


def test_an_input_returned_as_it_is_stays_the_same_object():
    x = leaf(3)
    y, z = checkpointed(lambda x: (x, x.sin()))(x)
    assert y is x
    (y + z).sum().backward()
    assert_equal(1 + x.cos(), x.grad)


@pytest.mark.parametrize(
    ("out", "path"),
    [(None, ""), ((1.5,), r"\[0\]"), ({"a": [None]}, r"\['a'\]\[0\]"), (object(), "")],
)
@pytest.mark.parametrize("grad", [True, False])
def test_other_leaves_are_rejected_by_name(out, path, grad):
    with torch.set_grad_enabled(grad):
        with pytest.raises(RuntimeError, match=rf"region 'block', output{path}: fn must return a Tensor.*got "):
            checkpointed(lambda x: out)(leaf(2))
    checkpointed(torch.sin)(leaf(2)).sum().backward()  # no scope was left open


def test_an_empty_nesting_is_returned():
    assert checkpointed(lambda x: ())(leaf(2)) == ()


def test_checkpoint_sequential_is_bitwise_the_chain():
    def program(wrap):
        model = nn.Sequential(*[nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.3)) for _ in range(5)])
        x = leaf(2, 6)
        wrap(model)(x).sum().backward()
        return grads_of(model, x)

    assert_same(program, remat.checkpoint_sequential(3))
    assert_same(program, remat.checkpoint_sequential(5, region_name="chain"))


class OtherThanItsChildren(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)

    def forward(self, x):
        return self.b(x) - self.a(x)


@pytest.mark.parametrize("layers", [torch.sin, OtherThanItsChildren(), torch.nn.Linear(4, 4)])
def test_checkpoint_sequential_takes_chains_alone(layers):
    with pytest.raises(TypeError, match=r"\[checkpoint_sequential\] layers: expected torch\.nn\.Sequential, or a list"):
        remat.checkpoint_sequential(1)(layers)
    with pytest.raises(TypeError, match=r"\[checkpoint_sequential\] layers: expected"):
        remat.checkpoint_sequential(layers, 1, leaf(4, 4))
    for chain in (torch.nn.ModuleList([torch.nn.Tanh()]), (torch.sin,), iter([torch.sin])):
        assert remat.checkpoint_sequential(1)(chain)(leaf(4, 4)).shape == (4, 4)


def test_checkpoint_sequential_runs_all_but_the_last_segment_again():
    runs = []

    def layer(i):
        return lambda x: (runs.append(i), x.sin())[1]

    x = leaf(2)
    remat.checkpoint_sequential(2)([layer(i) for i in range(5)])(x).sum().backward()
    assert runs == [0, 1, 2, 3, 4, 0, 1]
    for segments in (0, 6):
        with pytest.raises(ValueError, match=f"segments: expected 1 to 5, .*got {segments}"):
            remat.checkpoint_sequential(segments)([layer(i) for i in range(5)])
