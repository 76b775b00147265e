# SPDX-License-Identifier: BSD-3-Clause

"""Compiled functions and higher-order operators (cond, scan, while_loop) in regions of eager code.

The ops that they call are the region's. What a compiler runs itself, with tensors that have no memory, is not: most of
these operators trace what they are given each time that they are called.
"""

import functools

import torch._ops

from . import _C


def _hidden(function):
    """A method."""
    return functools.wraps(function)(lambda self, *args, **kwargs: _C._call_compiler(function, self, *args, **kwargs))


def hide_compilers():
    """Imports what torch._dynamo has imported already."""
    from torch._dynamo.convert_frame import CatchErrorsWrapper
    from torch.fx.experimental.proxy_tensor import _MakefxTracer

    CatchErrorsWrapper.__call__ = _hidden(CatchErrorsWrapper.__call__)
    _MakefxTracer.trace = _hidden(_MakefxTracer.trace)
    _MakefxTracer.trace_subgraph = _hidden(_MakefxTracer.trace_subgraph)


def install():
    # Higher-order operators are Python's, with no kernel for the keys by which ops are seen; theirs follow.
    torch._ops.key_extractor = functools.partial(_C._call_without_bits, torch._ops.key_extractor)
