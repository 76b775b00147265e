# SPDX-License-Identifier: BSD-3-Clause

"""Regions that get jagged nested tensors as arguments. All have four rows of four numbers, so that values() of each is 4 x 4."""

import itertools
import random

import torch

from .devices import ON_CUDA
from .op import Op

OFFSETS = ([0, 1, 4], [0, 2, 4], [0, 4], [0, 0, 4], [0, 1, 2, 4], [0, 3, 4])


def jagged_views(a, b, i):
    """Returns two nested tensors of one structure, on the memory of a and b."""
    offsets = torch.tensor(OFFSETS[i], device=a.device)
    return tuple(torch.nested.nested_tensor_from_jagged(t.clone() if t.is_leaf else t, offsets) for t in (a, b))


def _parts(a, b, i):
    ends = OFFSETS[i]
    return [(a, b)[n % 2][begin:end] for n, (begin, end) in enumerate(itertools.pairwise(ends))]


def jagged_copies(a, b, i):
    """Returns a nested tensor made of parts of a and b, and one made of tensors that do not require grad."""
    first = torch.nested.as_nested_tensor(_parts(a, b, i), layout=torch.jagged)
    return first, torch.nested.nested_tensor_from_jagged(b.detach() * 1, first.offsets())


def jagged_leaves(a, b, i):
    """Returns two nested tensors, of which the first is a leaf that requires grad."""
    first = torch.nested.nested_tensor([t.detach() for t in _parts(a, b, i)], layout=torch.jagged, requires_grad=True)
    return first, torch.nested.nested_tensor_from_jagged(a * 1, first.offsets())


MAKE = {
    "jagged_views": Op("{r}, {s} = jagged_views({a}, {b}, {i})"),
    "jagged_copies": Op("{r}, {s} = jagged_copies({a}, {b}, {i})"),
    "jagged_leaves": Op("{r}, {s} = jagged_leaves({a}, {b}, {i})"),
}
OF_ONE = {
    "jagged_sin": Op("{r} = {a}.sin()"),
    "jagged_tanh": Op("{r} = {a}.tanh()"),
    "jagged_sigmoid": Op("{r} = torch.sigmoid({a})"),
    "jagged_gelu": Op("{r} = F.gelu({a})"),
    "jagged_softmax": Op("{r} = {a}.softmax(-1)"),
    "jagged_norm": Op("{r} = F.layer_norm({a}.float(), (4,), w0[0], w1[1])"),
    "jagged_linear": Op("{r} = F.linear({a}.tanh(), w0, w1[0]).float()"),
    "jagged_matmul": Op("{r} = ({a}.tanh() @ w1.tanh()).float()"),
    "jagged_dropout": Op("{r} = F.dropout({a}, 0.4)"),
    "jagged_double": Op("{r} = {a}.double().cos().float()"),
    "jagged_bfloat16": Op("{r} = {a}.bfloat16().sin().float()"),
    "jagged_clone": Op("{r} = {a}.clone()"),
    "jagged_scale": Op("{r} = {a} * 0.8"),
    "jagged_where": Op("{r} = torch.where({a} > 0, {a}, {a} * 0.1)"),
    "jagged_rand": Op("{r} = {a} * torch.rand_like({a})"),
    "jagged_transpose": Op("{r} = {a}.transpose(1, 2).transpose(1, 2)"),
    "jagged_attention": Op(
        "{r} = F.scaled_dot_product_attention(*[{a}.unflatten(-1, (2, 2)).transpose(1, 2)] * 3).transpose(1, 2)"
        ".flatten(-2).float()"
    ),
    "jagged_row": Op("{r} = {a} * w0[{i} % 4]"),
    "jagged_detach": Op("{r} = {a}.detach() + {a}"),
    "jagged_square": Op("{r} = Square.apply({a}.tanh())"),
    "jagged_fresh_": Op("{r} = {a} * 1.0\n{r}.mul_(0.9)"),
}
if ON_CUDA:
    # Attention makes strided nested tensors, which have kernels at dispatch keys of their own. The stand-in cannot compute those.
    del OF_ONE["jagged_attention"]
OF_TWO = {
    "jagged_mul": Op("{r} = {a} * {b}.tanh()"),
    "jagged_add": Op("{r} = {a} + {b}"),
    "jagged_lerp": Op("{r} = torch.lerp({a}, {b}, 0.3)"),
    "jagged_mask": Op("{r} = {a}.masked_fill({b} > 0.5, 0.1)"),
    "jagged_fresh_add_": Op("{r} = {a} * 1.0\n{r}.add_({b})"),
}
TO_DENSE = {
    "jagged_values": Op("{r} = {a}.values().float()"),
    "jagged_parts": Op("{r} = torch.cat([t.sin() for t in {a}.unbind()])"),
    "jagged_sums": Op("{r} = torch.stack([t.sum(0) for t in {a}.unbind()]).sum(0) * {a}.values()"),
    "jagged_padded": Op("{r} = {a}.to_padded_tensor(0.5).amax((0, 1)) * {a}.values()"),
}
JAGGED = MAKE | OF_ONE | OF_TWO | TO_DENSE  # ops that only this file puts into programs

