# SPDX-License-Identifier: BSD-3-Clause

"""Rebuilds a tensor of a Python class from its parts."""

import sys
import weakref

_made_again = weakref.WeakSet()  # classes that were seen to build tensors of their own class


def unflatten(cls, inner, context, size, stride):
    """As cls.__tensor_unflatten__(). A jagged tensor is identified by its offsets, which differ here."""
    jagged = sys.modules.get("torch.nested._internal.nested_tensor")
    if jagged and issubclass(cls, jagged.NestedTensor):
        ragged = inner.get("_lengths", inner["_offsets"])
        jagged._tensor_symint_registry[ragged] = size[context["ragged_idx"]]
    return cls.__tensor_unflatten__(inner, context, size, stride)


def can_be_made_again(tensor, names, context, others):
    """Returns False for a class whose inherited __tensor_unflatten__ builds tensors of the base class. Runs once per class."""
    cls = type(tensor)
    if cls not in _made_again:
        inner = {name: getattr(tensor, name) for name in names} | others
        if type(unflatten(cls, inner, context, tensor.size(), tensor.stride())) is not cls:
            return False
        _made_again.add(cls)
    return True
