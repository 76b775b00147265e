# SPDX-License-Identifier: BSD-3-Clause

"""Behaviours 23 to 39 of torch_remat 0.1: op, auto_forward, native_op."""

import copy
import gc
import pickle

import pytest
import torch
from functions import Auto, Square, runs, sandwich
from kept import Runs
from programs import checkpointed, leaf
from same import assert_equal, assert_same

import remat_meta as remat
from remat_meta import CheckpointPolicy

SAVE, RECOMPUTE, OFFLOAD = CheckpointPolicy
POLICIES = (SAVE, RECOMPUTE)


@pytest.fixture(autouse=True)
def fresh_runs():
    runs.clear()


def test_23_op_forwards_keywords_and_restores_its_context():
    def with_keyword(x, *, scale):
        return Auto.apply(x, scale)

    assert_same(sandwich(lambda x: remat.op(with_keyword, "a", SAVE)(x, scale=3.0)), checkpointed)

    def raises(x):
        raise KeyError("mine")

    def fn(x):
        with pytest.raises(KeyError, match="mine"):
            remat.op(raises, "bad", policy=SAVE)(x)
        plain = Auto.apply(x)  # no op() around: not a named call
        return plain + remat.op(Auto.apply, "good", policy=SAVE)(plain)

    runs.clear()
    checkpointed(lambda x: fn(x.sin()).exp())(leaf(3)).sum().backward()
    assert runs["forward"] == 3  # the plain call runs twice


def test_24_op_of_what_is_no_function():
    with pytest.raises(RuntimeError, match="op expects a function as its first argument"):
        remat.op("name", SAVE, SAVE)
    with pytest.raises(ValueError, match="must be non-empty"):
        remat.op(Auto.apply, "", SAVE)
    with pytest.raises(RuntimeError, match="policy: expected a CheckpointPolicy, got str"):
        remat.op(Auto.apply, "a", "save")
    with pytest.raises(ValueError, match="forward.. has auto_forward.* or calls"):
        checkpointed(lambda x: remat.op(torch.sin, "a", SAVE)(x))(leaf(2))


@pytest.mark.parametrize("policy", POLICIES)
def test_25_auto_forward_is_the_whole_protocol(policy):
    seen = []

    def call(x):
        y = remat.op(Auto.apply, "a", policy)(x)
        seen.append(y.shape)
        return y

    assert_same(sandwich(call), checkpointed)
    assert runs["forward"] == 1 + (1 if policy is SAVE else 2)
    assert len(seen) == 3


def test_26_as_many_names_as_saved_tensors():
    for number in (1, 3):

        class Wrong(torch.autograd.Function):
            @staticmethod
            @remat.auto_forward("x", "y")
            def forward(ctx, x, number=number):
                ctx.save_for_backward(*[x] * number)
                return x * 2

        for policy in POLICIES:
            with pytest.raises(RuntimeError, match="auto_forward save_for_backward names must match"):
                checkpointed(lambda x: remat.op(Wrong.apply, "a", policy)(x.sin()))(leaf(2))
        with pytest.raises(RuntimeError, match="auto_forward save_for_backward names must match"):
            Wrong.apply(leaf(2))


def test_27_a_name_twice_raises_at_decoration():
    with pytest.raises(RuntimeError, match="Duplicate auto_forward save_for_backward name: x"):
        remat.auto_forward("x", "y", "x")
    with pytest.raises(RuntimeError, match="expected a string, got int"):
        remat.auto_forward(3)
    with pytest.raises(ValueError, match="must be non-empty"):
        remat.auto_forward("")


@pytest.mark.parametrize("policy", POLICIES)
def test_28_attributes_of_the_context_reach_backward(policy):
    assert_same(sandwich(lambda x: remat.op(Auto.apply, "a", policy)(x, 5.0)), checkpointed)

    class Marks(torch.autograd.Function):
        @staticmethod
        @remat.auto_forward()
        def forward(ctx, x):
            index = x.detach() * 2
            ctx.mark_non_differentiable(index)
            return x * 2, index

        @staticmethod
        def backward(ctx, grad, _):
            return grad * 2

    grads = []

    def call(x):
        y, index = remat.op(Marks.apply, "a", policy)(x)
        grads.append((y.requires_grad, index.requires_grad))
        return y * index

    assert_same(sandwich(call), checkpointed)
    assert grads == [(True, False)] * 3


def test_29_a_saved_op_runs_once():
    class Counts(torch.utils._python_dispatch.TorchDispatchMode):
        count = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            Counts.count += func is torch.ops.aten.mm.default
            return func(*args, **(kwargs or {}))

    x = leaf(3, 3)
    for policy, expected in ((SAVE, 1), (RECOMPUTE, 2)):
        Counts.count = 0
        with Counts():
            y = checkpointed(lambda x: remat.native_op(torch.mm, "mm", policy)(x.sin(), x).exp().sin())(x)
            torch.autograd.graph.register_multi_grad_hook
            forward = Counts.count
            torch.autograd.grad(y.sum(), y)
            y.sum().backward()
        assert forward == 1
        assert Counts.count - 2 == expected  # the backward of mm runs two


