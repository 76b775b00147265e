# SPDX-License-Identifier: BSD-3-Clause

"""Runs the regions in a graph of Dynamo.

A backend that traces the graph again (aot_eager, inductor) gets torch's own checkpoint, with contexts made from our policy.
A backend that calls the graph as it is ("eager", or one that returns graph.forward) would run torch's checkpoint too, which
would lose random numbers and write buffers twice. With such a backend a region runs as a region of ours, as in eager code.
"""

import contextlib
import functools
import threading

import torch
import torch.utils.checkpoint as stock

from . import _C
from ._graph_policy import CALL, Answers, contexts_of, options_of, region_of
from ._graph_writes import check_writes, note_writes
from ._policy import CheckpointPolicy
from ._torch_compat import tag_nodes


def _notes_of(node):
    return node.meta.get("custom") or {}


def _targets(graph):
    """Yields the functions that the graph calls, and those of the graphs that it calls."""
    for module in graph.modules():
        if isinstance(module, torch.fx.GraphModule):
            yield from (node.target for node in module.graph.nodes if node.op == "call_function")


def _has_notes(graph, *kinds):
    return any(note.startswith(kinds) for node in graph.graph.nodes for note in _notes_of(node))


def _needs_contexts(key, graph):
    """Returns True if a policy, a named call or a collective decides what the region keeps. Otherwise it keeps nothing, and runs
    without contexts, under which torch.func's transforms do not work."""
    has_collectives = any("c10d" in str(target) for target in _targets(graph))
    return has_collectives or _has_notes(graph, CALL) or _C._has_policy(region_of(key))


class _Graph(torch.fx.Interpreter):
    """Runs a region's graph once, and makes the notes of the running node available to _policy()."""

    here = threading.local()

    def __init__(self, graph, key, args):
        super().__init__(graph)
        self._answers = Answers(key, [arg for arg in args if _is_weight(arg)])

    @contextlib.contextmanager
    def _set_current_node(self, node):  # without torch's record of the node, which all threads share
        self.here.answers, self.here.notes = self._answers, _notes_of(node)
        yield


def _policy(context, op, *args, **kwargs):
    """The policy function of the regions that _run_as_region() makes."""
    is_saved = _Graph.here.answers.is_saved(context, op, args, kwargs, _Graph.here.notes)
    return CheckpointPolicy.SAVE if is_saved else None


def _check_runs(graph):
    is_transformed = torch._C._functorch.peek_interpreter_stack() is not None
    for target in _targets(graph):
        if is_transformed or "functorch" in (getattr(target, "__module__", "") or ""):
            raise NotImplementedError(
                f"[compile] region, op {target}: expected a backend that compiles it (aot_eager, inductor), got one that calls "
                "the graph as it is, where a region does not know torch.func's transforms. Take another backend, or call it "
                "outside of the region."
            )


def _run_as_region(key, graph, args):
    _check_runs(graph)
    options = options_of(key) | {"_any_output": True}
    options["policy"] = _policy if _needs_contexts(key, graph) else None
    return _C.checkpoint(**options)(lambda *args: _Graph(graph, key, args).run(*args))(*args)


def _weights(graph, args):
    """Returns the arguments that are leaves and require grad. Looks at the graph's example values, as `args` may be no leaves."""
    inputs = [node.meta.get("example_value") for node in graph.graph.nodes if node.op == "placeholder"]
    return [arg for value, arg in zip(inputs, args, strict=True) if _is_weight(value)]


def _is_weight(value):
    return isinstance(value, torch.Tensor) and value.is_leaf and value.requires_grad


def _in_contexts(run, args, contexts):
    """Runs torch's checkpoint and closes its contexts, which torch leaves open as long as an exception of `run` is kept."""
    checkpoint = stock._checkpoint_without_reentrant_generator(run, False, contexts, "default", False, True, *args)
    with contextlib.closing(checkpoint):
        next(checkpoint)
        result = run(*args)
        next(checkpoint, None)
    return result


def _run_traced(key, graph, args):
    if torch.is_grad_enabled():
        check_writes(graph)
    contexts = functools.partial(contexts_of, key, _weights(graph, args)) if _needs_contexts(key, graph) else None
    numbered = tag_nodes(graph, contexts)
    with torch.fx.traceback.preserve_node_meta():
        run = torch.fx.Interpreter(graph).run
        return _in_contexts(run, args, numbered) if contexts else run(*args)


def _run(original, graph, *args, **kwargs):
    contexts = graph.meta.get("_checkpoint_context_fn")
    if not isinstance(contexts, functools.partial) or contexts.func is not contexts_of:
        return original(graph, *args, **kwargs)
    is_traced = torch._guards.TracingContext.try_get() is not None or torch._guards.detect_fake_mode(args) is not None
    return (_run_traced if is_traced else _run_as_region)(*contexts.args, graph, args)


def _with_notes(call_compiler):
    """Wraps the method that calls the backend with a whole graph."""

    @functools.wraps(call_compiler)
    def call(self, graph, *args, **kwargs):
        note_writes(graph)
        return call_compiler(self, graph, *args, **kwargs)

    return call


def install():
    from torch._dynamo.output_graph import OutputGraph
    from torch._higher_order_ops import wrap

    OutputGraph.call_user_compiler = _with_notes(OutputGraph.call_user_compiler)
    wrap.tag_activation_checkpoint_impl = functools.partial(_run, wrap.tag_activation_checkpoint_impl)
