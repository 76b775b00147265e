# SPDX-License-Identifier: BSD-3-Clause

"""Making a tensor of a Python class of its parts again."""

import sys
import weakref

_made_again = weakref.WeakSet()  # classes that have been seen to make tensors of their own


def unflatten(cls, inner, context, size, stride):
    """As cls.__tensor_unflatten__(). A jagged tensor is known by its offsets, which are others here."""
    jagged = sys.modules.get("torch.nested._internal.nested_tensor")
    if jagged and issubclass(cls, jagged.NestedTensor):
        ragged = inner.get("_lengths", inner["_offsets"])
        jagged._tensor_symint_registry[ragged] = size[context["ragged_idx"]]
    return cls.__tensor_unflatten__(inner, context, size, stride)


def can_be_made_again(tensor, names, context, others):
    """False for a class that has __tensor_unflatten__ of its base, which makes tensors of that one. Once per class."""
    cls = type(tensor)
    if cls not in _made_again:
        inner = {name: getattr(tensor, name) for name in names} | others
        if type(unflatten(cls, inner, context, tensor.size(), tensor.stride())) is not cls:
            return False
        _made_again.add(cls)
    return True
