# SPDX-License-Identifier: BSD-3-Clause

"""Runs unmodified scripts: their calls of torch.utils.checkpoint run on remat, or their models get a budget."""

import atexit
import builtins
import io
import logging
import os
import runpy
import sys
import threading
import types
import zipfile

import torch
from torch import nn

from . import _C
from ._auto_checkpoint import auto_checkpoint, is_auto_checkpointed
from ._torch_checkpoint import _Patch, torch_checkpoint

_logger = logging.getLogger("remat_meta")

_WRAPPERS = (nn.parallel.DistributedDataParallel, nn.DataParallel)


def _is_model(module):
    """Returns True for a module with submodules that trains parameters, unlike a loss or a single layer."""
    return any(p.requires_grad for p in module.parameters()) and next(module.children(), None) is not None


def wrap_outermost_modules(memory_budget):
    """From now on wraps each model in auto_checkpoint() when the program calls it in training mode, outside of other modules.

    Returns a function that returns the number of models wrapped so far.
    """
    call = nn.Module.__call__
    running = threading.local()
    wrapped = []

    def call_and_wrap(module, *args, **kwargs):
        depth = getattr(running, "depth", 0)
        if depth == 0 and module.training and torch.is_grad_enabled():
            model = module.module if isinstance(module, _WRAPPERS) else module
            if not is_auto_checkpointed(model) and _is_model(model):
                auto_checkpoint(model, memory_budget)
                wrapped.append(type(model).__name__)
        running.depth = depth + 1
        try:
            return call(module, *args, **kwargs)
        finally:
            running.depth = depth

    nn.Module.__call__ = call_and_wrap
    return lambda: len(wrapped)


def patch_and_watch():
    """Applies patch_torch_checkpoint() to the process. Returns a function that says whether checkpoint() was called since."""
    was_called = False

    def watched_checkpoint(*args, **kwargs):
        nonlocal was_called
        was_called = True
        return torch_checkpoint(*args, **kwargs)

    _Patch(watched_checkpoint)
    return lambda: was_called


def _run(script, is_module):
    """Runs a script as python does: in a module __main__ that stays, for threads and functions called at exit."""
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    if is_module:
        runpy._run_module_as_main(script)
    elif os.path.isdir(script) or zipfile.is_zipfile(script):
        sys.path[0] = script
        runpy._run_module_as_main("__main__", alter_argv=False)
    else:
        main.__file__, main.__builtins__ = os.path.abspath(script), builtins
        with io.open_code(main.__file__) as file:
            code = compile(file.read(), main.__file__, "exec")
        exec(code, main.__dict__)


def _log_at_exit(is_needed, text):
    """Logs the text if is_needed() at exit, when the script's remaining threads and its own exit functions have ended."""
    atexit.register(lambda: is_needed() and _logger.info(text))


def run_patched(script, is_module):
    was_called = patch_and_watch()
    _log_at_exit(
        lambda: not was_called(),
        f"[patch_torch_checkpoint] {script}: nothing ran on remat: torch.utils.checkpoint.checkpoint was not called, or by "
        "compiled code only, which keeps torch's own. Turn on the checkpointing of the model or its trainer, or give a budget: "
        "--memory-budget 60%.",
    )
    _run(script, is_module)


def check_budget(memory_budget):
    """Raises ValueError for an invalid budget."""
    _C._AutoCheckpoint("script", memory_budget, "", 1, None, None, None, None)


def run_within_budget(script, is_module, memory_budget):
    """Runs the script; the budget has the form of REMAT_MEMORY_BUDGET."""
    count = wrap_outermost_modules(memory_budget)
    _log_at_exit(
        lambda: count() == 0,
        f"[auto_checkpoint] {script}: no model got the budget: none with parts and parameters was called in training mode. Call "
        "auto_checkpoint() on what computes the step.",
    )
    _run(script, is_module)
