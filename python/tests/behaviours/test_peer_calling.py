# SPDX-License-Identifier: BSD-3-Clause

"""Behaviours 1 to 26 of torch_remat 0.2.2: calling, the region."""

import collections
import inspect

import pytest
import torch
from kept import POLICIES, Runs, Watched, recompute, save
from programs import checkpointed, leaf
from same import assert_equal, assert_same

import remat_meta as remat


def test_001_three_calls():
    x = leaf(3)
    remat.checkpoint(region_name="r")(torch.sin)(x).sum().backward()
    assert_equal(x.cos(), x.grad)
    with pytest.raises(TypeError, match=r"\[checkpoint\] options: expected options by keyword"):
        remat.checkpoint(torch.sin)


def test_002_options_of_torch_remat_are_taken_by_keyword():
    options = dict(
        region_name=None, determinism_check="none", preserve_rng_state=False, saved_tensors_hooks=None,
        recompute_state_hooks=(),
    )  # fmt: skip
    x = leaf(3)
    remat.checkpoint(**options)(torch.sin)(x).sum().backward()
    assert_equal(x.cos(), x.grad)
    parameters = inspect.signature(remat.checkpoint).parameters
    assert set(options) <= set(parameters)
    assert all(p.kind is p.KEYWORD_ONLY for p in parameters.values())
    with pytest.raises(TypeError, match="no_such_option"):
        remat.checkpoint(no_such_option=1)


def test_003_options_and_keywords_have_no_common_names():
    seen = []

    def fn(x, *, region_name, early_stop):
        seen.append((region_name, early_stop))
        return x.sin().exp()

    checkpointed(fn)(leaf(2), region_name="mine", early_stop=3).sum().backward()
    assert seen == [("mine", 3)] * 2


def test_004_arguments_arrive_unchanged():
    thing, seen = object(), []

    def fn(x, *rest, **named):
        seen.append((rest, named))
        return x.sin().exp()

    checkpointed(fn)(leaf(2), [1, 2.5], thing, key={"a": thing}).sum().backward()
    assert seen[0] == seen[1] == (([1, 2.5], thing), {"key": {"a": thing}})


def test_005_wrappers_have_the_metadata_of_the_function():
    def fn(x, y=2):
        """What it does."""

    for wrapped in (checkpointed(fn), save(fn, "a"), remat.op(fn, "a", remat.CheckpointPolicy.SAVE)):
        assert (wrapped.__name__, wrapped.__doc__, wrapped.__wrapped__) == ("fn", "What it does.", fn)
        assert inspect.signature(wrapped) == inspect.signature(fn)


def test_006_region_needs_a_name_and_recompute():
    def call(x, *, y=3):
        return x

    assert inspect.signature(save(call, "a")) == inspect.signature(call)
    with pytest.raises(TypeError, match="name"):
        remat.region(torch.sin, recompute=True)
    with pytest.raises(TypeError, match="recompute"):
        remat.region(torch.sin, "a")
    with pytest.raises(TypeError):
        remat.region(torch.sin, "a", True)


def test_007_a_function_that_is_none_raises_at_construction():
    with pytest.raises(RuntimeError, match="region expects a function as its first argument"):
        remat.region(3, "a", recompute=True)


def test_008_an_empty_name_and_a_flag_that_is_no_bool():
    with pytest.raises(ValueError, match="must be non-empty"):
        remat.region(torch.sin, "", recompute=True)
    with pytest.raises(RuntimeError, match="recompute"):
        remat.region(torch.sin, "a", recompute=1)


@pytest.mark.parametrize("again", POLICIES)
def test_009_outside_of_checkpoint_a_region_is_a_plain_call(again):
    packed = []

    def call(x, *, y):
        return {"any": x.sin() * y, "thing": 3}

    def bad(x):
        raise KeyError("passes")

    named = remat.region(call, "a", recompute=again)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: packed.append(t) or t, lambda t: t):
        x, y = leaf(2), leaf(2)
        out = named(x, y=y)
        again_out = named(x, y=y)
    assert out["thing"] == 3 and out["any"] is not again_out["any"]
    assert len(packed) == 2 * 3  # sin saves x; mul saves both
    with pytest.raises(KeyError, match="passes"):
        remat.region(bad, "bad", recompute=again)(x)
    checkpointed(torch.sin)(leaf(2)).sum().backward()


