# SPDX-License-Identifier: BSD-3-Clause

"""Python code that torch.compile traces in place of regions and named calls.

Note [Lowered regions]: a compiled function has one graph, from which the compiler's partitioner makes a forward and a
backward. The graph can contain checkpoints: nodes with an inner graph and a policy for the values to keep. A region becomes
such a node, and a named call becomes an annotation of its ops' nodes (_graph_policy.py). An inner region becomes an
annotation, too, because the outer region keeps nothing of it, as in eager code. Functions that Dynamo calls instead of
tracing them keep a list of the regions and calls that are open where Dynamo traces.
"""

import collections
import functools
import inspect
import os
import types

import torch
import torch.utils.checkpoint as stock

from . import _C, _compiled_graphs, _graph_run, _higher_order
from ._graph_policy import CALL, INNER, REGION, contexts_of, forget_notes, key_of, options_of, refusal_of, region_of
from ._install import after_import, on_first_use
from ._torch_checkpoint import torch_checkpoint
from ._torch_compat import attribute_of_class, getattr_method

_KINDS = (_C.CheckpointBuilder, _C.Checkpointed, _C.NamedFunction)
# Files whose functions torch's engine and graphs call, and which contain no user code.
_NEVER_COMPILED = [
    os.path.join(os.path.dirname(__file__), f"{name}.py") for name in ("_agreement", "_compile", "_engine", "_higher_order")
]
_surroundings = _C._Surroundings()


def _key(wrapper):
    if isinstance(wrapper, _C.NamedFunction):
        name, policy, keep = _C._named_call_of(wrapper)
        return f"{policy.value} {keep} {name}"
    return key_of(wrapper)


# Functions that Dynamo calls without tracing them. Their results are constants for Dynamo.


# A region or call whose function Dynamo is tracing; `names`: the names of the calls in a region.
_Open = collections.namedtuple("_Open", "key is_region names")


def _opened():
    context = torch._guards.TracingContext.get()
    if not hasattr(context, "_remat_opened"):
        context._remat_opened = []
        forget_notes()  # notes of a function whose tracing ended by an exception
    return context._remat_opened


def _calls_around(opened):
    """Returns the keys of the open calls in the innermost region."""
    calls = []
    for one in reversed(opened):
        if one.is_region:
            return calls
        calls.append(one.key)
    return []


_EAGER = "Without fullgraph=True it runs outside of the graph, as it does without a compiler."
_OUTER, _INNER = "outer", "inner"
_NOTED, _UNSEEN, _OUTSIDE = "noted", "unseen", "outside"


def _open_region(key):
    """Returns _INNER or _OUTER, or the text of an error ("[compile] ...") if the region cannot be in the graph."""
    opened = _opened()
    refusal = refusal_of(options_of(key))
    if torch._C._functorch.peek_interpreter_stack() is not None and _C._has_policy(region_of(key)):
        refusal = f"[compile] policy: expected none in torch.func's transforms in what torch.compile traces, got one. {_EAGER}"
    if any(not call.startswith("recompute") for call in _calls_around(opened)):
        refusal = f"[compile] region: expected it outside of SAVE calls in what torch.compile traces, got it in one. {_EAGER}"
    is_inner = any(one.is_region for one in opened)
    opened.append(_Open(key, True, set()))
    return refusal or (_INNER if is_inner else _OUTER)


def _open_call(key):
    """Returns _NOTED, _UNSEEN or _OUTSIDE, or the text of an error ("[compile] ...") if the call cannot be in the graph."""
    policy, keep, name = key.split(" ", 2)
    opened = _opened()
    regions = [one for one in opened if one.is_region]
    calls = _calls_around(opened)
    opened.append(_Open(key, False, set()))
    if not regions:
        return _UNSEEN if policy == "recompute" else _OUTSIDE
    owners = regions if keep == "all_regions" else regions[-1:]
    if any(name in owner.names for owner in owners):
        return f"[compile] call {name!r}: expected a name that is used once in a region, got it twice"
    if policy == "recompute" and any(not call.startswith("recompute") for call in calls):
        return f"[compile] call {name!r}: expected SAVE or OFFLOAD in a SAVE call, got RECOMPUTE"
    if torch._C._functorch.peek_interpreter_stack() is not None:
        return f"[compile] call {name!r}: expected it outside of torch.func's transforms in what torch.compile traces. {_EAGER}"
    for owner in owners:
        owner.names.add(name)
    return _NOTED if len(regions) == 1 or keep == "all_regions" else _UNSEEN


def _close():
    _opened().pop()


def _key_of_options(*items):
    """Returns the region's key, or the text of checkpoint()'s error ("[compile] ...")."""
    try:
        return key_of(_C.checkpoint(**dict(items)))
    except Exception as error:
        return f"[compile] {error}"


