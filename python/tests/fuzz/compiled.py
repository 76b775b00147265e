# SPDX-License-Identifier: BSD-3-Clause

"""Random programs of regions and named calls, and torch.compile: values and gradients of plain code bit by bit.

    python -m fuzz.compiled --seed 0 --count 1000                   in one graph, and no more bytes than without a compiler
    python -m fuzz.compiled --seed 0 --count 1000 --pieces inductor  compiled pieces in regions that run eagerly
"""

import argparse
import functools
import random
import sys
import warnings

import torch
from programs import TORCH
from same import assert_equal

import remat_meta as remat
from remat_meta import CheckpointPolicy, PolicyTable

SIZE = 64
UNARY = (
    "{}.sin()", "{}.tanh()", "{} * 0.7", "{}.t()", "{}.sigmoid()", "{}.softmax(-1)", "{}.relu()", "{} - {}.mean(0)",
    "{}.cumsum(0) / 9",
)
RANDOM = ("F.dropout({}, 0.25)", "{} + 0.1 * torch.rand_like({})")
BINARY = ("{} + {}", "{} * {}", "({} @ {}) / 8", "torch.where({} > 0.4, {}, 0.5)", "torch.minimum({}, {})")
IN_PLACE = ("{}.mul_(0.9)", "{}.add_({})", "{}.tanh_()", "{}[0] = 0.5")
WRITES = ("buffer.mul_(0.9)", "buffer.add_({}.detach().mean(0))", "buffer[0] = 0.5", "{0} = {0} * buffer.clone()")
RULES = (
    "aten::mm", "aten::sin", "aten::tanh", "aten::mul.Tensor", "aten::sigmoid", "aten::t", "aten::_softmax", "aten::add.Tensor",
)


class Writer:
    """Writes the source of one program. `pieces`: it has functions to compile, in regions that run eagerly."""

    def __init__(self, seed, pieces=False):
        self.random = random.Random(seed)
        self.pieces = pieces
        self.made = []  # lines of the module
        self.names = 0

    def name(self, prefix):
        self.names += 1
        return f"{prefix}{self.names}"

    def options(self):
        """Returns a region's options, and True if traced code may construct them."""
        policy, is_constant = self.policy()
        replay = self.random.choice(("", 'replay="auto"', 'replay="tape"')) if self.pieces else ""
        return ", ".join(filter(None, (policy, replay))), is_constant

    def policy(self):
        kind = self.random.choice(("", "", "preset", "table", "calls", "function"))
        if kind in ("", "preset"):
            preset = self.random.choice(("save_matmuls", "save_compute_intensive", "recompute_pointwise"))
            return (f'policy="{preset}"' if kind else ""), True
        rules = self.random.sample(RULES, 2)
        name = self.name("P")
        if kind == "function":
            op = rules[0].split(".")[0]
            self.made.append(f"def {name}(context, op, *args, **kwargs): return op._schema.name == {op!r} or None")
        else:
            add = "op({!r}, SAVE)" if kind == "table" else "call({!r}, SAVE)"
            suffix = "" if kind == "table" else f"#{self.random.randrange(3)}"
            self.made.append(f"{name} = PolicyTable()" + "".join("." + add.format(rule + suffix) for rule in rules))
        return f"policy={name}", False

    def block(self, variables, indent, depth, inside):
        """Writes statements that read `variables`, which belong to code around it. `inside`: "region", "call" or neither."""
        lines, own, count = [], [], self.random.randint(2, 5)
        for _ in range(count):
            pick = lambda: self.random.choice(variables + own)  # noqa: E731
            kind = self.random.choice(("unary", "unary", "binary", "binary", "random", "place", "region", "call"))
            if kind in ("region", "call") and (depth == 0 or (kind == "region" and inside == "call")):
                kind = "unary"
            if self.pieces and kind in ("unary", "call") and depth > 0 and self.random.random() < 0.4:
                lines += self.piece(pick, own, variables, indent)
            elif kind == "place" and own:
                target = self.random.choice(own)
                lines.append(indent + f"{target} = {target} * 1")
                lines.append(indent + self.random.choice(IN_PLACE).format(target, pick()))
            elif kind in ("region", "call"):
                lines += self.inner(kind, pick, own, variables, indent, depth, inside)
            else:
                forms = {"unary": UNARY, "binary": BINARY, "random": RANDOM, "place": UNARY}[kind]
                value, first = self.name("v"), pick()
                form = self.random.choice(forms)
                rest = [first if kind in ("unary", "random") else pick() for _ in range(form.count("{}") - 1)]
                lines.append(indent + f"{value} = {form.format(first, *rest)}")
                own.append(value)
        return lines, " + ".join(own or variables[:1])  # reads all, because a compiler drops unread variables

    def piece(self, pick, own, variables, indent):
        function, value, argument = self.name("f"), self.name("v"), self.name("a")
        body, result = self.block([argument, self.random.choice(variables)], indent + "    ", 0, "call")
        writes = [indent + "    " + self.random.choice(WRITES).format(argument) for _ in range(self.random.randrange(3))]
        lines = [indent + f"def {function}({argument}):", *writes, *body, indent + f"    return ({result}) * 1.5"]
        lines.append(indent + f"{value} = piece({function})({pick()})")
        own.append(value)
        return lines

    def inner(self, kind, pick, own, variables, indent, depth, inside):
        function, value, argument = self.name("f"), self.name("v"), self.name("a")
        captured = [self.random.choice(variables)]  # the function never writes this variable
        body, result = self.block([argument, *captured], indent + "    ", depth - 1, kind if kind == "region" else "call")
        lines = [indent + f"def {function}({argument}):", *body, indent + f"    return ({result}) * 1.5"]
        if kind == "region":
            options, is_constant = self.options()
            builder = f"checkpoint({options})"
            if not is_constant or self.random.random() < 0.3:
                name = self.name("R")
                self.made.append(f"{name} = {builder}")
                builder = name
            lines.append(indent + f"{value} = {builder}({function})({pick()})")
        else:
            policy = "SAVE" if inside == "call" else self.random.choice(("SAVE", "SAVE", "RECOMPUTE"))
            keep = self.random.choice(("innermost_region", "all_regions"))
            keep = "innermost_region" if self.pieces else keep  # inside a region, a strict tape refuses "all_regions"
            if policy == "RECOMPUTE":
                body, result = self.block([argument, *captured], indent + "    ", 0, "region")
                lines = [indent + f"def {function}({argument}):", *body, indent + f"    return ({result}) * 1.5"]
            lines.append(indent + f'{value} = native_op({function}, "{self.name("call")}", {policy}, keep="{keep}")({pick()})')
        own.append(value)
        return lines

    def source(self):
        body, result = self.block(["x", "w"], "    ", 3, "region")
        lines = ["def body(x, w):", *body, f"    return ({result}) * 2"]
        options, _ = self.options()
        return "\n".join(["buffer = torch.ones(SIZE)", *self.made, *lines, f"program = checkpoint({options})(body)", ""])


