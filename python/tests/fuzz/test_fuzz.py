# SPDX-License-Identifier: BSD-3-Clause

"""Random programs, plain and with remat, bit by bit.

REMAT_FUZZ_N: programs (default 5000). REMAT_PYTHON_FUZZ_SHARD: "i/n", every n-th of them, from the
i-th on (default "0/1"). REMAT_FUZZ_SHARD: seeds start at this times REMAT_FUZZ_N.
"""

import collections
import itertools
import os
import signal

import hypothesis
import pytest
import torch
from same import assert_equal

import remat_meta as remat

from . import child, custom, jagged, named, prelude
from .campaign import Summary, report, run_many
from .generator import Generator
from .kinds import MODES
from .ops import OPS
from .runner import check
from .shrink import shrink
from .words import ALL

COUNT = int(os.environ.get("REMAT_FUZZ_N", "5000"))
FIRST = int(os.environ.get("REMAT_FUZZ_SHARD", "0")) * COUNT
SHARD, SHARDS = map(int, os.environ.get("REMAT_PYTHON_FUZZ_SHARD", "0/1").split("/"))

pytestmark = pytest.mark.torch_warns
once = pytest.mark.skipif(SHARD != 0, reason="shard 0 runs it")


def test_random_programs_are_bitwise_plain():
    summary = run_many(range(FIRST + SHARD, FIRST + COUNT, SHARDS))
    assert summary.passed, report(summary)


@once
@hypothesis.settings(max_examples=50, deadline=None, database=None, derandomize=True)
@hypothesis.given(hypothesis.strategies.integers(10**6, 10**9))
def test_other_seeds_do_as_well(seed):
    verdict = check(Generator(seed).program(), seed)
    assert not verdict.failed, verdict


@once
def test_every_feature_comes_up():
    source, kinds, modes = "", set(), set()
    for seed in range(300):
        program = Generator(seed, ALL).program()
        source += program.source()
        modes |= {(program.forward_mode, ""), ("", program.backward_mode)}
        kinds |= {step.kind for block in program.blocks() for step in block.steps}
    often = {kind for kind, op in OPS.items() if op.weight >= 1}
    assert {*often, "region", "call", "with", "throw", "free"} <= kinds <= {*OPS, "region", "call", "with", "throw", "free"}
    for text in (
        '"SAVE"', '"RECOMPUTE"', '"OFFLOAD"', "all_regions", "torch_checkpoint", "early_stop=False",
        'determinism_check="none"', "hooks=api.hooks", "generators=[gen]", "autocast", "no_grad",
        'replay="auto"', 'policy="save_matmuls"', 'policy=["aten::sin', "Pair(", '"rest"', 'packed["a"]', "name_scope",
        "until_backward", "torch_pair(inside=True)", "own_pair()", "with PassThrough()", "with Functions()", "with flops()",
        "with comm_debug()", 'api.table("OFFLOAD"',
    ):
        assert text in source, text
    assert modes == {(mode, "") for mode in MODES} | {("", mode) for mode in MODES}


FROM = {"jagged": jagged.FIRST_SEED, "named functions": named.FIRST_SEED}  # the first seed whose programs have such steps


@once
@pytest.mark.parametrize("word", FROM)
def test_random_programs_with_words_that_came_later_are_bitwise_plain(word):
    summary = run_many(range(FROM[word], FROM[word] + 500))
    assert summary.passed, report(summary)


@once
@pytest.mark.parametrize("word", FROM)
def test_programs_of_older_seeds_are_the_same_without_words_that_came_later(word):
    older, newer, others = 0, 0, tuple(w for w in ALL if w != word)
    for seed in range(200):
        older += sum(Generator(s, ALL).program() != Generator(s, others).program() for s in (seed, FROM[word] - 1 - seed))
        newer += Generator(FROM[word] + seed, ALL).program() != Generator(FROM[word] + seed, others).program()
    assert older == 0 and newer > 10


@once
def test_every_named_function_comes_up():
    programs = [Generator(named.FIRST_SEED + seed, ALL).program() for seed in range(300)]
    blocks = [block for program in programs for block in program.blocks()]
    steps = [step for block in blocks for step in block.steps if step.kind in named.NAMED]
    ways = {(step.kind.split("_")[0], step.options.get("call", "").split(",")[0]) for step in steps}
    policies = {'"SAVE"', '"RECOMPUTE"', '"OFFLOAD"'}
    assert ways == {(way, policy) for way in ("auto", "handled", "own") for policy in policies} | {
        (way, "") for way in ("saving", "plain", "unrecorded")
    }
    assert {step.kind.split("_", 1)[1] for step in steps} == set(named.FACTS)
    assert {step.options["of_a"] for step in steps} == {"", ".detach()"}
    assert any("all_regions" in step.options.get("call", "") for step in steps)
    followed_by = {
        step.kind if step.body else "function" if step.kind in named.NAMED else "op"
        for block in blocks
        for function, step in itertools.pairwise(block.steps)
        if function.kind in named.NAMED and {*function.arguments, *function.results} & {*step.arguments}
    }
    assert followed_by == {"region", "call", "function", "op"}
    in_blocks = [step for block in blocks for step in block.steps if step.kind == "with" and "no_grad" in step.options["head"]]
    assert any([inner.kind for inner in step.body.steps] == [kind] for step in in_blocks for kind in named.NAMED)


