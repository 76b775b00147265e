# SPDX-License-Identifier: BSD-3-Clause

"""Behaviours 33 to 52 of torch_remat 0.2.2: arguments and results of a call, and names."""

import collections

import pytest
import torch
from kept import POLICIES, Runs, recompute, save
from programs import checkpointed, leaf
from same import assert_equal, assert_same

import remat_meta as remat

Pair = collections.namedtuple("Pair", "a b")


class Holder:
    def __init__(self, tensor):
        self.tensor = tensor


READS = {
    "positional": (lambda y: y.sin(), lambda y: (y,), {}),
    "list": (lambda ys: ys[0].sin(), lambda y: ([y],), {}),
    "keyword": (lambda *, y: y.sin(), lambda y: (), lambda y: {"y": y}),
    "dict": (lambda d: d["y"].sin(), lambda y: ({"y": y},), {}),
    "object": (lambda h: h.tensor.sin(), lambda y: (Holder(y),), {}),
    "nest": (lambda n: n[0][1]["y"].sin(), lambda y: ([(3, {"y": y})],), {}),
}


def reads_a_saved_result(how, again):
    call, args, keywords = READS[how]

    def fn(x):
        y = save(torch.exp, "producer")(x.sin())
        named = keywords(y) if callable(keywords) else keywords
        return remat.region(call, "reader", recompute=again)(*args(y), **named).cos()

    def program(wrap):
        x = leaf(3)
        wrap(fn)(x).sum().backward()
        return x.grad

    assert_same(program, checkpointed)


@pytest.mark.parametrize("how", ["positional", "list", "keyword"])
def test_033_tensors_are_looked_for_in_arguments(how):
    for again in POLICIES:
        reads_a_saved_result(how, again)


@pytest.mark.parametrize("again", POLICIES)
def test_034_other_arguments_survive(again):
    seen = []

    def call(x, factor, *, alpha):
        seen.append((factor, alpha))
        return torch.add(x.sin(), x.cos(), alpha=alpha) * factor

    def program(wrap):
        x = leaf(3)
        wrap(lambda x: remat.region(call, "a", recompute=again)(x, 3, alpha=2.0).exp())(x).sum().backward()
        return x.grad

    assert_same(program, checkpointed)
    assert set(seen) == {(3, 2.0)}


@pytest.mark.parametrize("how", ["positional", "list", "keyword"])
def test_035_a_recompute_call_finds_saved_results_in_its_arguments(how):
    reads_a_saved_result(how, True)


@pytest.mark.parametrize("how", ["dict", "object", "nest"])
def test_036_also_those_that_are_hidden(how):
    reads_a_saved_result(how, True)

    def program(wrap):  # the reader captures y
        x = leaf(3)

        def fn(x):
            y = save(torch.exp, "producer")(x.sin())
            return recompute(lambda: y.sin(), "reader")().cos()

        wrap(fn)(x).sum().backward()
        return x.grad

    assert_same(program, checkpointed)


@pytest.mark.parametrize("again", POLICIES)
def test_037_what_a_call_may_return(again):
    for out in (3, "text", [object()]):
        named = remat.region(lambda x, out=out: (x.sin(), out), "a", recompute=again)
        with pytest.raises(RuntimeError, match="call 'a'.*must return a Tensor"):
            checkpointed(lambda x: named(x)[0])(leaf(2))
        assert named(leaf(2))[1] is out  # outside regions any name goes


@pytest.mark.parametrize("again", POLICIES)
def test_038_none_keeps_its_position(again):
    seen = []

    def fn(x):
        out = remat.region(lambda x: (None, x.sin(), None), "a", recompute=again)(x)
        seen.append([leaf is None for leaf in out])
        return out[1].exp()

    checkpointed(fn)(leaf(2)).sum().backward()
    assert seen == [[True, False, True]] * 2


@pytest.mark.parametrize("make", [lambda *t: list(t), lambda *t: t, Pair, lambda *t: torch.return_types.max(t)])
@pytest.mark.parametrize("again", POLICIES)
def test_039_containers_keep_their_type_in_the_replay(make, again):
    seen = []

    def fn(x):
        out = remat.region(lambda x: make(x.sin(), x.cos()), "a", recompute=again)(x)
        seen.append(type(out))
        if hasattr(out, "values"):
            return out.values.exp() + out.indices.exp()
        return (out.a.exp() + out.b.exp()) if isinstance(out, Pair) else out[0].exp() + out[1].exp()

    def program(wrap):
        x = leaf(2)
        wrap(fn)(x).sum().backward()
        return x.grad

    assert_same(program, checkpointed)
    assert len(seen) == 3 and len(set(seen)) == 1


@pytest.mark.parametrize("again", POLICIES)
def test_040_a_returned_leaf_that_requires_grad_raises(again):
    def makes_one(x):
        return torch.zeros(2, requires_grad=True)

    weight = torch.nn.Parameter(torch.ones(2))
    for call in (makes_one, lambda x: (x.sin(), weight)):
        named = remat.region(call, "a", recompute=again)
        with pytest.raises(RuntimeError, match="call 'a'.*returned a leaf tensor that requires grad"):
            checkpointed(lambda x: x.sin() + sum(torch.utils._pytree.tree_leaves(named(x))))(leaf(2))
    x = leaf(2)  # a call may return an argument
    checkpointed(lambda x: remat.region(lambda x: x, "a", recompute=again)(x).sin())(x).sum().backward()
    assert_equal(x.cos(), x.grad)


