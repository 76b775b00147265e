# SPDX-License-Identifier: BSD-3-Clause

"""remat-trace diff: the first op of a replay that differs from its forward, or of a run from another, and why.

REMAT_TRACE_PROGRAM: remat-trace.
"""

import contextlib
import inspect
import os
import subprocess

import pytest
import torch
from same import DEVICE
from torch import nn
from torch.nn import functional

import remat_meta as remat

TRACE = os.environ.get("REMAT_TRACE_PROGRAM", "")
pytestmark = pytest.mark.skipif(not TRACE, reason="REMAT_TRACE_PROGRAM is not set")


def diff(*paths):
    return subprocess.run([TRACE, "diff", *map(str, paths)], capture_output=True, text=True, timeout=60)


class State:
    """State on which a region's function depends although it should not."""

    def __init__(self):
        self.again = False
        self.weights = [torch.ones(4, 4, requires_grad=True) for _ in range(2)]
        self.cache = [torch.ones(2, 4)]


def branches(x, state):
    if state.again:
        return x.cos().exp()  # replay
    return x.sin().exp()  # forward


def drops(x, state):
    y = functional.dropout(x.sin(), 0.5, not state.again)  # forward
    return y.exp()  # replay


def adds_an_op(x, state):
    y = x.sin()
    if state.again:
        y = y.neg()  # replay
    return y.exp()  # forward


def leaves_ops_out(x, state):
    y = x.sin()
    return y if state.again else y.exp()  # forward


def casts(x, state):
    with torch.autocast(DEVICE, torch.bfloat16, enabled=not state.again):
        y = x.mm(state.weights[0])  # forward, replay
    return y.float().exp()


def reads_what_has_grown(x, state):
    past = state.cache[-1]
    return torch.cat([x, past]).exp()  # forward, replay


def indexes(x, state):
    return x[2 if state.again else 1].exp()  # forward, replay


def takes_a_number(x, state):
    return functional.leaky_relu(x, 0.5 if state.again else 0.25)  # forward, replay


def takes_a_number_for_a_tensor(x, state):
    return (x * (3 if state.again else 2)).exp()  # forward, replay


def takes_a_flag(x, state):
    return x.logsumexp(0, keepdim=state.again)  # forward, replay


def takes_an_option(x, state):
    return torch.clamp(x, 0.5, 2.0 if state.again else None)  # forward, replay


def takes_a_mode(x, state):
    return functional.gelu(x, approximate="tanh" if state.again else "none")  # forward, replay


def freezes(x, state):
    weight = state.weights[0].requires_grad_(not state.again)
    return (x * weight).exp()  # forward, replay


def takes_another_weight(x, state):
    weight = state.weights[1 if state.again else 0]
    return (x * weight).exp()  # forward, replay


def takes_another_result(x, state):
    parts = [x.sin(), x.cos()]
    return parts[1 if state.again else 0].exp()  # forward, replay


DIFFERENCES = {  # op of the forward, op of the replay, likely cause
    branches: ("aten::sin(", "aten::cos(", "branches on state"),
    drops: ("aten::", "aten::exp(", "A training flag or a probability differs"),
    adds_an_op: ("aten::exp(", "aten::neg(", "branches on state"),
    leaves_ops_out: ("aten::exp(", "the end", "calls fewer ops"),
    casts: ("aten::mm(bfloat16", "aten::mm(float32", "A dtype differs: autocast"),
    reads_what_has_grown: ("float32 [2, 4]", "float32 [6, 4]", "A shape differs: a cache that has grown"),
    indexes: ("at element 4", "at element 8", "Another part of a tensor"),
    takes_a_number: ("0.25)", "0.5)", "A number differs: a counter"),
    takes_a_number_for_a_tensor: ("aten::mul.Tensor(", "aten::mul.Tensor(", "A number differs: a counter"),
    takes_a_flag: ("false)", "true)", "A flag differs"),
    takes_an_option: ("none)", "2)", "An optional argument differs"),
    takes_a_mode: ("'none')", "'tanh')", "A text differs"),
    freezes: ("requires grad from outside #1)", "float32 [4, 4] on cpu from outside #1)", "requires_grad differs"),
    takes_another_weight: ("from outside #1", "from elsewhere", "Another tensor is read: a weight"),
    takes_another_result: ("of op 0)", "of op 1)", "Another tensor is read that the function makes"),
}


def line_of(function, mark):
    lines, first = inspect.getsourcelines(function)
    found = [first + i for i, line in enumerate(lines) if mark in line.partition("#")[2]]
    return f"test_record_diff.py:{found[0]} {function.__name__}" if found else None


