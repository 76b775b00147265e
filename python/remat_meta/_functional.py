# SPDX-License-Identifier: BSD-3-Clause

"""Telling regions of torch.func.functional_call around them.

It exchanges a module's parameters for the time of a call and puts them back before backward; the
replay of a region inside puts those of the call in again. `import remat_meta` does that.
"""

import contextlib
import functools

from torch.nn.utils import stateless

from . import _C

_swap = stateless._reparametrize_module


@functools.wraps(_swap)
@contextlib.contextmanager
def _reparametrize_module(module, parameters_and_buffers, *args, **kwargs):
    # A copy: at its end torch puts values of the module's into the user's dict.
    _C._push_functional_call((module, dict(parameters_and_buffers), args, kwargs))
    try:
        with _swap(module, parameters_and_buffers, *args, **kwargs):
            yield
    finally:
        _C._pop_functional_call()


def enter(calls):
    """Enters the calls again, the outermost first; close() of what is returned leaves them."""
    with contextlib.ExitStack() as stack:
        for module, tensors, args, kwargs in calls:
            # By the wrapper: regions inside a replay are inside of these calls too.
            stack.enter_context(_reparametrize_module(module, tensors.copy(), *args, **kwargs))
        return stack.pop_all()


def install():
    stateless._reparametrize_module = _reparametrize_module
