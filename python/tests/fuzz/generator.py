# SPDX-License-Identifier: BSD-3-Clause

"""Random programs, from a seed."""

import dataclasses
import random
import zlib

from .devices import ON_CUDA
from .heads import heads_of
from .jagged import FIRST_SEED, JaggedRegion
from .kinds import MODES as MODE_KINDS
from .named import NamedFunctions
from .ops import OPS
from .places import Memory, Place, RegionState, Value
from .program import STATE, Block, Program, Step
from .words import chosen

MAX_DEPTH = 3
SECOND_DERIVATIVES = ("double", "write_between")  # jagged nested tensors do not support these
MAX_STEPS = 7
POLICIES = (
    '"save_matmuls"',
    '"recompute_pointwise"',
    '["aten::sin", "aten::mm", "aten::add"]',
    'api.table("SAVE", "*")',
)
OFFLOAD_POLICIES = ('api.table("OFFLOAD", "aten::rrelu*", "aten::*norm*", "aten::mul")', 'api.table("OFFLOAD", "*")')
USES = ("backward", "retain_graph", "partial", "double", "write_between", "in_flight", "two_steps", "five_steps")
DATA_USES = ("write_data", "exchange_data")
RUNS_AGAIN = ("in_flight", "two_steps", "five_steps")  # uses that run the forward again
MODES = tuple(mode for mode in MODE_KINDS if mode)
REFUSED_BY_RULES = ("wrappers", "made wrappers", "library")  # words whose ops remat refuses if rules keep their results
COPYING_HEADS = ("clones", "save_on_cpu", "_pair")
BUFFERS = "bcktqh"
LEAVES = "xwp"


def keeps_sin(options):
    """True if a policy keeps the sine that a backward in the function would have to go through."""
    return any(op in options.get("policy", "") for op in ('"*"', "aten::sin", "aten::mul"))


