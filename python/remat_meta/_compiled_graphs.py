# SPDX-License-Identifier: BSD-3-Clause

"""Graphs compiled by inductor, called in regions of eager code: see Note [Compiled graphs] in compiled_graph.cpp."""

import functools

import torch
from torch import Tensor

from . import _C
from ._install import after_import

# Kinds of a graph's arguments and results. A result that is an argument has that argument's index instead.
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


def _select(wanted, values, kinds):
    return [value for value, kind in zip(values, kinds, strict=True) if kind == wanted]


def _put_together(kinds, lists, given=()):
    """Merges `lists` ({kind: its values}) into one list, in the order of `kinds`. An index stands for a value of `given`."""
    nexts = {kind: iter(values) for kind, values in lists.items()}
    return [given[kind] if kind >= 0 else None if kind == _NOTHING else next(nexts[kind]) for kind in kinds]


def _copy(tensor):
    """Returns a copy with the same strides, or the tensor itself if its elements share memory."""
    copy = tensor.clone()
    return copy if copy.stride() == tensor.stride() else tensor


def _call(run, graph, kinds, read, written, numbers):
    """Runs the graph for the op. A tape keeps `run`, `graph` and `kinds`, and passes its own values for the other arguments.

    Returns the new tensors, and a list that has the number of results, then their kinds, then the numbers among them.
    """
    if graph.fx_kwargs.get("is_backward"):
        # A backward graph may overwrite saved tensors. Plain code does not read them later, but a replay may, so pass copies.
        read = [_copy(tensor) for tensor in read]
    given = _put_together(kinds, {_READ: read, _WRITTEN: written, _NUMBER: numbers})
    places = {id(value): place for place, value in enumerate(given) if isinstance(value, Tensor)}
    results = run(graph, list(given))
    kinds = [_kind(result, places.get(id(result), _MADE)) for result in results]
    return _select(_MADE, results, kinds), [len(kinds), *kinds, *_select(_NUMBER, results, kinds)]


def _run_as_op(run, graph, inputs):
    if graph.fx_kwargs.get("cudagraphs") and "cuda" in graph.device_types:
        _refuse("no CUDA graphs, whose memory the next call writes", "them")
    given = list(inputs)
    inputs.clear()  # as the graph itself does, so that the caller keeps none of them alive
    kinds = [_kind(value, _WRITTEN if i in graph.mutated_input_idxs else _READ) for i, value in enumerate(given)]
    lists = [_select(kind, given, kinds) for kind in (_READ, _WRITTEN, _NUMBER)]
    made, [count, *rest] = _C._call_compiled_graph(functools.partial(_call, run, graph, kinds), graph.cache_key, *lists)
    return tuple(_put_together(rest[:count], {_MADE: made, _NUMBER: rest[count:]}, given))


def _as_op_in_regions(run):
    """Returns a method that calls `run`, or in a region the op that calls `run`."""

    @functools.wraps(run)
    def call(self, inputs):
        return _run_as_op(run, self, inputs) if _C._ops_are_seen() else run(self, inputs)

    return call


def _teach_inductor():
    from torch._inductor.output_code import CompiledFxGraph

    CompiledFxGraph.__call__ = _as_op_in_regions(CompiledFxGraph.__call__)


def stand_ins(tensors):
    """Replaces each tensor from outside by its stand-in in the replay; returns other values unchanged."""
    return tuple(_C._stand_in(t) if isinstance(t, torch.Tensor) else t for t in tensors or ())


def _bumping_stand_ins(increment_version):
    """Wraps the function that bumps versions after a graph's writes, so that a replay bumps the versions of stand-ins instead."""

    @functools.wraps(increment_version)
    def call(tensors):
        increment_version(stand_ins(tensors) if _C._in_replay() else tensors)

    return call


def install():
    _C._register_compiled_graph()
    torch._C._increment_version = _bumping_stand_ins(torch._C._increment_version)
    after_import("torch._inductor.output_code", _teach_inductor)
