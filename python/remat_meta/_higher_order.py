# SPDX-License-Identifier: BSD-3-Clause

"""Compiled functions and higher-order operators (cond, scan, while_loop) in regions of eager code.

The ops that these functions call belong to the region. Most higher-order operators also trace their functions at each call,
with ops on tensors without memory. These ops do not belong to the region.
"""

import functools

import torch._ops

from . import _C


def _hidden(function):
    """Returns a method that runs `function` hidden from regions."""
    return functools.wraps(function)(lambda self, *args, **kwargs: _C._call_compiler(function, self, *args, **kwargs))


def hide_compilers():
    """Call after torch._dynamo has been imported, so that the imports here are cached."""
    from torch._dynamo.convert_frame import CatchErrorsWrapper
    from torch.fx.experimental.proxy_tensor import _MakefxTracer

    CatchErrorsWrapper.__call__ = _hidden(CatchErrorsWrapper.__call__)
    _MakefxTracer.trace = _hidden(_MakefxTracer.trace)
    _MakefxTracer.trace_subgraph = _hidden(_MakefxTracer.trace_subgraph)


def install():
    # Higher-order operators are written in Python, and have kernels only for keys below the interception keys. So these keys are
    # off while torch finds the keys of a call's arguments.
    torch._ops.key_extractor = functools.partial(_C._call_without_bits, torch._ops.key_extractor)
