# SPDX-License-Identifier: BSD-3-Clause

"""Refusing a DistributedDataParallel module inside a region."""

import functools

from torch.nn.parallel import DistributedDataParallel

from . import _C

_prepare = DistributedDataParallel._pre_forward


@functools.wraps(_prepare)
def _pre_forward(self, *inputs, **kwargs):
    if _C._in_scope():
        raise NotImplementedError(
            "[checkpoint] DistributedDataParallel: expected to be called outside of regions, got a "
            "call inside one. Its forward prepares the reduction of gradients for one backward, and "
            "a replay, in the middle of that backward, would prepare it again. Put the regions "
            "inside of the module that it wraps, round its layers or all of it: "
            "DistributedDataParallel(model) where model.forward calls remat.checkpoint(...)(...)."
        )
    return _prepare(self, *inputs, **kwargs)


def install():
    DistributedDataParallel._pre_forward = _pre_forward