def test_010_random_state_is_preserved_and_may_be_asked_for():
    def program(wrap):
        x = leaf(50)
        wrap(lambda x: torch.nn.functional.dropout(x.sin(), 0.5).exp())(x).sum().backward()
        return x.grad

    assert_same(program, remat.checkpoint(preserve_rng_state=True))
    assert_same(program, remat.checkpoint())  # the default


def test_011_determinism_checks_work_with_save_calls():
    def fn(x, flag):
        return save(torch.sin, "a")(x).exp() if flag[0] else x.exp()

    for check in ("default", "metadata", "none"):
        x = leaf(3)
        remat.checkpoint(determinism_check=check)(fn)(x, (True,)).sum().backward()
        assert_equal(x.sin().exp() * x.cos(), x.grad)
    flag = [True]
    y = remat.checkpoint(determinism_check="default")(lambda x: x.sin() if flag[0] else x.exp())(leaf(3))
    flag[0] = False
    with pytest.raises(remat.ReplayMismatch, match="aten::sin"):
        y.sum().backward()


@pytest.mark.parametrize("make", [lambda a, b: a, lambda a, b: (a, b), lambda a, b: [a, b]])
def test_012_results_are_a_tensor_or_containers(make):
    def program(wrap):
        x = leaf(3)
        out = wrap(lambda x: make(x.sin(), x.exp()))(x)
        sum(t.sum() for t in torch.utils._pytree.tree_leaves(out)).backward()
        return x.grad

    assert_same(program, checkpointed)


@pytest.mark.parametrize("out", [None, 3, [None], (torch.ones(1), "text")])
def test_013_a_leaf_that_is_no_tensor_raises(out):
    with pytest.raises(RuntimeError, match="must return a Tensor"):
        checkpointed(lambda x: out)(leaf(2))

    def returns_none(x):  # allowed in a call
        return x.sin(), None

    checkpointed(lambda x: save(returns_none, "a")(x)[0].exp())(leaf(2)).sum().backward()


def test_014_dicts_and_nested_containers_are_results_too():
    x = leaf(3)
    out = checkpointed(lambda x: {"a": [x.sin(), (x.exp(),)]})(x)
    (out["a"][0] + out["a"][1][0]).sum().backward()
    assert_equal(x.exp() + x.cos(), x.grad)
    with pytest.raises(RuntimeError, match="must return a Tensor, or a nesting of tuples, lists and dicts"):
        checkpointed(lambda x: {"a": [x, 3]})(x)


Point = collections.namedtuple("Point", "x y")


class MyTuple(tuple):
    pass


@pytest.mark.parametrize(
    "make", [Point, lambda a, b: MyTuple((a, b)), lambda a, b: torch.return_types.max((a, b)), lambda a, b: [a, b]]
)
def test_015_the_container_keeps_its_type(make):
    made = []

    def fn(x):
        result = make(x.sin(), x.cos())
        made.append(type(result))  # not the result, which would keep its region alive
        return result

    assert type(checkpointed(fn)(leaf(2))) is made[0]


def test_016_outputs_are_returned_as_they_are():
    inner = []

    def fn(x):
        inner.append(x.sin())
        return inner[-1], x

    x = leaf(3)
    y, same = checkpointed(fn)(x)
    assert y is inner[0] and same is x
    y.mul_(2)  # y is no view, so writing it is legal
    y.sum().backward()
    assert_equal(x.cos() * 2, x.grad)


def test_017_nothing_is_saved_for_an_output():
    packed = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: packed.append(t.shape) or t, lambda t: t):
        y = checkpointed(torch.sin)(leaf(3).exp())
    assert packed == [torch.Size([3])] * 2  # exp saves its result outside; the region keeps its argument
    y.sum().backward()


