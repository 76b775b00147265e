# SPDX-License-Identifier: BSD-3-Clause

"""Access to the CUDA stand-in from Python. On a real GPU every function does nothing and reports zero."""

import ctypes

_program = ctypes.CDLL(None)


def available():
    """True if this process runs on the stand-in."""
    return hasattr(_program, "cuda_stand_in_garbage")


def _call(name, result, *arguments):
    if not available():
        return 0
    function = getattr(_program, name)
    function.restype = result
    return function(*arguments)


def order(name, seed=0):
    """Runs all that waits, then sets the order of streams: eager, lazy, side-lazy, side-eager or random."""
    _call("cuda_stand_in_set_order", None, ctypes.c_char_p(name.encode()), ctypes.c_uint(seed))


def garbage(show=True):
    """Returns the number of launches that nobody has computed, and prints their names."""
    return _call("cuda_stand_in_garbage", ctypes.c_uint64, ctypes.c_int(show))


def faults():
    """Returns the number of wrong accesses to device memory."""
    return _call("cuda_stand_in_faults", ctypes.c_uint64)


def reset():
    """Sets the counts of garbage and of faults to zero."""
    _call("cuda_stand_in_reset", None)


def capacity(size_bytes):
    """Sets the memory of each device."""
    _call("cuda_stand_in_set_capacity", None, ctypes.c_size_t(size_bytes))


def leave_out(bits):
    """Leaves out waits of side streams (1), of default streams (2), queries (4) and waits of the host (8)."""
    _call("cuda_stand_in_leave_out", None, ctypes.c_int(bits))
