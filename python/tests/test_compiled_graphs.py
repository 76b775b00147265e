# SPDX-License-Identifier: BSD-3-Clause

"""Functions that inductor has compiled, called in regions of eager code: one op each, `remat::compiled_graph`."""

import gc
import threading
import types
import weakref

import pytest
import torch
import torch._functorch.config
import torch.nn.functional as F
from programs import leaf
from same import assert_equal, assert_same, plain
from torch import nn
from wrappers import Passing

import remat_meta as remat
from remat_meta import CheckpointPolicy, _compiled_graphs

pytestmark = [pytest.mark.torch_warns]

GRAPH = "remat::compiled_graph"
ENGINES = {
    "function": {},
    "auto": {"replay": "auto"},
    "tape": {"replay": "tape"},
    "policy": {"policy": "save_matmuls"},
    "saved": {"policy": [GRAPH]},
    "saved, tape": {"policy": [GRAPH], "replay": "tape"},
}


class Kept:
    """Tensors that programs write and train, with the same values at the beginning of each program."""

    def __init__(self):
        self.buffer = torch.ones(4)
        self.linear, self.norm = nn.Linear(4, 4), nn.BatchNorm1d(4)
        self.start = [t.clone() for t in self.tensors()]

    def tensors(self):
        return [self.buffer, *self.linear.parameters(), *self.norm.parameters(), *self.norm.buffers()]

    def reset(self):
        with torch.no_grad():
            for tensor, start in zip(self.tensors(), self.start, strict=True):
                tensor.copy_(start)
                tensor.grad = None


torch.manual_seed(0)
KEPT = Kept()


def product(x):
    return (F.gelu(KEPT.linear(x)) @ x.t()).sin()


def writes(x):
    KEPT.buffer.mul_(1.5).add_(x.detach().mean(0))
    return (x * KEPT.buffer).sin() @ x


def aliases(x):
    y = x.sin()
    return x.t(), y.t(), x[1:], y, y.view(-1), x


def written_argument(x):
    return x.mul_(2).sin()


def with_numbers(x):
    return (KEPT.linear(x).tanh() @ x.t()).sin() * x.shape[0]


COMPILED = {}


def compiled(fn, **options):
    """Compiles a function once for all tests."""
    if fn not in COMPILED:
        COMPILED[fn] = torch.compile(fn, **options)
    return COMPILED[fn]


def normed(x):
    return KEPT.norm(KEPT.linear(x)).relu() * x


def drawn(x):
    return F.dropout(KEPT.linear(x).tanh(), 0.5) * torch.rand_like(x) @ x.t()


PROGRAMS = {
    "matrix products": lambda x: compiled(product)(x * 2).tanh(),
    "as it is": lambda x: compiled(product)(x),
    "two times": lambda x: compiled(product)(compiled(product)(x * 2) * 2),
    "random numbers": lambda x: compiled(drawn)(F.dropout(x, 0.3)) * torch.rand(4),
    "a captured tensor is written": lambda x: compiled(writes)(x * 2).tanh(),
    "and read after it": lambda x: compiled(writes)(x * 2).tanh() * KEPT.buffer,
    "statistics": lambda x: compiled(normed)(x * 2) * 2,
    "views and the argument": lambda x: [y * 2 for y in compiled(aliases)(x * 2)],
    "an argument is written": lambda x: (lambda h: compiled(written_argument)(h) * h)(x * 2),
    "without gradients": lambda x: compiled(written_argument)((x * 2).detach()) * x,
    "varying sizes": lambda x: compiled(with_numbers, dynamic=True)(x * 2).tanh(),
    "under autocast": lambda x: under_autocast(compiled(product), x * 2).float().tanh(),
}


def under_autocast(fn, x):
    with torch.autocast("cpu", torch.bfloat16):
        return fn(x)


def trained(fn, rows=4):
    """Returns a program of two steps."""

    def program(wrap):
        KEPT.reset()
        x, outputs = leaf(rows, 4), []
        for _ in range(2):
            y = wrap(fn)(x)
            results = [y] if isinstance(y, torch.Tensor) else y
            sum(result.sin().sum() for result in results).backward()
            outputs += [result.detach().clone() for result in results]
        return [*outputs, x.grad, *(t.detach().clone() for t in KEPT.tensors()), *(t.grad for t in KEPT.tensors())]

    return program


