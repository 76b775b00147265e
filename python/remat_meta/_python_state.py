# SPDX-License-Identifier: BSD-3-Clause

"""What a forward may change in Python, to be put back when the forward is dropped."""

import collections
import functools
import operator
import random
import sys
import types

import torch

_CODE = (type, types.FunctionType, types.MethodType, types.BuiltinFunctionType, types.ModuleType)


def _are_same(now, before):
    return len(now) == len(before) and all(map(operator.is_, now, before))


def _put_back_dict(now, before):
    if _are_same(list(now), list(before)) and _are_same(list(now.values()), list(before.values())):
        return
    # Classes of their own may refuse to be updated.
    kind = collections.OrderedDict if isinstance(now, collections.OrderedDict) else dict
    kind.clear(now)
    for key, value in before.items():
        kind.__setitem__(now, key, value)


def _put_back_elements(now, before):
    if isinstance(now, set):
        if now != set(before):
            now.clear()
            now.update(before)
    elif not _are_same(now, before):
        now.clear()
        now.extend(before)


class PythonState:
    """What is reachable from a call, as it is now: lists, dicts, sets and deques, one in another, of its arguments, of
    attributes of the module and its submodules, and of what the function has captured; attributes of the objects among
    its arguments (a cache of keys and values); what captured names stand for; and the states of random and numpy.

    Tensors are the core's affair: it puts back their memory and their place in the graph.
    """

    def __init__(self, fn, module, args, kwargs):
        self._undo = []
        self._seen = set()
        for container in (args, kwargs):
            self._note(container, objects=True)
        for part in () if module is None else module.modules():
            self._note(vars(part))
        for cell in getattr(fn, "__closure__", None) or ():
            self._note_cell(cell)
        self._undo.append((random.setstate, random.getstate()))
        numpy = sys.modules.get("numpy")
        if numpy is not None:
            self._undo.append((numpy.random.set_state, numpy.random.get_state()))

    def restore(self):
        for undo, before in self._undo:
            undo(before)

    def _note_cell(self, cell):
        try:
            value = cell.cell_contents
        except ValueError:  # nothing is bound to the name yet
            return
        self._undo.append((lambda before: setattr(cell, "cell_contents", before), value))
        self._note(value)

    def _note(self, root, objects=False):
        """Iterative: what people keep may nest deeply, or hold itself."""
        waiting = [root]
        while waiting:
            value = waiting.pop()
            if id(value) in self._seen:
                continue
            inside = self._note_one(value, objects)
            if inside is not None:
                self._seen.add(id(value))
                waiting.extend(inside)

    def _note_one(self, value, objects):
        """What is in it; None of what holds nothing that can change."""
        if isinstance(value, dict):
            before = dict(value)
            self._undo.append((functools.partial(_put_back_dict, value), before))
            return before.values()
        if isinstance(value, (list, set, collections.deque)):
            before = list(value)
            self._undo.append((functools.partial(_put_back_elements, value), before))
            return () if isinstance(value, set) else before
        if isinstance(value, tuple):
            return value
        is_plain = isinstance(value, (torch.Tensor, torch.nn.Module, *_CODE)) or not hasattr(value, "__dict__")
        return None if is_plain or not objects else (vars(value),)
