# SPDX-License-Identifier: BSD-3-Clause

"""Saves the state in Python that a forward may change, to restore it when the forward is dropped."""

import collections
import collections.abc
import contextlib
import functools
import io
import operator
import random
import sys
import types
import warnings

import torch

_ATOMS = (int, float, complex, bool, str, bytes, type(None))
_CODE = (type, types.BuiltinFunctionType, types.ModuleType, types.CodeType)


class PythonState:
    """The state that a call can reach, as it is at construction:

    - lists, dicts, sets and deques, nested; attributes of modules and submodules; what hooks of their forward have
      captured, and attributes of objects whose methods such hooks are;
    - for tensors: requires_grad, gradients, hooks, and their memory (the core handles what ops write);
    - for the function: its captured variables, defaults, attributes, partial arguments, and the object of a method;
    - for other objects that are arguments or captured, and for what they hold: attributes and slots; numpy arrays,
      bytearrays and random generators;
    - the states of random and numpy.

    Objects that are attributes of a module are not searched: they may be a whole trainer.
    """

    def __init__(self, fn, module, args, kwargs):
        self._undo = []
        self._seen = set()
        self._kept = []  # keeps the ids in _seen valid
        self._numpy = sys.modules.get("numpy")
        self._note(module, objects=False)
        self._note((fn, args, kwargs), objects=True)
        self._undo.append((random.setstate, random.getstate()))
        if self._numpy is not None:
            self._undo.append((self._numpy.random.set_state, self._numpy.random.get_state()))

    def restore(self):
        for undo, before in self._undo:
            try:
                undo(before)
            except Exception as error:
                warnings.warn(
                    f"[auto_checkpoint] what the first call changes could not be put back: {type(error).__name__}: {error}. "
                    "Call the function once without auto_checkpoint, or change this outside of it.",
                    stacklevel=2,
                )

    def _note(self, root, objects):
        """Notes all that `root` holds. Iterative, since user data may nest deeply or contain itself."""
        waiting = [(root, objects)]
        while waiting:
            value, objects = waiting.pop()
            if id(value) in self._seen:
                continue
            inside = self._note_one(value, objects)
            if inside is None:
                continue
            self._seen.add(id(value))
            self._kept.append(value)
            if isinstance(value, torch.nn.Module):
                objects = False
                waiting.extend((one, False) for one in _held_by_hooks(value))
            waiting.extend((one, objects) for one in inside if type(one) not in _ATOMS)

    def _note_one(self, value, objects):
        """Notes one value. Returns what it contains; None if it cannot change."""
        if isinstance(value, torch.Tensor):
            return self._note_tensor(value)
        if isinstance(value, torch.nn.Module):
            return (vars(value),)
        if isinstance(value, dict):
            before = dict(value)
            self._undo.append((functools.partial(_put_back_dict, value), before))
            return before.values()
        for kind in (list, set, collections.deque):
            if isinstance(value, kind):
                before = list(value)
                self._undo.append((functools.partial(_put_back_elements, kind, value), before))
                return () if kind is set else before
        if isinstance(value, tuple):
            return value
        if not objects or isinstance(value, _CODE):
            return None
        if isinstance(value, types.FunctionType):
            captured = _captured(value)
            self._undo += [(functools.partial(setattr, cell, "cell_contents"), one) for cell, one in captured]
            return [*(one for _, one in captured), value.__defaults__, value.__kwdefaults__, vars(value)]
        if isinstance(value, types.MethodType):
            return value.__self__, value.__func__
        if isinstance(value, functools.partial):
            return value.func, value.args, value.keywords, vars(value)
        return self._note_object(value)

    def _note_tensor(self, tensor):
        if not tensor.is_leaf or isinstance(tensor, torch.nn.parameter.UninitializedTensorMixin):
            return ()
        data = tensor.data if tensor.layout == torch.strided else None
        self._undo.append((functools.partial(_put_back_tensor, tensor), (tensor.requires_grad, tensor.grad, data)))
        hooks = tensor._backward_hooks
        if hooks is None:
            self._undo.append((functools.partial(_put_back_hooks, tensor), None))
        return () if hooks is None else (hooks,)

    def _note_object(self, value):
        numpy = self._numpy
        if isinstance(value, random.Random):
            self._undo.append((value.setstate, value.getstate()))
            return ()
        if isinstance(value, bytearray):
            self._undo.append((functools.partial(value.__setitem__, slice(None)), bytes(value)))
            return ()
        if numpy is not None and isinstance(value, numpy.ndarray):
            if value.flags.writeable:
                self._undo.append((functools.partial(value.__setitem__, ...), value.copy()))
            return ()
        if numpy is not None and isinstance(value, numpy.random.Generator):
            generator = value.bit_generator
            self._undo.append((functools.partial(setattr, generator, "state"), generator.state))
            return ()
        slots = {name: getattr(value, name) for name in _slots_of(type(value)) if hasattr(value, name)}
        if slots:
            self._undo.append((functools.partial(_put_back_slots, value), slots))
        has_attributes = hasattr(value, "__dict__")
        return [*slots.values(), *([vars(value)] if has_attributes else [])] if slots or has_attributes else None


