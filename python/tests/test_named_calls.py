# SPDX-License-Identifier: BSD-3-Clause

"""region, native_op, name_scope and recompute_needs_tensor."""

import collections
import copy
import pickle

import pytest
import torch
from same import assert_same

import remat_meta as remat
from remat_meta import CheckpointPolicy

SAVE, RECOMPUTE, OFFLOAD = CheckpointPolicy
checkpointed = remat.checkpoint(region_name="block")
Pair = collections.namedtuple("Pair", "a b")


def leaf(*shape):
    return torch.randn(*shape, requires_grad=True)


def module_level(x):
    return x.sin().exp()


@pytest.mark.parametrize("policy", [SAVE, RECOMPUTE])
@pytest.mark.parametrize("read", ["bare", "region", "save"])
def test_gradients_are_bitwise_plain_and_saved_calls_run_once(policy, read):
    runs = []

    def call(x):
        runs.append("call")
        return (x.sin() * x).exp()

    readers = {
        "bare": lambda y: y.cos() * y,
        "region": remat.region(lambda y: y.cos() * y, "reader", recompute=True),
        "save": remat.region(lambda y: y.cos() * y, "reader", recompute=False),
    }

    def program(wrap):
        x = leaf(4)
        named = remat.native_op(call, "call", policy)
        wrap(lambda x: readers[read](named(x.tan())).sqrt().abs())(x).nansum().backward()
        return x.grad

    assert_same(program, checkpointed)
    assert len(runs) == 1 + (1 if policy is SAVE else 2)  # once in the plain run, then in the region


@pytest.mark.parametrize(
    "make",
    [
        lambda a, b: None,
        lambda a, b: (a, None, b),
        lambda a, b: [a, [b]],
        lambda a, b: {"a": a, "b": (b,)},
        lambda a, b: Pair(a, b),
        lambda a, b: torch.return_types.max([a, b]),
    ],
    ids=["None", "tuple", "list", "dict", "namedtuple", "structseq"],
)
@pytest.mark.parametrize("policy", [SAVE, RECOMPUTE])
def test_results_come_back_in_their_form_in_both_phases(make, policy):
    seen = []

    def call(x):
        return make(x.sin().exp(), x * 2)

    def fn(x):
        out = remat.native_op(call, "call", policy)(x)
        seen.append((type(out), len(torch.utils._pytree.tree_leaves(out))))
        leaves = [t for t in torch.utils._pytree.tree_leaves(out) if t is not None]
        return sum([leaf.cos() for leaf in leaves], x.sin())

    def program(wrap):
        x = leaf(3)
        wrap(fn)(x).sum().backward()
        return x.grad

    assert_same(program, checkpointed)
    assert seen[0] == seen[1] == seen[2]


def test_other_leaves_are_rejected_inside_a_region_only():
    named = remat.region(lambda x: (x, 3), "call", recompute=False)
    assert named(leaf(2))[1] == 3
    with pytest.raises(RuntimeError, match=r"call 'call' \(SAVE\): fn must return a Tensor.*got int"):
        checkpointed(lambda x: named(x)[0])(leaf(2))


def test_a_skipped_result_is_a_placeholder_until_it_is_read():
    seen = []

    def fn(x):
        y = remat.region(lambda x: x.sin().exp(), "call", recompute=False)(x)
        seen.append((remat.is_placeholder(y), remat.is_placeholder(y.view(-1))))
        z = remat.region(lambda y: y * 2, "next", recompute=False)(y)
        return z + x.cos()

    checkpointed(fn)(leaf(2)).sum().backward()
    assert seen == [(False, False), (True, True)]


def test_a_read_past_the_dispatcher_raises_unless_it_was_announced():
    def body(announce):
        def fn(x):
            y = remat.region(lambda x: x.sin(), "call", recompute=False)(x)
            if announce:
                remat.recompute_needs_tensor(y)
            return (x * float(y.detach().numpy().sum())).sin().exp()

        return fn

    with pytest.raises(RuntimeError, match="call"):
        checkpointed(body(False))(leaf(2)).sum().backward()

    def program(wrap):
        x = leaf(2)
        wrap(body(True))(x).sum().backward()
        return x.grad

    assert_same(program, checkpointed)