def _key_of_call(make, *args, **options):
    try:
        return _key(getattr(_C, make)(_close, *args, **options))
    except Exception as error:
        return f"[compile] {error}"


def _is_exporting():
    return torch.compiler._is_exporting_flag  # not is_exporting(), which is true in all that Dynamo compiles


# Functions that Dynamo traces.


def _graph_break_if(refusal):
    if refusal.startswith("["):
        torch._dynamo.graph_break(msg=refusal)


def _has_only_tensors(value):
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        return all(_has_only_tensors(part) for part in value)
    return isinstance(value, torch.Tensor)


def _run_region(function, key, args, kwargs):
    if _is_exporting():  # exported graphs have no checkpoints
        return function(*args, **kwargs)
    where = _open_region(key)
    _graph_break_if(where)
    try:
        if where == _INNER:
            with torch.fx.traceback.annotate({INNER: True}):
                result = function(*args, **kwargs)
        else:

            def run(*args):
                with torch.fx.traceback.annotate({REGION: key}):
                    return function(*args, **kwargs)

            contexts = functools.partial(contexts_of, key)
            result = torch.ops.higher_order.tag_activation_checkpoint(run, *args, use_reentrant=False, context_fn=contexts)
    finally:
        _close()
    if not _takes_any_output(key) and not _has_only_tensors(result):
        torch._dynamo.graph_break(msg="[compile] the function of a region must return a Tensor or a nesting of Tensors")
    return result


def _takes_any_output(key):
    return bool(options_of(key).get("_any_output"))


def _run_call(function, key, args, kwargs):
    if _is_exporting():
        return function(*args, **kwargs)
    what = _open_call(key)
    _graph_break_if(what)
    if what == _OUTSIDE and _surroundings.in_region:
        torch._dynamo.graph_break(msg=f"[compile] call {key}: in a region that is not traced, which is to keep its results")
    try:
        if what == _NOTED:
            policy, _, name = key.split(" ", 2)
            with torch.fx.traceback.annotate({CALL + name: policy}):
                return function(*args, **kwargs)
        return function(*args, **kwargs)
    finally:
        _close()


# Functions that Dynamo traces as __call__ of our types: see Note [In compiled code]. What they return runs
# as without a compiler when it is called outside of compiled code.


def _call_entry(self, /, *args, **options):
    if not torch.compiler.is_dynamo_compiling():
        return self(*args, **options)
    on_first_use()
    return self.__wrapped__(*args, **options)


def _call_builder(self, function, /):
    if not torch.compiler.is_dynamo_compiling():
        return self(function)
    on_first_use()
    key = self._graph_key

    def region(*args, **kwargs):
        if not torch.compiler.is_dynamo_compiling():
            return self(function)(*args, **kwargs)
        return _run_region(function, key, args, kwargs)

    return region


def _call_region(self, /, *args, **kwargs):
    if not torch.compiler.is_dynamo_compiling():
        return self(*args, **kwargs)
    on_first_use()
    return _run_region(self.__wrapped__, self._graph_key, args, kwargs)


def _call_named(self, /, *args, **kwargs):
    if not torch.compiler.is_dynamo_compiling():
        return self(*args, **kwargs)
    on_first_use()
    return _run_call(self.__wrapped__, self._graph_key, args, kwargs)


# Functions that Dynamo traces in place of remat's own.


def _checkpoint(*args, **options):
    if args:
        torch._dynamo.graph_break(msg="[compile] checkpoint: expected options by keyword, got a function")
    if _is_exporting():
        return lambda function: function
    _graph_break_if(refusal_of(options))
    known = []
    for name, value in options.items():
        if value and not isinstance(value, (str, bool)):
            torch._dynamo.graph_break(
                msg=f"[compile] {name}: expected a string or a bool where a compiled function makes the region, got another"
            )
        known.append((name, value if isinstance(value, (str, bool)) else None))
    key = _key_of_options(*known)
    _graph_break_if(key)

    def decorate(function):
        def region(*args, **kwargs):
            if not torch.compiler.is_dynamo_compiling():
                return _C.checkpoint(**options)(function)(*args, **kwargs)
            return _run_region(function, key, args, kwargs)

        return region

    return decorate


def _made_call(make, function, key, args, options):
    _graph_break_if(key)

    def call(*call_args, **kwargs):
        if not torch.compiler.is_dynamo_compiling():
            return getattr(_C, make)(function, *args, **options)(*call_args, **kwargs)
        return _run_call(function, key, call_args, kwargs)

    return call


def _region(fn, name, **options):
    return _made_call("region", fn, _key_of_call("region", name, **options), (name,), options)


