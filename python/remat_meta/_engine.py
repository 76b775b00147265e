# SPDX-License-Identifier: BSD-3-Clause

"""Reports to regions the backward passes inside their functions.

torch's Python code calls its own engine object, not the engine that remat installs in C++. So an Engine takes the place of
that object and also reports each backward to regions, before and after. The first region of the process installs it.
"""

import functools

import torch

from . import _C, _agreement, _ddp
from ._compiled_graphs import stand_ins


def _edges(tensors):
    """Returns the tensors that require grad at which a backward starts or ends; GradientEdge objects are left out."""
    return [t for t in tensors if isinstance(t, torch.Tensor) and t.requires_grad]


class Engine(torch._C._ImperativeEngine):
    def run_backward(self, tensors, *args, **kwargs):
        accumulates = bool(kwargs.get("accumulate_grad", args[5] if len(args) > 5 else False))
        if not _C._in_scope():
            _agreement.before_backward()
            if not kwargs.get("create_graph", args[2] if len(args) > 2 else False):
                return super().run_backward(tensors, *args, **kwargs)
            return _C._with_plain_numbers(super().run_backward, _edges(tensors), accumulates, tensors, *args, **kwargs)
        if _C._in_replay():
            tensors, args, kwargs = stand_ins(tensors), list(args), dict(kwargs)
            if "inputs" in kwargs:
                kwargs["inputs"] = stand_ins(kwargs["inputs"])
            elif len(args) > 3:
                args[3] = stand_ins(args[3])
        inputs = kwargs.get("inputs", args[3] if len(args) > 3 else None)
        _C._before_backward(_edges(tensors), _edges(inputs or ()), accumulates)
        results = _C._on_this_thread(super().run_backward, tensors, *args, **kwargs)
        _C._after_backward([t for t in results or () if t is not None])
        return results


@functools.cache
def install():
    _ddp.install()
    _agreement.install()
    variable = torch.autograd.Variable
    # Keep an engine that another library has installed.
    if type(variable._execution_engine) is torch._C._ImperativeEngine:
        variable._execution_engine = Engine()