def region(engine, **options):
    return remat.checkpoint(region_name=engine, **ENGINES[engine], **options)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_are_as_without_a_region(name, engine):
    assert_same(trained(PROGRAMS[name]), region(engine))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("inner", ["function", "tape", "saved"])
@pytest.mark.parametrize("name", ["matrix products", "random numbers", "and read after it"])
def test_in_nested_regions(name, inner, engine):
    def wrap(fn):
        return region(engine)(lambda x: region(inner)(fn)(x))

    assert_same(trained(PROGRAMS[name]), wrap)


@pytest.mark.parametrize("engine", ["function", "auto", "tape"])
@pytest.mark.parametrize("policy", [CheckpointPolicy.SAVE, CheckpointPolicy.RECOMPUTE])
def test_in_named_calls(policy, engine):
    call = remat.native_op(compiled(product), "call", policy)
    assert_same(trained(lambda x: call(x * 2).tanh()), region(engine))


def test_other_sizes_of_one_graph():
    fn = PROGRAMS["varying sizes"]
    for rows in (4, 5, 7):
        assert_same(trained(fn, rows), region("function"))
        assert_same(trained(fn, rows), region("tape"))


@torch._functorch.config.patch(donated_buffer=False)  # otherwise torch refuses retain_graph
def test_a_gradient_inside():
    def fn(x):
        h = x * 2
        y = piece(h)
        (grad,) = torch.autograd.grad(y.sum(), h, retain_graph=True)
        return y * grad

    piece = torch.compile(lambda x: (KEPT.linear(x).tanh() @ x.t()).exp())
    assert_same(trained(fn), region("function"))
    assert_same(trained(fn), region("auto"))


LOSSES = {
    "a loss": lambda x: (KEPT.linear(x) @ x.t()).tanh().sum(),
    "pointwise": lambda x: (KEPT.linear(x).exp() * x.sin()).tanh().exp().sum(),
}


@pytest.mark.parametrize("engine", ["function", "auto", "nested"])
@pytest.mark.parametrize("name", LOSSES)
def test_a_gradient_inside_whose_graph_writes_what_autograd_has_saved(name, engine):
    """By default a backward of inductor may write saved tensors; only the ops of a replay still read them afterwards."""

    def fn(x):
        h = (x * 2).detach().requires_grad_()
        (grad,) = torch.autograd.grad(compiled(LOSSES[name])(h), h)
        return x * grad

    wrap = (lambda fn: region("function")(region("function")(fn))) if engine == "nested" else region(engine)
    assert_same(trained(fn), wrap)


@pytest.mark.parametrize(("engine", "count"), [("function", 2), ("tape", 2), ("saved", 1), ("saved, tape", 1)])
def test_a_rule_keeps_what_a_graph_makes(engine, count, monkeypatch):
    runs = []
    run_graph = _compiled_graphs._call
    monkeypatch.setattr(_compiled_graphs, "_call", lambda *args: runs.append(args) or run_graph(*args))
    region(engine)(PROGRAMS["matrix products"])(leaf(4, 4)).sum().backward()
    assert len(runs) == count


def test_nothing_but_the_argument_is_kept():
    x = leaf(256, 256)
    big = torch.compile(lambda x: (x.sin() @ x.cos()).exp().tanh())
    fn = region("function")(lambda x: big(x).sin())
    fn(x).sum().backward()
    with remat.MemoryMeter() as meter:
        y = fn(x)
        assert meter.current_bytes() - y.nbytes < 16384
        del y


@pytest.mark.parametrize("engine", ENGINES)
def test_compiled_again_between_forward_and_backward(engine):
    def fn(x):
        return (x.sin() @ x.t()).cos()

    x = leaf(4, 4)
    fn(x * 2).sum().backward()
    expected, x.grad = x.grad, None
    piece = torch.compile(fn)
    y = region(engine)(lambda x: piece(x * 2))(x)
    torch._dynamo.reset()
    gc.collect()
    y.sum().backward()
    torch.testing.assert_close(x.grad, expected)  # inductor rounds differently from eager code