def test_018_the_replay_starts_before_any_backward_inside():
    log = Runs()

    class Inner(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            log.append("inner forward")
            ctx.save_for_backward(x.exp())
            return x.exp()

        @staticmethod
        def backward(ctx, grad):
            log.append("inner backward")
            return grad * ctx.saved_tensors[0]

    x = leaf(2)
    checkpointed(log("body", lambda x: Inner.apply(x)))(x).sum().backward()
    assert log == ["body", "inner forward"] * 2 + ["inner backward"]
    assert_equal(x.exp(), x.grad)


@pytest.mark.parametrize("early_stop", [True, False])
def test_019_the_tail_runs_again_without_early_stop_only(early_stop):
    log = Runs()
    tail = log("tail", lambda y: y + 1)
    x = leaf(2)
    remat.checkpoint(early_stop=early_stop)(lambda x: recompute(tail, "tail")(x.sin().exp()))(x).sum().backward()
    assert len(log) == (1 if early_stop else 2)
    log.clear()
    remat.checkpoint(early_stop=early_stop)(lambda x: save(tail, "tail")(x.sin().exp()))(x).sum().backward()
    assert len(log) == 1


def test_020_a_function_that_saves_nothing_does_not_run_again():
    log = Runs()
    x = leaf(2)
    checkpointed(log("body", lambda x: x + 1))(x).sum().backward()
    assert log == ["body"]
    assert_equal(torch.ones(2), x.grad)


def test_021_early_stop_lets_go_of_what_only_the_tail_reads():
    log, watched = Runs(), Watched()

    def fn(x, read_early):
        y = save(lambda x: watched("kept", x * 3), "a")(x.sin())
        z = y.exp() if read_early else x.exp()
        return log("tail", lambda: z + y)()

    for read_early in (True, False):
        x = leaf(2)
        out = checkpointed(fn)(x, read_early)
        assert watched.lives("kept") == read_early
        out.sum().backward(retain_graph=True)
        out.sum().backward()
    # y + z saves nothing: the replay ends before this op, or by returning its result
    assert_equal(2 * (x.exp() + 3 * x.cos()), x.grad)


def test_022_regions_nest():
    def program(wrap):
        x = leaf(3)
        inner = wrap(lambda x: x.sin().exp())
        named = save(lambda x: wrap(torch.tan)(x), "through a call")
        wrap(lambda x: named(inner(x).cos()).sin())(x).sum().backward()
        return x.grad

    assert_same(program, checkpointed)


def test_023_an_exception_in_the_forward_leaves_nothing_open():
    def bad(x):
        save(torch.sin, "a")(x)
        raise KeyError("mine")

    before = remat._C.live_region_count()
    with pytest.raises(KeyError, match="mine"):
        checkpointed(bad)(leaf(2))
    assert remat._C.live_region_count() == before
    x = leaf(2)
    checkpointed(lambda x: save(torch.sin, "a")(x).exp())(x).sum().backward()
    assert_equal(x.sin().exp() * x.cos(), x.grad)


def test_024_arguments_are_kept_until_backward_where_there_is_a_replay():
    watched = Watched()

    def run(fn):
        return checkpointed(fn)(leaf(2), watched("argument", torch.randn(2)))

    y = run(lambda x, a: (x * a).sin())
    assert watched.lives("argument")
    y.sum().backward()
    assert not watched.lives("argument")


def test_025_arguments_that_nobody_needs_are_dropped_where_there_is_no_replay():
    watched = Watched()

    def fn(x, a):
        return save(lambda x, a: x.sin() + a, "a")(x, a)

    y = checkpointed(fn)(leaf(2), watched("argument", torch.randn(2)))
    assert not watched.lives("argument")
    y.sum().backward()
    x = leaf(2)
    y = checkpointed(lambda x: save(torch.sin, "a")(x).exp())(x)
    y.sum().backward()
    assert_equal(x.sin().exp() * x.cos(), x.grad)


def test_026_an_argument_written_before_backward_raises():
    a = torch.ones(2)
    y = checkpointed(lambda x, a: (x * a).sin())(leaf(2), a)
    a.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation.*region 'block'"):
        y.sum().backward()
