# SPDX-License-Identifier: BSD-3-Clause

"""Policies for ops: tables, presets, functions like those of torch's selective checkpointing, its context_fn."""

import collections
import contextlib
import copy
import functools
import os
import pickle
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.utils.checkpoint as stock
from programs import Square, checkpointed, leaf
from same import DEVICE, assert_same, plain
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import remat_meta as remat
from remat_meta import CheckpointPolicy, PolicyTable

SAVE, RECOMPUTE, OFFLOAD = CheckpointPolicy.SAVE, CheckpointPolicy.RECOMPUTE, CheckpointPolicy.OFFLOAD
PRESETS = [remat.save_matmuls, remat.save_compute_intensive, remat.recompute_pointwise, remat.safe_defaults]
mm = torch.ops.aten.mm.default


def matmuls(x):
    return (x.sin() @ x.t()).tanh() @ x


def executed(fn, x, op=mm):
    """Returns how often backends run `op` from the backward on."""
    counts = collections.Counter()

    class Count(TorchDispatchMode):
        def __torch_dispatch__(self, op, types, args=(), kwargs=None):
            counts[op] += 1
            return op(*args, **(kwargs or {}))

    y = fn(x)
    with Count():
        y.sum().backward()
    return counts[op]


def saved_runs(policy):
    return executed(remat.checkpoint(policy=policy)(lambda x: matmuls(x).exp()), leaf(3, 3))


ALL_AGAIN, NONE_AGAIN = 6, 4  # backward itself runs four


def mlp(wrap):
    block = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Dropout(0.3), nn.Linear(8, 4), nn.LayerNorm(4))
    x = leaf(3, 4)
    y = wrap(block)(x.exp())
    y.sum().backward()
    return [y, x.grad, *(p.grad for p in block.parameters())]


@pytest.mark.parametrize("make", PRESETS)
def test_presets_are_bitwise_plain(make):
    assert_same(mlp, lambda fn: remat.checkpoint(policy=make())(fn))
    assert_same(mlp, lambda fn: remat.checkpoint(policy=make.__name__)(fn))


@pytest.mark.parametrize(
    "op",
    [mm, torch.ops.aten.mm, "aten::mm", "mm", "aten.mm", "aten.mm.default", "torch.ops.aten.mm.default", "aten::m?"],
)
def test_an_op_may_be_written_in_every_form(op):
    assert saved_runs(None) == ALL_AGAIN
    assert saved_runs(PolicyTable().op(op, SAVE)) == NONE_AGAIN
    assert saved_runs([op]) == NONE_AGAIN
    assert saved_runs(PolicyTable().op(op, RECOMPUTE).add(remat.save_matmuls())) == ALL_AGAIN


def test_a_rule_may_name_one_op():
    assert saved_runs(PolicyTable().call("aten::mm#1", SAVE)) == ALL_AGAIN - 1
    assert saved_runs(PolicyTable().call("aten::mm#*", SAVE)) == NONE_AGAIN


def test_a_function_is_asked_as_torchs_are():
    asked = []

    def policy(context, op, *args, **kwargs):
        assert context.op_output is None
        asked.append((context.is_recompute, context.tensor_name, op, len(args), sorted(kwargs)))
        return stock.CheckpointPolicy.MUST_SAVE if op is mm else stock.CheckpointPolicy.PREFER_RECOMPUTE

    assert saved_runs(policy) == NONE_AGAIN
    forward = [call[1:] for call in asked if not call[0]]
    assert ("aten::mm#0", mm, 2, []) in forward and ("aten::mm#1", mm, 2, []) in forward
    again = [call[1:] for call in asked if call[0]]
    assert again == forward[: len(again)] and len(again) >= 4


