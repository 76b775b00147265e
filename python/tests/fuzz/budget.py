# SPDX-License-Identifier: BSD-3-Clause

"""Runs programs within random budgets: by a plan made from a measured step, or with auto_checkpoint."""

import collections
import contextlib
import dataclasses
import gc
import logging
import random
import re
import warnings

import torch

import remat_meta as remat
from remat_meta._C import live_region_count

from . import prelude
from .child import in_child
from .generator import Generator
from .kinds import plain_part
from .ops import OPS
from .program import STATE, Step
from .runner import State, Verdict, compiled, first_difference, loss_of
from .shrink import shrink

WORDS = ("complex", "bank", "write saved")
INPUTS = 3  # the first of STATE are arguments; others are captured
AUTO_STEPS = 6
MOST_FAULTS = 3
RAN = ("planned", "planned, then other ops", "planned, budget below the least", "auto", "auto, then other ops")
# Ops that no plan covers, or that a measurement repeats, and their replacements.
REPLACED = {"stops_early": "sin", "pack_throws": "sin", "generator": "rand", "hook_later": "hook"}
OTHERS = ("sin", "tanh", "scale", "add", "clone", "softmax", "linear")
BRANCHES = re.compile(r"\.item\(\)| if ")  # code whose ops depend on values that earlier steps have written


def plain_step_of(program, choose):
    """Returns the program without hooks that copy and, mostly, without backwards in functions, which no tape can replay."""
    program = program.copy()
    program.use, program.forward_mode, program.backward_mode = "backward", "", ""
    replaced = dict(REPLACED)
    if choose.randrange(8):
        replaced |= {"inner_grad": "sin", "inner_backward": "sin"}
    for block in program.blocks():
        for step in block.steps:
            step.kind = replaced.get(step.kind, step.kind)
            if step.kind == "with" and any(word in step.options["head"] for word in ("clones", "save_on_cpu", "_pair")):
                step.options["head"] = "with contextlib.nullcontext()"
    return program


def changed(program, choose):
    """Returns the program with one op added, removed or changed."""
    program = program.copy()
    places = [
        (block, i)
        for block in program.blocks()
        for i, step in enumerate(block.steps)
        if step.body is None and step.kind in OPS and len(step.results) == 1 and step.arguments
    ]
    if not places:
        return program
    block, i = choose.choice(places)
    step, other = block.steps[i], choose.choice(OTHERS)
    arguments = [step.arguments[0]] * OPS[other].arguments
    way = choose.randrange(3)
    if way == 0:
        block.steps[i] = Step("alias", step.arguments[:1], step.results)
    elif way == 1:
        block.steps[i] = Step(other, arguments, step.results)
    else:
        more = len(STATE) + 10**6
        block.steps.insert(i + 1, Step(other, [step.results[0]] * OPS[other].arguments, [more]))
        block.results[:] = [more if number == step.results[0] else number for number in block.results]
    return program


@contextlib.contextmanager
def lines_logged(words):
    """Collects the lines that remat_meta logs with these words."""
    lines = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage()) if words in record.getMessage() else None
    logger = logging.getLogger("remat_meta")
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield lines
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


@dataclasses.dataclass
class Ran:
    values: list
    peaks: list
    error: Exception | None = None


class Training:
    """Training steps of one program, with their own state."""

    def __init__(self, sources, seed, loss_inside):
        self.fns = [compiled(source) for source in sources]
        self.current = 0
        self.state = State(seed)
        self.api = prelude.Plain()
        self.loss_inside = loss_inside

    def function(self, *inputs):
        outputs = self.fns[self.current](self.api, *inputs, *self.state.arguments()[INPUTS:])
        return (loss_of(outputs), *outputs) if self.loss_inside else tuple(outputs)

    def inputs(self):
        return self.state.arguments()[:INPUTS]

    def backward(self, made):
        (made[0] if self.loss_inside else loss_of(made)).backward()

    def step(self, function):
        for leaf in self.state.leaves():
            leaf.grad = None
        gc.disable()
        try:
            with remat.MemoryMeter() as meter:
                made = function(*self.inputs())
                self.backward(made)
                peak = meter.peak_bytes()
        finally:
            gc.enable()
        values = [("output", plain_part(t).detach().clone()) for t in made]
        for name, tensor in self.state.after():
            values.append((name, None if tensor is None else plain_part(tensor).detach().clone()))
        return values, peak

    def steps(self, function, which, after=None):
        ran = Ran([], [])
        try:
            for number, self.current in enumerate(which):
                values, peak = self.step(function)
                ran.values.append(values)
                ran.peaks.append(peak)
                if after is not None:
                    after(number, peak)
        except Exception as error:
            ran.error = error
        self.current = 0
        return ran


