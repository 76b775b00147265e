# SPDX-License-Identifier: BSD-3-Clause

"""What a region's graph writes of memory that it has from outside.

A compiler's checkpoint runs ops again that read such memory, after the writes of the forward: wrong gradients, of which
nothing tells. A region without a compiler puts back what the ops have read. So a graph that does both is refused.
"""

import torch

from ._graph_policy import CALL

_OPERATORS = {f"i{name}" for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or", "xor")}


def _memory_of(node):
    value = node.meta.get("example_value")
    while isinstance(value, torch.Tensor) and torch._C._functorch.is_functorch_wrapped_tensor(value):
        value = torch._C._functorch.get_unwrapped(value)
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return None
    return value.untyped_storage()._cdata


def _schemas(target):
    if isinstance(target, torch._ops.OpOverload):
        return [target._schema]
    if isinstance(target, torch._ops.OpOverloadPacket):
        return [getattr(target, overload)._schema for overload in target.overloads()[:1]]
    return []


def _writes(node):
    """Nodes of tensors that the node writes."""
    for schema in _schemas(node.target):
        given = dict(zip((argument.name for argument in schema.arguments), node.args, strict=False)) | node.kwargs
        yield from (given.get(a.name) for a in schema.arguments if a.alias_info and a.alias_info.is_write)
    name = node.target if node.op == "call_method" else getattr(node.target, "__name__", "")
    is_in_place = name.endswith("_") and not name.endswith("__")
    if node.args and (is_in_place or name in _OPERATORS or name == "setitem" or node.kwargs.get("inplace") is True):
        yield node.args[0]
    out = node.kwargs.get("out")
    yield from out if isinstance(out, (list, tuple)) else (out,)


def _written(node, outside):
    """The memory from outside that it writes."""
    nodes = (one for one in _writes(node) if isinstance(one, torch.fx.Node))
    return {_memory_of(one) for one in nodes} & outside


def _is_saved(node):
    notes = node.meta.get("custom") or {}
    return any(note.startswith(CALL) and said != "recompute" for note, said in notes.items())


def _read(node, written):
    """What of that memory the node reads; views read nothing, and who writes does not count."""
    views = {_memory_of(node)} if isinstance(node.meta.get("example_value"), torch.Tensor) else set()
    return {_memory_of(one) for one in node.all_input_nodes} & written - views - _written(node, written)


def check_writes(graph):
    nodes = [node for node in graph.graph.nodes if node.op != "output"]
    outside = {_memory_of(node): node for node in nodes if node.op == "placeholder" and _memory_of(node)}
    writers = {memory: node for node in nodes if not _is_saved(node) for memory in _written(node, outside.keys())}
    for reader in nodes:
        for memory in _read(reader, writers.keys()):
            raise NotImplementedError(
                f"[compile] region, op {reader.target}: expected it to read nothing that the region writes and has from outside, "
                f"got {outside[memory].name}, which op {writers[memory].target} writes: run again in the backward, it would read "
                "what is written. Write it outside of the region, put both into a SAVE call, or call the region outside of the "
                "compiled function."
            )
