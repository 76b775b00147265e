# SPDX-License-Identifier: BSD-3-Clause

"""Every op that torch has samples for, plain and under a replay engine, bit by bit.

The engine is one parameter, `checkpoint`: a function that takes a function and returns its
checkpointed form. What it must be able to do besides, MODES says.
"""

import dataclasses
from collections.abc import Callable

import torch
from same import assert_equal, tensors_in
from torch.utils import _pytree as pytree

import remat_meta as remat

SEED = 11


def entries():
    """The OpInfo entries with float32 and autograd on the CPU, by name."""
    from torch.testing._internal.common_methods_invocations import op_db

    return [op for op in op_db if torch.float32 in op.dtypes and op.supports_autograd]


def name_of(op):
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name


def samples(op, limit):
    """At most `limit` samples, spread over all of them; `limit` 0: all."""
    torch.manual_seed(SEED)
    every = list(op.sample_inputs("cpu", torch.float32, requires_grad=True))
    if not limit or len(every) <= limit:
        return list(enumerate(every))
    return [(i, every[i]) for i in sorted({k * len(every) // limit for k in range(limit)})]


@dataclasses.dataclass
class Case:
    """An op on a sample: the program that is run plain and checkpointed."""

    op: object
    sample: object

    def arguments(self):
        """input, args and kwargs: the sample's leaves that require grad, and copies of the rest."""
        copies = {}

        def fresh(tensor):
            if tensor.requires_grad:
                return tensor
            return copies.setdefault(id(tensor), tensor.clone())

        spec = (self.sample.input, list(self.sample.args), self.sample.kwargs)
        return pytree.tree_map_only(torch.Tensor, fresh, spec)


def call(op, variant, arguments):
    first, args, kwargs = arguments
    return tuple(tensors_in(variant(first, *args, **kwargs)))


def run_region(case, checkpoint):
    """The op alone in a region."""
    return checkpoint(lambda *arguments: call(case.op, case.op, arguments))(*case.arguments())


def read(tensors):
    """Bare ops on what a call returned; those that cannot be computed with are passed on."""
    return tuple(
        (t * 1.5).sin() if t.is_floating_point() and t.layout is torch.strided else t
        for t in tensors
    )


def after_an_op(tensor):
    return tensor * 1.0 if tensor.requires_grad and tensor.layout is torch.strided else tensor


def run_save(case, checkpoint):
    """The op as a SAVE call between bare ops."""
    named = remat.native_op(
        lambda *arguments: call(case.op, case.op, arguments), "op", remat.CheckpointPolicy.SAVE
    )

    def body(*arguments):
        arguments = pytree.tree_map_only(torch.Tensor, after_an_op, arguments)
        return read(named(*arguments))

    return checkpoint(body)(*case.arguments())


def run_nested(case, checkpoint):
    """The op in a region in a region, with ops before and after."""

    def inner(*arguments):
        return read(call(case.op, case.op, arguments))

    def outer(*arguments):
        return read(checkpoint(inner)(*pytree.tree_map_only(torch.Tensor, after_an_op, arguments)))

    return checkpoint(outer)(*case.arguments())


def run_in_place(case, checkpoint):
    """The in-place variant on a tensor that the region makes, which is then read."""

    def body(first, args, kwargs):
        written = first.clone()
        result = call(case.op, case.op.inplace_variant, (written, args, kwargs))
        return read((*result, written))

    return checkpoint(body)(*case.arguments())


def run_out(case, checkpoint):
    """The out= variant into tensors from outside, which are read with a gradient."""
    first, args, kwargs = pytree.tree_map_only(torch.Tensor, torch.Tensor.detach, case.arguments())
    results = tensors_in(case.op(first, *args, **kwargs))
    outs = [torch.zeros_like(t) for t in results]
    target = outs[0] if len(outs) == 1 else tuple(outs)
    factor = torch.full((), 1.5, requires_grad=True)

    def body(first, args, kwargs, factor):
        case.op(first, *args, **kwargs, out=target)
        return tuple((t * factor).sin() for t in outs if t.is_floating_point())

    return checkpoint(body)(first, args, kwargs, factor), outs, factor


@dataclasses.dataclass(frozen=True)
class Mode:
    run: Callable
    applies: Callable = lambda case: True


def has_in_place(case):
    op, sample = case.op, case.sample
    return (
        op.inplace_variant is not None
        and op.supports_inplace_autograd
        and not sample.broadcasts_input
        and torch.is_tensor(sample.input)
    )


MODES = {
    "region": Mode(run_region),
    "save": Mode(run_save),
    "nested": Mode(run_nested),
    "in_place": Mode(run_in_place, has_in_place),
    "out": Mode(run_out, lambda case: case.op.supports_out),
}


def leaves(case):
    given = (case.sample.input, list(case.sample.args), case.sample.kwargs)
    return list({id(t): t for t in tensors_in(given) if t.requires_grad}.values())


def dense(tensor):
    return tensor if tensor.layout is torch.strided else tensor.to_dense()


def gradients(outputs, wanted):
    """Gradients of `wanted` for fixed pseudo-random gradients of the outputs."""
    outputs = [dense(t) for t in outputs if t.requires_grad]
    if not outputs or not wanted:
        return []
    generator = torch.Generator().manual_seed(SEED)
    ones = [torch.empty(t.shape, dtype=t.dtype).normal_(generator=generator) for t in outputs]
    return torch.autograd.grad(outputs, wanted, ones, allow_unused=True)


def outcome(case, mode, checkpoint):
    """Outputs, gradients, what was written outside, and the random stream; or the error."""
    torch.manual_seed(SEED)
    try:
        outputs = MODES[mode].run(case, checkpoint)
        wanted = leaves(case)
        if mode == "out":
            outputs, written, factor = outputs
            wanted = [factor]
        else:
            written = []
        before = [t.detach().clone() for t in outputs]
        grads = gradients(outputs, wanted)
    except Exception as error:
        return error
    missing = torch.tensor([grad is None for grad in grads])
    found = [g for g in grads if g is not None]
    return [dense(t) for t in (*before, *written, missing, *found)] + [torch.get_rng_state()]


def check(op, index, sample, mode, checkpoint):
    """"same", "skipped" where the mode does not apply, "raises" where plain code raises and the
    engine too; else a text that says what differs."""
    case = Case(op, sample)
    if not MODES[mode].applies(case):
        return "skipped"
    plain = outcome(case, mode, lambda fn: fn)
    got = outcome(case, mode, checkpoint)
    where = f"{name_of(op)}, sample {index}, {mode}"
    if isinstance(plain, Exception) or isinstance(got, Exception):
        if isinstance(plain, Exception) and isinstance(got, Exception):
            return "raises"
        return f"{where}: plain {str(plain)[:100]!r}; checkpointed {str(got)[:600]!r}"
    return "same" if equal(plain, got) else f"{where}: other bits"


def equal(first, second):
    try:
        assert_equal(first, second)
    except AssertionError:
        return False
    return True


def differs_from_itself(op, sample):
    """Whether two plain runs differ: what this harness can say nothing about."""
    case = Case(op, sample)
    first, second = (outcome(case, "region", lambda fn: fn) for _ in range(2))
    return not isinstance(first, Exception) and not equal(first, second)
