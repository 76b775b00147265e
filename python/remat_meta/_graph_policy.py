# SPDX-License-Identifier: BSD-3-Clause

"""The policies of regions and named calls for ops that torch.compile traces.

In a compiler's graph, regions and named calls are annotations of nodes (torch.fx.traceback.annotate()), which the compiler
keeps through all of its passes. An annotation names a region by a key, a string made of the region's options.
"""

import itertools
import types
import weakref
from collections import Counter

import torch
import torch.utils.checkpoint as stock

from . import _C
from ._policy import CheckpointPolicy, call_policy_function

CALL = "remat call "  # prefix of named calls' notes; the call's name follows, so that nested calls have a note each
REGION = "remat region"  # the note whose value is the outermost region's key
INNER = "remat inner region"
_OURS = "remat "
_EMPTY = {f"aten::{name}" for name in ("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided")}

_IGNORED = {"region_name", "preserve_rng_state", "determinism_check", "early_stop", "intercept", "implicit_keep", "replay"}
_KNOWN = _IGNORED | {"policy", "_any_output", "_op_site"}
_WITHOUT_NAMES = ("region_name", "_op_site")  # options in which regions of one key may differ
_regions = {}  # by key: one region, never freed
_regions_with_functions = {}  # by key, for options with a policy function: the live regions
_numbers = weakref.WeakKeyDictionary()  # by function
_next_number = itertools.count()


def _number_of(function):
    if isinstance(function, types.MethodType):  # a method is a new object at each access
        return _number_of(function.__func__), _number_of(function.__self__)
    number = next(_next_number)
    try:
        return _numbers.setdefault(function, number)
    except TypeError:  # not hashable or weakly referenceable, so the number is for this region only
        return number


def _part_of_key(name, value, region):
    if name == "policy":
        return _C._rules_of(region), _number_of(value) if callable(value) else None
    return value if value is None or isinstance(value, (str, bool)) else bool(value)  # graphs refuse other options


def key_of(region):
    """Returns a key for a region or a result of checkpoint(options). A graph need not tell regions of one key apart."""
    options = sorted((name, value) for name, value in _C._keywords_of(region).items() if name not in _WITHOUT_NAMES)
    key = "options " + repr([(name, _part_of_key(name, value, region)) for name, value in options])
    if callable(dict(options).get("policy")):
        _regions_with_functions.setdefault(key, weakref.WeakSet()).add(region)
    else:
        _regions.setdefault(key, region)
    return key


def region_of(key):
    """Returns one of the regions that have the key."""
    return _regions.get(key) or next(iter(_regions_with_functions[key]))


def options_of(key):
    return _C._keywords_of(region_of(key))


def refusal_of(options):
    """Returns why a region with these options cannot be in a graph; "" if it can."""
    for name, value in options.items():
        if name not in _KNOWN and value:
            return (
                f"[compile] {name}: expected options that a graph knows, got this one. Without fullgraph=True the region runs "
                "outside of the graph, as it does without a compiler."
            )
    return ""


def notes_here():
    """Returns the notes of the op that is being traced."""
    from torch.fx import traceback

    return traceback.get_current_meta().get("custom") or {} if traceback.has_preserved_node_meta() else {}


def forget_notes():
    from torch.fx import traceback

    notes = traceback.current_meta.get("custom") or {}
    for note in [note for note in notes if note.startswith(_OURS)]:
        del notes[note]


def _is_save(policy, where):
    if policy is CheckpointPolicy.OFFLOAD:
        raise NotImplementedError(
            f"[compile] {where}: expected SAVE or RECOMPUTE in what torch.compile traces, got OFFLOAD, which a graph does not "
            "know. Give the region another policy, or call it outside of the compiled function."
        )
    return policy is CheckpointPolicy.SAVE


def policy_of_call(region, name, given):
    """Returns the policy that the region's rules give to the call, or else `given`, the call's own."""
    return _C._policy_of_call(region, name) or CheckpointPolicy(given)


class Answers:
    """The answers of a region's policy, op by op, in one run of its function."""

    def __init__(self, key, weights=()):
        self._weights = weights
        self._region = region_of(key)
        self._function = options_of(key).get("policy")
        self._is_function = callable(self._function)
        self._counts = Counter()

    def is_saved(self, context, op, args, kwargs, notes):
        by_call = any(
            self.is_call_saved(note.removeprefix(CALL), policy) for note, policy in notes.items() if note.startswith(CALL)
        )
        if by_call or isinstance(op, torch._ops.HigherOrderOperator):
            return by_call
        policy = self._policy_of_op(context, op, args, kwargs, notes)
        if policy is None and _C._is_communication(op._schema.name, op._schema.overload_name):
            return True
        return _is_save(policy, f"op {op._schema.name}")

    def is_call_saved(self, name, given):
        return _is_save(policy_of_call(self._region, name, given), f"call {name!r}")

    def _policy_of_op(self, context, op, args, kwargs, notes):
        is_exempt = op._schema.name in _EMPTY or self._is_cast_of_weight(op, args)
        if INNER in notes or is_exempt:  # a policy does not reach into inner regions
            return None
        name = op._schema.name + (f".{op._schema.overload_name}" if op._schema.overload_name else "")
        call = f"{name}#{self._counts[name]}"
        self._counts[name] += 1
        policy = call_policy_function(self._function, call, context.is_recompute, op, args, kwargs) if self._is_function else None
        return policy or _C._policy_of_op(self._region, op._schema.name, op._schema.overload_name, call)

    def _is_cast_of_weight(self, op, args):
        return op._schema.name == "aten::_to_copy" and any(args[0] is weight for weight in self._weights)

    def __call__(self, context, op, *args, **kwargs):
        is_saved = self.is_saved(context, op, args, kwargs, notes_here())
        return stock.CheckpointPolicy.MUST_SAVE if is_saved else stock.CheckpointPolicy.PREFER_RECOMPUTE


def contexts_of(key, weights=()):
    """Makes contexts like create_selective_checkpoint_contexts(); each run of the region counts its ops from 0."""
    for rule in _C._rules_of_composites(region_of(key)):
        raise NotImplementedError(
            f"[compile] policy, rule {rule}: expected ops that a graph has, got one that is made of others, which alone are in "
            "it. Name those (torch.ops.aten.addmm for a linear layer), or a preset."
        )
    forward = stock.create_selective_checkpoint_contexts(Answers(key, weights))[0]
    recompute = stock.create_selective_checkpoint_contexts(Answers(key, weights))[1]
    recompute.storage = forward.storage
    forward.supports_higher_order_operators = recompute.supports_higher_order_operators = True
    return forward, recompute