class Tagged(torch.Tensor):
    pass


def test_041_results_are_plain_tensors_and_subclasses_pass():
    seen = []

    def fn(x):
        y = save(torch.exp, "a")(x)
        z = save(torch.sin, "b")(x.as_subclass(Tagged))
        seen.append((type(y), type(z)))
        return y.sin() + z.as_subclass(torch.Tensor).exp()

    def program(wrap):
        x = leaf(2)
        wrap(fn)(x).sum().backward()
        return x.grad

    assert_same(program, checkpointed)
    assert set(seen) == {(torch.Tensor, Tagged)}


def test_042_a_hook_on_a_saved_result_fires_once():
    grads = []

    def fn(x):
        y = save(torch.exp, "a")(x.sin())
        y.register_hook(grads.append)
        return y.cos()

    x = leaf(3)
    checkpointed(fn)(x).sum().backward()
    assert len(grads) == 1
    assert_equal(-x.sin().exp().sin(), grads[0])


def test_043_one_tensor_at_two_positions():
    def call(x):
        y = x.exp()
        return y, y

    for position in (0, 1):

        def program(wrap, position=position):
            x = leaf(3)

            def fn(x):
                out = save(call, "a")(x.sin())
                return recompute(torch.sin, "reader")(out[position]) * out[1 - position]

            wrap(fn)(x).sum().backward()
            return x.grad

        assert_same(program, checkpointed)


def test_044_a_call_of_several_ops_is_one_unit():
    log = Runs()

    def call(x):
        return log("second", torch.exp)(log("first", torch.sin)(x)).cos()

    x = leaf(3)
    checkpointed(lambda x: save(call, "a")(x.tan()).sin())(x).sum().backward()
    assert log == ["first", "second"]


@pytest.mark.parametrize("view", [lambda x: x.t(), lambda x: x[1:], lambda x: x.view(-1)])
def test_045_a_save_call_may_return_a_view(view):
    shapes = []

    def fn(x, produce):
        y = produce(x)
        z = save(view, "view")(y)
        shapes.append((z.shape, z.stride()))
        return z.sin()

    for produce in (lambda x: recompute(torch.exp, "p")(x), lambda x: x, lambda x: save(torch.exp, "p")(x)):

        def program(wrap, produce=produce):
            x = leaf(3, 3)
            wrap(fn)(x, produce).sum().backward()
            return x.grad

        assert_same(program, checkpointed)
    assert len(set(shapes)) == 1


def test_046_results_alias_each_other_in_the_replay_too():
    seen = []

    def call(x):
        y = x.exp()
        return y, y[1:]

    def fn(x):
        y, part = save(call, "a")(x.sin())
        seen.append(part.untyped_storage()._cdata == y.untyped_storage()._cdata)
        return part.sin()

    checkpointed(fn)(leaf(3)).sum().backward()
    assert seen == [True, True]


@pytest.mark.parametrize("again", POLICIES)
def test_047_names_are_used_once_in_a_region(again):
    def twice(x):
        for _ in range(2):
            x = remat.region(torch.sin, "a", recompute=again)(x)
        return x

    with pytest.raises(RuntimeError, match="call 'a' .*expected a name that is used once in a region"):
        checkpointed(twice)(leaf(2))
    x = leaf(2)
    once = checkpointed(lambda x: remat.region(torch.sin, "a", recompute=again)(x))
    once(once(x)).sum().backward()  # other regions may use the name
    assert_equal(x.sin().cos() * x.cos(), x.grad)


def test_048_errors_name_region_and_call():
    def fn(x):
        return save(lambda x: (x, 3), "mine")(x)[0]

    def twice(x):
        return save(torch.sin, "mine")(save(torch.sin, "mine")(x))

    with pytest.raises(RuntimeError, match="region 'outer', call 'mine'"):
        remat.checkpoint(region_name="outer")(twice)(leaf(2))
    with pytest.raises(RuntimeError, match="region without a name, call 'mine'"):
        remat.checkpoint()(twice)(leaf(2))
    with pytest.raises(RuntimeError, match="call 'mine'"):
        remat.checkpoint()(fn)(leaf(2))


def test_049_scopes_of_names_nest_and_unwind():
    def fn(x):
        for i in range(2):
            with remat.name_scope(f"layer.{i}"), remat.name_scope("attention"):
                x = save(torch.sin, "a")(x)
        with pytest.raises(KeyError), remat.name_scope("layer.0"), remat.name_scope("attention"):
            raise KeyError
        x = save(torch.sin, "a")(x)  # outside the scopes
        with remat.name_scope("layer.0"), remat.name_scope("attention"):
            return save(torch.sin, "a")(x)

    with pytest.raises(RuntimeError, match="call 'layer.0/attention/a'"):
        checkpointed(fn)(leaf(2))


def test_050_a_scope_needs_a_prefix():
    with pytest.raises(ValueError, match="must be non-empty"):
        remat.name_scope("")
    with pytest.raises(RuntimeError, match="must be a string"):
        remat.name_scope(3)


def test_052_save_calls_in_save_calls_take_no_name():
    def outer(x):
        return save(torch.sin, "inner")(x).exp()

    def fn(x):
        y = save(outer, "outer")(x)
        return save(torch.sin, "inner")(y)

    x = leaf(2)
    checkpointed(fn)(x).sum().backward()
    assert_equal(x.sin().exp().cos() * x.sin().exp() * x.cos(), x.grad)