@pytest.mark.parametrize("function", DIFFERENCES, ids=lambda function: function.__name__)
def test_the_op_the_lines_and_the_cause_of_a_difference_are_named(function, tmp_path):
    state = State()
    with remat.record(tmp_path / "step.rec", source_lines=True):
        x = torch.ones(4, 4, requires_grad=True)
        y = remat.checkpoint(region_name="block")(lambda x: function(x, state))(x)
        state.again = True
        state.cache.append(torch.ones(6, 4))
        with pytest.raises(remat.ReplayMismatch):
            y.sum().backward()
    done = diff(tmp_path / "step.rec")
    assert done.returncode == 4, done.stdout + done.stderr
    forward, replay, cause = DIFFERENCES[function]
    told = done.stdout.splitlines()
    assert told[0].startswith("region 'block', replay 0 of 1: op ")
    first, second = (next(i for i, line in enumerate(told) if line.startswith(side)) for side in ("  forward", "  replay"))
    assert forward in told[first], done.stdout
    assert replay in told[second], done.stdout
    assert any(line.startswith("  likely") and cause in line for line in told), done.stdout
    for op, mark in ((first, "forward"), (second, "replay")):
        line = line_of(function, mark)
        assert line is None or line in told[op + 1], done.stdout


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(16)
        self.batch_norm = nn.BatchNorm1d(5)
        self.heads = nn.Linear(16, 48)
        self.out = nn.Linear(16, 16)
        self.mlp = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 16), nn.Dropout(0.1))

    def forward(self, x):
        q, k, v = (part.view(4, 5, 2, 8).transpose(1, 2) for part in self.heads(self.norm(x)).chunk(3, -1))
        y = functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(4, 5, 16)
        x = x + self.out(y)
        return x + self.mlp(self.batch_norm(x)) * 2


def inside(block):
    return lambda x: remat.checkpoint(region_name="inner")(block)(x).sin()


WRAPS = {
    "plain": lambda block: block,
    "regions": lambda block: remat.checkpoint(region_name="block", replay="function")(block),
    "tapes": lambda block: remat.checkpoint(region_name="block", replay="tape")(block),
    "nested": lambda block: remat.checkpoint(region_name="block")(inside(block)),
    "policy": lambda block: remat.checkpoint(region_name="block", policy="save_matmuls")(block),
}


def record(path, wrap, *, lower=False, unlike=0):
    """Records two steps of training; `unlike`: how much other memory is held."""
    held = [torch.ones(1000 * (i + 1)) for i in range(unlike)]
    torch.manual_seed(0)
    model = nn.Sequential(Block(), Block())
    optimizer = torch.optim.AdamW(model.parameters())
    with remat.record(path):
        for _ in range(2):
            x = torch.randn(4, 5, 16)
            with torch.autocast(DEVICE, torch.bfloat16) if lower else contextlib.nullcontext():
                for block in model:
                    x = WRAPS[wrap](block)(x)
                loss = x.square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    del held
    return path


@pytest.fixture(scope="module", params=[False, True], ids=["float32", "bfloat16"])
def plain(request, tmp_path_factory):
    """A recording of a run without regions, and whether it ran under autocast."""
    return record(tmp_path_factory.mktemp("plain") / "step.rec", "plain", lower=request.param), request.param


@pytest.mark.parametrize("wrap", ["regions", "tapes", "policy"])
def test_runs_and_replays_that_do_the_same_do_not_differ(wrap, plain, tmp_path):
    path, lower = plain
    other = record(tmp_path / "step.rec", wrap, lower=lower, unlike=3)
    for paths in [(path, other), (other, path), (other,)]:
        done = diff(*paths)
        assert done.returncode == 0, done.stdout
        assert done.stdout.startswith("no difference: ")


@pytest.mark.parametrize("name", ["exp", "sigmoid", "tanh", "sqrt"])
def test_a_replay_that_stops_in_the_op_which_saves_its_own_result(name, tmp_path):
    def train(path, wrap):
        x = torch.full((8,), 0.5, requires_grad=True)
        with remat.record(path):
            wrap(lambda x: getattr(x, name)() + 1)(x).sum().backward()

    train(tmp_path / "plain.rec", lambda function: function)
    train(tmp_path / "step.rec", remat.checkpoint(region_name="block"))
    done = diff(tmp_path / "plain.rec", tmp_path / "step.rec")
    assert done.returncode == 0, done.stdout


def test_the_first_op_of_another_run_that_differs_is_named(plain, tmp_path):
    path, lower = plain
    nested = record(tmp_path / "step.rec", "nested", lower=lower)
    assert diff(nested).returncode == 0
    done = diff(path, nested)
    assert done.returncode == 4
    assert "second   aten::sin(" in done.stdout
