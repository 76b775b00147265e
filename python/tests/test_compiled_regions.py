# SPDX-License-Identifier: BSD-3-Clause

"""Regions and named calls inside functions that torch.compile traces: one graph, right gradients, and the tensors that policies
keep."""

import copy
import dataclasses
import functools
import gc
import os
import pickle
import shutil
import subprocess
import sys
import weakref
from pathlib import Path

import pytest
import torch
import torch.utils.checkpoint as stock
from compiled_programs import BACKENDS, SIZE, chain, compiled, kept_bytes, run
from same import assert_equal
from torch import nn
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.partitioners import min_cut_rematerialization_partition

import remat_meta as remat
from remat_meta import CheckpointPolicy, PolicyTable

pytestmark = [pytest.mark.torch_warns, pytest.mark.usefixtures("fresh_compiler")]
SAVE, OFFLOAD = CheckpointPolicy.SAVE, CheckpointPolicy.OFFLOAD


class State:
    def snapshot(self):
        return None

    def restore(self, state):
        pass


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.first, self.last = nn.Linear(SIZE, SIZE), nn.Linear(SIZE, SIZE)
        self.norm = nn.BatchNorm1d(SIZE)
        self.in_init = remat.checkpoint()(self.body)

    def body(self, x):
        return self.last(self.first(x).sin()).tanh()

    @remat.checkpoint(region_name="decorated")
    def decorated(self, x, scale=1.0):
        return self.body(x * scale).exp()

    def forward(self, x):
        return self.norm(self.in_init(x) + self.decorated(x, scale=0.5))


def writes(x, w):
    y = x @ w
    y.mul_(2).relu_()
    return (y @ w).cos()


def drops(x, w):
    return nn.functional.dropout((x @ w).sin().exp(), 0.3)


def of_call(x, w):
    return remat.native_op(lambda x: (x.t() @ w).tanh().t(), "part", SAVE)(x).exp()


