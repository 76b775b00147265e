# SPDX-License-Identifier: BSD-3-Clause

"""profile(): measures what a training step costs, op by op."""

import contextlib
import functools
import gc
import typing

import torch
from torch.autograd import profiler
from torch.nn.modules import module as nn_module

from . import _C
from ._C import StepProfile, checkpoint

_P = typing.ParamSpec("_P")
_R = typing.TypeVar("_R")


@contextlib.contextmanager
def named_by_module(recording, root=None):
    """While entered, tells a recording the paths of the running modules, such as "h.3.attn.c_proj".

    Paths start at `root`, or without one at the outermost module that is called.
    """
    names = {}
    running = []

    def add_names(module):
        names.update((id(inner), name) for name, inner in module.named_modules())

    if root is not None:
        add_names(root)

    def enter(module, args):
        if not running and root is None:
            names.clear()
            add_names(module)
        running.append(names.get(id(module), type(module).__name__))
        recording.enter(running[-1])

    def leave(module, args, output):
        if running:
            running.pop()
        recording.enter(running[-1] if running else "")

    hooks = [
        nn_module.register_module_forward_pre_hook(enter),
        nn_module.register_module_forward_hook(leave, always_call=True),
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


@contextlib.contextmanager
def _no_collection():
    """While entered, no garbage collection runs, since it would free memory that is not the step's."""
    was_enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _backward_of_loss(result):
    loss = result[0] if isinstance(result, (tuple, list)) and result else result
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1 or not loss.requires_grad:
        raise ValueError(
            "[profile] fn: expected it to return its loss, a tensor of one number that requires grad, or a tuple that "
            f"begins with it, got {type(result).__name__}. Return the loss, or pass backward=, which runs backward from "
            "what fn returns."
        )
    loss.backward()


def _ends_measuring(start):
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
def let_profilers_start():
    """Makes torch's profiler, when it starts on a thread, end and discard the measurement of the thread's previous step.

    LibTorch lets one observer of memory run on a thread, a profiler or a measurement. A step is measured until the next step
    begins, so a profiler that starts between steps would be refused. With an open Recorder or MemoryMeter the profiler raises.
    """
    for name in ("_prepare_profiler", "_enable_profiler"):
        setattr(profiler, name, _ends_measuring(getattr(profiler, name)))


def profile(
    fn: typing.Callable[_P, _R],
    *,
    steps: int = 4,
    name: str | None = None,
    backward: typing.Callable[[_R], object] | None = None,
) -> typing.Callable[_P, StepProfile]:
    """profile(fn)(*args) measures training steps of fn and returns a StepProfile.

    fn returns its loss, or `backward` runs backward from its result. steps + 1 steps run, with most tensors recomputed.
    Afterwards leaves have their old .grad; other changes stay, such as those of running statistics and random generators.

    Raises NotImplementedError for an op, region or node that no tape can replay or no plan supports, with its name;
    ValueError for an invalid step; RuntimeError if steps run different ops.
    """
    if isinstance(steps, bool) or not isinstance(steps, int):
        raise TypeError(f"[profile] steps: expected an int, got {type(steps).__name__}.")
    if name is not None and not isinstance(name, str):
        raise TypeError(f"[profile] name: expected a str, got {type(name).__name__}.")

    def measure(*args: _P.args, **kwargs: _P.kwargs) -> StepProfile:
        label = getattr(fn, "__qualname__", type(fn).__name__) if name is None else name
        result: typing.Any = None

        def forward(cuts, recording):
            nonlocal result
            with named_by_module(recording):
                result = checkpoint(replay="tape", region_name=label, _cuts=cuts)(fn)(*args, **kwargs)

        def drop():
            nonlocal result
            result = None

        with _no_collection():
            return _C._profile_steps(forward, lambda: (backward or _backward_of_loss)(result), drop, label, steps)

    return measure
