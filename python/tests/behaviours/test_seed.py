# SPDX-License-Identifier: BSD-3-Clause

"""Behaviours 1 to 22 of torch_remat 0.1: regions and handles."""

import pytest
import torch
from functions import Auto, Square, runs, sandwich
from kept import Runs, Watched
from programs import checkpointed, leaf
from same import assert_equal, assert_same

import remat_meta as remat
from remat_meta import CheckpointPolicy

SAVE, RECOMPUTE, OFFLOAD = CheckpointPolicy
POLICIES = (SAVE, RECOMPUTE)


@pytest.fixture(autouse=True)
def fresh_runs():
    runs.clear()


def test_01_three_calls():
    seen = []

    def fn(x, *, region_name):
        seen.append(region_name)
        return x.sin()

    x = leaf(2)
    remat.checkpoint(region_name="r")(fn)(x, region_name="mine").sum().backward()
    assert seen == ["mine", "mine"]


def test_02_results_nest_to_any_depth():
    def program(wrap):
        x = leaf(2)
        out = wrap(lambda x: {"a": [x.sin(), (x.exp(), {"b": x.cos()})]})(x)
        (out["a"][0] + out["a"][1][0] + out["a"][1][1]["b"]).sum().backward()
        return x.grad

    assert_same(program, checkpointed)
    with pytest.raises(RuntimeError, match="must return a Tensor"):
        checkpointed(lambda x: {"a": [None]})(leaf(2))

    class MyList(list):
        pass

    x = leaf(2)  # subclasses of list pass, as in 0.2.2
    out = checkpointed(lambda x: MyList([x.sin()]))(x)
    assert type(out) is MyList


