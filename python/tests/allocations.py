# SPDX-License-Identifier: BSD-3-Clause

"""Bytes that this process has taken from the C library and from the system."""

import ctypes
import os


class MallInfo(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in (
        "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks",
        "fordblks", "keepcost")]


mallinfo2 = ctypes.CDLL(None).mallinfo2
mallinfo2.restype = MallInfo


def allocated_bytes():
    info = mallinfo2()
    return info.uordblks + info.hblkhd


def open_files():
    return len(os.listdir("/proc/self/fd"))