def test_a_tape_keeps_its_graph_and_lets_it_go():
    from torch._inductor.output_code import CompiledFxGraph

    pieces = [torch.compile(lambda x: (x.cos() @ x.t()).sin())]
    x = leaf(4, 4)
    y = region("tape")(lambda x: pieces[0](x * 2))(x)
    torch._dynamo.reset()
    pieces.clear()
    gc.collect()
    graphs = [weakref.ref(o) for o in gc.get_objects() if type(o) is CompiledFxGraph and "cos" in o.source_code]
    assert graphs
    y.sum().backward()
    del y
    gc.collect()
    assert not [ref for ref in graphs if ref()]


def test_other_code_in_the_replay_raises_and_says_what_to_do():
    def scaled(x, scale):
        return (x * scale).sin() / scale

    def fn(x):
        return piece(x * 2, 1.5).tanh() * piece(x, 2.5)

    x = leaf(4, 4)
    piece = torch.compile(scaled)
    with pytest.raises(remat.ReplayMismatch, match='A compiled function runs other code.*Use replay = kAuto ."auto"'):
        region("function")(fn)(x).sum().backward()
    assert_same(trained(fn), region("function"))  # a tape only from the second step on
    torch._dynamo.reset()
    piece = torch.compile(scaled)
    region("auto")(fn)(x).sum().backward()


def test_an_exception_in_a_graph_leaves_nothing():
    piece = torch.compile(lambda table, i: table[i].sin())
    table, good, bad = leaf(4, 4), torch.tensor([0, 1]), torch.tensor([0, 9])

    def program(wrap):
        fn = wrap(lambda t: piece(t * 2, good).tanh())
        with pytest.raises(Exception, match="out of bounds"):
            wrap(lambda t: piece(t * 2, bad).tanh())(table)
        table.grad = None
        fn(table).sum().backward()
        return [table.grad]

    for engine in ENGINES:
        assert_same(program, region(engine))
        gc.collect()  # pytest's references to the exception
        assert remat._C.live_region_count() == 0


def test_on_two_threads():
    x = leaf(4, 4)
    start, results = x.detach(), {}

    def step(name, wrap):
        x = start.clone().requires_grad_()
        for _ in range(5):
            wrap(lambda x: compiled(aliases)(x * 2)[1].tanh())(x).sum().backward()
        results[name] = x.grad

    step("plain", plain)
    threads = [threading.Thread(target=step, args=(name, region(name))) for name in ("function", "tape")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for name in ("function", "tape"):
        assert_equal(results["plain"], results[name])


@pytest.mark.parametrize("engine", ENGINES)
def test_modes_see_what_they_see_without_a_region(engine):
    fn = PROGRAMS["matrix products"]
    seen = []
    for wrap in (plain, region(engine)):
        with Passing() as mode:
            y = wrap(fn)(leaf(4, 4))
            # Leaves out detach(), which a region calls on tensors that it keeps.
            seen.append([name for name in mode.ops if name != "aten.detach.default"])
            y.sum().backward()  # in the mode, because since torch 2.14 compiled functions differ outside it
    assert len(seen[0]) > 3
    assert seen[0] == seen[1]


def refused(inputs, match, **facts):
    graph = types.SimpleNamespace(**{"fx_kwargs": {}, "device_types": ["cpu"], "mutated_input_idxs": (), **facts})
    with pytest.raises(NotImplementedError, match=match):
        _compiled_graphs._run_as_op(None, graph, inputs)


def test_what_an_op_cannot_be_is_refused_and_says_what_to_do():
    advice = "Compile it without, call it outside of the region"
    refused([torch.Generator()], f"expected a graph of tensors and numbers, got a Generator. {advice}")
    refused([], f"expected no CUDA graphs.*got them. {advice}", fx_kwargs={"cudagraphs": True}, device_types=["cuda"])


def test_torchs_checkpoint_that_is_patched():
    def program():
        KEPT.reset()
        x = leaf(4, 4)
        torch.utils.checkpoint.checkpoint(compiled(product), x * 2, use_reentrant=False).sum().backward()
        return [x.grad, KEPT.linear.weight.grad]

    torch.manual_seed(7)
    expected = program()
    torch.manual_seed(7)
    with remat.patch_torch_checkpoint():
        assert_equal(expected, program())