def test_functions_get_the_arguments_that_python_code_gives():
    seen = {}

    def policy(context, op, *args, **kwargs):
        seen[str(op)] = (args, kwargs)

    def fn(x):
        return torch.add(x.sum(1, keepdim=True), x, alpha=2).clone(memory_format=torch.contiguous_format).exp()

    x = leaf(2, 3)
    remat.checkpoint(policy=policy)(fn)(x)
    args, kwargs = seen["aten.sum.dim_IntList"]
    assert args[0] is x and args[1:] == ([1], True) and not kwargs
    assert seen["aten.add.Tensor"][1] == {"alpha": 2}
    assert seen["aten.clone.default"][1] == {"memory_format": torch.contiguous_format}


@pytest.mark.parametrize(
    ("answer", "runs"),
    [
        (True, NONE_AGAIN),
        (False, ALL_AGAIN),
        (None, ALL_AGAIN),
        (SAVE, NONE_AGAIN),
        (RECOMPUTE, ALL_AGAIN),
        (stock.CheckpointPolicy.MUST_SAVE, NONE_AGAIN),
        (stock.CheckpointPolicy.PREFER_SAVE, NONE_AGAIN),
        (stock.CheckpointPolicy.MUST_RECOMPUTE, ALL_AGAIN),
        (stock.CheckpointPolicy.PREFER_RECOMPUTE, ALL_AGAIN),
    ],
)
def test_answers_of_functions(answer, runs):
    assert saved_runs(lambda context, op, *args, **kwargs: answer if op is mm else None) == runs


@pytest.mark.parametrize(
    "policy",
    [
        ["aten::softmaxx"],
        ["aten::sin", "softmaxx"],
        PolicyTable().op("aten.softmaxx", SAVE),
        PolicyTable.from_json('{"remat_policy": 1, "rules": [{"op": "aten::softmaxx", "policy": "SAVE"}]}'),
    ],
)
def test_an_op_that_there_is_not_is_told_when_the_policy_is_made(policy):
    words = r"expected an op that is registered, got another name\. Did you mean aten::softmax"
    with pytest.raises(ValueError, match=words):
        remat.checkpoint(policy=policy)


def test_an_op_that_a_library_registers_before_the_first_region_may_be_named():
    block = remat.checkpoint(policy=["remat_late::twice", "remat_late::thrice"])(torch.sin)
    library = torch.library.Library("remat_late", "DEF")
    library.define("twice(Tensor x) -> Tensor")
    with pytest.raises(ValueError, match=r"'remat_late::thrice': expected an op .* got another name"):
        block(leaf(2))
    library.define("thrice(Tensor x) -> Tensor")
    block(leaf(2)).sum().backward()
    cuts = remat.Cuts([1], policies=[["remat_late::twicee"], None])
    with pytest.raises(ValueError, match=r"Did you mean remat_late::twice\?"):
        remat.checkpoint(replay="tape", cuts=cuts)(lambda x: x.sin().exp())(leaf(2))