def test_03_the_replay_comes_before_inner_backwards():
    log = Runs()

    class Inner(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            log.append("backward")
            return grad * 2

    checkpointed(log("body", lambda x: Inner.apply(x.sin()).exp()))(leaf(2)).sum().backward()
    assert log == ["body", "body", "backward"]


def test_04_nothing_is_saved_for_the_output():
    packed, x = [], leaf(2)
    with remat.saved_tensors_hooks(lambda t: packed.append(t.numel()) or t, lambda t: t):
        checkpointed(torch.sin)(x).sum().backward()
    assert packed == [2]  # the argument


def test_05_a_forward_that_raises_unwinds():
    def bad(x):
        Square.apply(x, "a", SAVE)
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        checkpointed(bad)(leaf(2))
    assert_same(sandwich(lambda x: x.exp()), checkpointed)


def test_06_is_recomputing():
    phases = []
    checkpointed(lambda x: (phases.append(remat.is_recomputing()), x.sin())[1])(leaf(2)).sum().backward()
    assert phases == [False, True] and not remat.is_recomputing()


@pytest.mark.parametrize("policy", POLICIES)
def test_07_retain_graph(policy):
    def program(wrap):
        x = leaf(3)
        y = wrap(lambda x: Square.apply(x.sin(), "a", policy).cos())(x)
        return [torch.autograd.grad(y.sum(), x, retain_graph=True)[0] for _ in range(2)]

    assert_same(program, checkpointed)


def test_08_else_all_is_gone_after_one_backward():
    watched = Watched()
    y = checkpointed(lambda x: Square.apply(x.sin(), "a", SAVE, watched) + 1)(leaf(3))
    assert watched.lives("internal")
    y.sum().backward()
    assert not watched.lives("internal")


def test_09_a_handle_answers_in_the_replay_of_a_save_call():
    seen = []

    def fn(x):
        y = Square.apply(x.sin(), "a", SAVE)
        seen.append((remat.is_placeholder(y), y.shape, y.requires_grad))
        return y + x.cos()

    checkpointed(fn)(leaf(3)).sum().backward()
    assert runs == {"forward": 1, "load": 1}
    assert seen == [(False, (3,), True), (True, (3,), True)]
    runs.clear()
    assert_same(sandwich(lambda x: Square.apply(x, "a", SAVE)), checkpointed)
    assert runs == {"forward": 2, "load": 1}  # in the plain run, and with remat


class Three(torch.autograd.Function):
    seen = None

    @staticmethod
    def forward(ctx, x, policy):
        handle = remat.get_handle(ctx, "three", policy)
        if (out := handle.maybe_load_saved()) is not None:
            return out
        handle.save_for_backward({"none": None, "x": x, "twice": x * 2})
        return handle.record_outputs(x * x)

    @staticmethod
    def backward(ctx, grad):
        none, x, twice = ctx.saved_tensors
        Three.seen = [none is None, x is None, twice is None]
        assert_equal(x * 2, twice)
        return grad * twice, None


@pytest.mark.parametrize("policy", POLICIES)
def test_10_saved_tensors_come_back_in_their_order(policy):
    assert_same(sandwich(lambda x: Three.apply(x, policy)), checkpointed)
    assert Three.seen == [True, False, False]


def test_11_recompute_runs_twice_and_keeps_nothing():
    watched = Watched()
    y = checkpointed(lambda x: Square.apply(x.sin(), "a", RECOMPUTE, watched) + 1)(leaf(3))
    assert not watched.lives("internal")
    y.sum().backward()
    assert runs == {"forward": 2}


class Pair(torch.autograd.Function):
    """A function with two inputs and two outputs."""

    @staticmethod
    def forward(ctx, x, y, policy):
        handle = remat.get_handle(ctx, "pair", policy)
        if (out := handle.maybe_load_saved()) is not None:
            return out
        x, y = handle.save_or_load_inputs(x, y)
        assert torch.is_tensor(handle.save_or_load_inputs(x))
        handle.save_for_backward({"x": x, "y": y})
        return handle.record_outputs(x * y, x + y)

    @staticmethod
    def backward(ctx, product, total):
        x, y = ctx.saved_tensors
        return product * y + total, product * x + total, None


@pytest.mark.parametrize("first", POLICIES)
@pytest.mark.parametrize("second", POLICIES)
def test_12_save_or_load_inputs(first, second):
    watched = Watched()

    def fn(x):
        y = watched("input", Square.apply(x.sin(), "a", first))
        a, b = Pair.apply(y, x.exp(), second)
        return a.sin() + b.cos()

    def program(wrap):
        x = leaf(3)
        out = wrap(fn)(x)
        if wrap is checkpointed:
            saved = first is SAVE  # the reader keeps a result of SAVE; other results are not kept
            assert watched.lives("input") == saved
        out.sum().backward()
        return x.grad

    assert_same(program, checkpointed)


def test_13_outside_of_regions_a_handle_only_saves():
    shapes = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: shapes.append(t.shape) or t, lambda t: t):
        x = leaf(3)
        a = Square.apply(x, "a", SAVE)
        b = remat.op(Auto.apply, "a", SAVE)(x, 2.0)
    assert len(shapes) == 4
    (a + b).sum().backward()
    with torch.no_grad():
        expected = (x.exp() + x * x.exp()) * 1.0 + (x.exp() + x * x.exp()) * 2.0
    assert_equal(expected, x.grad)


@pytest.mark.parametrize("policy", POLICIES)
def test_14_record_outputs_of_one_and_of_several(policy):
    types = []

    def fn(x):
        one = Square.apply(x.sin(), "a", policy)
        two = Pair.apply(one, x, policy)
        types.append((type(one), type(two), len(two)))
        return two[0].exp() + two[1].sin()

    checkpointed(fn)(leaf(3)).sum().backward()
    assert types == [(torch.Tensor, tuple, 2)] * 2


