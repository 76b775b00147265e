# SPDX-License-Identifier: BSD-3-Clause

"""What the checks share that ranks.py runs."""

import collections
import time

from torch.autograd import ProfilerActivity, _disable_profiler, _enable_profiler, _prepare_profiler
from torch.autograd.profiler import profile


def executed(run, prefix="gloo:"):
    """What this rank has done meanwhile of the profiler's events that begin so, by the rest of their names, and what `run`
    returns. Gloo reduces and scatters by an all-reduce, and counts it as one. As torch.profiler, which would make a tree of
    all events: ten times the time of these programs."""
    config = profile(use_kineto=True).config(create_trace_id=False)
    activities = {ProfilerActivity.CPU}
    _prepare_profiler(config, activities)
    _enable_profiler(config, activities)
    try:
        result = run()
        if prefix == "gloo:":
            time.sleep(0.02)  # gloo ends a collective's event after its future, which is what some wait for
    finally:
        events = _disable_profiler().events()
    names = (event.name() for event in events)
    return collections.Counter(name.removeprefix(prefix) for name in names if name.startswith(prefix)), result