def functions(source, wraps, piece=None, scope=None):
    """Returns the program's functions; `scope` gets the names of the module."""

    def named(fn, name, policy, keep):
        return fn

    scope = {} if scope is None else scope
    scope |= {
        "torch": torch,
        "SIZE": SIZE,
        "piece": piece,
        "F": torch.nn.functional,
        "PolicyTable": PolicyTable,
        "SAVE": CheckpointPolicy.SAVE,
        "RECOMPUTE": CheckpointPolicy.RECOMPUTE,
        "checkpoint": remat.checkpoint if wraps else lambda **options: lambda fn: fn,
        "native_op": remat.native_op if wraps else named,
    }
    exec(source, scope)
    return scope["program"]


def run(program):
    """Returns the results of two steps, and the bytes that the second kept from its forward."""
    torch.manual_seed(1)
    x, w = (torch.rand(SIZE, SIZE, requires_grad=True) for _ in range(2))
    for _ in range(2):
        with remat.MemoryMeter() as meter:
            y = program(x, w)
            kept = meter.current_bytes() - y.nbytes
        y.square().sum().backward()
    return [y.detach(), x.grad, w.grad, torch.get_rng_state()], kept


def compiled(source, backend, wraps):
    torch._dynamo.reset()
    return run(torch.compile(functions(source, wraps), backend=backend, fullgraph=True))


def fault_of(seed):
    """Returns the fault of the program with that seed, or None, and its source."""
    source = Writer(seed).source()
    expected, _ = run(functions(source, wraps=False))
    backend = "no"
    try:
        got, kept = run(functions(source, wraps=True))
        assert_equal(expected, got)
        for backend in ("eager", "aot_eager"):
            got, compiled_kept = compiled(source, backend, wraps=True)
            assert_equal(compiled(source, backend, wraps=False)[0], got)  # decompositions round differently
            if "rand" not in source and "dropout" not in source:  # torch's partitioner keeps random values
                # A compiler keeps only tensors that backward reads.
                assert compiled_kept <= kept + 1024, f"kept {compiled_kept} bytes, {kept} without a compiler"
    except Exception as error:
        if is_torchs_own(error):
            return None
        return f"seed {seed}, backend {backend}: {type(error).__name__}: {str(error)[:1500]}\n{source}"
    return None


def is_torchs_own(error):
    """True for a fault of torch 2.10: its own checkpoint also fails on a random op that backward does not need."""
    return TORCH < (2, 11) and "KeyError: 'rand" in str(error)


def fault_of_pieces(seed, backend):
    """Like fault_of(), for compiled pieces in regions that run eagerly."""
    source = Writer(seed, pieces=True).source()
    piece = functools.cache(functools.partial(torch.compile, backend=backend))

    def results(wraps):
        torch._dynamo.reset()
        scope = {}
        program = functions(source, wraps, piece, scope)
        return [*run(program)[0], scope["buffer"]]

    try:
        expected = results(wraps=False)
    except RuntimeError as error:
        assert "modified by an inplace operation" in str(error), source  # a compiler drops clone()
        return None
    try:
        assert_equal(expected, results(wraps=True))
    except Exception as error:
        return f"seed {seed}, pieces by {backend}: {type(error).__name__}: {str(error)[:1500]}\n{source}"
    return None


def main():
    parser = argparse.ArgumentParser(prog="python -m fuzz.compiled", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="the first program's (default 0)")
    parser.add_argument("--count", type=int, default=1000, help="programs (default 1000)")
    parser.add_argument("--pieces", metavar="BACKEND", help="compiled pieces in eager regions, by this backend")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    faults = 0
    for seed in range(options.seed, options.seed + options.count):
        if fault := fault_of_pieces(seed, options.pieces) if options.pieces else fault_of(seed):
            print(fault, flush=True)
            faults += 1
    print(f"{options.count} programs, {faults} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