PART = remat.native_op(lambda x: x.sin().tanh(), "part", SAVE)
LAYERS = nn.Sequential(nn.Tanh(), nn.Sigmoid(), nn.Tanh())
PROGRAMS = {
    "region": lambda wrap: wrap()(chain),
    "of a builder": lambda wrap: functools.partial(lambda builder, x, w: builder(chain)(x, w), wrap()),
    "made inside": lambda wrap: lambda x, w: wrap(region_name="a", preserve_rng_state=False)(chain)(x, w),
    "made inside, with a policy": lambda wrap: lambda x, w: wrap(policy="save_matmuls")(chain)(x, w),
    "in a region": lambda wrap: wrap()(lambda x, w: wrap()(chain)(x, w).tanh()),
    "with keywords": lambda wrap: lambda x, w: wrap()(lambda x, *, debug: (x @ debug).exp())(x, debug=w),
    "closure": lambda wrap: lambda x, w: wrap()(lambda x: chain(x, w) * 2)(x),
    "a policy": lambda wrap: wrap(policy="save_matmuls")(chain),
    "a function": lambda wrap: wrap(policy=lambda context, op, *args, **kwargs: op == torch.ops.aten.sin.default)(chain),
    "written": lambda wrap: wrap()(writes),
    "written, with a policy": lambda wrap: wrap(policy="save_matmuls")(writes),
    "random": lambda wrap: wrap()(drops),
    "random, with a policy": lambda wrap: wrap(policy="save_matmuls")(drops),
    "call": lambda wrap: wrap()(lambda x, w: PART(x @ w).exp()),
    "call made inside": lambda wrap: wrap()(of_call),
    "call outside": lambda wrap: lambda x, w: PART(x @ w).exp(),
    "several results": lambda wrap: lambda x, w: sum(wrap()(lambda x, w: {"a": x.sin(), "b": [chain(x, w)]})(x, w)["b"]),
    "sequential": lambda wrap: lambda x, w: remat.checkpoint_sequential(2)(LAYERS)(x) * w,
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("program", PROGRAMS)
def test_one_graph_has_the_gradients_of_plain_code(program, backend):
    expected = run(PROGRAMS[program](lambda **options: lambda fn: fn))
    assert_equal(expected, run(compiled(PROGRAMS[program](remat.checkpoint), backend)))


@pytest.mark.parametrize("backend", BACKENDS)
def test_modules_with_regions_are_one_graph(backend):
    models = [Block(), compiled(Block(), backend)]
    plain = Block()
    plain.in_init, plain.decorated = plain.body, lambda x, scale: plain.body(x * scale).exp()
    x = torch.rand(8, SIZE)
    state = []
    for model in (plain, *models):
        for _ in range(2):
            model(x).square().sum().backward()
        state.append([*(p.grad for p in model.parameters()), *model.buffers()])
    assert_equal(state[0], state[1])
    assert_equal(state[0], state[2])


# Kept tensors


def graphs_of(fn):
    """Counts each op in the forward graph, and in the backward graph."""
    counts = []

    def count(graph, inputs):
        ops = [str(node.target).removeprefix("aten.") for node in graph.graph.nodes if node.op == "call_function"]
        counts.append({op.partition(".")[0]: ops.count(op) for op in ops})
        return graph.forward

    backend = aot_autograd(fw_compiler=count, bw_compiler=count, partition_fn=min_cut_rematerialization_partition)
    run(compiled(fn, backend), steps=1)
    return counts


RULES = {
    "all": {},
    "preset": {"policy": "save_matmuls"},
    "rule": {"policy": PolicyTable().op("aten::sin", SAVE)},
    "one of them": {"policy": PolicyTable().call("aten::mm#1", SAVE)},
    "function": {"policy": lambda context, op, *args, **kwargs: op == torch.ops.aten.sin.default or None},
}
IN_BACKWARD = {  # ops of chain(): 2 matrix products, sin, exp; each product has one more for gradients
    "all": {"mm": 4 + 2, "sin": 1, "exp": 1},
    "preset": {"mm": 4, "sin": 1, "exp": 1},
    "rule": {"mm": 4 + 2, "sin": 0, "exp": 1},
    "one of them": {"mm": 4 + 1, "sin": 1, "exp": 1},
    "function": {"mm": 4 + 2, "sin": 0, "exp": 1},
}


@pytest.mark.parametrize("rules", RULES)
def test_policies_say_what_the_backward_runs_again(rules):
    _, backward = graphs_of(remat.checkpoint(**RULES[rules])(chain))
    assert {op: backward.get(op, 0) for op in IN_BACKWARD[rules]} == IN_BACKWARD[rules]


def test_save_calls_are_in_the_forward_alone():
    def fn(x, w):
        return remat.region(lambda y: y.tan().exp(), "rerun", recompute=True)(PART(x @ w))

    forward, backward = graphs_of(remat.checkpoint()(fn))
    assert forward["sin"] == forward["tanh"] == forward["tan"] == 1
    assert "sin" not in backward and "tanh" not in backward and backward["tan"] == 1
    table = PolicyTable().call("part", CheckpointPolicy.RECOMPUTE).call("rerun", SAVE)
    _, backward = graphs_of(remat.checkpoint(policy=table)(fn))
    assert backward["sin"] == backward["tanh"] == 1 and "tan" not in backward


def test_the_policy_of_the_environment_is_asked():
    code = "import test_compiled_regions as t; print(t.graphs_of(t.remat.checkpoint()(t.chain))[1]['mm'])"
    environment = os.environ | {"REMAT_POLICY": "save_matmuls"}
    assert subprocess.check_output([sys.executable, "-c", code], cwd=Path(__file__).parent, env=environment, text=True) == "4\n"


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("saved", [0, 2])
def test_the_bytes_that_are_kept_are_those_of_a_region(backend, saved):
    w = torch.rand(256, 256)

    def body(x):
        for _ in range(6):
            x = (x @ w).sin().exp().tanh()
        return x

    x = torch.rand(256, 256, requires_grad=True)
    table = PolicyTable()
    for i in range(saved):
        table.call(f"aten::mm#{i}", SAVE)
    region = remat.checkpoint(policy=table)(body)
    activation = x.nbytes
    assert kept_bytes(body, x) > 15 * activation
    eager = kept_bytes(region, x)
    assert eager == pytest.approx((1 + saved) * activation, rel=0.02)
    assert kept_bytes(compiled(lambda x: region(x), backend), x) == pytest.approx(eager, rel=0.02)


# Facts that a graph does not have


@pytest.mark.parametrize(
    "options",
    [
        {"saved_tensors_hooks": (lambda t: t, lambda t: t)},
        {"recompute_state_hooks": [State()]},
        {"generators": [torch.Generator()]},
        {"offload_store": remat.host_memory_store()},
        {"replay": "tape", "cuts": remat.Cuts([1])},
    ],
    ids=lambda options: next(reversed(options)),
)
def test_options_without_a_meaning_are_named(options):
    region = remat.checkpoint(**options)(chain)
    with pytest.raises(Exception, match=rf"\[compile\] {next(reversed(options))}: expected options that a graph knows"):
        run(compiled(region))
    torch._dynamo.reset()
    assert_equal(run(chain), run(torch.compile(lambda x, w: region(x, w), backend="aot_eager")))


@pytest.mark.parametrize("backend", BACKENDS)
def test_offload_is_refused_by_name(backend):
    for options, fn in (
        ({"policy": PolicyTable().op("aten::sin", OFFLOAD)}, chain),
        ({}, lambda x, w: remat.native_op(lambda x: x.sin(), "away", OFFLOAD)(x @ w)),
    ):
        torch._dynamo.reset()
        with pytest.raises(Exception, match="OFFLOAD"):
            run(compiled(remat.checkpoint(**options)(fn), backend))


def test_it_is_never_a_replay():
    region = remat.checkpoint()(lambda x, w: chain(x, w) * (2 if remat.is_recomputing() else 1))
    assert_equal(run(chain), run(compiled(region)))


# Places of regions, and values that leave a compiled function


class Late(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.linear = nn.Linear(SIZE, SIZE)

    def body(self, x):
        return self.linear(x).sin().exp()

    def forward(self, x):
        return self.body(x)


Late.body = remat.checkpoint()(Late.body)
Late.forward = remat.checkpoint()(Late.forward)


@dataclasses.dataclass
class Options:
    activation: object = remat.checkpoint()(lambda x: x.sin().exp())


def gradients_of(model):
    x = torch.ones(2, SIZE)
    model(x).sum().backward()
    return [p.grad for p in model.parameters()]


def test_a_region_that_a_class_gets_later_is_bound():
    expected = gradients_of(Late())
    assert_equal(expected, gradients_of(compiled(Late())))
    assert_equal(expected, gradients_of(compiled(nn.Sequential(Late()))))


def test_a_region_that_an_instance_holds_is_not_bound():
    options = Options()
    options.activation = options.activation
    assert_equal(run(lambda x, w: (x @ w).sin().exp()), run(compiled(lambda x, w: options.activation(x @ w))))


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_break_in_a_region_that_traced_code_makes_leaves_a_region_of_ours(backend):
    def body(norm, calls, w):
        def fn(x):
            calls.append(1)
            y = remat.native_op(lambda x: (x @ w).sin(), "part", SAVE)(x) if wraps else (x @ w).sin()
            torch._dynamo.graph_break()
            return norm(y).exp()

        return fn

    results = []
    for wraps in (False, True):
        torch._dynamo.reset()
        norm, calls = nn.BatchNorm1d(SIZE), []
        w = torch.ones(SIZE, SIZE)

        def program(x, wraps=wraps, norm=norm, calls=calls, w=w):
            fn = body(norm, calls, w)
            return (remat.checkpoint()(fn) if wraps else fn)(x) * 2

        x = torch.rand(4, SIZE, generator=torch.Generator().manual_seed(0)).requires_grad_()
        torch.compile(program, backend=backend)(x).sum().backward()
        results.append([x.grad, *norm.buffers()])
        assert len(calls) == 1 + wraps
    assert_equal(*results)


def test_regions_and_calls_that_leave_a_compiled_function_are_ours():
    made = torch.compile(lambda x: (remat.checkpoint()(chain), remat.native_op(torch.sin, "a", SAVE), x + 1), backend="eager")
    region, call, _ = made(torch.ones(1))
    assert_equal(run(chain), run(region))
    runs = []

    def fn(x):
        runs.append(1)
        return call(x).exp()

    x = torch.rand(256, 256, requires_grad=True)
    assert kept_bytes(remat.checkpoint()(fn), x) == pytest.approx(2 * x.nbytes, rel=0.02)
    assert len(runs) == 3


# Kept tensors where several regions or calls decide


def two_deep(inner, fn, **outer):
    return remat.checkpoint(**outer)(lambda x, w: remat.checkpoint(**inner)(fn)(x, w).tanh())


def with_call(keep):
    return lambda x, w: remat.native_op(lambda x: (x @ w).sin(), "part", SAVE, keep=keep)(x).exp()


NESTED = {
    "no policy": two_deep({}, chain),
    "outer policy": two_deep({}, chain, policy="save_matmuls"),
    "inner policy": two_deep({"policy": "save_matmuls"}, chain),
    "call in the inner one": two_deep({}, with_call("innermost_region")),
    "call in the inner one for all": two_deep({}, with_call("all_regions")),
    "call of an outer op": two_deep({}, chain, policy=PolicyTable().call("aten::tanh#0", SAVE)),
    "count without inner ops": remat.checkpoint(policy=PolicyTable().call("aten::sin#1", SAVE))(
        lambda x, w: remat.checkpoint()(torch.sin)(x @ w).sin().exp()
    ),
    "count in calls": remat.checkpoint(policy=PolicyTable().call("aten::sin#1", SAVE))(
        lambda x, w: remat.native_op(torch.sin, "p", CheckpointPolicy.RECOMPUTE)(x @ w).sin().exp()
    ),
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", NESTED)
def test_regions_in_regions_keep_what_they_keep_without_a_compiler(name, backend):
    fn = NESTED[name]
    assert_equal(run(fn), run(compiled(lambda x, w: fn(x, w), backend)))
    torch._dynamo.reset()
    x, w = torch.rand(256, 256, requires_grad=True), torch.rand(256, 256)
    eager = kept_bytes(lambda x: fn(x, w), x)
    assert kept_bytes(compiled(lambda x: fn(x, w), backend), x) == pytest.approx(eager, rel=0.02)


def test_a_graph_serves_one_policy():
    apply = compiled(lambda region, x, w: region(x, w))
    x, w = torch.rand(256, 256, requires_grad=True), torch.rand(256, 256)
    for kept, policy in ((1, None), (3, "save_matmuls"), (2, PolicyTable().op("aten::sin", SAVE)), (1, None)):
        region = remat.checkpoint(policy=policy)(chain)
        assert kept_bytes(lambda x, region=region: apply(region, x, w), x) == pytest.approx(kept * x.nbytes, rel=0.02)


def test_regions_that_differ_in_their_name_share_a_graph():
    counter = torch._dynamo.testing.CompileCounter()
    apply = torch.compile(lambda region, x: region(x), backend=counter)
    for i in range(4):
        apply(remat.checkpoint(region_name=f"block{i}", policy=PolicyTable().op("aten::mm", SAVE))(torch.sin), torch.ones(2))
    assert counter.frame_count == 1


def test_a_save_call_in_a_compiled_function_in_a_region_of_eager_code_runs_once():
    runs = []

    class Count(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            runs.append(1)
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            return grad * 2

    part = remat.native_op(torch._dynamo.disable(Count.apply), "part", SAVE)
    inner = torch.compile(lambda x: part(x.sin()).exp(), backend="eager")
    x = torch.rand(4, requires_grad=True)
    inner(x).sum().backward()  # compiled outside a region, where the call has no effect
    x.grad = None
    runs.clear()
    remat.checkpoint()(inner)(x).sum().backward()
    assert len(runs) == 1
    assert_equal(2 * (2 * x.sin()).exp() * x.cos(), x.grad)


def test_notes_of_a_function_that_was_not_compiled_are_forgotten():
    def breaks(x):
        torch._dynamo.graph_break()
        return x.sin()

    with pytest.raises(torch._dynamo.exc.Unsupported):
        run(compiled(remat.checkpoint()(lambda x, w: remat.native_op(breaks, "p", SAVE)(x @ w))))
    torch._dynamo.reset()
    x, w = torch.rand(256, 256, requires_grad=True), torch.rand(256, 256)
    assert kept_bytes(compiled(lambda x: remat.checkpoint()(chain)(x, w)), x) == pytest.approx(x.nbytes, rel=0.02)


def test_a_policy_is_what_it_was_when_the_region_was_made():
    apply = compiled(lambda region, x, w: region(x, w))
    x, w = torch.rand(256, 256, requires_grad=True), torch.rand(256, 256)
    table, rules = PolicyTable(), ["aten::sin"]
    regions = [remat.checkpoint(policy=policy)(chain) for policy in (table, rules)]
    table.op("aten::mm", SAVE)
    rules.append("aten::mm")
    regions += [remat.checkpoint(policy=policy)(chain) for policy in (table, rules)]
    for kept, region in zip((1, 2, 3, 3), regions, strict=True):
        assert kept_bytes(lambda x, region=region: region(x, w), x) == pytest.approx(kept * x.nbytes, rel=0.02)
        assert kept_bytes(lambda x, region=region: apply(region, x, w), x) == pytest.approx(kept * x.nbytes, rel=0.02)


def test_functions_that_were_policies_go_with_their_regions():
    class Held:
        pass

    def region_of(held):
        return remat.checkpoint(policy=lambda context, op, *args, **kwargs: bool(held) and None)(torch.sin)

    apply = torch.compile(lambda region, x: region(x), backend="aot_eager")
    held = [Held() for _ in range(3)]
    living = [weakref.ref(one) for one in held]
    for one in held:
        apply(region_of(one), torch.rand(3, requires_grad=True)).sum().backward()
    torch._dynamo.reset()
    del one, held
    gc.collect()
    assert [ref() for ref in living] == [None] * 3


class Unhashable:
    __hash__ = None

    def __init__(self, op):
        self.op = op

    def rule(self, context, op, *args, **kwargs):
        return op._schema.name == self.op or None

    __call__ = rule


@pytest.mark.parametrize("kind", ["object", "method"])
def test_policies_may_be_any_callables(kind):
    apply = compiled(lambda region, x, w: region(x, w))
    x, w = torch.rand(256, 256, requires_grad=True), torch.rand(256, 256)
    for kept, op in ((2, "aten::sin"), (3, "aten::mm")):
        policy = Unhashable(op) if kind == "object" else Unhashable(op).rule
        region = remat.checkpoint(policy=policy)(chain)
        assert kept_bytes(lambda x, region=region: apply(region, x, w), x) == pytest.approx(kept * x.nbytes, rel=0.02)


def test_casts_of_weights_are_never_asked_about():
    asked = []

    def policy(context, op, *args, **kwargs):
        asked.append(context.tensor_name)

    def fn(x, w):
        with torch.autocast("cpu", torch.bfloat16):
            return ((x.sin() @ w) @ w).float()

    region = remat.checkpoint(policy=policy)(fn)
    expected = run(region)
    eager = {name for name in asked if "_to_copy" in name}
    asked.clear()
    assert_equal(run(compiled(fn))[:3], run(compiled(lambda x, w: region(x, w)))[:3])
    assert {name for name in asked if "_to_copy" in name} == eager
    assert expected[0].dtype == torch.float


# Higher-order operators, torch.func, torch's own checkpoint

HIGHER = {
    "cond": lambda x, w: torch.cond(x.sum() > 0, lambda y: y.sin() @ w, lambda y: y.cos() @ w, (x @ w,)),
    "map": lambda x, w: torch._higher_order_ops.map(lambda row, w: (row @ w).sin(), x, w),
    "while_loop": lambda x, w: torch._higher_order_ops.while_loop(
        lambda i, y: i < 3, lambda i, y: (i + 1, (y @ w.detach()).sin()), (torch.tensor(0), (x @ w).detach())
    )[1]
    * x,
    "grad": lambda x, w: torch.func.grad(lambda y: ((y @ w).sin() ** 2).sum())(x) * x,
    "vmap": lambda x, w: torch.vmap(lambda row: (row @ w).sin().exp())(x),
}


@pytest.mark.parametrize("name", HIGHER)
def test_higher_order_operators_and_transforms_run_in_regions(name):
    fn = HIGHER[name]
    expected = run(compiled(fn))
    torch._dynamo.reset()
    assert_equal(expected, run(compiled(remat.checkpoint()(fn))))
    torch._dynamo.reset()
    if name in ("grad", "vmap"):
        with pytest.raises(Exception, match="expected a backend that compiles it"):
            run(compiled(remat.checkpoint()(fn), "eager"))
    else:
        assert_equal(run(compiled(fn, "eager")), run(compiled(remat.checkpoint()(fn), "eager")))


def test_functional_call_is_traced_as_without_us():
    model = nn.Linear(SIZE, SIZE)
    fn = lambda weight, x: torch.func.functional_call(model, {"weight": weight}, (x,)).sum()  # noqa: E731
    weight, x = torch.rand(SIZE, SIZE), torch.rand(2, SIZE)
    assert_equal(torch.func.grad(fn)(weight, x), compiled(torch.func.grad(fn))(weight, x))


def test_our_torch_checkpoint_is_traced():
    assert_equal(run(chain), run(compiled(lambda x, w: remat.torch_checkpoint(chain, x, w))))
    selective = functools.partial(stock.create_selective_checkpoint_contexts, [torch.ops.aten.mm.default])
    _, backward = graphs_of(lambda x, w: remat.torch_checkpoint(chain, x, w, context_fn=selective))
    assert backward["mm"] == 4


def test_a_region_in_a_transform():
    def fn(x, w):
        return torch.vmap(lambda row: remat.checkpoint()(chain)(row, w))(x)

    assert_equal(run(chain), run(compiled(fn)))


@pytest.mark.parametrize("backend", BACKENDS)
def test_torchs_checkpoint_is_itself_in_a_graph_when_it_is_patched(backend):
    selective = functools.partial(stock.create_selective_checkpoint_contexts, [torch.ops.aten.mm.default])
    with remat.patch_torch_checkpoint():
        for options in ({}, {"context_fn": selective}):
            torch._dynamo.reset()
            fn = lambda x, w, options=options: stock.checkpoint(chain, x, w, use_reentrant=False, **options)  # noqa: E731
            assert_equal(run(chain), run(compiled(fn, backend)))
            assert_equal(run(chain), run(compiled(remat.checkpoint(policy="save_matmuls")(chain), backend)))


# Errors

WRONG = {
    "keep": lambda x, w: remat.native_op(torch.sin, "a", SAVE, keep="zz")(x),
    "an empty name": lambda x, w: remat.native_op(torch.sin, "", SAVE)(x),
    "an option": lambda x, w: remat.checkpoint(bogus=None)(torch.sin)(x),
    "an option's value": lambda x, w: remat.checkpoint(policy="nope")(torch.sin)(x),
    "a function": lambda x, w: remat.checkpoint(torch.sin)(x),
    "RECOMPUTE in SAVE": lambda x, w: remat.checkpoint()(
        lambda x: remat.native_op(lambda x: remat.native_op(torch.sin, "in", CheckpointPolicy.RECOMPUTE)(x), "out", SAVE)(x)
    )(x),
    "a name twice": lambda x, w: remat.checkpoint()(lambda x: PART(PART(x)))(x),
    "nothing": lambda x, w: remat.checkpoint()(lambda x: (x, None))(x)[0],
    "a name in two regions": lambda x, w: remat.checkpoint()(
        lambda x: PART(remat.checkpoint()(remat.native_op(torch.sin, "part", SAVE, keep="all_regions"))(x))
    )(x),
    "no tensor": lambda x, w: remat.checkpoint()(lambda x: (x, 3))(x)[0],
}


@pytest.mark.parametrize("name", WRONG)
def test_errors_are_those_of_eager_code(name):
    with pytest.raises(Exception) as eager:
        run(WRONG[name])
    with pytest.raises(type(eager.value)) as raised:
        run(torch.compile(WRONG[name], backend="aot_eager"))
    assert str(eager.value).split(". ")[0].split("\n")[0] in str(raised.value)
    torch._dynamo.reset()
    with pytest.raises(torch._dynamo.exc.Unsupported, match=r"\[compile\]"):
        run(compiled(WRONG[name]))


COMPOSITES = {
    "aten::linear": lambda x, w: nn.functional.linear(x, w).exp(),
    "aten::softmax": lambda x, w: (x @ w).softmax(-1),
    "aten::log_softmax.int": lambda x, w: (x @ w).log_softmax(-1),
}


@pytest.mark.parametrize("op", COMPOSITES)
def test_rules_for_ops_that_a_graph_has_in_parts_are_named(op):
    for table in (PolicyTable().op(op, SAVE), PolicyTable().call(f"{op}#0", SAVE)):
        torch._dynamo.reset()
        if table.to_json().count("#") and op == "aten::softmax":
            continue  # calls have other names: those of softmax include the overload
        with pytest.raises(Exception, match=rf"'{op}(#0)?' -> SAVE.*made of others"):
            run(compiled(remat.checkpoint(policy=table)(COMPOSITES[op])))


@pytest.mark.parametrize("op", ["aten::var", "aten::where"])
def test_rules_for_ops_some_of_which_a_graph_has_are_rules(op):
    fn = remat.checkpoint(policy=PolicyTable().op(op, SAVE))(lambda x, w: torch.where(x > 0, x, w).exp() + x.var(0))
    assert_equal(run(fn), run(compiled(lambda x, w: fn(x, w))))


# Without a compiler nothing changes


@pytest.mark.parametrize("first", ["import torch._dynamo", "importlib.util.find_spec('torch._dynamo')", ""])
@pytest.mark.parametrize("before", [True, False])
def test_the_compiler_may_be_loaded_before_or_after(first, before):
    code = f"""
import importlib.util, torch
{first if before else ""}
import remat_meta as remat
{"" if before else first}
region = torch.compile(lambda x: remat.checkpoint()(torch.sin)(x), backend="eager", fullgraph=True)
region(torch.ones(2, requires_grad=True)).sum().backward()
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def module_level(x):
    return x.sin()


def test_regions_in_classes_are_what_they_were():
    assert isinstance(Block.decorated, remat._C.Checkpointed)
    block = Block()
    assert block.decorated.__self__ is block
    assert_equal(block.decorated(torch.ones(2, SIZE)), Block.decorated(block, torch.ones(2, SIZE)))
    again = copy.deepcopy(block)
    assert_equal(block.decorated(torch.ones(2, SIZE)), again.decorated(torch.ones(2, SIZE)))


def test_calls_of_the_call_are_calls():
    region = remat.checkpoint()(module_level)
    x = torch.rand(3, requires_grad=True)
    assert_equal(region(x), region.__call__(x))
    assert_equal(region(x), pickle.loads(pickle.dumps(region))(x))


@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor compiles C++")
def test_inductor_keeps_what_policies_say():
    def fn(x, w):
        saved = remat.checkpoint(policy="save_matmuls")(chain)(x / SIZE, w)
        return saved + remat.checkpoint()(lambda x, w: PART(x @ w).exp())(x, w)

    def plain(x, w):
        return chain(x / SIZE, w) + (x @ w).sin().tanh().exp()

    for want, have in zip(run(plain), run(compiled(fn, "inductor")), strict=True):
        most = float(want.abs().max())
        torch.testing.assert_close(have, want, rtol=1e-4, atol=1e-4 * most)  # fused kernels round differently
