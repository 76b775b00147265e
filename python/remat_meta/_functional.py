# SPDX-License-Identifier: BSD-3-Clause

"""Reports torch.func.functional_call to the regions inside it.

functional_call swaps a module's parameters during a call and restores them before backward, so the replay of a region
inside the call swaps them again. The first use of remat installs this: Note [First use] in before_region.h.
"""

import contextlib
import functools
import sys

from torch.nn.utils import stateless

from . import _C

_swap = stateless._reparametrize_module


@functools.wraps(_swap)
@contextlib.contextmanager
def _reparametrize_module(module, parameters_and_buffers, *args, **kwargs):
    # Pass a copy, because torch puts values of the module into the user's dict at the end of the call.
    _C._push_functional_call((module, dict(parameters_and_buffers), args, kwargs))
    try:
        with _swap(module, parameters_and_buffers, *args, **kwargs):
            yield
    finally:
        _C._pop_functional_call()


def enter(calls):
    """Enters the calls again, the outermost first. Close the result to leave them."""
    with contextlib.ExitStack() as stack:
        for module, tensors, args, kwargs in calls:
            # Use the wrapper, because regions inside a replay are inside these calls, too.
            stack.enter_context(_reparametrize_module(module, tensors.copy(), *args, **kwargs))
        return stack.pop_all()


def _is_open():
    """Returns True if any thread is in a functional_call."""
    code = stateless._functional_call.__code__
    for frame in sys._current_frames().values():
        while frame is not None:
            if frame.f_code is code:
                return True
            frame = frame.f_back
    return False


def install():
    """Returns False, and installs nothing, while a functional_call is open, because its begin was not reported."""
    global _swap
    _swap = stateless._reparametrize_module
    stateless._reparametrize_module = _reparametrize_module
    if not _is_open():
        return True
    stateless._reparametrize_module = _swap
    return False
