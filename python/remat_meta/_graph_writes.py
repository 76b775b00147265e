# SPDX-License-Identifier: BSD-3-Clause

"""Finds writes of a graph with regions to memory from outside the graph: buffers, captured tensors, arguments.

Compiled code writes such memory at the end of its forward. Ops that its checkpoint runs again in the backward then read the
written values, and gradients are silently wrong. (In eager code a region restores the values that the ops have read, or
raises.) So a region is refused if it reads memory that is written later, or if ops outside of the region read memory
that it writes. Memory that the graph allocates is safe, and so is memory that is only written, as running statistics are.
"""

import inspect
from collections import namedtuple

import torch

from ._graph_policy import CALL, policy_of_call, region_of
from ._policy import CheckpointPolicy

_OPERATORS = {f"i{name}" for name in (
    "add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or", "xor", "lshift", "rshift",
)}  # fmt: skip
_OPERATORS |= {f"__{name}__" for name in _OPERATORS} | {"setitem", "__setitem__"}
_STATISTICS = ("running_mean", "running_var", "input_mean", "input_var")
_Use = namedtuple("_Use", "node region place is_saved")  # `region`: the region's graph; None outside regions


def _memory_of(value):
    if isinstance(value, torch.fx.Node):
        value = value.meta.get("example_value")
    while isinstance(value, torch.Tensor) and torch._C._functorch.is_functorch_wrapped_tensor(value):
        value = torch._C._functorch.get_unwrapped(value)
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return None
    return value.untyped_storage()._cdata


def _schemas(target):
    if isinstance(target, torch._ops.OpOverload):
        return [target._schema]
    if isinstance(target, torch._ops.OpOverloadPacket):
        return [getattr(target, overload)._schema for overload in target.overloads()]
    return []


def _named_arguments(node):
    try:
        return inspect.signature(node.target).bind_partial(*node.args, **node.kwargs).arguments
    except (TypeError, ValueError):
        return node.kwargs


def _writes(node):
    """Yields the arguments that the node writes. An argument is a node or a list of nodes."""
    for schema in _schemas(node.target):
        given = dict(zip((argument.name for argument in schema.arguments), node.args, strict=False)) | node.kwargs
        yield from (given.get(a.name) for a in schema.arguments if a.alias_info and a.alias_info.is_write)
    name = node.target if node.op == "call_method" else getattr(node.target, "__name__", "")
    given = _named_arguments(node) if callable(node.target) else node.kwargs
    is_in_place = name.endswith("_") and not name.endswith("__")
    if node.args and (is_in_place or name in _OPERATORS or given.get("inplace") is True):
        yield node.args[0]
    yield node.kwargs.get("out")
    if name in ("batch_norm", "instance_norm"):
        builtin = node.args[3:5] if node.target in (torch.batch_norm, torch.instance_norm) else ()
        yield [*builtin, *(given.get(statistic) for statistic in _STATISTICS)]


def _declared_writes(node):
    found = set()
    for written in _writes(node):
        torch.fx.node.map_arg(written, lambda one: found.add(_memory_of(one)))
    return found


def _is_plain(value):
    return (
        isinstance(value, torch._subclasses.FakeTensor)
        and value.layout is torch.strided
        and not torch._C._functorch.is_functorch_wrapped_tensor(value)
    )


def _writes_when_run(node):
    """Runs the node with tensors without data, and returns the memory whose version rises, because some functions write memory
    without declaring it, as embedding(max_norm=1) does."""
    mode = torch._guards.detect_fake_mode()
    given = {one: one.meta.get("example_value") for one in node.all_input_nodes}
    if mode is None or not all(_is_plain(value) for value in given.values() if isinstance(value, torch.Tensor)):
        return set()

    def fresh(one):
        value = given[one]
        if not isinstance(value, torch.Tensor):
            return value
        fakes[one] = torch.empty_strided(value.size(), value.stride(), dtype=value.dtype, device=value.device)
        return fakes[one]

    fakes = {}
    try:
        with mode, torch.no_grad():
            args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), fresh)
            versions = {one: fake._version for one, fake in fakes.items()}
            call = node.target if node.op == "call_function" else getattr(type(args[0]), node.target)
            call(*args, **kwargs)
    except Exception:
        return set()  # the node cannot run by itself, so only its declared writes count
    return {_memory_of(one) for one, fake in fakes.items() if fake._version != versions[one]}