@once
@pytest.mark.parametrize("body", custom.BODIES, ids=lambda body: body.__name__)
def test_custom_functions_are_the_same_in_every_way(body):
    """Runs the functions outside regions."""

    def outcome(call):
        torch.manual_seed(0)
        x, y = torch.randn(4, 4, requires_grad=True), torch.randn(4, 4)
        results = call(x * 1.0, y)
        results = results if isinstance(results, tuple) else (results,)
        sum(result.sum() for result in results).backward()
        return [*results, x.grad, y]

    name = body.__name__
    wants = outcome(getattr(custom.plain, name))
    for way in (custom.saving, custom.auto, custom.handled, custom.unrecorded):
        assert_equal(outcome(getattr(way, name)), wants)
    assert_equal(outcome(getattr(custom.own, name)("name", "SAVE")), wants)


@once
@pytest.mark.parametrize(("refused", "passed"), [(49, True), (51, False)])
def test_a_run_with_more_than_two_per_cent_of_refusals_fails(refused, passed):
    assert Summary(collections.Counter(same=2500 - refused, refused=refused)).passed == passed


@once
@pytest.mark.parametrize("saved", [False, True])
def test_a_buffer_that_autograd_has_saved_comes_back_before_backward(saved):
    """Otherwise backward would read freed memory, in plain code, too."""
    generator = Generator(0, ALL)
    generator.program()
    for buffer in generator.buffers:
        buffer.memory.saved = saved
    ends = [generator.free([], [], "backward").options.get("until") for _ in range(100)]
    assert set(ends) == ({"backward"} if saved else {"backward", None})


@once
def test_programs_are_the_same_for_a_seed():
    assert Generator(5).program().source() == Generator(5).program().source()


def with_options(**changes):
    class Broken(prelude.Remat):
        def checkpoint(self, **options):
            return remat.checkpoint(**{**options, **changes})

    return Broken


class SwapsArguments(prelude.Remat):
    """Swaps arguments, so that the replay has its values at other places than the forward."""

    def checkpoint(self, **options):
        def wrap(fn):
            def swapped(*args):
                return fn(*(args[1::-1] + args[2:] if remat.is_recomputing() else args))

            return remat.checkpoint(**{**options, "determinism_check": "none"})(swapped)

        return wrap


class ForgetsGradients(prelude.Remat):
    """Detaches the results of calls from the graph."""

    def native_op(self, fn, name, policy, keep="innermost_region"):
        def detached(*args, **kwargs):
            out = fn(*args, **kwargs)
            return out.detach() if hasattr(out, "detach") else out

        return super().native_op(detached, name, policy, keep)


@once
@pytest.mark.parametrize(
    "engine",
    [
        with_options(preserve_rng_state=False),
        with_options(generators=()),
        with_options(intercept=False, determinism_check="none"),
        with_options(saved_tensors_hooks=(lambda t: t * (1 + 2**-20), lambda t: t)),
        SwapsArguments,
        ForgetsGradients,
    ],
    ids=["random numbers", "generators", "writes twice", "inputs", "slots", "gradients"],
)
def test_a_broken_engine_is_found(engine):
    verdicts = (check(Generator(seed).program(), seed, engine) for seed in range(500))
    assert any(verdict.failed for verdict in verdicts)


@once
def test_a_failing_program_is_made_small():
    programs = (Generator(seed).program() for seed in range(100))
    program = next(p for p in programs if "F.gelu" in p.source() and p.size() > 20)
    small = shrink(program, lambda candidate: "F.gelu" in candidate.source())
    assert small.size() == 1 and small.use == "backward"


class Dies(prelude.Remat):
    """Dies by a signal, in the first region."""

    def checkpoint(self, **options):
        os.kill(os.getpid(), signal.SIGSEGV)


@once
def test_a_crash_is_a_fault_like_others(monkeypatch):
    monkeypatch.setattr(child, "check", lambda program, seed: check(program, seed, Dies if seed == 1 else prelude.Remat))
    assert [(seed, verdict.kind, verdict.text) for seed, verdict in child.verdicts(range(3))] == [
        (0, "same", ""), (1, "crash", "SIGSEGV"), (2, "same", ""),
    ]  # fmt: skip


@once
def test_a_crash_of_plain_code_is_no_fault(monkeypatch):
    def die(program, seed):
        if seed == 1:
            os.kill(os.getpid(), signal.SIGSEGV)
        return child.Verdict("same")

    monkeypatch.setattr(child, "check", die)
    monkeypatch.setattr(child, "run_plain", die)
    assert [(seed, verdict.kind) for seed, verdict in child.verdicts(range(3))] == [
        (0, "same"), (1, "raises"), (2, "same"),
    ]  # fmt: skip
