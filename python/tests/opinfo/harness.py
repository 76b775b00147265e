# SPDX-License-Identifier: BSD-3-Clause

"""Runs every op for which torch has samples, plainly and in a configuration of remat, and compares bit by bit."""

import dataclasses
import functools
from collections.abc import Callable

import torch
from same import assert_equal, tensors_in
from torch.utils import _pytree as pytree

import remat_meta as remat

SEED = 11


def entries(dtypes):
    """Returns the OpInfo entries with autograd on the CPU in one of the dtypes, by name."""
    from torch.testing._internal.common_methods_invocations import op_db

    return [op for op in op_db if any(has_gradients(op, dtype) for dtype in dtypes)]


def has_gradients(op, dtype):
    return op.supports_autograd and dtype in op.dtypes and dtype in op.supported_backward_dtypes("cpu")


def name_of(op):
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name


def plain(fn):
    """Takes the place of `checkpoint` in plain code."""
    return fn


@dataclasses.dataclass
class Case:
    """An op with a sample: the program that is run plainly and checkpointed."""

    op: object
    sample: object
    where: str = ""
    plain_outcomes: dict = dataclasses.field(default_factory=dict)  # by mode

    def arguments(self):
        """Returns input, args and kwargs: leaves of the sample that require grad, and copies of the rest."""
        copies = {}

        def fresh(tensor):
            if tensor.requires_grad:
                return tensor
            return copies.setdefault(id(tensor), tensor.clone())

        return pytree.tree_map_only(torch.Tensor, fresh, self.given())

    def given(self):
        return (self.sample.input, list(self.sample.args), self.sample.kwargs)

    def leaves(self):
        return list({id(t): t for t in tensors_in(self.given()) if t.requires_grad}.values())

    def plain_outcome(self, mode):
        if mode not in self.plain_outcomes:
            self.plain_outcomes[mode] = outcome(self, mode, plain)
        return self.plain_outcomes[mode]


