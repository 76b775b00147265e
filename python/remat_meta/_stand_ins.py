# SPDX-License-Identifier: BSD-3-Clause

"""What a replay's ops are given in place of tensors from outside."""

import torch

from . import _C


def stand_ins(tensors):
    """Of these tensors, in a replay: what is in its graph. Others than tensors are as they are."""
    return tuple(_C._stand_in(t) if isinstance(t, torch.Tensor) else t for t in tensors or ())