def test_15_placeholders_have_the_number_and_shapes_of_the_results():
    shapes = []

    class Both(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            first = remat.get_handle(ctx, "first", SAVE)
            if (out := first.maybe_load_saved()) is None:
                out = first.record_outputs(x * 2, x[:1] * 3)
            second = remat.get_handle(ctx, "second", SAVE)
            if (more := second.maybe_load_saved()) is None:
                more = second.record_outputs(x.sum() * 2)
            shapes.append(([t.shape for t in out], more.shape))
            return (*out, more)

        @staticmethod
        def backward(ctx, a, b, c):
            return 2 * a

    checkpointed(lambda x: Both.apply(x.sin())[0] + x.exp())(leaf(3)).sum().backward()
    assert shapes == [([(3,), (1,)], ())] * 2


def test_16_a_result_that_is_a_view_aliases_in_the_replay_too():
    class Views(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            handle = remat.get_handle(ctx, "views", SAVE)
            if (out := handle.maybe_load_saved()) is not None:
                return out
            y = x * 2
            part = y[1:]
            handle.save_for_backward({"part": part})
            return handle.record_outputs(y, part)

        @staticmethod
        def backward(ctx, grad, part_grad):
            (part,) = ctx.saved_tensors
            return grad * 2 + torch.cat([part_grad.new_zeros(1), part_grad * part])

    seen = []

    def fn(x):
        y, part = Views.apply(x.sin())
        seen.append((part.untyped_storage()._cdata == y.untyped_storage()._cdata, part.shape))
        return part.exp()

    def program(wrap):
        x = leaf(3)
        wrap(fn)(x).sum().backward()
        return x.grad

    assert_same(program, checkpointed)
    assert seen == [(True, (2,))] * 3


def test_17_a_saved_result_is_real_in_backward():
    class OwnView(torch.autograd.Function):
        @staticmethod
        @remat.auto_forward("part")
        def forward(ctx, x):
            out = x * 2
            ctx.save_for_backward(out[:2])
            return out

        @staticmethod
        def backward(ctx, grad):
            (part,) = ctx.saved_tensors
            assert not remat.is_placeholder(part)
            return grad * part.sum()

    assert_same(sandwich(lambda x: remat.op(OwnView.apply, "a", SAVE)(x)), checkpointed)


def test_18_a_handle_without_gradients_does_nothing():
    y = checkpointed(lambda x: Square.apply(x, "a", SAVE))(torch.randn(3))
    assert not y.requires_grad and runs == {"forward": 1}

    def fn(x):  # a region without gradients inside one with gradients: a SAVE call does not run again
        return x.sin() * Square.apply(x.detach().clone(), "a", SAVE)

    def program(wrap):
        x = leaf(3)
        wrap(fn)(x).sum().backward()
        return x.grad

    runs.clear()
    assert_same(program, checkpointed)
    assert runs == {"forward": 2, "load": 1}


def test_19_a_save_handle_that_is_not_asked_raises():
    class Forgets(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, use):
            handle = remat.get_handle(ctx, "a", SAVE)
            use(handle, x)
            return handle.record_outputs(x * 2)

        @staticmethod
        def backward(ctx, grad):
            return grad * 2, None

    uses = (
        lambda handle, x: handle.save_or_load_inputs(x),
        lambda handle, x: handle.save_for_backward({"x": x}),
        lambda handle, x: handle.record_outputs(x),
    )
    for use in uses:
        y = checkpointed(lambda x, use=use: Forgets.apply(x.sin(), use).exp())(leaf(3))
        with pytest.raises(RuntimeError, match="call 'a'.*must call maybe_load_saved"):
            y.sum().backward()
    y = checkpointed(lambda x: Forgets.apply(x.sin(), lambda *_: None).exp())(leaf(3))
    with pytest.raises(remat.ReplayMismatch):  # the ops of the replay are compared first
        y.sum().backward()


@pytest.mark.parametrize("policy", POLICIES)
def test_20_a_name_twice_raises(policy):
    def fn(x):
        return Square.apply(Square.apply(x.sin(), "a", policy), "a", policy)

    with pytest.raises(RuntimeError, match="call 'a' .*expected a name that is used once in a region"):
        checkpointed(fn)(leaf(3))
    more = [False]

    def grows(x):
        y = Square.apply(x.sin(), "a", policy)
        return (Square.apply(y, "a", policy) if more[0] else y).exp()

    y = checkpointed(grows)(leaf(3))
    more[0] = True
    with pytest.raises(RuntimeError, match="call 'a'"):
        y.sum().backward()


@pytest.mark.parametrize("policy", POLICIES)
def test_21_another_policy_in_the_replay_raises(policy):
    now = [policy]
    y = checkpointed(lambda x: Square.apply(x.sin(), "a", now[0]).exp())(leaf(3))
    now[0] = RECOMPUTE if policy is SAVE else SAVE
    with pytest.raises(RuntimeError, match="Conflicting recompute settings"):
        y.sum().backward()


def test_22_calls_that_are_missing_in_the_replay_raise():
    fewer = [False]

    def fn(x):
        y = x.sin()
        if not fewer[0]:
            y = Square.apply(y, "mine", SAVE)
        return y.exp().sin()

    y = checkpointed(fn)(leaf(3))
    fewer[0] = True
    with pytest.raises(RuntimeError, match=r"call 'mine' \(SAVE\).*as in the forward.*named call is missing"):
        y.sum().backward()
