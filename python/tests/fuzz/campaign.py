# SPDX-License-Identifier: BSD-3-Clause

"""Runs many programs, and shrinks those that fail."""

import base64
import collections
import dataclasses
import importlib
import pickle
import warnings

import torch

from .child import checked_in_child, in_child, still_alive, verdicts
from .devices import ON_CUDA
from .generator import Generator
from .runner import Verdict, check
from .shrink import shrink

FEW = 2500  # with fewer programs, shares vary too much by chance
MOST_FAULTS = 3  # shrinking takes seconds each, so later faults are not shrunk


@dataclasses.dataclass
class Summary:
    verdicts: collections.Counter = dataclasses.field(default_factory=collections.Counter)
    refusals: collections.Counter = dataclasses.field(default_factory=collections.Counter)
    faults: list = dataclasses.field(default_factory=list)

    def too_many(self):
        """Returns kinds of verdicts that are so frequent that the programs test little."""
        most = {"refused": 0.02, "raises": 0.05, "races": 0.02}
        total = self.verdicts.total()
        by_chance = 5 if total < FEW else 0
        return [kind for kind in most if self.verdicts[kind] >= most[kind] * total + by_chance]

    @property
    def passed(self):
        return not self.faults and not self.too_many()


def fault(program, seed, verdict):
    """Returns the smallest program found that fails in the same way, and its fault."""
    importlib.import_module("torch._dynamo")  # nested tensors import it, which takes a second in each child
    small = small_in_child(program, seed, verdict) or shrink(
        program, lambda candidate: checked_in_child(candidate, seed).is_like(verdict), limit=3000 if not ON_CUDA else 300
    )
    return "\n".join(
        [
            f"# seed {seed}: {verdict.kind}: {verdict.text}",
            f"# To run it: fuzz.runner.check_source(text, {seed}, {small.how!r})",
            small.source(),
        ]
    )


def small_in_child(program, seed, verdict):
    """Shrinks the program in one child, since each child takes a second to begin to use CUDA. Returns None without CUDA, if the
    program does not fail in the child, or if the child does not live long enough."""
    if not ON_CUDA or verdict.kind == "crash":
        return None

    def small():
        found = shrink(program, lambda candidate: still_alive() and check(candidate, seed).is_like(verdict))
        return Verdict("small", base64.b64encode(pickle.dumps(found)).decode())

    made = next(in_child([small]))
    if made.kind != "small":
        return None
    found = pickle.loads(base64.b64decode(made.text))
    return found if checked_in_child(found, seed).is_like(verdict) else None


def run_many(seeds):
    summary = Summary()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for seed, verdict in verdicts(seeds):
            summary.verdicts[verdict.kind] += 1
            if verdict.kind == "refused":
                summary.refusals[verdict.text] += 1
            if verdict.failed:
                small = len(summary.faults) < MOST_FAULTS
                summary.faults.append(
                    fault(Generator(seed).program(), seed, verdict)
                    if small
                    else f"# seed {seed}: {verdict.kind}: {verdict.text}. Small: --seed {seed} --count 1"
                )
    torch.manual_seed(0)
    return summary


def report(summary):
    lines = [f"{count} {kind}" for kind, count in summary.verdicts.most_common()]
    lines += [f"{count} refused: {reason}" for reason, count in summary.refusals.most_common()]
    lines += [f"too many {kind}: is that rule met by a fault?" for kind in summary.too_many()]
    return "\n".join([*lines, *summary.faults])