def test_names_are_unique_and_scopes_make_them_so():
    def twice(scope):
        def fn(x):
            for i in range(2):
                if scope:
                    with remat.name_scope(f"layer.{i}"), remat.name_scope("attention"):
                        x = remat.region(torch.sin, "call", recompute=False)(x)
                else:
                    x = remat.region(torch.sin, "call", recompute=False)(x)
            return x

        return fn

    with pytest.raises(RuntimeError, match="call 'call'"):
        checkpointed(twice(False))(leaf(2))
    checkpointed(twice(True))(leaf(2)).sum().backward()


def test_name_scopes_end_with_an_exception():
    def fn(x):
        with pytest.raises(KeyError), remat.name_scope("gone"):
            raise KeyError
        y = remat.region(torch.sin, "call", recompute=False)(x)
        with remat.name_scope("gone"):
            return remat.region(torch.exp, "call", recompute=False)(y)

    checkpointed(fn)(leaf(2)).sum().backward()


def test_offload_goes_through_the_store_or_hooks_of_the_region():
    named = remat.native_op(module_level, "call", OFFLOAD)
    with pytest.raises((RuntimeError, ValueError), match=r"\(offload_store=\.\.\., saved_tensors_hooks=\.\.\. in Python\)"):
        checkpointed(named)(leaf(2))

    def program(wrap):
        x = leaf(3)
        wrap(lambda x: named(x.tan()).sin())(x).sum().backward()
        return x.grad

    assert_same(program, remat.checkpoint(offload_store=remat.host_memory_store()))
    packed = []
    hooks = (lambda t: (packed.append(1), t.clone())[1], lambda t: t)
    assert_same(program, remat.checkpoint(saved_tensors_hooks=hooks))
    assert len(packed) > 1


def test_implicit_keep_error_names_the_reader():
    def fn(x):
        return remat.region(lambda x: x.sin(), "call", recompute=False)(x).exp()

    with pytest.raises(RuntimeError, match="call 'call'.*aten::exp"):
        remat.checkpoint(implicit_keep="error")(fn)(leaf(2))
    with pytest.warns(UserWarning, match="call 'call'"):
        remat.checkpoint(implicit_keep="warn_once")(fn)(leaf(2))


def test_an_exception_in_a_call_passes_and_leaves_nothing_open():
    def bad(x):
        raise KeyError("inside")

    def fn(x):
        with pytest.raises(KeyError, match="inside"):
            remat.region(bad, "bad", recompute=False)(x)
        return remat.region(torch.sin, "good", recompute=False)(x)

    checkpointed(fn)(leaf(2)).sum().backward()


def test_a_named_call_in_a_finally_block_does_not_hide_the_stop():
    def fn(x):
        try:
            return x.sin().exp()
        finally:
            remat.region(torch.cos, "late", recompute=True)(x)

    def program(wrap):
        x = leaf(2)
        wrap(fn)(x).sum().backward()
        return x.grad

    assert_same(program, checkpointed)


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: remat.region(torch.sin), TypeError, "name"),
        (lambda: remat.region(torch.sin, "n"), TypeError, "recompute: expected True or False, got nothing"),
        (lambda: remat.region(torch.sin, "n", True), TypeError, "recompute: expected recompute and keep by their names"),
        (lambda: remat.region(3, "n", recompute=True), RuntimeError, "region expects a function as its first argument"),
        (lambda: remat.region(torch.sin, "", recompute=True), ValueError, "must be non-empty"),
        (lambda: remat.region(torch.sin, "n", recompute=1), RuntimeError, "recompute: expected True or False, got int"),
        (lambda: remat.native_op(3, "n", SAVE), RuntimeError, "native_op expects a function"),
        (lambda: remat.native_op(torch.sin, "", SAVE), ValueError, "must be non-empty"),
        (lambda: remat.native_op(torch.sin, "n", "save"), RuntimeError, "policy: expected a CheckpointPolicy, got str"),
        (lambda: remat.native_op(torch.sin, "n", True), RuntimeError, r"got bool\. Pass CheckpointPolicy\.SAVE, RECOMPUTE"),
        (lambda: remat.native_op(torch.sin, "n"), TypeError, "policy: expected a CheckpointPolicy as the third argument"),
        (lambda: remat.op(torch.sin, "n"), TypeError, r"Write op\(fn, name, CheckpointPolicy\.SAVE\)"),
        (lambda: remat.native_op(torch.sin, 3, SAVE), RuntimeError, "name: expected a string, got int"),
        (lambda: remat.region(torch.sin, "n", recompute=True, keep="all"), ValueError, "keep: expected"),
        (lambda: remat.name_scope(""), ValueError, "must be non-empty"),
        (lambda: remat.name_scope(3), RuntimeError, "must be a string"),
        (lambda: remat.recompute_needs_tensor(3), RuntimeError, "argument 0: expected a Tensor, got int"),
    ],
)
def test_wrong_arguments_are_named(call, error, text):
    with pytest.raises(error, match=text):
        call()