def test_a_wrong_answer_and_an_error_come_in_the_forward():
    with pytest.raises(ValueError, match=r"op aten\.sin\.default: expected a CheckpointPolicy .* got 'save'"):
        remat.checkpoint(policy=lambda *args: "save")(torch.sin)(leaf(2))
    with pytest.raises(ZeroDivisionError):
        remat.checkpoint(policy=lambda *args: 1 // 0)(torch.sin)(leaf(2))
    assert_same(mlp, remat.checkpoint(policy="save_matmuls"))


def test_operators_do_not_swallow_a_wrong_answer_or_a_wrong_form_of_the_function():
    def error(policy):
        with pytest.raises((ValueError, RuntimeError)) as caught:
            remat.checkpoint(region_name="block", policy=policy)(lambda x: x @ x)(leaf(2, 2))
        return str(caught.value)

    where = "[checkpoint] policy, call 'aten::mm#0', op aten.mm.default: expected a"
    assert error(lambda *args, **kwargs: "save").startswith(f"{where} CheckpointPolicy (remat's or torch's)")
    text = error(lambda context, op: SAVE)
    assert text.startswith(f"{where} function that takes (context, op, *args, **kwargs)")
    assert "takes 2 positional arguments but 4 were given" in text


def counting_policy():
    """Saves every second mm, as torchtitan does: counts in the forward and in the recomputation."""
    counts = collections.Counter()

    def policy(context, op, *args, **kwargs):
        if op is not mm:
            return stock.CheckpointPolicy.PREFER_RECOMPUTE
        key = "again" if context.is_recompute else "forward"
        counts[key] += 1
        odd = counts[key] % 2
        return stock.CheckpointPolicy.MUST_SAVE if odd else stock.CheckpointPolicy.PREFER_RECOMPUTE

    return policy


CONTEXTS = {
    "list": (lambda: functools.partial(stock.create_selective_checkpoint_contexts, [mm]), NONE_AGAIN),
    "function": (
        lambda: functools.partial(
            stock.create_selective_checkpoint_contexts,
            lambda context, op, *args, **kwargs: (
                stock.CheckpointPolicy.MUST_SAVE if op is mm else stock.CheckpointPolicy.PREFER_RECOMPUTE
            ),
        ),
        NONE_AGAIN,
    ),
    "own function": (lambda: lambda: stock.create_selective_checkpoint_contexts([mm]), NONE_AGAIN),
    "every second": (lambda: lambda: stock.create_selective_checkpoint_contexts(counting_policy()), ALL_AGAIN - 1),
}


@pytest.mark.parametrize(("make", "runs"), CONTEXTS.values(), ids=CONTEXTS)
def test_selective_contexts_of_torch_work_in_the_drop_in(make, runs):
    def call(checkpoint):
        return lambda x: checkpoint(lambda x: matmuls(x).exp(), x, use_reentrant=False, context_fn=make())

    assert executed(call(remat.torch_checkpoint), leaf(3, 3)) == runs
    assert executed(call(stock.checkpoint), leaf(3, 3)) == runs
    assert_same(
        mlp, lambda fn: lambda *args: remat.torch_checkpoint(fn, *args, use_reentrant=False, context_fn=make())
    )


def test_other_contexts_are_entered_around_the_function():
    entered = []

    @contextlib.contextmanager
    def context(name):
        entered.append(name)
        yield
        entered.append("end of " + name)

    x = leaf(2)
    y = remat.torch_checkpoint(
        lambda x: x.sin().exp().tanh(), x, context_fn=lambda: (context("first"), context("second"))
    )
    y.sum().backward()
    assert entered[:3] == ["first", "end of first", "second"]
    with pytest.raises(TypeError, match=r"context_fn: expected it to return two context managers, got 3"):
        remat.torch_checkpoint(torch.sin, x, context_fn=lambda: 3)


def test_the_patch_serves_context_fn():
    make, runs = CONTEXTS["list"]
    with remat.patch_torch_checkpoint():
        call = functools.partial(stock.checkpoint, matmuls, use_reentrant=False, context_fn=make())
        assert executed(lambda x: call(x).exp(), leaf(3, 3)) == runs


@pytest.mark.parametrize("policy", [remat.save_matmuls(), "save_matmuls", counting_policy, None])
def test_checkpoints_with_policies_survive_pickle_and_deepcopy(policy):
    build = remat.checkpoint(policy=policy() if policy is counting_policy else policy)
    copied = copy.deepcopy(build)
    assert_same(mlp, copied)
    if policy is not counting_policy:
        assert_same(mlp, pickle.loads(pickle.dumps(build)))


def test_tables_are_values():
    table = remat.save_matmuls()
    other = copy.copy(table).op("aten::sin", SAVE)
    assert len(other) == len(table) + 1
    assert "op 'aten::sin' -> SAVE (code)" in repr(other) and "aten::sin" not in repr(table)
    again = PolicyTable.from_json(table.to_json(), "file.json")
    assert again.explain("block/aten::mm#3").startswith("call 'block/aten::mm#3': SAVE by rule 0, op 'aten::mm'")
    assert len(pickle.loads(pickle.dumps(other))) == len(other)


def test_a_table_from_a_file(tmp_path):
    path = tmp_path / "policy.json"
    path.write_text('{"remat_policy": 1, "rules": [{"op": "aten.mm", "policy": "SAVE"}]}')
    assert saved_runs(PolicyTable.load(str(path))) == NONE_AGAIN
    path.write_text('{"remat_policy": 1, "rules": [{"op": "aten.mm"}]}')
    with pytest.raises(ValueError, match=r'policy\.json:1: rules\[0\]: expected a member "policy"'):
        PolicyTable.load(str(path))
    with pytest.raises(ValueError, match="expected a file that can be read"):
        PolicyTable.load(str(tmp_path / "none.json"))


@pytest.mark.parametrize(
    ("policy", "error", "text"),
    [
        (3, TypeError, r"\[checkpoint\] policy: expected a PolicyTable, .* got int"),
        ("save_mm", ValueError, r"preset 'save_mm': expected save_matmuls"),
        ([3], TypeError, r"op: expected a string such as \"aten::mm\""),
        (["aten::"], ValueError, r"op rule 'aten::': expected an op"),
    ],
)
def test_what_is_no_policy_is_refused(policy, error, text):
    with pytest.raises(error, match=text):
        remat.checkpoint(policy=policy)
    with pytest.raises(ValueError, match="policy: expected intercept = true"):
        remat.checkpoint(policy="save_matmuls", intercept=False)


def in_new_process(value, code):
    environment = {**os.environ, "REMAT_POLICY": value}
    return subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)


