# SPDX-License-Identifier: BSD-3-Clause

"""Telling regions of a backward inside their functions.

torch's Python calls its engine past the one that C++ installs, so its object is exchanged for one
that does the same and tells regions before and after. The first region of the process does that.
"""

import torch

from . import _C


class Engine(torch._C._ImperativeEngine):
    def run_backward(self, tensors, *args, **kwargs):
        if not _C._in_scope():
            return super().run_backward(tensors, *args, **kwargs)
        accumulates = kwargs.get("accumulate_grad", args[5] if len(args) > 5 else False)
        _C._before_backward([t for t in tensors if isinstance(t, torch.Tensor)], bool(accumulates))
        results = super().run_backward(tensors, *args, **kwargs)
        _C._after_backward()
        return results


def install():
    variable = torch.autograd.Variable
    # Somebody else's object is left as it is.
    if type(variable._execution_engine) is torch._C._ImperativeEngine:
        variable._execution_engine = Engine()
