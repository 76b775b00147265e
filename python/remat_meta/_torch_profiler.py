# SPDX-License-Identifier: BSD-3-Clause

"""torch's profiler may start on a thread whose step is being measured.

Both hear of memory at the same place of the thread. A step is measured until the next one begins, so the profiler of a
training loop, which starts between steps, would find that place taken. Who records on purpose keeps it.
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
    """From here on a profiler that starts ends the measuring of the step before, which does not count."""
    for name in ("_prepare_profiler", "_enable_profiler"):
        setattr(profiler, name, _after_measuring(getattr(profiler, name)))
