# SPDX-License-Identifier: BSD-3-Clause

"""Handles differences between the versions of torch that remat_meta supports, 2.10 to 2.15; the C++ half is in
engine/support/include/remat/engine/torch_compat.h."""

import itertools

import torch.utils.checkpoint as stock


def getattr_method(variable_class):
    """Returns the name of the method by which Dynamo reads an attribute: (variable, tx, name)."""
    return "var_getattr" if hasattr(variable_class, "var_getattr") else "tp_getattro_impl"  # since 2.14


def attribute_of_class(getattr_of, variable, tx, name, value):
    """Returns Dynamo's variable for `value`, which the class of `variable` has under that name. `getattr_of` is Dynamo's own
    method; since 2.14 that method turns a C descriptor into a method that Dynamo cannot call."""
    if hasattr(variable, "var_getattr"):
        return getattr_of(variable, tx, name)
    source = variable.get_source_by_walking_mro(tx, name) if variable.source else None
    return type(variable).build(tx, value, source)


def fsdp_groups(state):
    """Returns the parameter groups of a module that fully_shard has sharded; since 2.12 there may be several."""
    groups = getattr(state, "_fsdp_param_groups", None)
    if groups is None:
        groups = [state._fsdp_param_group]
    return [group for group in groups if group is not None]


_graph_numbers = itertools.count(1 << 32)  # beyond torch's own numbers


def tag_nodes(graph, contexts=None):
    """Marks the nodes of a graph as one checkpoint for the compiler's partitioner. Without contexts all nodes are recomputed;
    with contexts, returns contexts that decide for each node."""
    number = next(_graph_numbers)
    for node in graph.graph.nodes:
        if node.op in ("call_function", "call_method", "call_module"):
            node.meta["ac_graph_id"] = number
            node.meta["recompute"] = None if contexts else stock.CheckpointPolicy.PREFER_RECOMPUTE

    def numbered():
        forward, recompute = contexts()
        forward.ac_graph_id = number  # since 2.12 the contexts write the number to all nodes that they see
        return forward, recompute

    return numbered