class Generator:
    def __init__(self, seed, words=None):
        self.seed = seed
        self.words = chosen() if words is None else frozenset(words)
        self.ops = {kind: op for kind, op in OPS.items() if not op.needs or op.needs in self.words}
        self.random = random.Random(seed)
        self.count = len(STATE)
        self.functions = 0
        self.named = NamedFunctions(self)

    def program(self):
        values = [
            Value(i, Memory(0, is_leaf=n[0] in LEAVES and n != "x2", buffer=n[0] in BUFFERS))
            for i, n in enumerate(STATE)
        ]
        self.buffers = [value for value in values if value.memory.buffer]
        values = [value for value in values if STATE[value.number][0] in "xw"]
        steps = self.steps(values, Place(), MAX_STEPS)
        if not any(step.kind == "region" for step in steps):
            steps.append(self.region(values, Place()))
        results = self.pick_results(values, 1 + self.below(3))
        # Uses of DATA_USES are rare, because remat refuses most of them.
        use = self.random.choice(DATA_USES if self.one_in(200) else USES)
        if "freed storages" in self.words and self.one_in(8):
            steps.append(self.free(values, results, use))
        numbers = [value.number for value in results]
        if self.seed >= FIRST_SEED and "jagged" in self.words:
            region = JaggedRegion(self)
            if region.one_in(6) and use not in SECOND_DERIVATIVES:
                more, number = region.steps(values)
                frees = steps[-1].kind == "free"
                steps[-1 if frees else len(steps) :] = [*more, *steps[-1:]] if frees else more
                numbers.append(number)
        modes = [self.random.choice(MODES) if "modes" in self.words and self.one_in(8) else "" for _ in range(2)]
        return Program(Block([], steps, numbers), use, *modes)

    def free(self, values, results, use):
        """Frees memory that is not read before backward, or, for good, a buffer that nothing saves."""
        buffers = [value for value in self.buffers if STATE[value.number][0] != "h"]  # host memory cannot be freed
        if self.one_in(3) and use not in RUNS_AGAIN:
            buffer = self.random.choice(buffers)
            return Step("free", [buffer.number], [], {"until": "backward"} if buffer.memory.saved else {})
        kept = [value.memory for value in results]
        free = [v for v in values + buffers if not any(v.memory is memory for memory in kept)]
        count = min(len(free), 1 + self.below(2))
        return Step("free", [v.number for v in self.random.sample(free, count)], [], {"until": "backward"})

    def below(self, n):
        return self.random.randrange(n)

    def one_in(self, n):
        return self.below(n) == 0

    def new_value(self, place, **facts):
        self.count += 1
        return Value(self.count - 1, Memory(place.function, **facts))

    def pick(self, values):
        """Prefers recent values, so that programs are deep rather than wide."""
        return values[-1 - self.below(min(3, len(values)))] if self.below(3) else self.random.choice(values)

    def pick_results(self, values, count):
        return [self.pick(values) for _ in range(count)]

    def steps(self, values, place, limit):
        steps = []
        for _ in range(1 + self.below(limit)):
            steps += [self.step(values, place), *self.named.steps(values, place)]
        return steps

    def step(self, values, place):
        if place.depth < MAX_DEPTH:
            if self.one_in(3 if place.depth == 0 else 8):
                return self.region(values, place)
            if place.regions and self.one_in(4):
                return self.call(values, place)
            if self.one_in(12):
                return self.block(values, place)
        return self.op(values, place)

    # Ops

    def op(self, values, place):
        kinds = list(self.ops)
        kind = self.random.choices(kinds, [OPS[k].weight for k in kinds])[0]
        return self.step_of(kind, self.pick(values), values, place)

    def step_of(self, kind, a, values, place):
        op = OPS[kind]
        buffer = self.random.choice([b for b in self.buffers if STATE[b.number][0] == op.of]) if op.buffer else None
        if not self.allowed(op, a, buffer, place):
            kind, op, buffer = "clone", OPS["clone"], None
        arguments = [a, self.pick(values)][: op.arguments]
        for value in arguments:
            self.note_read(value, place)
        results = [self.new_value(place) for _ in range(op.results)]
        if op.view:
            results[0] = dataclasses.replace(results[0], memory=a.memory)
        self.note_saved(op, arguments, results, buffer)
        if op.writes:
            self.note_write(a, place)
        numbers = [value.number for value in arguments]
        if op.buffer:
            (self.note_write if op.buffer == 2 else self.note_read)(buffer, place)
            numbers = [a.number, a.number, buffer.number]
        values += results
        past = any(value.memory.past_save for value in arguments)
        for value in [*results, *([a] if op.writes else [])]:
            value.memory.past_save |= past
        return Step(kind, numbers, [value.number for value in results])

    def allowed(self, op, a, buffer, place):
        if op.writes and not self.may_write(a, place):
            return False
        if ON_CUDA and op.needs == "unseen writes":
            return False  # limits.md, S16
        if op.unversioned and not self.is_noticed(a, place):
            return False
        if op.needs in REFUSED_BY_RULES and any(region.has_rules for region in place.regions):
            return self.one_in(10)
        if op.generator and not all(region.generator for region in place.regions):
            return False
        if op.late and place.copies:
            return False
        if op.backward and not (place.inner_backward and self.may_go_back(a, place)):
            return self.one_in(60)
        if op.buffer == 2 and buffer.memory.saved:
            return self.one_in(60)
        if op.buffer == 2 and (place.repeated or buffer.memory.frozen):
            return ("later writes" in self.words and bool(place.regions)) or self.one_in(60)
        # A view made without gradients stands in no graph although it requires grad.
        return op.itself or not (op.view and place.no_grad)

    def is_noticed(self, value, place):
        """True if remat notices a write through `value.data`: the innermost region made the tensor outside SAVE calls."""
        makes_calls = place.saving_anywhere or place.copies or any(region.has_rules for region in place.regions)
        return bool(place.regions) and value.memory.owner == place.function and not makes_calls

    def may_go_back(self, value, place):
        return not value.memory.past_save and not place.no_grad

    def may_write(self, value, place):
        memory = value.memory
        if memory.is_leaf or (place.no_grad and memory.owner != place.function):
            return self.one_in(200)
        if place.repeated and memory.owner < place.regions[-1].function:
            return self.one_in(200)
        if place.saving_anywhere and memory.owner < place.call_owner and memory.owner != 0:
            return self.one_in(200)  # a call may not write what it captures
        if memory.frozen:
            return self.one_in(60)
        return not memory.saved or self.one_in(6)

    def note_read(self, value, place):
        for region in place.regions:
            if value.memory.owner < region.function:
                region.reads.append(value.memory)

    def note_write(self, value, place):
        self.note_read(value, place)
        for region in place.regions:
            region.writes.append(value.memory)

    def note_saved(self, op, arguments, results, buffer):
        places = dict(zip("ab", arguments, strict=False)) | dict(zip("rs", results, strict=False)) | {"c": buffer}
        for letter in op.saves:
            if letter in places:
                places[letter].memory.saved = True

    # Blocks

    def block(self, values, place):
        heads = heads_of(self.words) | ({f'with api.name_scope("scope{self.count}")': 2} if place.regions else {})
        head = self.random.choices(list(heads), list(heads.values()))[0]
        head = head.replace("INSIDE", "inside=True" if place.regions else "")
        no_grad = "no_grad" in head or (place.no_grad and "enable_grad" not in head)
        copies = place.copies or any(hooks in head for hooks in COPYING_HEADS)
        inside = dataclasses.replace(place, depth=place.depth + 1, no_grad=no_grad, copies=copies)
        inner = list(values)
        steps = self.steps(inner, inside, 4)
        if "suppress" not in head:
            options = {"head": head}
            if head.startswith("with side("):
                options["used"] = [value.number for value in values]
            values[:] = inner
            return Step("with", [], [], options, Block([], steps, []))
        # Values made in a block that may be left early are not visible elsewhere.
        return Step("with", [], [], {"head": head, "tail": []}, Block([], [*steps, self.throw()], []))

    def late_block(self, values, place):
        """Makes a block on another stream. The function does not wait for this stream; the function's caller does."""
        used = [value.number for value in values]
        steps = self.steps(values, dataclasses.replace(place, depth=place.depth + 1), 4)
        return Step("with", [], [], {"head": "with side(0)", "used": used, "late": True}, Block([], steps, []))

    def throw(self):
        return Step("throw", [], [])

    # Functions

    def function(self):
        self.functions += 1
        return self.functions

    def options(self, state):
        options = {}
        if self.one_in(4):
            options["early_stop"] = "False"
        if self.one_in(5):
            options["determinism_check"] = '"none"'
        if self.one_in(8):
            options["saved_tensors_hooks"] = "api.hooks"
        if state.store:
            options["offload_store"] = "api.store"
            if zlib.crc32(f"{self.seed}.{state.function}".encode()) % 3 == 0:  # draws nothing, so that programs stay the same
                options["offload_inputs"] = "True"
        if state.generator:
            options["generators"] = "[gen]"
        if self.one_in(3):
            options["replay"] = '"auto"'
            # Whether a tape can be written is remembered by name and function.
            options["region_name"] = f'"{self.seed}.{state.function}"'
        if self.one_in(6):
            state.has_rules = True
            options["policy"] = self.random.choice(POLICIES + (OFFLOAD_POLICIES if state.store else ()))
        return options

    def forms(self, count):
        forms = ["tuple", "list", "dict", "nested", "pair"]
        return "single" if count == 1 and self.below(3) else self.random.choice(forms)

    def parameters(self, values, limit, first):
        """Returns the arguments, `first` before others, and the values that represent them in the function."""
        given = list(dict.fromkeys([*first, *(self.pick(values) for _ in range(1 + self.below(limit)))]))
        made = []
        for value in given:
            self.count += 1
            made.append(Value(self.count - 1, value.memory))
        return given, made

    def region(self, values, place, first=()):
        drop_in = self.one_in(4)
        state = RegionState(
            self.function(),
            store=not drop_in and bool(self.below(3)),
            generator=not drop_in and bool(self.below(2)),
            plain=place.no_grad,
        )
        engine = "torch_checkpoint" if drop_in else "checkpoint"
        options = self.options(state) if not drop_in else self.drop_in_options()
        twice = self.one_in(6)
        given, made = self.parameters(values, 3, first)
        inside = Place(
            function=state.function,
            depth=place.depth + 1,
            regions=(*place.regions, state),
            saving_anywhere=place.saving_anywhere,
            call_owner=place.call_owner,
            no_grad=place.no_grad,
            copies=place.copies,
            repeated=place.repeated or twice,
            inner_backward=place.inner_backward and "early_stop" not in options and not keeps_sin(options),
        )
        for value in given:
            self.note_read(value, inside)
        inner = self.inner_values(values, given, made)
        steps = self.steps(inner, inside, MAX_STEPS)
        if ON_CUDA and "devices" in self.words and self.one_in(8):
            steps.append(self.late_block(inner, inside))
        results = self.region_results(inner, made, 1 + self.below(3))
        self.close_region(state, given, results, twice)
        body = Block([v.number for v in made], steps, [v.number for v in results])
        outer = self.outer_values(results, 2 if twice else 1)
        values += outer
        step = Step("region", [v.number for v in given], [v.number for v in outer], body=body)
        step.options = {
            "function": f"f{state.function}",
            "form": self.forms(len(results)),
            "engine": engine,
            "arguments": options,
            "passing": self.random.choice(["positional", "positional", "keywords", "list", "dict"]),
            "twice": twice,
        }
        return step

    def inner_values(self, values, given, made):
        """Returns all visible values. An argument that is no leaf requiring grad is another tensor in the replay, so few
        functions should also capture it."""
        if self.one_in(40):
            return values + made
        passed = [value.memory for value in given if not value.memory.is_leaf]
        return [v for v in values if not any(v.memory is memory for memory in passed)] + made

    def drop_in_options(self):
        options = {"use_reentrant": self.random.choice(["False", "True", "None"])}
        if self.one_in(4):
            options["early_stop"] = "False"
        return options

    def region_results(self, inner, made, count):
        return self.pick_results(inner, count)

    def close_region(self, state, given, results, twice):
        for value in given:
            value.memory.frozen = True
        for memory in state.reads:
            if twice or not any(memory is written for written in state.writes):
                memory.frozen = True
        for value in results:
            value.memory.frozen |= state.saves

    def outer_values(self, results, rounds):
        outer = []
        for _ in range(rounds):
            for value in results:
                self.count += 1
                outer.append(Value(self.count - 1, value.memory))
        return outer

    def policy_of_call(self, place):
        """Returns the call's policy, and whether all regions keep its results."""
        region = place.regions[-1]
        policies = ["SAVE", "SAVE", "SAVE"] if place.saving else ["SAVE", "SAVE", "SAVE", "RECOMPUTE"]
        if region.store:
            policies[0] = "OFFLOAD"
        policy = self.random.choice(policies)
        kept = policy != "RECOMPUTE"
        everywhere = self.one_in(4) and not place.repeated
        if (not kept and place.saving_anywhere) or (
            policy == "OFFLOAD" and not all(r.store for r in place.regions)
        ):
            everywhere = False
        region.saves |= kept
        return policy, everywhere

    def call(self, values, place, first=()):
        policy, everywhere = self.policy_of_call(place)
        kept = policy != "RECOMPUTE"
        function = self.function()
        given, made = self.parameters(values, 3, first)
        inside = dataclasses.replace(
            place,
            function=function,
            depth=place.depth + 1,
            saving=place.saving or kept,
            saving_anywhere=place.saving_anywhere or kept,
            call_owner=function if kept else place.call_owner,
        )
        inner = self.inner_values(values, given, made)
        steps = self.steps(inner, inside, 4)
        results = self.call_results(inner, made, function, kept)
        body = Block([v.number for v in made], steps, [v.number for v in results])
        for value in [*given, *results]:
            value.memory.past_save |= kept
        outer = self.outer_values(results, 1)
        values += outer
        step = Step("call", [v.number for v in given], [v.number for v in outer], body=body)
        step.options = {
            "function": f"f{function}",
            "form": self.forms(len(results)) if results else "single",
            "call": f'"{policy}"' + (', keep="all_regions"' if everywhere else ""),
            "passing": self.random.choice(["positional", "keywords", "list"]),
        }
        return step

    def call_results(self, inner, made, function, kept):
        count = self.random.choice([0, 1, 1, 1, 2, 2])
        allowed = [
            value for value in inner
            if (value in made or ((not kept or value.memory.owner >= function) and not value.memory.is_leaf))
            and not (kept and value.memory.is_leaf)
        ]
        return self.pick_results(allowed, count) if allowed else []