class Failure(Exception):
    """A fault of a program within a budget."""


class Refused(Exception):
    """Raised when a measurement refuses the program."""


class BudgetCheck:
    def __init__(self, program, seed):
        self.choose = random.Random(seed + 1)
        self.seed = seed
        program = plain_step_of(program, self.choose)
        self.sources = [program.source(), changed(program, self.choose).source()]
        self.is_auto = self.choose.randrange(4) == 0
        self.loss_inside = self.choose.randrange(2) == 0
        self.which = self.choose_steps()
        self.changes = 1 in self.which

    def choose_steps(self):
        changes = self.choose.randrange(3) == 0
        if not self.is_auto:
            return [0, 1, 0] if changes else [0, 0]
        return [int(changes and i > 1 and self.choose.randrange(2)) for i in range(AUTO_STEPS)]

    def training(self):
        return Training(self.sources, self.seed, self.loss_inside)

    def verdict(self):
        training = self.training()
        self.plain = training.steps(training.function, self.which)
        self.plain_graphs = any(tensor.grad_fn is not None for tensor in training.state.tensors.values())
        if self.plain.error is not None:
            return Verdict("raises", str(self.plain.error)[:200])
        try:
            kind = self.run_auto() if self.is_auto else self.run_plan()
            del training
            self.check_nothing_left()
        except Refused as refusal:
            return Verdict("refused", str(refusal))
        except Failure as failure:
            return Verdict("fails", f"{failure}; {'auto' if self.is_auto else 'plan'}, {self.loss_inside=}, {self.which=}")
        return Verdict(kind)

    def run_plan(self):
        measured = self.training()
        backward = None if self.loss_inside else measured.backward
        try:
            profile = remat.profile(measured.function, steps=1, name="measured", backward=backward)(*measured.inputs())
        except Exception as error:
            self.refuse(error)
        # Measured times of such small steps are noise. With equal times a seed always has the same plan.
        text = re.sub(r'us":[0-9.e+-]+', 'us":1', profile.to_json())
        planner = remat.MemoryPlanner(remat.StepProfile.from_json(text))
        plan = planner.plan(self.choose_budget(planner, profile))
        least = planner.frontier[0].peak_bytes
        if plan.feasible != (plan.budget_bytes >= least) or plan.least_budget_bytes != least:
            raise Failure(f"feasible is {plan.feasible} of {plan.budget_bytes}, at least {least}")
        if plan.feasible and plan.predicted_peak_bytes > plan.budget_bytes:
            raise Failure("the plan is above the budget")
        is_feasible = plan.feasible
        if not is_feasible:
            plan = planner.plan(least)
        training = self.training()
        # With cuts but without a plan, a region raises if a step has other ops.
        by_plan = self.changes or self.choose.randrange(2)
        options = {"plan": plan} if by_plan else {"replay": "tape", "cuts": plan.cuts}
        function = remat.checkpoint(**options)(training.function)
        left = []  # by step: true if the step did not follow the plan, as when an input that was written has a graph by then

        def watched(*inputs):
            with warnings.catch_warnings(record=True) as seen:
                warnings.simplefilter("always")
                result = function(*inputs)
            left.append(any("this is another step" in str(one.message) for one in seen))
            return result

        def after(number, peak):
            if not self.which[number] and not left[-1]:
                self.check_peak(number, peak, plan)

        self.compare(training.steps(watched, self.which, after))
        if not is_feasible:
            return "planned, budget below the least"
        return "planned, then other ops" if self.changes else "planned"

    def refuse(self, error):
        text = str(error)
        if isinstance(error, (NotImplementedError, ValueError, RuntimeError)):
            if text.startswith("[profile]"):
                raise Refused("[profile]")
            if "expected what a tape can replay" in text:
                raise Refused("no tape")
        self.raise_failure(error)

    def raise_failure(self, error):
        if "InPlace.apply" in self.sources[0] + self.sources[1] and "got it modified in-place" in str(error):
            raise Refused("a Function marks dirty what crosses a cut")
        raise Failure(f"{type(error).__name__}: {error}")

    def choose_budget(self, planner, profile):
        least, plain = planner.frontier[0].peak_bytes, profile.plain_peak_bytes
        between = least + self.choose.randrange(max(plain - least, 1))
        return self.choose.choice(["100%", least, least - 1, self.choose.randrange(plain), *[between] * 4])

    def choose_text(self):
        texts = [f"{self.choose.randrange(100, 8000)}B", f"{self.choose.randrange(20, 101)}%"]
        return self.choose.choice([*texts, *[f"fraction:{self.choose.randrange(101) / 100}"] * 2])

    def check_peak(self, number, peak, plan):
        if BRANCHES.search(self.sources[0]):
            return
        if peak > plan.predicted_peak_bytes:
            raise Failure(
                f"the peak of step {number} is {peak} of {plan.predicted_peak_bytes}, plain takes {self.plain.peaks[number]}"
            )

    def run_auto(self):
        training = self.training()
        steps = 1 + self.choose.randrange(3)
        function = remat.auto_checkpoint(training.function, self.choose_text(), name="auto", steps=steps)
        plans = []

        def after(number, peak):
            try:
                plan = remat.memory_plan(function)
            except RuntimeError:
                return
            plans.append(plan)
            if plan.predicted_peak_bytes > plan.budget_bytes:
                raise Failure("the plan is above the budget")
            # If an argument requires grad by then, a later step is of another kind, and is measured.
            if not self.changes and len(measured) <= 1:
                self.check_peak(number, peak, plan)

        with lines_logged("measures ") as measured:
            ran = training.steps(function, self.which, after)
        if isinstance(ran.error, ValueError) and str(ran.error).startswith("[auto_checkpoint] 'auto': memory_budget: expected "):
            ran.error = None
            self.plain.values[len(ran.values) :] = []
            self.compare(ran)
            return "auto refuses the budget"
        if ran.error is not None and not ran.values and not isinstance(ran.error, Failure):
            self.refuse(ran.error)
        self.compare(ran)
        if not plans:
            return "auto makes no plan"
        return "auto, then other ops" if self.changes else "auto"

    def compare(self, got):
        if isinstance(got.error, Failure):
            raise got.error
        if got.error is not None:
            self.raise_failure(got.error)
        for number, (want, have) in enumerate(zip(self.plain.values, got.values, strict=True)):
            difference = first_difference(want, have)
            if difference:
                raise Failure(f"step {number} differs: {difference}")

    def check_nothing_left(self):
        if live_region_count() or remat.memory_report().bytes:
            gc.collect()
        if live_region_count():
            raise Failure("a region is left over")
        if remat.memory_report().bytes:
            raise Failure("memory is left over")


