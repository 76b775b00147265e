# SPDX-License-Identifier: BSD-3-Clause

"""Graphs that inductor has compiled, called in regions of eager code: Note [Compiled graphs] in compiled_graph.h."""

import functools

import torch
from torch import Tensor

from . import _C
from ._after_import import after_import
from ._stand_ins import stand_ins

# What a graph is given, and what it returns: one of these, or the place of an argument that it returns as it is.
_NOTHING, _NUMBER, _READ, _WRITTEN, _MADE = range(-5, 0)


def _refuse(expected, got):
    raise NotImplementedError(
        f"[compile] a function that inductor has compiled, in a region: expected {expected}, got {got}. "
        "Compile it without, call it outside of the region, or compile it round the region."
    )


def _kind(value, of_tensors):
    if isinstance(value, Tensor):
        return of_tensors
    if isinstance(value, (int, float)):
        return _NUMBER
    return _NOTHING if value is None else _refuse("a graph of tensors and numbers", f"a {type(value).__name__}")


def _those(wanted, values, kinds):
    return [value for value, kind in zip(values, kinds, strict=True) if kind == wanted]


def _put_together(kinds, lists, given=()):
    """The values of these kinds, in their order, from the lists of each kind; `given`: what places are of."""
    nexts = {kind: iter(values) for kind, values in lists.items()}
    return [given[kind] if kind >= 0 else None if kind == _NOTHING else next(nexts[kind]) for kind in kinds]


def _copy(tensor):
    """In memory of its own, in which it lies as in that of `tensor`; or itself, where values share memory."""
    copy = tensor.clone()
    return copy if copy.stride() == tensor.stride() else tensor


class _Call:
    """The graph that the op calls. Tapes keep it, and call it with tensors of their own."""

    def __init__(self, run, graph, kinds):
        self._run, self._graph, self._kinds = run, graph, kinds

    def __call__(self, read, written, numbers):
        """What it makes; the kinds of all that it returns, and after them the numbers."""
        if self._graph.fx_kwargs.get("is_backward"):
            # It may write what autograd has saved, which nobody reads after it, but a replay of what has computed it.
            read = [_copy(tensor) for tensor in read]
        given = _put_together(self._kinds, {_READ: read, _WRITTEN: written, _NUMBER: numbers})
        places = {id(value): place for place, value in enumerate(given) if isinstance(value, Tensor)}
        results = self._run(self._graph, list(given))
        kinds = [_kind(result, places.get(id(result), _MADE)) for result in results]
        return _those(_MADE, results, kinds), [len(kinds), *kinds, *_those(_NUMBER, results, kinds)]


def _run_as_op(run, graph, inputs):
    if graph.fx_kwargs.get("cudagraphs") and "cuda" in graph.device_types:
        _refuse("no CUDA graphs, whose memory the next call writes", "them")
    given = list(inputs)
    inputs.clear()  # as the graph itself would: its caller keeps none of them alive
    kinds = [_kind(value, _WRITTEN if i in graph.mutated_input_idxs else _READ) for i, value in enumerate(given)]
    lists = [_those(kind, given, kinds) for kind in (_READ, _WRITTEN, _NUMBER)]
    made, [count, *rest] = _C._call_compiled_graph(_Call(run, graph, kinds), graph.cache_key, *lists)
    return tuple(_put_together(rest[:count], {_MADE: made, _NUMBER: rest[count:]}, given))


def _as_op_in_regions(run):
    """A method: `run`, or in a region the op that calls it."""

    @functools.wraps(run)
    def call(self, inputs):
        return _run_as_op(run, self, inputs) if _C._ops_are_seen() else run(self, inputs)

    return call


def _teach_inductor():
    from torch._inductor.output_code import CompiledFxGraph

    CompiledFxGraph.__call__ = _as_op_in_regions(CompiledFxGraph.__call__)


def _of_what_is_written(increment_version):
    """Compiled code says by hand what its graph has written, also in a replay, which writes nothing from outside."""

    @functools.wraps(increment_version)
    def call(tensors):
        increment_version(stand_ins(tensors) if _C._in_replay() else tensors)

    return call


def install():
    torch._C._increment_version = _of_what_is_written(torch._C._increment_version)
    after_import("torch._inductor.output_code", _teach_inductor)