def test_the_environment_gives_a_policy_to_regions_that_have_none(tmp_path):
    code = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); import test_policies as t; "
    report = "print(t.saved_runs(None), t.saved_runs(t.PolicyTable()))"
    assert in_new_process("save_matmuls", code + report).stdout.split() == [str(NONE_AGAIN), str(ALL_AGAIN)]
    wrong = in_new_process("save_mm", code + report).stderr
    assert "ValueError: [checkpoint] REMAT_POLICY=save_mm" in wrong
    wrong = in_new_process(str(tmp_path / "none.json"), code + report).stderr
    assert "expected a file that can be read" in wrong


def test_offload_of_an_op():
    policy = PolicyTable().op(mm, OFFLOAD)
    with pytest.raises(RuntimeError, match=r"call 'aten::mm#0' \(OFFLOAD\)"):
        remat.checkpoint(policy=policy)(matmuls)(leaf(3, 3))
    assert_same(mlp, remat.checkpoint(policy=policy, offload_store=remat.host_memory_store()))


SPARSE_VIEWS = {
    "detach": lambda s: s.detach().to_dense(),
    "values": lambda s: s._values(),
    "transpose": lambda s: s.t().to_dense(),
    "values of a row format": lambda s: s.to_sparse_csr().values(),
    "row format": lambda s: s.to_sparse_csr().detach().to_dense(),
}


@pytest.mark.torch_warns
@pytest.mark.parametrize("replay", ("function", "auto"))
@pytest.mark.parametrize("view", SPARSE_VIEWS.values(), ids=SPARSE_VIEWS)
def test_views_of_sparse_tensors_run_again_whatever_the_rules_say(view, replay):
    sparse, w = torch.eye(3).to_sparse(), leaf(3, 3)

    def program(wrap):
        region = wrap(lambda w, s: (view(s) * w.sum()).sin() + (view(sparse) * w.sum()).cos())
        return torch.autograd.grad(region(w, sparse).sum(), w)

    policy = PolicyTable().op("*", SAVE)
    assert_same(program, lambda fn: remat.checkpoint(policy=policy, replay=replay)(fn))