def check_in_budget(program, seed):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return BudgetCheck(program, seed).verdict()


def program_of(seed):
    return Generator(seed, WORDS).program()


def failed(verdict):
    return verdict.kind in ("fails", "crash")


def small_fault(seed, verdict):
    def fails(candidate):
        return next(in_child([lambda: check_in_budget(candidate, seed)])).is_like(verdict)

    small = shrink(program_of(seed), fails, limit=300)
    step = plain_step_of(small, random.Random(seed + 1))
    return f"# seed {seed}: {verdict.kind}: {verdict.text}\n{step.source()}"


def run_in_budgets(seeds):
    """Returns counts of the verdicts, and the programs that fail."""
    counts, faults = collections.Counter(), []
    waiting = list(seeds)
    while waiting:
        done = 0
        gc.collect()
        gc.freeze()  # measurements collect garbage
        for verdict in in_child([(lambda seed=seed: check_in_budget(program_of(seed), seed)) for seed in waiting]):
            seed = waiting[done]
            done += 1
            counts[f"{verdict.kind}: {verdict.text}" if verdict.kind == "refused" else verdict.kind] += 1
            if failed(verdict):
                small = len(faults) < MOST_FAULTS
                faults.append(small_fault(seed, verdict) if small else f"# seed {seed}: {verdict.kind}: {verdict.text}")
        gc.unfreeze()
        waiting = waiting[done:]
    torch.manual_seed(0)
    return counts, faults


def planned_share(counts):
    return sum(counts[kind] for kind in RAN) / counts.total()


def report_of_budgets(counts, faults):
    lines = [f"{count} {kind}" for kind, count in counts.most_common()]
    return "\n".join([*lines, f"{planned_share(counts):.0%} run by plans", *faults])
