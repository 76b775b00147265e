# SPDX-License-Identifier: BSD-3-Clause

"""Scripts that cannot be changed: every model that they train gets the budget."""

import logging
import os
import runpy
import sys
import threading

import torch
from torch import nn

from . import _C
from ._auto_checkpoint import auto_checkpoint, is_auto_checkpointed

_logger = logging.getLogger("remat_meta")

_WRAPPERS = (nn.parallel.DistributedDataParallel, nn.DataParallel)


def _is_model(module):
    """Something to train, with parts: no loss and no single layer."""
    return any(p.requires_grad for p in module.parameters()) and next(module.children(), None) is not None


def wrap_outermost_modules(memory_budget):
    """From here on each model that is called in training mode, by no other module, is an auto_checkpoint().

    Returns a function that ends this; what was wrapped stays so. That one returns how many models were.
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

    def end():
        nn.Module.__call__ = call
        return len(wrapped)

    nn.Module.__call__ = call_and_wrap
    return end


def run_script(path, arguments, memory_budget):
    """Runs it as `python path arguments` would, within the budget, a text as REMAT_MEMORY_BUDGET has it."""
    _C._AutoCheckpoint("script", memory_budget, "", 1, None, None, None)  # refuses a budget that cannot be
    sys.argv = [path, *arguments]
    end = wrap_outermost_modules(memory_budget)
    try:
        runpy.run_path(os.path.abspath(path), run_name="__main__")
    finally:
        if end() == 0:
            _logger.info(
                f"[auto_checkpoint] {path}: no model got the budget: none with parts and parameters was called in training "
                "mode. Call auto_checkpoint() on what computes the step."
            )
