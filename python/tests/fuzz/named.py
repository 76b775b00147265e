# SPDX-License-Identifier: BSD-3-Clause

"""Custom functions that are named calls, or that name their saved tensors, and steps that follow them."""

import dataclasses
import random

from .op import Op

# Arguments and properties of the op that calls each body of custom.py.
ONE, TWO = "{a}{of_a}", "{a}{of_a}, {b}{of_b}"
FRESH, FRESH_TWO = "{a}{of_a}.clone()", "{a}{of_a}.clone(), {b}{of_b}"
FACTS = {
    "of_input": Op(ONE, "a"),
    "unread": Op(TWO, "b"),
    "of_result": Op(ONE, "r"),
    "of_middle": Op(ONE),
    "several": Op(TWO, "abr"),
    "twice": Op(ONE, "a"),
    "of_views": Op(ONE, "a"),
    "of_half": Op(ONE),
    "nothing": Op(ONE),
    "attribute": Op(ONE, "a"),
    "saved_attribute": Op(ONE),
    "of_random": Op(ONE),
    "inner_function": Op(ONE),
    "of_graph": Op(ONE, "a"),
    "told_twice": Op(TWO, "b"),
    "two": Op(TWO, "b", results=2),
    "two_of_result": Op(TWO, "r", results=2),
    "not_differentiable": Op(ONE, "s", results=2),
    "same": Op(ONE, "a", view=True, itself=True),
    "same_unsaved": Op(ONE, view=True, itself=True),
    "same_and_other": Op(TWO, "b", results=2, view=True, itself=True),
    "transposed": Op(ONE, "a", view=True, weight=0.5),
    "in_place": Op(FRESH, "r"),
    "in_place_of_middle": Op(FRESH),
    "in_place_of_other": Op(FRESH_TWO, "b"),
    "in_place_and_other": Op(FRESH_TWO, "b", results=2),
    "in_place_": Op(ONE, "r", view=True, itself=True, writes=True),
    "in_place_of_middle_": Op(ONE, view=True, itself=True, writes=True),
    "in_place_of_other_": Op(TWO, "b", view=True, itself=True, writes=True),
    "in_place_and_other_": Op(TWO, "b", results=2, view=True, itself=True, writes=True, weight=0.5),
    "of_buffer": Op("{a}{of_a}, {c}", "c", buffer=1, weight=0.5),
    "counts": Op("{a}{of_a}, {c}", buffer=2),
}
WAYS = {  # ways to call the bodies of custom.py, with weights
    "auto": ('api.op(auto.{body}, "{{name}}", {{call}})', 4),
    "handled": ('api.op(handled.{body}, "{{name}}", {{call}})', 2),
    "unrecorded": ('api.op(unrecorded.{body}, "{{name}}", "RECOMPUTE")', 0.3),  # a SAVE call needs record_outputs() to end
    "own": ('own.{body}("{{name}}", {{call}})', 3),
    "saving": ("saving.{body}", 2),
    "plain": ("plain.{body}", 1),
}


def _ops():
    for way, (function, weight) in WAYS.items():
        for kind, facts in FACTS.items():
            results = "{r}, {s}" if facts.results == 2 else "{r}"
            yield (
                f"{way}_{kind}",
                dataclasses.replace(
                    facts,
                    template=f"{results} = {function.format(body=kind.rstrip('_'))}({facts.template})",
                    results=facts.results or 1,
                    weight=weight * facts.weight,
                ),
            )


NAMED = dict(_ops())  # ops that only this file puts into programs
FIRST_SEED = 300_000  # programs of smaller seeds have recorded results, or are in tests, and so do not have these steps
THEN = ("region", "region", "call", "function", "op", "", "")
OPS_THEN = ("sin", "mul", "square", "layer_norm", "clone", "scale_", "detach")
MOST_DEPTH = 3  # depth at which there are no more regions and calls
MOST_IN_A_ROW = 3


class NamedFunctions:
    """Makes steps with named functions, from random numbers of their own, so that all other steps stay the same."""

    def __init__(self, generator):
        self.generator = generator
        self.on = generator.seed >= FIRST_SEED and "named functions" in generator.words
        self.random = random.Random(f"named functions {generator.seed}")

    def one_in(self, n):
        return self.random.randrange(n) == 0

    def steps(self, values, place):
        if not self.on or not self.one_in(5 if place.regions else 12):
            return []
        return self.some(values, place, self.generator.pick(values), 1)

    def some(self, values, place, given, in_a_row):
        """A function and the steps directly after it, on its arguments or results."""
        step = self.without_grad(values, place, given) if self.one_in(6) else self.function(given, values, place)
        near = self.random.choice([given, values[-1]])
        then = self.random.choice(THEN)
        if then == "region" and place.depth < MOST_DEPTH:
            return [step, self.generator.region(values, place, [near])]
        if then == "call" and place.depth < MOST_DEPTH and place.regions:
            return [step, self.generator.call(values, place, [near])]
        if then == "function" and in_a_row < MOST_IN_A_ROW:
            return [step, *self.some(values, place, near, in_a_row + 1)]
        if then == "op":
            return [step, self.generator.step_of(self.random.choice(OPS_THEN), near, values, place)]
        return [step]

    def without_grad(self, values, place, given):
        from .program import Block, Step

        step = self.function(given, values, dataclasses.replace(place, no_grad=True))
        return Step("with", [], [], {"head": "with torch.no_grad()"}, Block([], [step], []))

    def function(self, given, values, place):
        kinds = [kind for kind, op in NAMED.items() if self.allowed(kind, op, place)]
        kind = self.random.choices(kinds, [NAMED[k].weight for k in kinds])[0]
        if NAMED[kind].writes and self.is_captured(given, place) and not self.one_in(60):
            kind = kind.removesuffix("_")  # the op that writes a copy of its argument: limits.md, W8
        step = self.generator.step_of(kind, given, values, place)
        if step.kind not in NAMED:
            return step
        results = values[-len(step.results) :]
        if NAMED[kind].view and not NAMED[kind].writes:
            results[0].memory.frozen = True  # autograd refuses most writes to such a view
        self.generator.functions += 1
        step.options = {of: ".detach()" if self.one_in(4) else "" for of in ("of_a", "of_b")}
        step.options["name"] = f"g{self.generator.functions}"
        if "{call}" in NAMED[kind].template:
            step.options["call"] = self.call([given, *results], place)
        return step

    def is_captured(self, value, place):
        return bool(place.regions) and value.memory.owner < place.regions[-1].function

    def allowed(self, kind, op, place):
        if "{name}" not in op.template:
            return True
        if any(region.plain for region in place.regions):
            return False  # a region that is a plain call has no names and no store
        return not (place.saving_anywhere and kind.startswith("unrecorded"))

    def call(self, near, place):
        """Returns the call's policy, and which regions keep its results."""
        policy, everywhere = self.generator.policy_of_call(place) if place.regions else ("SAVE", False)
        for value in near:
            value.memory.past_save |= policy != "RECOMPUTE"
        return f'"{policy}"' + (', keep="all_regions"' if everywhere else "")