@pytest.mark.parametrize("answer", (SAVE, OFFLOAD))
def test_calls_of_regions_inside_may_get_casts_that_autocast_has_already(answer):
    policy, store = PolicyTable().op(mm, answer), remat.host_memory_store()

    def program(wrap):
        w, x = leaf(4, 4), leaf(4, 4)
        inside = wrap if wrap is plain else remat.checkpoint(policy=policy, offload_store=store)
        linear = torch.nn.functional.linear

        def outer(x):
            cache.copy_(x.detach())
            with torch.autocast(DEVICE, dtype=torch.bfloat16):
                y = inside(lambda y: linear(w, w).float() * y)(x)
                return inside(lambda y: linear(w, w).float() * y)(y).sin()

        cache = torch.zeros(4, 4)
        wrap(outer)(x).sum().backward()
        return w.grad, x.grad

    assert_same(program, checkpointed)


# Found by the C++ suite backend.fuzz (tests/fuzz), program 416380.
@pytest.mark.torch_warns  # warns that the outer region has no tape
@pytest.mark.parametrize("check", ("default", "none"))
@pytest.mark.parametrize("replay", ("function", "auto"))
@pytest.mark.parametrize("rule", ("aten::_to_copy", "aten::to", "tag:view"))
def test_rules_are_not_for_casts_that_autocast_may_have_already(rule, replay, check):
    def program(wrap, depth):
        def region(f, **options):
            return f if wrap is plain else remat.checkpoint(determinism_check=check, replay=replay, **options)(f)

        x, w, v = leaf(4, 4), leaf(4, 4), leaf(4, 4)
        twice = region(lambda y: linear(linear(y, w), w).sin(), policy=PolicyTable().op(rule, SAVE))

        def outer(x):
            with torch.autocast(DEVICE, dtype=torch.bfloat16):
                y = twice(linear(x, w) if depth == 1 else twice(x)).float()
            inside = y.detach().requires_grad_()
            (inside * v).sin().sum().backward()
            return y.cos() + inside.grad

        (outer if depth == 0 else region(outer))(x).sum().backward()
        return x.grad, w.grad, v.grad

    linear = torch.nn.functional.linear
    for depth in range(3):
        assert_same(lambda wrap: program(wrap, depth), checkpointed)


def test_rules_are_for_casts_of_results():
    def casts(policy):
        block = remat.checkpoint(policy=policy)(lambda x: (x.sin().bfloat16() @ w.bfloat16()).float().exp())
        return executed(block, leaf(4, 4), torch.ops.aten._to_copy.default)

    w = leaf(4, 4)
    # The casts of sin's result and of the product do not run again; the cast of the weight does.
    assert casts(PolicyTable().op("aten::_to_copy", SAVE)) == casts(None) - 2


# Found by the C++ suite backend.fuzz (tests/fuzz), programs 1072787, 1046740, 1390409 and 1581960.
@pytest.mark.parametrize("answer", (SAVE, OFFLOAD))
def test_autocast_casts_for_ops_of_which_all_tensors_are_placeholders(answer):
    def program(wrap):
        x, w = leaf(4, 4), leaf(4, 4)

        def f(x):
            with torch.autocast(DEVICE, dtype=torch.bfloat16):
                torch.nn.functional.linear(x.clone(), w.repeat(4, 1))  # its result is not read
            return Square.apply(x.sin())

        wrap(f)(x).sum().backward()
        return x.grad

    policy, store = PolicyTable().op("*", answer), remat.host_memory_store()
    assert_same(program, remat.checkpoint(policy=policy, offload_store=store))


@pytest.mark.parametrize("check", ("default", "none"))
def test_a_cast_that_a_call_has_made_is_made_again_for_an_op_that_a_policy_saves(check):
    def program(wrap):
        x, w = leaf(4, 4), leaf(4, 4)

        def region(f, **options):
            return f if wrap is plain else remat.checkpoint(determinism_check=check, **options)(f)

        def inner(y):
            return (y @ w if wrap is plain else remat.native_op(torch.matmul, "first", SAVE)(y, w)) @ w

        def outer(y):
            y = region(inner, policy="save_matmuls")(y)
            return y.sin(), y.cos().cos()

        with torch.autocast(DEVICE, dtype=torch.bfloat16):
            used, _ = region(outer)(x * 1)
        used.sum().backward()
        return x.grad, w.grad

    assert_same(program, checkpointed)