def _written(node, outside):
    if not any(_memory_of(one) in outside for one in node.all_input_nodes):
        return set()
    return (_declared_writes(node) | _writes_when_run(node)) & outside


def _read(node):
    """Returns the memory that the node reads. Views read nothing."""
    views = {_memory_of(node)} if isinstance(node.meta.get("example_value"), torch.Tensor) else set()
    return {_memory_of(one) for one in node.all_input_nodes} - views


def _is_saved(node, region):
    """Returns True for a node in a named call that the region's policy, or else the call's own policy, keeps."""
    notes = node.meta.get("custom") or {}
    calls = {note.removeprefix(CALL): policy for note, policy in notes.items() if note.startswith(CALL)}
    if region is None or not calls:
        return False
    checkpoint = region_of(region.meta["_checkpoint_context_fn"].args[0])
    policies = [policy_of_call(checkpoint, name, given) for name, given in calls.items()]
    return any(policy is not CheckpointPolicy.RECOMPUTE for policy in policies)


def _nodes_of(graph, region=None):
    """Yields (node, region) in the order in which nodes run."""
    for node in graph.graph.nodes:
        inner = [one for one in node.all_input_nodes if one.op == "get_attr"] if node.op == "call_function" else []
        graphs = [g for g in (getattr(graph, str(one.target), None) for one in inner) if isinstance(g, torch.fx.GraphModule)]
        is_region = node.target is torch.ops.higher_order.tag_activation_checkpoint
        for one in graphs:
            yield from _nodes_of(one, one if is_region and region is None else region)
        if node.op in ("call_function", "call_method") and not graphs:
            yield node, region


def _uses(graph, outside):
    """Returns the readers and the writers of each memory in `outside`."""
    reads, writes = {}, {}
    for place, (node, region) in enumerate(_nodes_of(graph)):
        use = _Use(node, region, place, _is_saved(node, region))
        written = _written(node, outside)
        for memory in written:
            writes.setdefault(memory, []).append(use)
        for memory in _read(node) & outside - written:
            reads.setdefault(memory, []).append(use)
    return reads, writes


def _is_wrong(read, write):
    reads_again = read.region is not None and not read.is_saved and write.place > read.place
    is_near = read.region is None or read.region is write.region
    writes_again = write.region is not None and not write.is_saved and read.place > write.place and is_near
    return reads_again or writes_again


def _name(node):
    return getattr(node.target, "__name__", node.target)


def _refusal(names, memory, read, write):
    return (
        f"[compile] region, op {_name(read.node)}: expected memory from outside that is not both read and written, got "
        f"{names[memory]}, which op {_name(write.node)} writes: an op that is run again in the backward would read what is "
        "written. Read a copy (clone() it before), write it before the region, put what reads and writes it into a SAVE call, "
        "or call the region outside of the compiled function."
    )


def note_writes(graph):
    """For each region that must be refused, stores the reason in the meta of its node. `graph` is the whole graph."""
    if all(region is None for _, region in _nodes_of(graph)):
        return
    names = {_memory_of(node): node.name for node in graph.graph.nodes if node.op == "placeholder"}
    reads, writes = _uses(graph, {memory for memory in names if memory})
    for memory, writers in writes.items():
        for read in reads.get(memory, ()):
            for write in writers:
                if _is_wrong(read, write):
                    region = read.region if read.region is not None else write.region
                    region.meta["remat refusal"] = _refusal(names, memory, read, write)


def check_writes(region):
    if refusal := region.meta.get("remat refusal"):
        raise NotImplementedError(refusal)