@pytest.mark.parametrize("policy", POLICIES)
def test_30_a_recompute_op_runs_twice(policy):
    log = Runs()
    checkpointed(lambda x: remat.native_op(log("op", torch.exp), "a", policy)(x.sin()).sin())(leaf(3)).sum().backward()
    assert len(log) == (1 if policy is SAVE else 2)


@pytest.mark.parametrize("policy", POLICIES)
def test_31_several_results(policy):
    def call(x):
        a, b = remat.native_op(lambda x: x.split(2), "a", policy)(x.repeat(2)[:4])
        return a.sin() * b.cos()

    def program(wrap):
        x = leaf(2)
        wrap(lambda x: call(x.exp()))(x).sum().backward()
        return x.grad

    assert_same(program, checkpointed)


@pytest.mark.parametrize("number", [1, 2])
def test_32_recompute_ops_take_saved_results(number):
    def call(x):
        saved = [remat.native_op(torch.exp, f"s{i}", SAVE)(x + i) for i in range(number)]
        return remat.native_op(lambda a, b, *, alpha: torch.add(a, b, alpha=alpha).sin(), "r", RECOMPUTE)(
            saved[0], saved[-1] if number > 1 else x, alpha=2
        )

    assert_same(sandwich(call), checkpointed)


def test_33_retain_graph():
    def program(wrap):
        x = leaf(3)
        saved = remat.native_op(torch.exp, "s", SAVE)
        y = wrap(lambda x: remat.native_op(torch.sin, "r", RECOMPUTE)(saved(x.sin())))(x)
        return [torch.autograd.grad(y.sum(), x, retain_graph=True)[0] for _ in range(2)]

    assert_same(program, checkpointed)


def test_34_a_bare_op_reads_a_saved_result():
    assert_same(sandwich(lambda x: Square.apply(x, "a", SAVE).sin() * 2), checkpointed)
    assert_same(sandwich(lambda x: remat.op(Auto.apply, "a", SAVE)(x).sin() * 2), checkpointed)


def test_35_outside_of_regions_it_just_runs():
    x = leaf(3)
    for policy in (*POLICIES, OFFLOAD):
        assert_equal(x.sin(), remat.native_op(torch.sin, "a", policy)(x))
        assert_equal((x * x.exp()) * 1.0, remat.op(Auto.apply, "a", policy)(x))


def test_36_bad_arguments_raise():
    for make in (remat.native_op, remat.op):
        for arguments, error in (
            ((3, "a", SAVE), RuntimeError),
            ((torch.sin,), TypeError),
            ((torch.sin, "a", 1), RuntimeError),
            ((torch.sin, "", SAVE), ValueError),
        ):
            with pytest.raises(error):
                make(*arguments)


def test_36_bad_arguments_of_handles_raise():
    class Takes(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, do):
            do(ctx)
            return x * 2

    def run(do):
        return checkpointed(lambda x: Takes.apply(x.sin(), do))(leaf(2))

    for do, error, text in (
        (lambda ctx: remat.get_handle(3, "a", SAVE), TypeError, "ctx: expected the ctx that forward.. was given, got int"),
        (lambda ctx: remat.get_handle(ctx, 3, SAVE), RuntimeError, "name: expected a string, got int"),
        (lambda ctx: remat.get_handle(ctx, "", SAVE), ValueError, "must be non-empty"),
        (lambda ctx: remat.get_handle(ctx, "a", 3), RuntimeError, "policy: expected a CheckpointPolicy, got int"),
        (lambda ctx: remat.get_handle(ctx, "a", SAVE, keep="all"), ValueError, "keep: expected"),
        (lambda ctx: remat.get_handle(ctx), ValueError, "give get_handle.. a name and a policy"),
        (lambda ctx: remat.get_handle(ctx, "a", SAVE).save_for_backward({"": None}), ValueError, "must be non-empty"),
        (lambda ctx: remat.get_handle(ctx, "a", SAVE).save_for_backward({"a.b": None}), RuntimeError, "without a dot"),
        (lambda ctx: remat.get_handle(ctx, "a", SAVE).save_for_backward({"a": 3}), RuntimeError, "a Tensor or None, got int"),
        (lambda ctx: remat.get_handle(ctx, "a", SAVE).save_for_backward([3]), TypeError, "expected a dict"),
        (lambda ctx: remat.get_handle(ctx, "a", SAVE).record_outputs(3), RuntimeError, "must return a Tensor"),
        (lambda ctx: remat.save_for_backward(3, {}), TypeError, "ctx: expected the ctx"),
        (lambda ctx: remat.save_for_backward(ctx, {"": None}), ValueError, "must be non-empty"),
        (lambda ctx: remat.save_for_backward(ctx, {"a.b": None}), RuntimeError, "without a dot"),
        (lambda ctx: remat.save_for_backward(ctx, {"a": 3}), RuntimeError, "a Tensor or None, got int"),
    ):  # fmt: skip
        with pytest.raises(error, match=text):
            run(do)
    assert_same(sandwich(lambda x: Square.apply(x, "a", SAVE)), checkpointed)