TORCH = torch.utils.checkpoint.CheckpointPolicy


@pytest.mark.parametrize(
    ("where", "give"),
    [
        ("native_op", lambda policy: remat.native_op(torch.sin, "n", policy)),
        ("op", lambda policy: remat.op(torch.sin, "n", policy)),
        ("get_handle", lambda policy: remat.get_handle(torch.autograd.function.FunctionCtx(), "n", policy)),
        ("PolicyTable", lambda policy: remat.PolicyTable().op("aten::sin", policy)),
        ("PolicyTable", lambda policy: remat.PolicyTable().call("a", policy)),
    ],
)
@pytest.mark.parametrize(
    ("policy", "meant"),
    [
        (TORCH.MUST_SAVE, "SAVE"),
        (TORCH.PREFER_SAVE, "SAVE"),
        (TORCH.MUST_RECOMPUTE, "RECOMPUTE"),
        (TORCH.PREFER_RECOMPUTE, "RECOMPUTE"),
    ],
)
def test_torchs_policy_is_told_from_ours(where, give, policy, meant):
    text = (
        rf"\[{where}\] policy: expected a remat_meta.CheckpointPolicy, got torch.utils.checkpoint.CheckpointPolicy. "
        rf"Pass remat_meta.CheckpointPolicy.{meant}.$"
    )
    with pytest.raises(RuntimeError, match=text):
        give(policy)


def test_a_class_of_the_expected_name_is_named_with_its_module():
    class Sequential(torch.nn.Module):
        pass

    class Cuts:
        pass

    class Tensor:
        pass

    for call, text in (
        (lambda: remat.checkpoint_sequential(2)(Sequential()), f"expected torch.nn.Sequential, .* got {__name__}.Sequential"),
        (lambda: remat.checkpoint(replay="tape", cuts=Cuts()), f"expected Cuts, got {__name__}.Cuts"),
        (lambda: remat.recompute_needs_tensor(Tensor()), f"expected a Tensor, got {__name__}.Tensor"),
        (lambda: remat.format_saved_tensors_report([Tensor()]), f"expected a Tensor or an .*, got {__name__}.Tensor"),
        (lambda: checkpointed(lambda x: Tensor())(leaf(2)), f"nesting .* of Tensors; got {__name__}.Tensor"),
    ):
        with pytest.raises((TypeError, RuntimeError), match=text):
            call()


def test_wrappers_keep_metadata_and_can_be_pickled():
    named = remat.native_op(module_level, "call", SAVE, keep="all_regions")
    assert named.__name__ == "module_level" and named.__wrapped__ is module_level
    for other in (pickle.loads(pickle.dumps(named)), copy.deepcopy(named)):
        assert other.__wrapped__ is module_level and repr(other) == repr(named)
    assert repr(named).startswith("<call 'call' (SAVE) of <function module_level")
