# SPDX-License-Identifier: BSD-3-Clause

"""Lets torch's profiler start on a thread whose step is being measured.

Both use the same slot of the thread to observe memory. A step is measured until the next one begins, so a training loop's
profiler, which starts between steps, would find the slot taken. An explicit recording keeps the slot.
"""

import functools

from torch.autograd import profiler

from . import _C


def _after_measuring(start):
    @functools.wraps(start)
    def started(*args, **kwargs):
        _C._give_up_measured_step()
        if _C._is_memory_heard():
            raise RuntimeError(
                "[torch.profiler] start: expected nobody who hears of this thread's memory, got an open Recorder or "
                "MemoryMeter of remat. End that first, or begin it on another thread."
            )
        return start(*args, **kwargs)

    return started


@functools.cache
def let_it_start():
    """From now on a starting profiler ends the measurement of the previous step, which is discarded."""
    for name in ("_prepare_profiler", "_enable_profiler"):
        setattr(profiler, name, _after_measuring(getattr(profiler, name)))
