# SPDX-License-Identifier: BSD-3-Clause

"""Fuzzed programs: data that prints itself as Python source.

Every value is a numbered 4 x 4 tensor; a function's body may read all values that are visible to
it, as a closure does.
"""

import copy
import dataclasses
import textwrap

from .devices import ON_CUDA
from .ops import OPS

# Initial state of a program. x: inputs, w: parameters, b: buffers, c: complex buffers, k: buffers of six 4 x 4 parts, t: buffers
# that are wrapper subclasses, p: parameters that are wrapper subclasses, q: buffer of a wrapper whose views compute, h: buffer on
# the host. x0, x1, w and p require grad.
STATE = ("x0", "x1", "x2", "w0", "w1", "b0", "b1", "c0", "k0", "t0", "t1", "p0", "p1", "q0", "h0")


@dataclasses.dataclass
class Block:
    parameters: list
    steps: list
    results: list


@dataclasses.dataclass
class Step:
    """kind: a name in OPS, "region", "call", "with", "throw" or "free". options: for an op, further fields of its template."""

    kind: str
    arguments: list
    results: list
    options: dict = dataclasses.field(default_factory=dict)
    body: Block | None = None


@dataclasses.dataclass
class Program:
    body: Block
    use: str
    forward_mode: str = ""  # a mode around all of the forward
    backward_mode: str = ""

    @property
    def how(self):
        """How the program is used, as runner.check_source() takes it."""
        return f"{self.use}|{self.forward_mode}|{self.backward_mode}"

    def copy(self):
        return copy.deepcopy(self)

    def blocks(self):
        """Yields every block, outer blocks first."""
        waiting = [self.body]
        while waiting:
            block = waiting.pop()
            yield block
            waiting += [step.body for step in block.steps if step.body]

    def size(self):
        return sum(len(block.steps) for block in self.blocks())

    def source(self):
        lines = [f"def program(api, {', '.join(STATE)}, bn, gen):", *_body(self.body, "list")]
        return "\n".join(lines) + "\n"


def name(number):
    return STATE[number] if number < len(STATE) else f"v{number}"


def names(numbers):
    return [name(number) for number in numbers]


def _indent(lines):
    return [textwrap.indent(line, "    ") for line in lines]


def _body(block, form):
    lines = [line for step in block.steps for line in _step(step)]
    return _indent([*lines, f"return {_pack(names(block.results), form)}"])


def _pack(values, form):
    if form == "single":
        return values[0] if values else "None"
    if form == "dict":
        return "{" + ", ".join(f'"{i}": {v}' for i, v in enumerate(values)) + "}"
    if form == "nested":
        return f'({values[0]}, {{"rest": [{", ".join(values[1:])}]}})'
    if form == "pair":
        return f"Pair({values[0]}, [{', '.join(values[1:])}])"
    if form == "list":
        return f"[{', '.join(values)}]"
    return f"({', '.join(values)},)"


def _unpack(source, results, form):
    if form == "single":
        return [f"{result} = {source}" for result in results[:1]]
    reads = {
        "dict": lambda i: f'["{i}"]',
        "nested": lambda i: "[0]" if i == 0 else f'[1]["rest"][{i - 1}]',
        "pair": lambda i: ".first" if i == 0 else f".second[{i - 1}]",
    }
    read = reads.get(form, lambda i: f"[{i}]")
    return [f"{result} = {source}{read(i)}" for i, result in enumerate(results)]


def _step(step):
    if step.kind == "throw":
        return ["raise Raises"]
    if step.kind == "free":
        until = ", until_backward=True" if step.options.get("until") else ""
        return [f"api.free({name}{until})" for name in names(step.arguments)]
    if step.kind == "with":
        lines = [line for inner in step.body.steps for line in _step(inner)] or ["pass"]
        head, tail = step.options["head"], step.options.get("tail", [])
        if "used" in step.options:
            late = ", late=True" if step.options.get("late") else ""
            head = head.replace(")", f"{''.join(f', {name}' for name in names(step.options['used']))}{late})")
            tail = [] if late else [f"arrived({', '.join(names(_made(step.body)))})"]
        return [f"{head}:", *_indent(lines), *tail]
    if step.body is None:
        return _op_lines(step)
    return _call_lines(step)


def _made(block):
    """Values that the steps make and that are visible after them."""
    made = []
    for step in block.steps:
        made += _made(step.body) if step.kind == "with" and "suppress" not in step.options["head"] else step.results
    return made


def _op_lines(step):
    places = dict(zip("abc", names(step.arguments), strict=False))
    places |= dict(zip("rs", names(step.results), strict=False))
    places |= step.options | {"i": sum(step.arguments) % 6}
    return OPS[step.kind].template.format(**places).split("\n")


def _call_lines(step):
    function, form = step.options["function"], step.options["form"]
    parameters, given = _arguments(step)
    lines = [f"def {function}({parameters[0]}):", *_indent(parameters[1:]), *_body(step.body, form)]
    values = names(step.results)
    count = len(step.body.results)
    rounds = 2 if step.options.get("twice") else 1
    lines += _make_callable(step)
    for i in range(rounds):
        found = values[i * count : (i + 1) * count]
        source = f"{function}_out"
        lines += [f"{source} = {_call(step, given)}", *_unpack(source, found, form)]
        if ON_CUDA and step.kind == "region":
            lines.append(f"arrived({', '.join(found)})")
    return lines


def _arguments(step):
    """The function's parameters and first lines, and the arguments of its call."""
    parameters, given = names(step.body.parameters), names(step.arguments)
    passing = step.options.get("passing", "positional")
    if passing == "list" and given:
        unpacked = f"{', '.join(parameters)}, = packed"
        return ("packed", unpacked), f"[{', '.join(given)}]"
    if passing == "dict" and given:
        pairs = ", ".join(f'"{p}": {g}' for p, g in zip(parameters, given, strict=True))
        lines = [f'{p} = packed["a"]["{p}"]' for p in parameters]
        return ("packed", *lines), '{"a": {' + pairs + "}}"
    if passing == "keywords" and len(given) > 1:
        pairs = list(zip(parameters, given, strict=True))
        return (", ".join(parameters),), ", ".join([given[0], *(f"{p}={g}" for p, g in pairs[1:])])
    return (", ".join(parameters),), ", ".join(given)


def _options(step):
    return [f"{key}={value}" for key, value in step.options.get("arguments", {}).items()]


def _make_callable(step):
    function = step.options["function"]
    options = ", ".join(_options(step))
    if step.kind == "call":
        call = step.options["call"]
        return [f'{function} = api.native_op({function}, "{function}", {call})']
    if step.options["engine"] == "checkpoint":
        return [f"{function} = api.checkpoint({options})({function})"]
    return []


def _call(step, given):
    function = step.options["function"]
    if step.kind == "region" and step.options["engine"] == "torch_checkpoint":
        parts = [part for part in (function, given, *_options(step)) if part]
        return f"api.torch_checkpoint({', '.join(parts)})"
    return f"{function}({given})"
