# SPDX-License-Identifier: BSD-3-Clause

"""Random programs on CUDA tensors, plain and with remat, bit by bit: REMAT_FUZZ_DEVICE=cuda. Other variables as for
test_fuzz.py; REMAT_FUZZ_N is 200 by default.

This process must not use CUDA, since CUDA does not work in forked children of a process that uses it.
"""

import os

import pytest

from .campaign import report, run_many
from .child import in_child
from .devices import ON_CUDA, at_home
from .generator import Generator
from .heads import on_cuda as with_devices
from .jagged import MAKE, OF_ONE, OF_TWO, TO_DENSE
from .ops import OPS
from .places import Memory, Place, Value
from .program import STATE
from .runner import check_source
from .words import ALL

COUNT = int(os.environ.get("REMAT_FUZZ_N", "200"))
FIRST = int(os.environ.get("REMAT_FUZZ_SHARD", "0")) * COUNT

pytestmark = pytest.mark.torch_warns
on_cuda = pytest.mark.skipif(not ON_CUDA, reason="REMAT_FUZZ_DEVICE is not cuda")


@on_cuda
def test_random_programs_on_cuda_tensors_are_bitwise_plain():
    summary = run_many(range(FIRST, FIRST + COUNT))
    print(report(summary))
    assert summary.passed, report(summary)


@on_cuda
def test_every_word_of_devices_comes_up():
    source = "".join(Generator(seed, ALL).program().source() for seed in range(300))
    for text in (
        ".cpu()", ".to(MAIN)", ".to(second())", "non_blocking=True", "pinned_copy(", 'device="cuda"', "used_here(",
        "with side(0, ", "with side(1, ", "late=True", "with torch.cuda.device(second())", 'autocast("cuda"', "pin_memory=True",
        "inner_grad(", "inner_backward(", "generator=gen, device=gen.device",
    ):
        assert text in source, text


def source_of(*lines, indent="    "):
    return "\n".join([f"def program(api, {', '.join(STATE)}, bn, gen):", *(indent + line for line in lines)]) + "\n"


def verdicts_of(sources, seed, how="backward||"):
    return list(in_child([(lambda source=source: check_source(source, seed, how)) for source in sources]))


SEED_ON_THREADS = 8220  # a program that runs with autograd's own threads


@on_cuda
def test_order_by_numbers_of_nodes_that_threads_count_for_themselves_is_no_fault():
    source = source_of(
        "early = w0.sin()",
        "v1 = api.checkpoint()(inner_grad)(w0)",
        "return [early, v1]",
    )
    assert [verdict.kind for verdict in verdicts_of([source], SEED_ON_THREADS, "five_steps||")] == ["races"]


@on_cuda
def test_a_conjugated_tensor_comes_back_from_the_host_conjugated():
    source = source_of(
        "def f1(a, b):",
        f"    {with_devices('with torch.autograd.graph.save_on_cpu()')}:",
        "        z = torch.complex(a.tanh(), b.tanh())",
        "        return (z @ z.mH).real",
        "return [api.checkpoint()(f1)(w0, x0)]",
    )
    assert [verdict.kind for verdict in verdicts_of([source], SEED_ON_THREADS)] == ["same"]


@on_cuda
@pytest.mark.parametrize("make", MAKE)
def test_each_word_of_jagged_tensors_is_computed(make):
    sources = []
    for kind, op in {**OF_ONE, **OF_TWO, **dict(list(TO_DENSE.items())[1:])}.items():
        body = op.template.format(r="r", a="a", b="second_one", i=1).split("\n")
        sources.append(
            source_of(
                MAKE[make].template.format(r="first", s="second_one", a="w0", b="x0", i=0),
                "def f1(a):",
                *(f"    {line}" for line in body),
                "    return r",
                "r = api.checkpoint()(f1)(first)",
                "return [r]" if kind in TO_DENSE else "return [r.values().float()]",
            )
        )
    found = zip(sources, verdicts_of(sources, 0), strict=True)
    assert not [(source, verdict) for source, verdict in found if verdict.kind != "same"]


@on_cuda
@pytest.mark.parametrize("kind", [kind for kind, op in OPS.items() if op.needs == "unseen writes"])
def test_writes_that_nobody_sees_on_a_device_are_left_out(kind):
    assert not Generator(0, ALL).allowed(OPS[kind], Value(0, Memory(0)), None, Place())


@pytest.mark.parametrize(
    ("template", "writes_buffer", "at_one_place"),
    [
        ("{r} = {a} * {b}", False, "{r} = {a} * beside({b}, {a})"),
        ("{r} = {a} + torch.zeros(4, 4)", False, "{r} = {a} + torch.zeros(4, 4, device={a}.device)"),
        ("{c}.add_({a})", True, "{c}.add_(beside({a}, {c}))"),
        ("{r} = bn({a})", False, "{r} = bn(beside({a}, bn.weight))"),
        ("{r} = {a} @ w0", False, "{r} = {a} @ beside(w0, {a})"),
    ],
)
def test_operands_of_an_op_come_to_one_device(template, writes_buffer, at_one_place):
    assert at_home(template, writes_buffer) == at_one_place
