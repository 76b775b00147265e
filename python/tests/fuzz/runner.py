# SPDX-License-Identifier: BSD-3-Clause

"""Runs a program plain and with remat, and says what differs."""

import dataclasses
import re

import torch
from same import bits

from . import prelude
from .program import STATE
from .refusals import reason_of

GLOBALS = {**vars(prelude), "F": torch.nn.functional}


@dataclasses.dataclass
class Outcome:
    values: list  # (what it is, tensor or None)
    error: Exception | None


@dataclasses.dataclass(frozen=True)
class Verdict:
    """kind: "same", "raises" (plain too), "refused" (by a rule that is documented), or a failure:
    "differs", "unexpected error", "no error"."""

    kind: str
    text: str = ""

    @property
    def failed(self):
        return self.kind not in ("same", "raises", "refused")

    def is_like(self, other):
        """The same fault, whatever the numbers in the message."""
        return self.kind == other.kind and _words(self.text) == _words(other.text)


def _words(text):
    return re.sub(r"'[^']*'|\d+|\[[^]]*\]", "", text)[:70]


class State:
    """What a program begins with, the same for each seed."""

    def __init__(self, seed):
        torch.manual_seed(seed)
        self.tensors = {name: torch.randn(4, 4) for name in STATE}
        for name in ("x0", "x1", "w0", "w1"):
            self.tensors[name].requires_grad_()
        self.norm = torch.nn.BatchNorm1d(4)
        self.generator = torch.Generator().manual_seed(seed)

    def arguments(self):
        return (*self.tensors.values(), self.norm, self.generator)

    def leaves(self):
        return [t for t in self.tensors.values() if t.requires_grad and t.is_leaf] + list(
            self.norm.parameters()
        )

    def after(self):
        """All that a program may have written."""
        named = {**self.tensors, **self.norm.state_dict(keep_vars=True)}
        values = [(f"{name} after", tensor) for name, tensor in named.items()]
        values += [(f"gradient of {name}", t.grad) for name, t in named.items() if t.is_leaf]
        values.append(("random stream after", torch.get_rng_state()))
        values.append(("generator after", self.generator.get_state()))
        return values


def loss_of(outputs):
    return sum(((t.float() ** 2).sum() for t in outputs), torch.zeros(()))


def compiled(source):
    names = {}
    exec(compile(source, "<program>", "exec"), GLOBALS, names)
    return names["program"]


def run(fn, use, api, seed):
    state, values = State(seed), []
    try:
        outputs = fn(api, *state.arguments())
        values += [("output", t.detach().clone()) for t in outputs]
        values += [("requires_grad", torch.tensor(t.requires_grad)) for t in outputs]
        loss = loss_of(outputs)
        if loss.requires_grad:
            values += use_graph(use, fn, api, state, loss)
    except Exception as error:
        return Outcome(values, error)
    return Outcome(values + state.after(), None)


def use_graph(use, fn, api, state, loss):
    leaves = state.leaves()
    if use == "in_flight":
        loss_of(fn(api, *state.arguments())).backward()
    if use == "retain_graph":
        loss.backward(retain_graph=True)
    if use == "partial":
        grads = [
            torch.autograd.grad(loss, leaf, retain_graph=True, allow_unused=True)[0]
            for leaf in (leaves[0], leaves[-1])
        ]
        return [("partial gradient", grad) for grad in grads]
    if use == "double":
        grads = torch.autograd.grad(loss, leaves, create_graph=True, allow_unused=True)
        loss = loss * 0 + sum((grad**2).sum() for grad in grads if grad is not None)
    loss.backward()
    if use == "two_steps":
        with torch.no_grad():
            for leaf in leaves:
                leaf -= 0.01 * (leaf.grad if leaf.grad is not None else 0)
        second = loss_of(fn(api, *state.arguments()))
        if second.requires_grad:
            second.backward()
    return []


def first_difference(plain, got):
    if len(plain) != len(got):
        return f"{len(plain)} values, {len(got)} with remat"
    for (what, want), (_, have) in zip(plain, got, strict=True):
        if (want is None) != (have is None):
            return f"{what}: {'none' if have is None else 'one'} with remat only"
        if want is None:
            continue
        if want.dtype != have.dtype or want.shape != have.shape or not torch.equal(bits(want), bits(have)):
            return what
    return None


def check(program, seed, engine=prelude.Remat):
    return check_source(program.source(), seed, program.use, engine)


def check_source(source, seed, use, engine=prelude.Remat):
    """What the program `source` does with remat, beside what it does without."""
    fn = compiled(source)
    plain = run(fn, use, prelude.Plain(), seed)
    got = run(fn, use, engine(), seed)
    if plain.error is not None:
        # autograd counts writes of tensors without elements too
        expected = got.error is not None or "[0, 4]" in str(plain.error)
        return Verdict("raises" if expected else "no error", str(plain.error)[:200])
    if got.error is not None:
        reason = reason_of(str(got.error), source)
        text = f"{type(got.error).__name__}: {got.error}"
        return Verdict("refused", reason) if reason else Verdict("unexpected error", text)
    difference = first_difference(plain.values, got.values)
    return Verdict("differs", difference) if difference else Verdict("same")