FIRST_SEED = 200_000  # programs of smaller seeds have recorded results, and so do not have these steps
AUTOCAST_DEVICE = "cuda" if ON_CUDA else "cpu"
AUTOCAST = f'with torch.autocast("{AUTOCAST_DEVICE}", dtype=torch.bfloat16)'
HEADS = ("with torch.no_grad()", AUTOCAST, "with PassThrough()", "with clones()")
POLICIES = ('"save_matmuls"', '"recompute_pointwise"', '["aten::sin", "aten::mul", "aten::mm"]')
MOST_DEPTH = 2
IN_CALL = 3  # a depth at which there are no regions and calls
CALLS = ('"SAVE"', '"SAVE"', '"RECOMPUTE"', '"SAVE", keep="all_regions"')


class JaggedRegion:
    """Makes a region after all others of a program, from random numbers of its own, so that the others stay the same."""

    def __init__(self, generator):
        self.generator = generator
        self.random = random.Random(f"jagged {generator.seed}")
        self.has_policy = False  # attention that the policy keeps under hooks opened in the function may raise

    def one_in(self, n):
        return self.random.randrange(n) == 0

    def number(self):
        self.generator.count += 1
        return self.generator.count - 1

    def steps(self, values):
        """Returns steps of the program's body on its `values`, and the number of their result."""
        a, b = self.random.choice(values), self.random.choice(values)
        first, second = self.number(), self.number()
        kinds = list(MAKE)
        made = self.step(self.random.choice(kinds), [a.number, b.number], [first, second])
        region = self.region([first, second], depth=0)
        (out,) = region.results
        last = self.number()
        return [made, region, self.step("jagged_values", [out], [last])], last

    def step(self, kind, arguments, results, **more):
        from .program import Step

        return Step(kind, arguments, results, **more)

    def pick(self, jagged):
        return self.random.choice(jagged[-3:] if self.one_in(2) else jagged)

    def options(self, function):
        options = {}
        if self.one_in(4):
            options["early_stop"] = "False"
        if self.one_in(6):
            options["determinism_check"] = '"none"'
        if self.one_in(8):
            options["saved_tensors_hooks"] = "api.hooks"
        if self.one_in(3):
            options["replay"] = '"auto"'
            options["region_name"] = f'"{self.generator.seed}.{function}"'
        if self.one_in(8):
            self.has_policy = True
            options["policy"] = self.random.choice(POLICIES)
        return options

    def block(self, parameters, jagged, depth, dense):
        """Returns the block of a function whose result is jagged, or 4 x 4."""
        from .program import Block

        inner, steps = [*jagged, *parameters], []
        for _ in range(1 + self.random.randrange(5)):
            steps += self.some(inner, parameters, depth)
        result = inner[-1] if len(inner) > len(jagged) + len(parameters) else parameters[0]
        if dense:
            result = self.number()
            kinds = list(TO_DENSE)[1:]  # to remat, values() of an argument is not a view of it: limits.md, C9
            steps.append(self.step(self.random.choice(kinds), [self.pick(inner)], [result]))
        return Block(parameters, steps, [result])

    def some(self, jagged, parameters, depth):
        """Returns steps with jagged results. Tensors made by the function are rarely passed on: limits.md, C8."""
        passed_on = self.pick(jagged if self.one_in(25) else parameters)
        if depth < MOST_DEPTH and self.one_in(8):
            step = self.region([passed_on], depth + 1, jagged)
            jagged.append(step.results[0])
            return [step]
        if depth < IN_CALL and self.one_in(8):
            return self.call(passed_on, jagged)
        if self.one_in(10):
            return self.with_head(jagged)
        return [self.op(jagged)]

    def op(self, jagged):
        kinds = OF_TWO if self.one_in(4) else OF_ONE
        arguments = [self.pick(jagged) for _ in range(2 if kinds is OF_TWO else 1)]
        result = self.number()
        step = self.step(self.random.choice(list(kinds)), arguments, [result])
        jagged.append(result)
        return step

    def with_head(self, jagged):
        from .program import Block

        body = Block([], [self.op(jagged) for _ in range(1 + self.random.randrange(3))], [])
        return [
            self.step("with", [], [], options={"head": self.random.choice(HEADS[: -1 if self.has_policy else None])}, body=body)
        ]

    def call(self, passed, jagged):
        """A named call that returns plain tensors, because remat refuses to keep jagged ones."""
        parameter, out, result = self.number(), self.number(), self.number()
        self.generator.functions += 1
        function = self.generator.functions
        body = self.block([parameter], [], depth=IN_CALL, dense=True)
        step = self.step("call", [passed], [out], body=body)
        step.options = {
            "function": f"f{function}",
            "form": "single",
            "call": self.random.choice(CALLS),
            "passing": "positional",
        }
        jagged.append(result)
        return [step, self.step("jagged_weigh", [passed, out], [result])]

    def region(self, given, depth, jagged=()):
        """A region that gets the first of `given`, and gets or captures the second."""
        self.generator.functions += 1
        function = self.generator.functions
        drop_in = self.one_in(4)
        passed = given[: 1 + self.random.randrange(len(given))]
        parameters = [self.number() for _ in passed]
        options = {"use_reentrant": "False"} if drop_in else self.options(function)
        captured = [j for j in {*jagged, *given} if j not in passed]
        body = self.block(parameters, sorted(captured), depth, dense=False)
        out = self.number()
        step = self.step("region", passed, [out], body=body)
        step.options = {
            "function": f"f{function}",
            "form": "single",
            "engine": "torch_checkpoint" if drop_in else "checkpoint",
            "arguments": options,
            "passing": self.random.choice(["positional", "keywords", "list", "dict"]),
            "twice": False,
        }
        return step


OF_DENSE = {"jagged_weigh": Op("{r} = {a} * {b}.mean(0)")}
JAGGED |= OF_DENSE
