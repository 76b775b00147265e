# SPDX-License-Identifier: BSD-3-Clause

"""Regions around a DistributedDataParallel module.

DDP's forward prepares the reduction of gradients for one backward and broadcasts buffers. Both happen once, in the forward,
hidden from regions; replays repeat only what DDP does to inputs and outputs.
"""

import functools

import torch
from torch.nn.parallel import DistributedDataParallel

from . import _C

_prepare = DistributedDataParallel._pre_forward
_finish = DistributedDataParallel._post_forward


def _check_kind(ddp):
    if ddp._delay_all_reduce_params or ddp._use_python_reducer or ddp.mixed_precision:
        raise NotImplementedError(
            "[checkpoint] DistributedDataParallel: expected to be called outside of regions, got a call inside one of a "
            "module with mixed_precision, delay_all_reduce_named_params or the reducer of Python. Put the "
            "regions inside of the module that it wraps, round its layers or all of it: DistributedDataParallel(model) "
            "where model.forward calls remat.checkpoint(...)(...)."
        )


@functools.wraps(_prepare)
def _pre_forward(self, *inputs, **kwargs):
    if not _C._in_scope():
        return _prepare(self, *inputs, **kwargs)
    _check_kind(self)
    if not _C._in_replay():
        _C._call_unseen(_prepare, self, *inputs, **kwargs)
    if self.device_ids:
        from torch.distributed.utils import _to_kwargs  # missing in some builds of LibTorch

        device = torch.device(self.device_type, self.device_ids[0])
        (inputs,), (kwargs,) = _to_kwargs(inputs, kwargs, device, self.use_side_stream_for_tensor_copies)
    return inputs, kwargs


@functools.wraps(_finish)
def _post_forward(self, output):
    """In a replay, runs as a forward without synchronization, which only copies the outputs."""
    if not _C._in_replay():
        return _finish(self, output)
    synchronizes = self.require_backward_grad_sync, self.require_forward_param_sync
    self.require_backward_grad_sync = self.require_forward_param_sync = False
    try:
        return _finish(self, output)
    finally:
        self.require_backward_grad_sync, self.require_forward_param_sync = synchronizes


def install():
    DistributedDataParallel._pre_forward = _pre_forward
    DistributedDataParallel._post_forward = _post_forward