def _native_op(fn, *args, **options):
    return _made_call("native_op", fn, _key_of_call("native_op", *args, **options), args, options)


def _op(fn, *args, **options):
    return _made_call("op", fn, _key_of_call("op", *args, **options), args, options)


_CHECKPOINT_OPTIONS = tuple(torch_checkpoint.__wrapped__.__kwdefaults__)


def _torch_checkpoint(function=None, *args, **kwargs):
    options = {name: kwargs.pop(name) for name in _CHECKPOINT_OPTIONS if name in kwargs}
    if function is not None or args:
        return _run_checkpoint(function, options.get("context_fn"), args, kwargs)
    return functools.partial(_checkpointed, options)


def _checkpointed(options, function):
    def checkpointed(*args, **kwargs):
        if not torch.compiler.is_dynamo_compiling():
            return torch_checkpoint(**options)(function)(*args, **kwargs)
        return _run_checkpoint(function, options.get("context_fn"), args, kwargs)

    return checkpointed


def _run_checkpoint(function, context_fn, args, kwargs):
    if context_fn is None or context_fn is stock.noop_context_fn:
        return _run_region(function, _key_of_options(("_any_output", True)), args, kwargs)
    run = torch.ops.higher_order.tag_activation_checkpoint
    return run(function, *args, use_reentrant=False, context_fn=context_fn, **kwargs)


def _nothing(*args):
    return None


def _is_recomputing():
    return False


# Support for our types that Dynamo lacks.


def _bound(variable, name):
    """Returns the attribute `name` of the value's class if the attribute is a region or named call, which must be bound to the
    value; else None."""
    found = inspect.getattr_static(type(variable.value), name, None)
    return found if isinstance(found, _KINDS) and name not in getattr(variable.value, "__dict__", ()) else None


def _bind(getattr_of, variable, tx, name):
    region = _bound(variable, name)
    if region is None or tx.output.side_effects.has_pending_mutation_of_attr(variable, name):
        return getattr_of(variable, tx, name)
    found = attribute_of_class(getattr_of, variable, tx, name, region)
    return torch._dynamo.variables.functions.FunctoolsPartialVariable(found, [variable], {})


def _check(check_verbose, function, *args, **kwargs):
    """Says whether Dynamo skips a function. Skips a method whose function is a region, so that Dynamo makes a frame that calls
    the method. Skips frames of remat_meta, so that its functions are compiled only where traced code calls them."""
    if isinstance(function, types.MethodType) and isinstance(function.__func__, _KINDS):
        return torch._dynamo.trace_rules.SkipResult(True, "a region has no frame")
    if isinstance(function, types.CodeType) and function.co_filename in _NEVER_COMPILED:
        return torch._dynamo.trace_rules.SkipResult(True, "a frame of remat_meta")
    return check_verbose(function, *args, **kwargs)


def _teach_dynamo():
    from torch._dynamo import trace_rules
    from torch._dynamo.variables.user_defined import UserDefinedObjectVariable

    method = getattr_method(UserDefinedObjectVariable)
    getattr_of = getattr(UserDefinedObjectVariable, method)
    setattr(UserDefinedObjectVariable, method, lambda variable, tx, name: _bind(getattr_of, variable, tx, name))
    trace_rules.check_verbose = functools.partial(_check, trace_rules.check_verbose)
    for function in (_open_region, _open_call, _close, _key_of_options, _key_of_call, _takes_any_output, _is_exporting):
        torch.compiler.assume_constant_result(function)
    for original, traced in {
        _C.checkpoint.__wrapped__: _checkpoint,
        _C.region.__wrapped__: _region,
        _C.native_op.__wrapped__: _native_op,
        _C.op.__wrapped__: _op,
        _C.is_recomputing.__wrapped__: _is_recomputing,
        _C.recompute_needs_tensor.__wrapped__: _nothing,
        _C._push_functional_call: _nothing,  # only replays need the list of calls, and graphs have no replays
        _C._pop_functional_call: _nothing,
        torch_checkpoint.__wrapped__: _torch_checkpoint,
    }.items():
        torch._dynamo.decorators.substitute_in_graph(original, skip_signature_check=True)(traced)
    _graph_run.install()
    _higher_order.hide_compilers()


def install():
    _higher_order.install()
    _compiled_graphs.install()
    after_import("torch._dynamo", _teach_dynamo)


# The calls below change only our own types, so they need not wait for the first use of remat.
for _kind, _traced in zip((_C.Entry, *_KINDS), (_call_entry, _call_builder, _call_region, _call_named), strict=True):
    _C._set_traced(_kind, "__call__", _traced)
_C._set_graph_key_maker(_key)