def find_iterator(fn, args, kwargs):
    """Returns an iterator among the arguments (in lists and dicts too) or captures; None if there is none. Files do not count."""
    waiting, seen = [*args, *kwargs.values(), *(one for _, one in _captured(fn))], set()
    while waiting:
        value = waiting.pop()
        if isinstance(value, collections.abc.Iterator) and not isinstance(value, io.IOBase):
            return value
        is_container = isinstance(value, (dict, list, tuple, collections.deque))
        if not is_container or id(value) in seen:
            continue
        seen.add(id(value))
        elements = value.values() if isinstance(value, dict) else value
        waiting.extend(one for one in elements if type(one) not in _ATOMS)
    return None


def _captured(fn):
    """Returns the cells of bound names, with their values."""
    bound = []
    for cell in getattr(fn, "__closure__", None) or ():
        with contextlib.suppress(ValueError):  # the name is not bound yet
            bound.append((cell, cell.cell_contents))
    return bound


def _held_by_hooks(module):
    """Yields what forward hooks may write: captured variables, and attributes of objects whose methods they are. Hooks of
    fully_shard are excluded: it initializes itself at the first forward, and restoring half of that would make it do it twice."""
    for hook in [*module._forward_pre_hooks.values(), *module._forward_hooks.values()]:
        if isinstance(hook, functools.partial):
            yield from (hook.args, hook.keywords)
            hook = hook.func
        if isinstance(hook, types.MethodType) and not type(hook.__self__).__module__.startswith("torch.distributed."):
            yield getattr(hook.__self__, "__dict__", None)
        yield from (one for _, one in _captured(hook))


def _slots_of(kind):
    for base in kind.__mro__:
        names = vars(base).get("__slots__", ())
        for name in (names,) if isinstance(names, str) else names:
            if name not in ("__dict__", "__weakref__"):
                yield f"_{base.__name__.lstrip('_')}{name}" if name.startswith("__") and not name.endswith("__") else name


def _are_same(now, before):
    return len(now) == len(before) and all(map(operator.is_, now, before))


# Subclasses may refuse changes, so use the methods of the base class.


def _put_back_dict(now, before):
    if _are_same(list(now), list(before)) and _are_same(list(now.values()), list(before.values())):
        return
    kind = collections.OrderedDict if isinstance(now, collections.OrderedDict) else dict
    kind.clear(now)
    for key, value in before.items():
        kind.__setitem__(now, key, value)


def _put_back_elements(kind, now, before):
    if kind is set:
        if now != set(before):
            set.clear(now)
            set.update(now, before)
    elif not _are_same(now, before):
        kind.clear(now)
        kind.extend(now, before)


def _put_back_slots(value, before):
    for name in _slots_of(type(value)):
        if name in before:
            object.__setattr__(value, name, before[name])
        elif hasattr(value, name):
            object.__delattr__(value, name)


def _put_back_tensor(tensor, before):
    requires_grad, grad, data = before
    if not tensor.is_leaf:  # an op wrote it: the core restores its place in the graph
        return
    if data is not None and (tensor.data_ptr() != data.data_ptr() or tensor.shape != data.shape):
        tensor.data = data
    if tensor.grad is not grad:
        tensor.grad = grad
    if tensor.requires_grad != requires_grad:
        tensor.requires_grad_(requires_grad)


def _put_back_hooks(tensor, before):
    if tensor._backward_hooks is not before:
        tensor._backward_hooks = before
