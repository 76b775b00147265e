# SPDX-License-Identifier: BSD-3-Clause

"""Rebuilds a tensor of a Python class from its parts."""

import sys
import weakref

_made_again = weakref.WeakSet()  # classes that were seen to build tensors of their own class


def unflatten(recipe, parts):
    """Calls __tensor_unflatten__() of the recipe's class. First assigns a jagged tensor's symbolic size to its new offsets, so
    that its shape stays the same."""
    cls, names, others, context, size, stride = recipe
    inner = others | dict(zip(names, parts, strict=True))
    jagged = sys.modules.get("torch.nested._internal.nested_tensor")
    if jagged and issubclass(cls, jagged.NestedTensor):
        ragged = inner.get("_lengths", inner["_offsets"])
        jagged._tensor_symint_registry[ragged] = size[context["ragged_idx"]]
    return cls.__tensor_unflatten__(inner, context, size, stride)


def can_be_made_again(tensor, recipe):
    """Returns False for a class whose inherited __tensor_unflatten__ builds tensors of the base class. Tries a class
    until it has succeeded once."""
    cls, names, *_ = recipe
    if cls not in _made_again:
        if type(unflatten(recipe, [getattr(tensor, name) for name in names])) is not cls:
            return False
        _made_again.add(cls)
    return True