def test_a_region_inside_may_get_a_placeholder_as_a_leaf():
    def program(wrap):
        def f(t):
            copy = t.clone().detach().requires_grad_()
            y = (wrap if wrap is plain else remat.checkpoint())(lambda copy: weight.sin())(copy)
            return t.sin() * y.detach()

        x, weight = leaf(4), leaf(4)
        wrap(f)(x * 1).sum().backward()
        return x.grad

    assert_same(program, remat.checkpoint(policy=PolicyTable().op("aten::clone", SAVE)))


def test_custom_functions_inside_keep_their_place():
    def program(wrap):
        x = leaf(3, 3)
        wrap(lambda x: Square.apply(matmuls(x)).exp())(x).sum().backward()
        return x.grad

    for make in PRESETS:
        assert_same(program, remat.checkpoint(policy=make()))


@pytest.mark.parametrize("replay", ("function", "tape", "auto"))
@pytest.mark.parametrize("op", ("aten::empty_like", "aten::empty*", "aten::new_empty*"))
def test_memory_that_nothing_has_written_is_not_kept(op, replay):
    def program(wrap):
        def inner(t):
            mask = t.new_empty(4, 4)
            return nn.functional.dropout(t, 0.4) * mask.copy_(t).sin_()

        # The two products reuse the memory where the mask was.
        def outer(t):
            wrap(inner)(t)
            return ((t @ weight).sin().clamp_(-1, 1) @ weight).exp()

        x, weight = leaf(4, 4), leaf(4, 4)
        for _ in range(4):
            wrap(outer)(x).sum().backward()
        return x.grad, weight.grad

    table = PolicyTable().op(op, SAVE)
    for _ in range(5):
        assert_same(program, remat.checkpoint(replay=replay, policy=table))


# The page
def test_the_page_lists_what_each_preset_saves():
    page = (Path(__file__).resolve().parents[2] / "docs/how-to/policies.md").read_text()
    for make in PRESETS:
        section = page.split(f"### {make.__name__}\n")[1].split("\n#")[0]
        listed = re.findall(r"`([\w:.*]+)`", section.split("Rules, in their order:")[1])
        expected = re.findall(r"op '([^']+)' ->", repr(make()))
        assert listed == expected


VIEWS = {
    "real": lambda z: z.real,
    "imag": lambda z: z.imag,
    "view_as_real": torch.view_as_real,
    "conj": lambda z: torch.view_as_real(z.conj().resolve_conj()),
    "view_as_complex": lambda z: torch.view_as_complex(torch.view_as_real(z)).real,
    "slice": lambda z: z.real[1:],
}


@pytest.mark.parametrize("policy", [SAVE, OFFLOAD, RECOMPUTE], ids=["save", "offload", "recompute"])
@pytest.mark.parametrize("replay", ["function", "tape", "auto"])
@pytest.mark.parametrize("view", VIEWS)
def test_the_op_that_makes_a_view_anew_for_its_node_is_no_call(view, replay, policy):
    """Autograd calls the op when it is asked for the node of a view whose base was written."""

    def program(wrap):
        x = leaf(4, 4)

        def fn(x):
            h = x * 1
            z = torch.complex(h, h)
            z.mul_(1j).add_(h, alpha=0.5j)
            v = VIEWS[view](z)
            other = VIEWS[view](z)
            v.transpose(0, 1).mul_(0.5)
            a, b = Square.apply(other) * other, other.exp()
            return a + b + v.sin()

        y = wrap(fn)(x)
        y.abs().sum().backward()
        return y.detach(), x.grad

    options = {"offload_store": remat.host_memory_store()} if policy is OFFLOAD else {}
    region = remat.checkpoint(region_name=f"view {view} {policy}", replay=replay, policy=PolicyTable().op("*", policy), **options)
    for _ in range(3):  # until a tape is trusted
        assert_same(program, region)