def test_37_a_name_twice_raises():
    call = remat.native_op(torch.sin, "a", SAVE)
    with pytest.raises(RuntimeError, match="call 'a' .*expected a name that is used once in a region"):
        checkpointed(lambda x: call(call(x)))(leaf(2))
    call = remat.op(Auto.apply, "a", SAVE)
    with pytest.raises(RuntimeError, match="call 'a' .*expected a name that is used once in a region"):
        checkpointed(lambda x: call(call(x)))(leaf(2))


def test_38_native_calls_are_in_the_counts_of_what_is_kept():
    before = remat._C.live_region_count()
    y = checkpointed(lambda x: remat.native_op(torch.exp, "a", SAVE)(x.sin()).sin())(leaf(2))
    gc.collect()
    assert remat._C.live_region_count() == before + 1
    del y
    assert remat._C.live_region_count() == before


def test_39_placeholders_have_views_and_raise_when_read():
    found = []

    def fn(x):
        y = Square.apply(x.sin(), "a", SAVE)
        if remat.is_recomputing():
            for view, strides in ((y.detach(), (2, 1)), (y.view(-1), (1,)), (y.t(), (1, 2)), (y[1:, :1], (2, 1))):
                assert remat.is_placeholder(view) and view.stride() == strides
            for read in (torch.sin, torch.clone, lambda y: y.add_(1), torch.Tensor.data_ptr):
                with pytest.raises(RuntimeError, match="call 'a'.*skipped during recompute"):
                    read(y.detach())
                found.append(read)
        return x.cos()

    checkpointed(fn)(leaf(3, 2)).sum().backward()
    assert len(found) == 4


def test_handles_in_an_exception_that_is_kept_do_not_stay_open():
    class Raises(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            handle = remat.get_handle(ctx, "bad", SAVE)
            handle.maybe_load_saved()
            raise KeyError("mine")

    caught = []

    def fn(x):
        try:
            return Raises.apply(x.sin())
        except KeyError as error:
            caught.append(error)  # the error's traceback holds the handle
            return x.sin()

    x = leaf(3)
    checkpointed(fn)(x).sum().backward()
    with pytest.raises(KeyError):
        checkpointed(lambda x: Raises.apply(x.sin()))(x)
    caught.clear()
    assert_same(sandwich(lambda x: Square.apply(x, "a", SAVE)), checkpointed)


@pytest.mark.parametrize("policy", POLICIES)
def test_nested_forwards_do_not_take_the_name_of_the_op_around(policy):
    class Outer(torch.autograd.Function):
        @staticmethod
        @remat.auto_forward("x")
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return Auto.apply(x).exp()

        @staticmethod
        def backward(ctx, grad):
            return grad * ctx.saved_tensors[0]

    assert_same(sandwich(lambda x: remat.op(Outer.apply, "a", policy)(x)), checkpointed)
    assert runs["forward"] == (2 if policy is SAVE else 3)


@pytest.mark.parametrize("policy", POLICIES)
def test_names_and_policy_of_the_op_around_are_those_of_a_handle_without(policy):
    class Takes(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            handle = remat.get_handle(ctx)
            if (out := handle.maybe_load_saved()) is not None:
                return out
            runs["forward"] += 1
            handle.save_for_backward({"x": handle.save_or_load_inputs(x)})
            return handle.record_outputs(x * x)

        @staticmethod
        def backward(ctx, grad):
            return grad * ctx.saved_tensors[0] * 2

    assert_same(sandwich(lambda x: remat.op(Takes.apply, "a", policy)(x)), checkpointed)
    assert runs["forward"] == (2 if policy is SAVE else 3)
    x = leaf(2)
    assert_equal(x * x, Takes.apply(x))  # outside of regions Takes needs no handle


def module_level(ctx, x):
    return x * 2


def test_wrappers_keep_metadata_and_can_be_pickled():
    named = remat.op(module_level, "a", OFFLOAD, keep="all_regions")
    forward = remat.auto_forward("x", "y")(module_level)
    for wrapper in (named, forward, remat.auto_forward("x")):
        for other in (pickle.loads(pickle.dumps(wrapper)), copy.deepcopy(wrapper)):
            assert type(other) is type(wrapper) and repr(other) == repr(wrapper)
    assert forward.__name__ == "module_level" and "auto_forward('x', 'y')" in repr(forward)