def cases(op, dtype, limit):
    """Returns at most `limit` cases, spread over all samples; all if `limit` is 0."""
    torch.manual_seed(SEED)
    every = list(op.sample_inputs("cpu", dtype, requires_grad=True))
    count = min(limit or len(every), len(every))
    chosen = [k * len(every) // count for k in range(count)]
    return [Case(op, every[i], f"{name_of(op)}, sample {i}") for i in chosen]


def call(case, variant, arguments):
    """Returns the tensors that the op returns; of complex results, the parts that torch's own gradient checks use: for a singular
    vector, say, a part that does not depend on its phase, since it has no gradient otherwise."""
    first, args, kwargs = arguments
    result = variant(first, *args, **kwargs)
    if any(t.is_complex() for t in tensors_in(result)):
        result = case.sample.output_process_fn_grad(result)
    return tuple(tensors_in(result))


def run_region(case, checkpoint):
    """Runs the op alone in a region."""
    return checkpoint(lambda *arguments: call(case, case.op, arguments))(*case.arguments())


def computable(tensor):
    is_number = tensor.is_floating_point() or tensor.dtype in (torch.complex64, torch.complex128)
    return is_number and tensor.layout is torch.strided


def read(tensors):
    """Runs bare ops on a call's results; results that do not allow arithmetic are passed on."""
    return tuple((t * 1.5).sin() if computable(t) else t for t in tensors)


def after_an_op(tensor):
    return tensor * 1.0 if tensor.requires_grad and tensor.layout is torch.strided else tensor


def run_call(policy, case, checkpoint):
    """Runs the op as a named call between bare ops."""
    named = remat.native_op(lambda *arguments: call(case, case.op, arguments), "op", policy)

    def body(*arguments):
        arguments = pytree.tree_map_only(torch.Tensor, after_an_op, arguments)
        return read(named(*arguments))

    return checkpoint(body)(*case.arguments())


def run_nested(case, checkpoint):
    """Runs the op in a region in a region, with ops before and after."""

    def inner(*arguments):
        return read(call(case, case.op, arguments))

    def outer(*arguments):
        return read(checkpoint(inner)(*pytree.tree_map_only(torch.Tensor, after_an_op, arguments)))

    return checkpoint(outer)(*case.arguments())


def run_in_place(case, checkpoint):
    """Runs the in-place variant on a tensor that the region makes, which is then read."""

    def body(first, args, kwargs):
        written = first.clone()
        result = call(case, case.op.inplace_variant, (written, args, kwargs))
        return read((*result, written))

    return checkpoint(body)(*case.arguments())


def run_out(case, checkpoint):
    """Runs the out= variant into tensors from outside, which are read with a gradient."""
    first, args, kwargs = pytree.tree_map_only(torch.Tensor, torch.Tensor.detach, case.arguments())
    results = tensors_in(case.op(first, *args, **kwargs))
    outs = [torch.zeros_like(t) for t in results]
    target = outs[0] if len(outs) == 1 else tuple(outs)
    factor = torch.full((), 1.5, requires_grad=True)

    def body(first, args, kwargs, factor):
        case.op(first, *args, **kwargs, out=target)
        return tuple((t * factor).sin() for t in outs if computable(t))

    return checkpoint(body)(first, args, kwargs, factor), outs, factor


@dataclasses.dataclass(frozen=True)
class Mode:
    run: Callable
    of_op: Callable = lambda op: True
    of_sample: Callable = lambda sample: True


MODES = {
    "region": Mode(run_region),
    "save": Mode(functools.partial(run_call, remat.CheckpointPolicy.SAVE)),
    "offload": Mode(functools.partial(run_call, remat.CheckpointPolicy.OFFLOAD)),
    "nested": Mode(run_nested),
    "in_place": Mode(
        run_in_place,
        lambda op: op.inplace_variant is not None and op.supports_inplace_autograd,
        lambda sample: not sample.broadcasts_input and torch.is_tensor(sample.input),
    ),
    "out": Mode(run_out, lambda op: op.supports_out),
}


def applies(op, configuration):
    return has_gradients(op, configuration.dtype) and MODES[configuration.mode].of_op(op)


def dense(tensor):
    return tensor if tensor.layout is torch.strided else tensor.to_dense()


def gradients(outputs, wanted):
    """Returns gradients of `wanted` for fixed pseudo-random gradients of the outputs."""
    outputs = [dense(t) for t in outputs if t.requires_grad]
    if not outputs or not wanted:
        return []
    generator = torch.Generator().manual_seed(SEED)
    ones = [torch.empty(t.shape, dtype=t.dtype).normal_(generator=generator) for t in outputs]
    return torch.autograd.grad(outputs, wanted, ones, allow_unused=True)


def outcome(case, mode, checkpoint):
    """Returns outputs, gradients, outside tensors that were written, and the random stream; or the error."""
    torch.manual_seed(SEED)
    try:
        outputs = MODES[mode].run(case, checkpoint)
        wanted = case.leaves()
        written = []
        if mode == "out":
            outputs, written, factor = outputs
            wanted = [factor]
        before = [t.detach().clone() for t in outputs]
        grads = gradients(outputs, wanted)
    except Exception as error:
        return error
    missing = torch.tensor([grad is None for grad in grads])
    found = [g for g in grads if g is not None]
    return [dense(t) for t in (*before, *written, missing, *found)] + [torch.get_rng_state()]


def check(case, configuration, checkpoint=None):
    """Returns "same", "skipped" if the mode does not apply, "raises" if plain code and remat raise the same error; else a text
    that describes the difference. `checkpoint` replaces the configuration's."""
    mode = configuration.mode
    if not MODES[mode].of_sample(case.sample):
        return "skipped"
    where = f"{case.where}, {configuration}"
    expected = case.plain_outcome(mode)
    checkpoint = checkpoint or configuration.checkpoint(f"{name_of(case.op)}, {configuration}")
    for _ in range(configuration.steps):
        difference = compare(expected, outcome(case, mode, checkpoint))
        if difference:
            return f"{where}: {difference}"
    return "raises" if isinstance(expected, Exception) else "same"


def compare(expected, got):
    """Describes the first difference, or returns ""."""
    if isinstance(expected, Exception) and type(expected) is type(got):
        return ""
    if isinstance(expected, Exception) or isinstance(got, Exception):
        return f"plain {said(expected)}; checkpointed {said(got)}"
    return "" if equal(expected, got) else "other bits"


def said(result):
    if isinstance(result, Exception):
        return f"{type(result).__name__}: {str(result)[:600]!r}"
    return "runs"


def equal(first, second):
    try:
        assert_equal(first, second)
    except AssertionError:
        return False
    return True


def differs_from_itself(case, mode="region"):
    """True if two plain runs differ, so that this harness can check nothing."""
    first, second = (outcome(case, mode, plain) for _ in range(2))
    return not isinstance(first, Exception) and not equal(first, second)
